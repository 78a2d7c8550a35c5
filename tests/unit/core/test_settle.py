"""One execution in one transaction: what a refusal, a label and a populate do to run and pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.authority import Partition
from sidecar.core.links import Forked, MultipleRoots, NoRoot, Ordered
from sidecar.core.populate import InSync, Refused
from sidecar.core.ports import Populated
from sidecar.core.settle import Arrival, Limits, settle
from tests.unit.core.build import EPOCH, by_id, chain, covered, ev, placed, pool_of


def _arrival(partition: Partition, **changes: Any) -> Arrival:
    stored = placed(chain(1, 2))
    fields: dict[str, Any] = {
        "rows": (),
        "pool": {},
        "stored": by_id(stored),
        "stored_rows": 2,
        "max_seq": 2,
        "reread": False,
        "room": 100,
        **changes,
    }
    return Arrival(partition, **fields)


@pytest.mark.parametrize("order", [Forked(1, (2, 9)), MultipleRoots((1, 9))])
def test_step_3_a_refused_log_read_labels_and_nothing_of_the_pool_is_appended(order: Any) -> None:
    """Row 3 stands right behind the head, and the read says that the chain is none."""
    partition = covered(chain(1, 2))
    refused = Populated(Refused(order.label), order, partition, (), written=False, cleared_bar=False)
    arrival = _arrival(partition, pool=pool_of(ev(3, 2)), populated=refused)
    settled = settle(arrival, epoch=EPOCH, now=9, limits=Limits())
    assert settled.run == ()
    assert settled.pool == {}
    assert settled.news.labelled
    assert (settled.partition.label, settled.partition.coverage) == (order.label, None)
    assert (settled.partition.head_seq, settled.partition.held) == (2, 1)


def test_step_4_without_a_refusal_the_same_row_is_appended() -> None:
    arrival = _arrival(covered(chain(1, 2)), pool=pool_of(ev(3, 2)))
    settled = settle(arrival, epoch=EPOCH, now=9, limits=Limits())
    assert [row.event.event_id for row in settled.run] == [3]
    assert (settled.partition.head_seq, settled.partition.held) == (3, 0)


@pytest.mark.parametrize("label", ["dangling_prev", "no_root", "store_gap"])
def test_2_4_c_rows_that_a_refused_log_read_has_shown_are_held(label: str) -> None:
    """No lane has handed them over, so no pool has them; the chain is short all the same."""
    partition = covered(chain(1, 2))
    shown = frozenset({7, 8, 9})
    refused = Populated(Refused(label), NoRoot(5), partition, (), False, False, unstored=shown)
    settled = settle(_arrival(partition, populated=refused, log_rows=5), epoch=EPOCH, now=9, limits=Limits())
    assert (settled.partition.held, settled.partition.label, settled.shown) == (3, None, 3)


def test_2_4_c_a_truncated_log_read_holds_what_it_has_more() -> None:
    settled = settle(_arrival(covered(chain(1, 2)), log_rows=10), epoch=EPOCH, now=9, limits=Limits(read=10))
    assert settled.partition.held == 8


def test_held_rows_end_with_a_populate_that_was_written() -> None:
    partition = replace(covered(chain(1, 2)), held=3)
    synced = Populated(InSync(2, 0), Ordered(chain(1, 2)), partition, (), written=True, cleared_bar=False)
    settled = settle(_arrival(partition, populated=synced, log_rows=2), epoch=EPOCH, now=9, limits=Limits())
    assert settled.partition.held == 0
