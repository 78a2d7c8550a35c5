"""Random calls on every implementation at once; after each, all of them must look the same.

The model in memory is the judge: what an implementation answers, which exception it raises, and
everything that can be observed of every execution are compared with it after every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sidecar.core.authority import labelled
from sidecar.core.event import ID_MAX, Event
from sidecar.core.populate import Diverged, LogRead
from sidecar.core.ports import ExecutionLog
from sidecar.errors import Forked, GapAt, NotHead, StoreError
from tests.contract.backends import Backend, Contract, ContractUnit
from tests.contract.conftest import BACKENDS
from tests.contract.events import E, chain
from tests.contract.memory import MemoryBackend
from tests.contract.postgres import PostgresBackend, three_lenders
from tests.support.changing import replace

OTHERS = [backend for name, backend in BACKENDS.items() if name not in {"memory", "postgres", "spread"}]
EXECUTIONS = (E, 5)
IDS = (90, 10, 2**62, -7)
MORE = (*IDS, 33)
Call = Callable[[Contract], Awaitable[object]]


class Killed(Exception):
    """The process ends here."""


# Logs

ANY_EVENT = st.builds(
    Event,
    execution_id=st.just(E),
    event_id=st.sampled_from(MORE),
    prev_event_id=st.sampled_from((None, *MORE)),
    parent_execution_id=st.sampled_from((None, 4)),
    event_type=st.sampled_from(("step.exit", "playbook.completed")),
    body=st.sampled_from(("{}", '{"event_id":90}')),
)


@st.composite
def grown(draw: st.DrawFn) -> tuple[Event, ...]:
    """A prefix of the true log, sometimes with one thing wrong, in any order."""
    events = list(chain(*IDS[: draw(st.integers(0, len(IDS)))]))
    if events:
        at = draw(st.integers(0, len(events) - 1))
        match draw(st.sampled_from((*[""] * 6, "body", "parent", "edge", "drop", "double", "root", "bad"))):
            case "body":
                events[at] = replace(events[at], body='{"changed":1}')
            case "parent":
                events[at] = replace(events[at], parent_execution_id=4)
            case "edge":
                events[at] = replace(events[at], prev_event_id=draw(st.sampled_from(MORE)))
            case "drop":
                del events[at]
            case "double":
                events.append(events[at])
            case "root":
                events.append(Event(E, 33, None, None, "playbook.completed", "{}"))
            case "bad":
                events[at] = replace(events[at], event_id=ID_MAX + 1)
    return tuple(draw(st.permutations(events)))


LOGS = st.one_of(grown(), grown(), st.lists(ANY_EVENT, max_size=5).map(tuple))
EVENTS = st.one_of(st.sampled_from(chain(*IDS)), st.sampled_from(chain(*IDS[:2], 33, 34)), ANY_EVENT)
ANYWHERE = st.sampled_from(EXECUTIONS)


def at(execution_id: int, events: Sequence[Event]) -> tuple[Event, ...]:
    return tuple(moved(execution_id, event) for event in events)


def moved(execution_id: int, event: Event) -> Event:
    return replace(event, execution_id=execution_id)


def outcome_of(answer: object) -> object:
    """An answer as it is compared: times and driver texts are each one's own."""
    match answer:
        case NotHead():
            return "NotHead", answer.expected, answer.got
        case GapAt():
            return "GapAt", answer.execution_id, answer.missing
        case Forked():
            return "Forked", answer.execution_id, answer.prev, answer.first, answer.second
        case StoreError():
            return type(answer).__name__
        case Diverged():
            return answer.label, answer.position, answer.kind, answer.stored, answer.log
        case _:
            return answer


async def answered(store: Contract, call: Call) -> object:
    try:
        return outcome_of(await call(store))
    except StoreError as error:
        return outcome_of(error)


async def observed(store: Contract, e: int) -> dict[str, object]:
    """Everything that the store says of one execution, times left out."""
    record = await store.partition(e)
    rows = await store.stored_chain(e)
    last = rows[-1].event if rows else None
    return {
        "rows": [(row.exec_seq, row.event, row.origin) for row in rows],
        "authority": await store.authority(e),
        "guarded": await store.chain_if_authoritative(e),
        "complete": await store.chain_is_complete(e),
        "walk": await answered(store, lambda s: ids_of(s, e)),
        "sum": (await store.sums(e, e)).get(e),
        "parent": await store.parent_execution_of(e),
        "before": last and await answered(store, lambda s: parent_id(s, last)),
        "record": record
        and replace(
            record,
            revoked_at=record.revoked_at and 1,
            labelled_at=record.labelled_at and 1,
            last_change_at=record.last_change_at and 1,
            first_seen_at=record.first_seen_at and 1,
        ),
    }


async def ids_of(store: Contract, e: int) -> list[int]:
    return [row.event.event_id for row in await store.walk_from_head(e)]


async def parent_id(store: Contract, event: Event) -> int | None:
    parent = await store.parent_of(event)
    return None if parent is None else parent.event.event_id


class Implementations(RuleBasedStateMachine):
    """The model and the others, called alike."""

    others: ClassVar[list[Callable[[Path], Backend]]] = OTHERS

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = TemporaryDirectory()
        self.backends: list[Backend] = [MemoryBackend()]
        self.backends += [each(Path(self.folder.name)) for each in self.others]
        self.stores: list[Contract] = []
        self.old_reads: list[LogRead] | None = None

    @initialize()
    def open(self) -> None:
        self.stores = [self.runner.run(opened(backend)) for backend in self.backends]

    def all(self, call: Call) -> None:
        expected, *others = [self.runner.run(answered(store, call)) for store in self.stores]
        for answer in others:
            assert answer == expected

    # Calls

    @rule(e=ANYWHERE, log=LOGS)
    def populate_from_log(self, e: int, log: tuple[Event, ...]) -> None:
        self.all(lambda store: store.populate_from_log(e, at(e, log)))

    @rule(e=ANYWHERE, log=LOGS, epoch=st.sampled_from(("a", "b")), anchor=st.integers(1, 3))
    def populate_in_an_epoch(self, e: int, log: tuple[Event, ...], epoch: str, anchor: int) -> None:
        self.all(
            lambda store: store.populate_from_log(
                e, at(e, log), read=LogRead(store.clock.now(), epoch, anchor)
            )
        )

    @rule()
    def begin_a_read(self) -> None:
        async def begun() -> list[LogRead]:  # a simulated clock needs its loop
            return [LogRead(store.clock.now()) for store in self.stores]

        self.old_reads = self.runner.run(begun())

    @precondition(lambda self: self.old_reads is not None)
    @rule(e=ANYWHERE, log=LOGS)
    def populate_from_the_old_read(self, e: int, log: tuple[Event, ...]) -> None:
        reads = dict(zip(map(id, self.stores), self.old_reads or (), strict=True))
        self.all(lambda store: store.populate_from_log(e, at(e, log), read=reads[id(store)]))

    @rule(e=ANYWHERE, event=EVENTS)
    def append(self, e: int, event: Event) -> None:
        self.all(lambda store: store.append(moved(e, event)))

    @rule(e=ANYWHERE, event=EVENTS)
    def populate(self, e: int, event: Event) -> None:
        self.all(lambda store: store.populate(moved(e, event)))

    @rule(e=ANYWHERE, event=EVENTS, seq=st.integers(0, 5))
    def populate_replicated(self, e: int, event: Event, seq: int) -> None:
        self.all(lambda store: store.populate_replicated(moved(e, event), seq))

    @rule(e=ANYWHERE, event=EVENTS, seq=st.integers(0, 5))
    def apply_replicated(self, e: int, event: Event, seq: int) -> None:
        self.all(lambda store: store.apply_replicated(moved(e, event), seq))

    @rule(e=ANYWHERE, order=st.permutations(range(len(IDS))))
    def replicate_the_chain_in_any_order(self, e: int, order: list[int]) -> None:
        for place in order:
            self.apply_replicated(e, chain(*IDS)[place], place + 1)

    @rule(e=ANYWHERE)
    def revoke(self, e: int) -> None:
        self.all(lambda store: store.revoke(e, "a test"))

    @rule(e=ANYWHERE, label=st.sampled_from(("fork", "multiple_roots")))
    def label(self, e: int, label: str) -> None:
        async def work(unit: ContractUnit, now: int) -> None:
            for record in (await unit.partitions((e,))).values():
                unit.put_partition(labelled(record, label, now))

        self.all(lambda store: store.transact(partial(work, now=store.clock.now())))

    @rule(e=ANYWHERE, held=st.integers(0, 1))
    def hold_back(self, e: int, held: int) -> None:
        async def work(unit: ContractUnit) -> None:
            for record in (await unit.partitions((e,))).values():
                unit.put_partition(replace(record, held=held))

        self.all(lambda store: store.transact(work))

    @rule(shard=st.integers(0, 1), seq=st.integers(-1, 9))
    def advance(self, shard: int, seq: int) -> None:
        self.all(lambda store: store.advance_apply_cursor(shard, seq))

    # Ends

    @rule()
    def reopen(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.open()
        self.old_reads = None

    @rule()
    def crash(self) -> None:
        for backend, store in zip(self.backends, self.stores, strict=True):
            self.runner.run(backend.abandon(store))
        self.open()
        self.old_reads = None

    @rule(e=ANYWHERE, log=LOGS)
    def crash_in_the_middle(self, e: int, log: tuple[Event, ...]) -> None:
        for backend, store in zip(self.backends, self.stores, strict=True):
            self.runner.run(cut_off(backend, store, e, at(e, log)))
        self.crash()

    @invariant()
    def all_look_the_same(self) -> None:
        for e in EXECUTIONS if self.stores else ():
            self.all(shards)
            expected, *others = [self.runner.run(observed(store, e)) for store in self.stores]
            for seen in others:
                assert seen == expected

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        for backend in self.backends:
            if isinstance(backend, PostgresBackend):
                backend.remove()
        self.runner.close()
        self.folder.cleanup()


async def shards(store: Contract) -> list[int]:
    return [await store.load_apply_cursor(shard) for shard in (0, 1)]


async def opened(backend: Backend) -> Contract:
    return await backend.open()


async def cut_off(backend: Backend, store: Contract, e: int, log: tuple[Event, ...]) -> None:
    """Populate, and be killed after the last write and before the commit."""
    usable = tuple(event for event in log if event.event_id <= ID_MAX)

    async def work(unit: ContractUnit) -> None:
        await unit.populate((ExecutionLog(e, usable, LogRead(store.clock.now())),))
        await unit.chain(e)
        backend.photograph()
        raise Killed

    with suppress(Killed):
        await store.transact(work)


class Postgres(Implementations):
    """The model and the store on PostgreSQL, for which a call takes longer."""

    others: ClassVar[list[Callable[[Path], Backend]]] = [PostgresBackend]


class ThreeServers(Implementations):
    """The model and the store whose leaves stand on three other servers."""

    others: ClassVar[list[Callable[[Path], Backend]]] = [lambda folder: three_lenders()]


def run(examples: int, steps: int, machine: type[Implementations] = Implementations) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_c_d_random_calls_agree_with_the_model() -> None:
    run(12, 20)


def test_c_d_random_calls_on_postgres_agree_with_the_model() -> None:
    run(3, 15, Postgres)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_c_d_many_random_calls_on_postgres_agree_with_the_model() -> None:
    run(60, 30, Postgres)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_c_d_random_calls_over_three_servers_agree_with_the_model() -> None:
    run(30, 20, ThreeServers)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_c_d_many_random_calls_agree_with_the_model() -> None:
    run(300, 60)
