"""What a lane remembers and shows, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.horizon import Cursor, Facts
from sidecar.errors import SourceContractError
from sidecar.source.facts import Guard
from sidecar.source.pieces import AIM_BYTES, ROWS_FIRST, ROWS_MAX, PieceSize
from sidecar.source.poll import Intervals, Window
from sidecar.source.scan import BATCH_BYTES, BATCH_ROWS, BatchSize
from sidecar.source.sweep import _Run
from sidecar.source.table import _refuse_version
from sidecar.source.tail import LaneState, advanced

FACTS = Facts(horizon=100, xmax=110, epoch="e", tree="t", server_now=5_000_000)
CURSOR = Cursor("sweep:1:2", 100, "e", "s", "t", 1_000_000)


def test_h_that_advances_is_young() -> None:
    state = advanced(LaneState(), replace(CURSOR, horizon=90), CURSOR, FACTS)
    assert state == LaneState(caught_up=True, polled_at=5_000_000, advanced_at=5_000_000)


def test_h_that_stands_still_below_xmax_ages() -> None:
    state = advanced(LaneState(True, 1, 2_000_000), CURSOR, CURSOR, FACTS)
    assert state.horizon_age_s == 3.0


def test_h_does_not_age_on_a_server_where_nothing_runs() -> None:
    idle = replace(FACTS, xmax=FACTS.horizon)
    assert advanced(LaneState(True, 1, 2_000_000), CURSOR, CURSOR, idle).horizon_age_s == 0.0


def test_without_h_there_is_no_age() -> None:
    state = advanced(LaneState(), CURSOR, replace(CURSOR, horizon=None), FACTS)
    assert (state.caught_up, state.horizon_age_s) == (True, 0.0)


def test_a_new_cursor_of_a_partition_forgets_what_was_seen_under_the_old_one() -> None:
    """After a crash another row may bear the same key and the same raw xmin."""
    run = _Run({CURSOR.lane: CURSOR})
    run.polled(CURSOR.lane, {(1, 1): 7}, CURSOR, FACTS)
    assert run.seen[CURSOR.lane]
    run.stored(replace(CURSOR, epoch="e2"))
    assert CURSOR.lane not in run.seen


def test_a_run_takes_the_sweeps_cursors_only() -> None:
    assert set(_Run({"live": CURSOR, CURSOR.lane: CURSOR}).cursors) == {CURSOR.lane}


def test_another_table_under_the_name_and_a_standby_are_errors() -> None:
    body = '{"h": 1, "mx": 2, "t": 3, "rec": %s, "epoch": "e", "tree": "t", "relid": %d}'
    assert Guard(7).facts(body % ("false", 7)) == Facts(1, 2, "e", "t", 3)
    with pytest.raises(SourceContractError, match="replaced"):
        Guard(7).facts(body % ("false", 8))
    with pytest.raises(SourceContractError, match="standby"):
        Guard(7).facts(body % ("true", 7))


def test_a_server_that_is_too_old_is_refused() -> None:
    _refuse_version(140000)
    with pytest.raises(SourceContractError, match="older than 14"):
        _refuse_version(130022)


def test_the_predicate_names_the_whole_range() -> None:
    assert Window(60.0).predicate == "created_at:60.0"
    assert Window(60.0).predicate != Window(61.0).predicate
    assert Intervals(((ID_MIN, -1), (10, ID_MAX))).predicate == f"execution_id:{ID_MIN}..-1,10..{ID_MAX}"


def test_ends_of_the_id_range_are_bigints_in_sql() -> None:
    assert f"'{ID_MIN}'::bigint" in Intervals(((ID_MIN, 0),)).where("l")


def test_pieces_begin_small_and_follow_the_weight() -> None:
    size = PieceSize()
    assert size.rows == ROWS_FIRST
    size.learn(0, 0)
    assert size.rows == ROWS_FIRST
    size.learn(200, 200 * 600)
    assert size.rows == ROWS_MAX
    size.learn(10, 10 * 300_000)
    assert size.rows == AIM_BYTES // 300_000


def test_batches_begin_small_and_follow_the_weight_and_are_halved() -> None:
    size = BatchSize()
    size.learn(1000, 1000 * 600)
    assert size.rows == BATCH_ROWS
    size.learn(100, 100 * 300_000)
    assert size.rows == BATCH_BYTES // 300_000
    size.halve(9)
    assert size.rows == 4, "half of what was read, not of what might have been"
    for _ in range(10):
        size.halve(100)
    assert size.rows == 1
