"""A poll whose rows come in several pieces: nothing is served that no snapshot showed.

Source: spec 2.12; one snapshot is one state of the log, a piece of it is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.authority import Reason
from sidecar.core.event import Event
from tests.support.scripted import Scripted
from tests.unit.core.build import E, chain, ev


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Scripted]:
    here = await Scripted.open(tmp_path)
    await here.write(*chain(1, 2))
    await here.tick()
    assert (await here.guarded(E)).events is not None
    yield here
    await here.store.close()


async def _first_piece(here: Scripted, *events: Event) -> None:
    await here.feed.take(replace(here.batch(*events), cursor=None, began_at=None))


async def test_a_second_root_in_a_later_piece_leaves_no_chain_served_between(line: Scripted) -> None:
    both = line.commit(ev(3, 2), ev(9))
    await _first_piece(line, both[0])
    assert await line.stored(E) == [1, 2, 3]
    assert (await line.guarded(E)).reason is Reason.ROWS_HELD_BACK
    await line.deliver(both[1])
    assert (await line.partition(E)).label == "multiple_roots"
    assert (await line.guarded(E)).events is None


async def test_a_changed_body_in_a_later_piece_leaves_no_mixture_served_between(line: Scripted) -> None:
    both = line.commit(ev(3, 2), ev(1, note="changed"))
    await _first_piece(line, both[0])
    assert (await line.guarded(E)).reason is Reason.ROWS_HELD_BACK
    await line.deliver(both[1])
    assert (await line.guarded(E)).reason is Reason.ROWS_HELD_BACK


async def test_what_grew_by_a_piece_is_served_when_its_log_was_read(line: Scripted) -> None:
    both = line.commit(ev(3, 2), ev(4, 3))
    await _first_piece(line, both[0])
    await line.deliver(both[1])
    assert await line.is_due(E)
    await line.tick()
    assert [event.event_id for event in (await line.guarded(E)).events or ()] == [1, 2, 3, 4]
    assert await line.due(E) is None


async def test_a_poll_in_one_piece_is_served_at_once(line: Scripted) -> None:
    await line.write(ev(3, 2))
    assert [event.event_id for event in (await line.guarded(E)).events or ()] == [1, 2, 3]
