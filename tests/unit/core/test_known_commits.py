"""Where rows were committed: kept with what is stored as it was handed over, by whichever lane."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sidecar.core.settle import Arrival, Limits, known_commits, settle
from sidecar.feed.pool import HeldBack
from tests.unit.core.build import EPOCH, by_id, chain, covered, ev, placed, pool_of


def _row(event: Any, commit_lsn: int | None) -> Any:
    (row,) = pool_of(event).values()
    return replace(row, commit_lsn=commit_lsn)


def test_rows_that_extend_that_wait_and_that_are_stored_keep_their_positions() -> None:
    stored = placed(chain(1, 2))
    events = {row.event.event_id: row.event for row in stored}
    arrival = Arrival(
        partition=covered(chain(1, 2)),
        rows=(_row(events[2], 20), _row(ev(3, 2), 30), _row(ev(9, 8), 90), _row(ev(4, 3), None)),
        pool={},
        stored=by_id(stored),
        stored_rows=2,
        max_seq=2,
        reread=False,
        room=100,
    )
    settled = settle(arrival, epoch=EPOCH, now=9, limits=Limits())
    assert [row.event.event_id for row in settled.run] == [3, 4]
    execution = events[2].execution_id
    assert known_commits(arrival, settled) == {(execution, 2): 20, (execution, 3): 30}
    assert settled.pool[9].commit_lsn == 90, "it waits, and keeps its position for later"


def test_a_position_is_not_kept_with_other_bytes() -> None:
    stored = placed(chain(1, 2))
    other = replace(_row(stored[1].event, 20), event=ev(2, 1, note="other"))
    arrival = Arrival(covered(chain(1, 2)), (other,), {}, by_id(stored), 2, 2, False, 100)
    settled = settle(arrival, epoch=EPOCH, now=9, limits=Limits())
    assert known_commits(arrival, settled) == {}


def test_a_row_that_waits_takes_its_position_from_the_lane_that_has_it() -> None:
    held, row = HeldBack(), _row(ev(9, 8), None)
    execution = row.event.execution_id
    held.keep({execution: {9: row}}, {})
    again = replace(row, commit_lsn=90)
    assert held.knows(again)
    held.learn(again)
    assert held.of(execution)[9].commit_lsn == 90
    held.learn(replace(row, commit_lsn=91))
    assert held.of(execution)[9].commit_lsn == 90


def test_two_versions_of_one_transaction_are_two() -> None:
    held, row = HeldBack(), _row(ev(9, 8), 90)
    execution = row.event.execution_id
    held.keep({execution: {9: row}}, {})
    assert held.knows(row)
    assert not held.knows(replace(row, event=ev(9, 8, note="other")))
