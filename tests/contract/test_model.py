"""Random histories of one execution against a plain model of spec 2.8.

The log grows, is read late, is changed, forks; the store is revoked, appended to, reopened.
The model is a list and a few flags, written from the table and not from the code.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.populate import LogRead
from sidecar.errors import NotHead
from sidecar.store import ChainStore, Invalid
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain

IDS = (90, 10, 50, 2**62, -7, 33)


@dataclass
class Model:
    """What the store must say.  `covered`: total and root; `watermark`: through."""

    rows: list[Event] = field(default_factory=list)
    head: int = 0
    watermark: int | None = None
    covered: tuple[int | None, int] | None = None

    def populate(self, log: Sequence[Event]) -> str:
        for ours, theirs in zip(self.rows, log, strict=False):
            if ours != theirs:
                self.covered = None
                return "diverged"
        if len(self.rows) > len(log):
            return "stale_log"
        new = len(log) - len(self.rows)
        self.rows = list(log)
        self.head = self.watermark = len(log)
        root = log[0].event_id if log else None
        if self.covered is None or self.covered[0] != root or self.covered[1] < len(log):
            self.covered = (root, len(log))
        return "extended" if new else "in_sync"

    def append(self, event: Event) -> bool:
        last = self.rows[-1].event_id if self.rows else None
        if event.prev_event_id != last or event.event_id in {row.event_id for row in self.rows}:
            return False
        self.rows.append(event)
        self.head += 1
        return True

    @property
    def answer(self) -> tuple[Event, ...] | None:
        root = self.rows[0].event_id if self.rows else None
        if self.watermark != self.head or self.covered != (root, len(self.rows)):
            return None
        return tuple(self.rows)


@dataclass(frozen=True)
class Populate:
    """A log read of the first `length` ids; `fork` swaps the last id, `changed` one body."""

    length: int
    fork: bool
    changed: int | None

    def log(self) -> tuple[Event, ...]:
        ids = list(IDS[: self.length])
        if self.fork and ids:
            ids[-1] = 77
        events = list(chain(*ids))
        if self.changed is not None and self.changed < len(events):
            events[self.changed] = replace(events[self.changed], body='{"changed":1}')
        return tuple(events)


@dataclass(frozen=True)
class Append:
    position: int


@dataclass(frozen=True)
class Revoke:
    pass


@dataclass(frozen=True)
class Reopen:
    pass


Step = Populate | Append | Revoke | Reopen
POPULATE = st.builds(
    Populate,
    length=st.integers(0, len(IDS)),
    fork=st.sampled_from((False, False, False, True)),
    changed=st.sampled_from((None, None, None, 0, 1, 3)),
)
STEPS = st.lists(
    st.one_of(
        POPULATE,
        POPULATE,
        st.builds(Append, st.integers(0, len(IDS) - 1)),
        st.just(Revoke()),
        st.just(Reopen()),
    ),
    min_size=1,
    max_size=12,
)


async def apply(store: ChainStore, model: Model, step: Step) -> None:
    match step:
        case Populate():
            log = step.log()
            read = LogRead(store.clock.now())
            outcome = await store.populate_from_log(E, tuple(reversed(log)), read=read)
            assert outcome.label == model.populate(log)
        case Append(position):
            event = chain(*IDS)[position]
            try:
                assert await store.append(event) == model.head + 1
            except (NotHead, Invalid):
                assert not model.append(event)
            else:
                assert model.append(event)
        case Revoke():
            await store.revoke(E, "test")
            model.covered = None
        case Reopen():
            pass


async def check(store: ChainStore, model: Model) -> None:
    assert await store.chain(E) == tuple(model.rows)
    assert (await store.chain_if_authoritative(E)).events == model.answer
    assert (await store.authority(E)).through == model.watermark
    rows = {E: (len(model.rows), sum(event.event_id for event in model.rows))} if model.rows else {}
    assert await store.sums(E, E) == rows


async def play(backend: SqliteBackend, steps: Sequence[Step]) -> None:
    model = Model()
    store = await backend.open()
    try:
        for step in steps:
            if isinstance(step, Reopen):
                await store.close()
                store = await backend.open()
            await apply(store, model, step)
            await check(store, model)
    finally:
        await store.close()


def agrees(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(SqliteBackend(Path(folder)), steps))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_random_histories_agree_with_the_model(steps: list[Step]) -> None:
    agrees(steps)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_many_random_histories_agree_with_the_model(steps: list[Step]) -> None:
    agrees(steps)
