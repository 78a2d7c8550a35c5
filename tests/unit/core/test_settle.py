"""One execution in one transaction: what a refusal, a label and a populate do to run and pool."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.core.authority import Partition
from sidecar.core.links import Forked, MultipleRoots
from sidecar.core.populate import Refused
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
