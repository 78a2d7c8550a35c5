"""With the gate off everything is what it would be if the code for joins were not there.

One script is played on copies of one store, which a sidecar with the gate on has filled; the clock is
counted, so equal runs give equal files.  "Without it" is the copy whose table of joins is empty, where
whatever the gate guards raises when it is called, and the table refuses every write.  With the code in
place nothing may differ from that, be the table empty or full of joins that would order every log.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import copyfile
from typing import Any, Final
from unittest.mock import patch

import pytest
import structlog
from prometheus_client import generate_latest

import sidecar.core.proofs
import sidecar.core.rejoin
import sidecar.core.settle
import sidecar.feed.joins
import sidecar.store.joins
import sidecar.store.reader
import sidecar.store.unit
from sidecar.comparator.probe import probe
from sidecar.comparator.verify import against_store
from sidecar.core.event import Event
from sidecar.core.rejoin import Join, predecessors
from sidecar.core.verdict import Verdict
from sidecar.service.gauges import Gauges
from sidecar.service.told import Instruments, Teller
from sidecar.settings import Settings
from sidecar.store import ChainStore
from sidecar.store.clock import StoreClock
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from sidecar.web.data import Data, Sources
from tests.support.changing import replace
from tests.support.scripted import LONG, Scripted
from tests.unit.core.build import E, chain, ev

JOINED, WITHDRAWN, PROVEN, NEW, FORKED, SEEN_WHOLE = range(E, E + 6)
BEGUN_AT: Final = 1_700_000_000_000_000
QUIET: Any = structlog.wrap_logger(
    structlog.ReturnLogger(), processors=[], wrapper_class=structlog.make_filtering_bound_logger(50)
)


@pytest.fixture(autouse=True)
def counted_clock() -> Iterator[None]:
    """Every question moves the clock by one, so that a read more or less is seen as well."""

    def clock(floor: int) -> StoreClock:
        return StoreClock(floor, wall=lambda: BEGUN_AT, monotonic=count().__next__)

    with patch("sidecar.store.chain.StoreClock", clock):
        yield


def of(execution_id: int, *events: Event) -> tuple[Event, ...]:
    return tuple(replace(event, execution_id=execution_id) for event in events)


async def filled(folder: Path) -> Scripted:
    """What a sidecar with the gate on leaves: a join, a withdrawn one, a proof that joined nothing."""
    line = await Scripted.open(folder, rejoining=True, cert=True)
    for execution_id in (JOINED, WITHDRAWN, PROVEN):
        await line.write(*of(execution_id, *chain(1, 2)))
    await line.tick()
    await line.write(*of(JOINED, *chain(9, 4)), *of(WITHDRAWN, *chain(9, 4)))
    await line.tick()
    await line.write(*of(WITHDRAWN, ev(5, 2)))
    late = line.commit(*of(PROVEN, *chain(9, 4)))
    await line.judge(PROVEN)
    await line.deliver(*late)
    await line.tick()
    line.commit(*of(PROVEN, ev(5, 4)))
    kept = {e: [join.stands for join in await line.store.joins(e)] for e in (JOINED, WITHDRAWN, PROVEN)}
    assert kept == {JOINED: [True], WITHDRAWN: [False], PROVEN: [True]}
    await line.store.close()
    return line


@dataclass(frozen=True)
class Left:
    """Everything that can be seen from outside after a run."""

    dump: Sequence[str]
    joins: Sequence[str]
    metrics: str
    served: Mapping[int, object]
    documents: Mapping[int, dict[str, Any]]
    verified: Sequence[object]
    sums: Mapping[int, object]


async def played(
    folder: Path, before: Scripted, name: str, prepare: Callable[[sqlite3.Connection], None]
) -> Left:
    """The gate is off: old and new executions go on, in every way that joins have to do with."""
    path = folder / name
    copyfile(before.path, path)
    with closing(sqlite3.connect(path)) as store, store:
        prepare(store)
    async with ChainStore.open(str(path)) as opened:
        left = await _seen(Scripted(path, opened, cert=True), before)
    with closing(sqlite3.connect(path)) as store:
        rows = [text for text in store.iterdump() if "TRIGGER" not in text]
    joins = [text for text in rows if text.startswith('INSERT INTO "rejoin"')]
    return replace(left, dump=[text for text in rows if text not in joins], joins=joins)


async def _seen(line: Scripted, before: Scripted) -> Left:
    line.log = {e: dict(rows) for e, rows in before.log.items()}
    line._xmin, line._xmins = before._xmin, dict(before._xmins)
    metrics = Metrics()
    instruments = Instruments(metrics, Health(), QUIET)
    teller = Teller(instruments, lambda _: None)
    gauges = await Gauges(line.store, Settings.given(), instruments, certified=line.certified).begun()
    await line.store.flag_held()
    await line.certified.begin(line.store)
    teller.judged(await line.tick())
    for events in (
        of(NEW, *chain(1, 2)),
        of(FORKED, *chain(1, 2)),
        of(NEW, *chain(9, 4)),
        of(FORKED, *chain(9, 4)),
        of(FORKED, ev(5, 2)),
        of(JOINED, ev(5, 4)),
        of(PROVEN, ev(6, 5)),
        of(SEEN_WHOLE, *chain(1, 2), *chain(9, 4)),
    ):
        teller.fed("live", await line.write(*events))
        teller.judged(await line.tick())
    every = sorted(line.log)
    for execution_id in every:
        teller.judged(await line.judge(execution_id))
        await line.certified.state(line.store, execution_id)
        await probe(execution_id, line.store, line, LONG, metrics.verdict)
    await gauges.measure()
    assert gauges.standing is not None
    assert gauges.standing.acceptance.counted == (Verdict.MATCH,)
    data = Data()
    data.sources = Sources(line.store, line, LONG, metrics.verdict)
    return Left(
        dump=(),
        joins=(),
        metrics=_timeless(generate_latest(metrics.registry).decode()),
        served={
            e: (
                await line.guarded(e),
                (await line.store.guarded_reads((e,)))[e],
                await line.store.chain_is_complete(e),
                await line.store.walk_from_head(e),
            )
            for e in every
        },
        documents={e: (await data.execution(e, with_log=True)).document() for e in every},
        verified=await against_store(line.store, line)([line.whole(e) for e in every]),
        sums=await line.store.summer.of(every),
    )


def _timeless(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "seconds" not in line and "bytes" not in line)


def emptied(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM rejoin")


def closed(store: sqlite3.Connection) -> None:
    """Empty, and every write of the table fails the transaction that tries."""
    emptied(store)
    for what in ("INSERT", "UPDATE", "DELETE"):
        store.execute(
            f"CREATE TRIGGER no_{what} BEFORE {what} ON rejoin BEGIN SELECT raise(ABORT, 'touched'); END"
        )


def baited(store: sqlite3.Connection) -> None:
    """With a join for every root that is to come."""
    bait = Join(0, 2, 9, xid=200, anchor=200, epoch="epoch-1", joined_at=1)
    for execution_id in (NEW, FORKED, SEEN_WHOLE):
        row = sidecar.store.joins.row_of(replace(bait, execution_id=execution_id))
        store.execute(sidecar.store.joins.KEEP, row)


@contextmanager
def taken_out() -> Iterator[None]:
    """Whatever only joins need raises when it is called; nobody is called with a join."""

    def called(*_: object, **__: object) -> Any:
        raise AssertionError("the gate is off, and code for joins was called")

    def nothing(joins: Sequence[Join]) -> dict[int, int]:
        return called() if joins else predecessors(joins)

    with ExitStack() as patched:
        for module, name in (
            (sidecar.feed.joins, "asks"),
            (sidecar.feed.joins, "parted"),
            (sidecar.core.settle, "prove"),
            (sidecar.core.proofs, "join"),
            (sidecar.core.rejoin, "rejoined"),
            (sidecar.core.rejoin, "pieces"),
            (sidecar.core.rejoin, "contradicted"),
        ):
            patched.enter_context(patch.object(module, name, called))
        for module in (sidecar.store.unit, sidecar.store.reader):
            patched.enter_context(patch.object(module, "predecessors", nothing))
        yield


async def test_off_is_as_without_it(tmp_path: Path) -> None:
    before = await filled(tmp_path)
    off = await played(tmp_path, before, "off.db", emptied)
    with taken_out():
        without = await played(tmp_path, before, "without.db", closed)
    assert off == without
    assert off.joins == []
    assert 'verdict="refused_multiple_roots"' in off.metrics
    assert {e: document["record"]["verdict"] for e, document in off.documents.items()} == dict.fromkeys(
        (JOINED, WITHDRAWN, PROVEN, NEW, FORKED, SEEN_WHOLE), "refused_multiple_roots"
    )


async def test_off_nothing_that_is_kept_is_used(tmp_path: Path) -> None:
    """What the gate on has left is shown where an execution is shown, and does nothing."""
    before = await filled(tmp_path)
    without = await played(tmp_path, before, "without.db", emptied)
    full = await played(tmp_path, before, "full.db", baited)
    kept = await asyncio.to_thread(_joins_of, before.path)
    assert [text for text in full.joins if "200,200" not in text] == kept
    assert replace(full, joins=[], documents={}) == replace(without, joins=[], documents={})
    for execution_id, document in full.documents.items():
        other = without.documents[execution_id]
        assert document.pop("joins") != [] == other["joins"]
        shown = {"joins", "picture"}
        assert {key: document[key] for key in document.keys() - shown} == {
            key: other[key] for key in other.keys() - shown
        }


def _joins_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as store:
        return [text for text in store.iterdump() if text.startswith('INSERT INTO "rejoin"')]
