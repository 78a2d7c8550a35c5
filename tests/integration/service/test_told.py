"""What stands is told, also when the tick that reached it did not come to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from sidecar.comparator.audit import Audit, AuditReport
from sidecar.comparator.hold import HoldUnit
from sidecar.comparator.pace import Pace
from sidecar.comparator.report import ControlReport
from sidecar.core.due import Windows
from sidecar.core.event import Event
from sidecar.errors import PartitionUnreadable, StoreFull
from sidecar.service.line import Line
from sidecar.service.told import Instruments
from sidecar.store.audit import StoreAuditBook
from sidecar.telemetry.health import Health
from sidecar.telemetry.metrics import Metrics
from tests.contract.events import chain
from tests.support.changing import replace
from tests.support.scripted import Scripted

E = 7300


def _changed(event: Event) -> Event:
    return replace(event, body=f'{{"event_id":{event.event_id},"changed":true}}')


async def _nothing() -> None:
    return


async def test_a_divergence_is_counted_though_its_tick_failed_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted once until a match clears it: what is not told at once is never told."""
    monkeypatch.setattr("sidecar.comparator.loop.EXECUTIONS_MAX", 1)
    here = await Scripted.open(tmp_path)
    metrics = Metrics()
    line = Line(
        (),
        here.feed,
        here.comparator,
        _nothing,
        Instruments(metrics, Health(), structlog.get_logger()),
        tick_s=1,
    )
    line.first_poll.set()

    def counted() -> float | None:
        labels = {"kind": "payload"}
        return metrics.registry.get_sample_value("noetl_chain_shadow_divergence_total", labels)

    async def full() -> None:
        raise StoreFull("the disk is full")

    async def then_full() -> None:
        here.after_read = full

    try:
        chains = [chain(1, 2, 3, execution_id=e) for e in (E, E + 1)]
        await here.write(*chains[0], *chains[1])
        await here.tick()
        await here.write(*(_changed(rows[1]) for rows in chains))
        assert counted() == 0
        here.after_read = then_full
        with pytest.raises(StoreFull):
            await line._judge()
        assert counted() == 1
        here.after_read = None
        await here.comparator.tick(line._teller.judged)
        assert counted() == 2, "and the other one by the next tick"
    finally:
        await here.store.close()


async def test_a_divergence_of_a_hold_that_was_taken_apart_is_told_though_a_later_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch meets a row that cannot be read; alone, the first is judged, and then the disk is full."""
    here = await Scripted.open(tmp_path)
    try:
        chains = [chain(1, 2, 3, execution_id=e) for e in (E, E + 1)]
        await here.write(*chains[0], *chains[1])
        await here.tick()
        await here.write(*(_changed(rows[1]) for rows in chains))
        real, holds = here.store.transact, list[int]()

        async def transact(work: Any) -> Any:
            if isinstance(work, HoldUnit):
                holds.append(len(work.logs))
                if len(work.logs) > 1:
                    raise PartitionUnreadable("a stored row cannot be read")
                if len(holds) > 2:
                    raise StoreFull("the disk is full")
            return await real(work)

        monkeypatch.setattr(here.store, "transact", transact)
        told = list[str]()
        with pytest.raises(StoreFull):
            await here.comparator.tick(
                lambda report: told.extend(kind for each in report.judged for kind in each.new_kinds)
            )
        assert holds == [2, 1, 1]
        assert told == ["payload"]
    finally:
        await here.store.close()


async def test_while_a_control_fails_the_audit_gives_no_verdict_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It judges by sums what nobody has judged, and by the same guarded read as the comparator."""
    here = await Scripted.open(tmp_path)
    stepped, rested, before = asyncio.Event(), list[str](), list[int]()

    async def step() -> AuditReport:
        before.append(len(rested))
        stepped.set()
        return AuditReport()

    store, nobody = here.store, cast("Any", None)
    pace, book = Pace(1, lambda: 0.0), StoreAuditBook(store)
    audit = Audit(nobody, store.summer, book, store.clock, Windows(), pace, round_us=1)
    monkeypatch.setattr(audit, "step", step)
    instruments = Instruments(Metrics(), Health(), structlog.get_logger())
    line = Line((), here.feed, here.comparator, _nothing, instruments, tick_s=1, audit=audit)

    async def rest(name: str, seconds: float) -> None:
        rested.append(name)
        if len(rested) == 3:
            line._teller.controlled(ControlReport({"payload": None}))
        await asyncio.sleep(0)

    monkeypatch.setattr(line, "_rest", rest)
    line._teller.controlled(ControlReport({"payload": "a broken comparator"}))
    walking = asyncio.create_task(line._walk(audit))
    try:
        await asyncio.wait_for(stepped.wait(), 5)
        assert before[0] == 3, "it rests until the controls hold again"
    finally:
        walking.cancel()
        await asyncio.wait({walking})
        await here.store.close()
