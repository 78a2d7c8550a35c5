"""The composition root: the only file, with `cli`, that names adapters.

It opens the store, looks the table up, puts lanes, feed and comparator together, and turns
signals and failures into an end.  What is composed here decides nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import uvloop
from structlog.typing import FilteringBoundLogger

from sidecar.board import Board
from sidecar.certified import Certified
from sidecar.comparator.audit import Audit
from sidecar.comparator.controls import Controls
from sidecar.comparator.findings import Verification
from sidecar.comparator.loop import Comparator
from sidecar.comparator.pace import Pace
from sidecar.comparator.verify import Logs, against_store, against_temporary, by_sums, read_whole, verify
from sidecar.console import progress, show_backfill, show_verification
from sidecar.core.acceptance import Controls as Totals
from sidecar.core.due import SECOND
from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.exclusion import Exclusion
from sidecar.core.ports import Batch
from sidecar.core.settle import Limits
from sidecar.core.verdict import Judgement
from sidecar.errors import StoreError
from sidecar.feed import Feed
from sidecar.gauges import Gauges
from sidecar.line import Instruments, Line
from sidecar.pinned import PinWatch
from sidecar.report import Report, reporting
from sidecar.sampler import Sampler
from sidecar.settings import Reading, Settings, micros, variable
from sidecar.source.choose import estimated_rows, read_each, read_since
from sidecar.source.compare import Comparison, compared
from sidecar.source.log import PostgresLog
from sidecar.source.opened import LogSource
from sidecar.source.options import Shard, SourceOptions
from sidecar.source.pins import find_pins
from sidecar.source.scan import scan
from sidecar.source.sums import LogSums
from sidecar.store import ChainStore, StoreReader
from sidecar.store.audit import SqliteAuditBook
from sidecar.store.clock import StoreClock
from sidecar.store.replication import Follower, caught_up
from sidecar.store.retention import DAY_US, Retention
from sidecar.store.scratch import scratch
from sidecar.store.sums import StoreSums
from sidecar.telemetry import logs
from sidecar.telemetry.health import Health, NotReady
from sidecar.telemetry.metrics import Metrics
from sidecar.telemetry.startup import announce
from sidecar.web.data import Sources
from sidecar.web.listener import Listener, application

T = TypeVar("T")

STOP_GRACE_S: Final = 1.5
"""From the signal to the end; a store transaction that runs is waited for so long."""


def main_run(settings: Settings) -> int:
    """`noetl-chain run`: follow the log until SIGTERM or SIGINT.

    Returns:
        0 after a signal.

    Raises:
        SidecarError: what ended it.
    """
    logs.configure(settings.log_level, settings.log_format)
    # Something that does not answer, a disk for example, must not outlast the grace: SQLite is
    # whole after any end of its process, and what was not committed is read again.
    cut_off = threading.Timer(STOP_GRACE_S, os._exit, (0,))
    cut_off.daemon = True
    try:
        return _run(_until_signal(_serve(settings), cut_off.start))
    finally:
        cut_off.cancel()


def main_verify(
    settings: Settings,
    *,
    executions: Sequence[int],
    since: datetime | None,
    store: str | None,
    settle: float,
    as_json: bool,
    report: Path | None = None,
) -> int:
    """`noetl-chain verify`: compare every execution once.

    Args:
        executions: Only these; empty: all.
        since: Only executions with an event created since then (UTC).
        store: A store to compare, opened read-only; None: a temporary one.
        settle: Seconds after which what is not good is read once more.
        report: Where a page is written, too.

    Returns:
        0 good, 1 findings, 3 incomplete.

    Raises:
        SidecarError: it could not be finished; nothing was written.
    """
    logs.configure(settings.log_level, settings.log_format)
    with reporting(report) as told:
        return _run(_verify(settings, executions, since, store, settle, as_json, told))


def main_backfill(settings: Settings, *, as_json: bool) -> int:
    """`noetl-chain backfill`: fill the store from the whole log.

    What the store already holds in the same number and with the same ids is not read again,
    so a backfill that was cut short goes on where it stopped.

    Returns:
        0 when everything of the log is stored, 3 when something was refused.
    """
    logs.configure(settings.log_level, settings.log_format)
    return _run(_backfill(settings, as_json))


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def _until_signal(work: Coroutine[Any, Any, None], stopping: Callable[[], None]) -> int:
    """Run `work` until it ends or a signal comes; a signal is a good end.

    Args:
        stopping: Called when the signal came, before `work` is cancelled.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        stopping()
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return 0


async def _serve(settings: Settings) -> None:
    """The sidecar with its two listeners."""
    instruments = Instruments(Metrics(replicas=len(settings.store_replicas)), Health(), logs.get("sidecar"))
    announce(settings, instruments.log, instruments.metrics)
    board = Board(settings, instruments.health)
    served = board.served(settings.api_bind, settings.token())
    metrics = Listener(application(instruments.metrics.registry, instruments.health), settings.metrics_bind)
    bound, named = settings.api_bind, variable("api_bind")
    with closing(metrics), closing(Listener(served, bound, variable=named, ending=board.hub.close)) as shown:
        for what, listener in (("metrics", metrics), ("api", shown)):
            instruments.log.info("listening", what=what, port=listener.port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(metrics.run(asyncio.Event()))
            tasks.create_task(shown.run(asyncio.Event()))
            if settings.populate is Reading.ON:
                tasks.create_task(_follow(settings, instruments, board))
            else:
                instruments.log.warning("populate_is_off", variable="NOETL_CHAIN_POPULATE")
                instruments.health.clear(NotReady.STARTING)


async def _follow(settings: Settings, instruments: Instruments, board: Board) -> None:
    # The log first: no store is made for a log that cannot be read.
    async with open_log(settings, instruments.log) as source:
        try:
            opening = await ChainStore.open(
                settings.store,
                synchronous=settings.store_synchronous,
                max_bytes=settings.store_max_bytes,
                replicas=settings.store_replicas,
                evidence_max_bytes=settings.evidence_max_bytes,
            )
        except StoreError as error:
            instruments.metrics.populate("open_failed")
            if settings.store_failure == "exit":
                raise
            instruments.log.warning("store_unusable", reason=str(error), hint=error.hint)
            instruments.health.mark(NotReady.STORE_UNAVAILABLE)
            instruments.health.clear(NotReady.STARTING)
            return
        instruments.metrics.populate("opened")
        async with opening as store, _line(settings, store, source, instruments, board) as line:
            await line.run()


@asynccontextmanager
async def assembled(
    settings: Settings, store: ChainStore, instruments: Instruments, board: Board | None = None
) -> AsyncIterator[Line]:
    """The line over `store` and the log of `settings`, not yet running; shown on `board` if there is one.

    Raises:
        SourceError: the table cannot be looked up.
    """
    async with (
        open_log(settings, instruments.log) as source,
        _line(settings, store, source, instruments, board or Board(settings, instruments.health)) as line,
    ):
        yield line


@asynccontextmanager
async def _line(
    settings: Settings, store: ChainStore, source: LogSource, instruments: Instruments, board: Board
) -> AsyncIterator[Line]:
    async with AsyncExitStack() as opened:
        controls = None
        if settings.compare is Reading.ON:
            folder = store.path.with_name(f"{store.path.name}.controls")
            controls = Controls(await opened.enter_async_context(scratch(folder)))
        yield await _composed(settings, store, source, instruments, board, controls)


async def _composed(
    settings: Settings,
    store: ChainStore,
    source: LogSource,
    instruments: Instruments,
    board: Board,
    controls: Controls | None,
) -> Line:
    certified = Certified(
        store.clock, on=settings.cert is Reading.ON, live_window=round(settings.live_window_s * SECOND)
    )
    feed = _feed(settings, store, source.reader(store.clock), certified)
    comparator = None
    if settings.compare is Reading.ON:
        comparator = Comparator(
            store,
            source.reader(store.clock),
            feed,
            settings.windows,
            projecting=True,
            certified=certified,
            exclusion=Exclusion(settings.exclude),
            advancing=settings.advance is Reading.ON,
            controls=controls,
        )
    await store.flag_held()
    gauges = Gauges(
        store,
        settings,
        instruments,
        certified=certified,
        controls=lambda: Totals() if comparator is None else comparator.control_totals,
    )
    board.gauges = await gauges.begun()
    sampler = Sampler(source.roots(settings.invariant_window_hours), instruments)
    lanes = source.lanes(store, store.clock)
    pins = PinWatch(
        partial(find_pins, source.session()),
        lanes,
        instruments.log,
        bound_s=settings.pinned_s,
        every_s=settings.tick_s,
    )
    line = Line(
        lanes,
        feed,
        comparator,
        board.measure,
        instruments,
        judged=board.judged,
        ticked=gauges.ticked,
        beside=(sampler.run, pins.run),
        tick_s=settings.tick_s,
        replicas=[Follower(store, url) for url in settings.store_replicas],
        retention=Retention(store, keep * DAY_US).step if (keep := settings.retain_days) else None,
        audit=_audit(settings, store, source) if comparator is not None and settings.audit_share else None,
    )
    board.line, board.sampler = line, sampler
    reader = source.reader(store.clock)
    board.data.sources = Sources(store, reader, settings.windows, instruments.metrics.probed)
    board.state = partial(certified.state, store)
    return line


def _audit(settings: Settings, store: ChainStore, source: LogSource) -> Audit:
    return Audit(
        source.summer(store.clock),
        StoreSums(store.path),
        SqliteAuditBook(store),
        store.clock,
        settings.windows,
        Pace(settings.audit_share, time.monotonic),
        round_us=micros(settings.audit_round_s),
        exclusion=Exclusion(settings.exclude),
    )


def _feed(
    settings: Settings, store: ChainStore, log: PostgresLog, certified: Certified | None = None
) -> Feed:
    return Feed(
        store,
        log,
        windows=settings.windows,
        limits=Limits(settings.read_limit, settings.held_rows, settings.held_rows_total),
        comparing=settings.compare is Reading.ON,
        certified=certified,
    )


@asynccontextmanager
async def open_log(settings: Settings, log: FilteringBoundLogger) -> AsyncIterator[LogSource]:
    """The log of `settings`.

    Raises:
        SourceError: the table cannot be looked up.
    """
    options = SourceOptions(
        dsn=settings.source_dsn(),
        schema=settings.noetl_schema,
        poll_ms=settings.poll_ms,
        live_window_s=settings.live_window_s,
        late_window_s=settings.late_window_s,
        late_poll_s=settings.late_poll_s,
        sweep_round_s=settings.sweep_round_s,
        query_timeout_s=settings.query_timeout_s,
        read_limit=settings.read_limit,
        shard=Shard(settings.shard_index, settings.shard_count),
    )
    source = await LogSource.open(options)
    if source.table.missing:
        log.warning("columns_missing", columns=list(source.table.missing))
    try:
        yield source
    finally:
        await source.close()


async def _verify(
    settings: Settings,
    executions: Sequence[int],
    since: datetime | None,
    store_url: str | None,
    settle_s: float,
    as_json: bool,
    report: Report | None,
) -> int:
    began = time.monotonic()
    found = await verification(settings, executions, since, store_url, settle_s, report)
    seconds = time.monotonic() - began
    if report is not None:
        report.write(found, seconds)
    if as_json:
        print(json.dumps(found.document(seconds)))  # noqa: T201 - machine output
    else:
        show_verification(found, seconds)
    return found.exit_code


async def verification(
    settings: Settings,
    executions: Sequence[int] = (),
    since: datetime | None = None,
    store_url: str | None = None,
    settle_s: float = 0.0,
    report: Report | None = None,
) -> Verification:
    """What `verify` found; see `main_verify`.  The findings are drawn for `report`."""
    async with AsyncExitStack() as opened:
        source = await opened.enter_async_context(open_log(settings, logs.get("verify")))
        exclusion = Exclusion(settings.exclude)
        found = Verification("temporary" if store_url is None else "store")
        folder = opened.enter_context(TemporaryDirectory(prefix="noetl-chain-verify-"))
        async with scratch(Path(folder) / "controls") as rehearsed:
            found.controls = await Controls(rehearsed).run()
        if found.controls.unexpected:
            return found  # what cannot see a planted defect has no verdicts to give
        if store_url is None:
            store = await opened.enter_async_context(ChainStore.open(str(Path(folder) / "chain.db")))
            compared_with: StoreReader = store
            log = source.reader(store.clock)
            judge = against_temporary(store, log, exclusion)
            parts = read_whole(_chosen(log, executions, since))
        else:
            raw = compared_with = await opened.enter_async_context(ChainStore.open_readonly(store_url))
            log = source.reader(StoreClock(0))
            judge = against_store(raw, log, exclusion)
            if executions or since is not None:
                parts = read_whole(_chosen(log, executions, since))
            else:
                parts = by_sums(LogSums(log), StoreSums(raw.path), log, exclusion)
        total = None if executions or since is not None else await estimated_rows(log)
        with progress("verify", total) as advance:

            def record(judgements: Sequence[Judgement]) -> None:
                found.add(judgements)
                advance(sum(j.log_rows for j in judgements), f"{len(found.findings):,} findings")

            await verify(parts, judge, log, record, settle_s=settle_s)
        if report is not None:
            await report.draw(found, log, compared_with)
    return found


def _chosen(log: PostgresLog, executions: Sequence[int], since: datetime | None) -> Logs:
    """The logs a one-shot command asks for: some, those since a time, or all."""
    if executions:
        return read_each(log, executions)
    if since is not None:
        return read_since(log, since)
    return scan(log)


async def _backfill(settings: Settings, as_json: bool) -> int:
    began = time.monotonic()
    done, rows = await backfilled(settings)
    return _report_backfill(done, rows, time.monotonic() - began, as_json)


async def backfilled(settings: Settings) -> tuple[Counter[str], int]:
    """Fill the store: outcomes of the executions that differed, and rows written."""
    done: Counter[str] = Counter()
    rows = 0
    async with AsyncExitStack() as opened:
        # The log first: no store is made for a log that cannot be read.
        source = await opened.enter_async_context(open_log(settings, logs.get("backfill")))
        store = await opened.enter_async_context(
            ChainStore.open(
                settings.store,
                synchronous=settings.store_synchronous,
                replicas=settings.store_replicas,
                max_bytes=settings.store_max_bytes,
            )
        )
        log = source.reader(store.clock)
        feed = _feed(settings, store, log)
        with progress("backfill", await estimated_rows(log)) as advance:
            everything = Comparison(log, store, source.options.shard, ID_MIN, ID_MAX)
            async with aclosing(compared(everything)) as steps:
                async for step in steps:
                    facts = step.facts
                    batch = Batch(
                        "backfill", facts.epoch, None, facts.server_now, logs=step.logs, gone=step.gone
                    )
                    report = await feed.take(batch)
                    done += report.outcomes
                    done["log_truncated"] += sum(each.events is None for each in step.logs)
                    rows += report.rows
                    advance(report.rows, f"{done.total():,} executions")
        _report_replicas(await caught_up(store, settings.store_replicas))
    return done, rows


def _report_replicas(found: Sequence[int | StoreError]) -> None:
    """What is in the way of a replica is its own: the store is filled, and a run catches up."""
    for index, each in enumerate(found):
        if isinstance(each, StoreError):
            logs.get("backfill").warning("replica_away", replica=index, reason=str(each), hint=each.hint)
        elif each:
            logs.get("backfill").warning("replica_forked", replica=index, events=each)


def _report_backfill(done: Counter[str], rows: int, seconds: float, as_json: bool) -> int:
    if as_json:
        document = {
            "executions": done.total(),
            "rows_written": rows,
            "outcomes": dict(sorted(done.items())),
            "seconds": round(seconds, 3),
        }
        print(json.dumps(document))  # noqa: T201 - machine output
    else:
        show_backfill(done, rows, seconds)
    return 0 if done["extended"] + done["in_sync"] == done.total() else 3
