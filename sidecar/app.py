"""The composition root: the only file, with `cli`, that names adapters.

It opens the store, looks the table up, puts lanes, feed and comparator together, and turns
signals and failures into an end.  What is composed here decides nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from typing import Any, Final, TypeVar

import uvloop
from structlog.typing import FilteringBoundLogger

from sidecar.certified import Certified
from sidecar.comparator.audit import Audit
from sidecar.comparator.controls import Controls
from sidecar.comparator.loop import Comparator
from sidecar.comparator.pace import Pace
from sidecar.core.acceptance import Controls as Totals
from sidecar.core.due import SECOND
from sidecar.core.exclusion import Exclusion
from sidecar.core.settle import Limits
from sidecar.errors import StoreError
from sidecar.feed import Feed
from sidecar.service.board import Board
from sidecar.service.compared import compared_server, look_s
from sidecar.service.gauges import Gauges
from sidecar.service.line import Line
from sidecar.service.membership import Membership, membership
from sidecar.service.pinned import PinWatch
from sidecar.service.resharding import hand_over
from sidecar.service.sampler import Sampler
from sidecar.service.slotwatch import SlotWatch
from sidecar.service.told import Instruments
from sidecar.settings import Reading, Settings, micros, variable
from sidecar.source.log import PostgresLog
from sidecar.source.opened import LogSource, wal_lanes
from sidecar.source.options import SourceOptions
from sidecar.source.pins import find_pins
from sidecar.store import ChainStore
from sidecar.store.audit import StoreAuditBook
from sidecar.store.replication import Follower
from sidecar.store.retention import DAY_US, Retention
from sidecar.store.scratch import scratch_of
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
        return finish(_until_signal(_serve(settings), cut_off.start))
    finally:
        cut_off.cancel()


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on a loop of its own."""
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
    metrics = Metrics(replicas=len(settings.store_replicas), shard=settings.shard)
    instruments = Instruments(metrics, Health(), logs.get("sidecar"))
    announce(settings, instruments.log, metrics)
    board = Board(settings, instruments.health)
    served = board.served(settings.api_bind, settings.token())
    scraped = Listener(application(metrics.registry, instruments.health), settings.metrics_bind)
    bound, named = settings.api_bind, variable("api_bind")
    with closing(scraped), closing(Listener(served, bound, variable=named, ending=board.hub.close)) as shown:
        for what, listener in (("metrics", scraped), ("api", shown)):
            instruments.log.info("listening", what=what, port=listener.port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scraped.run(asyncio.Event()))
            tasks.create_task(shown.run(asyncio.Event()))
            if settings.populate is Reading.ON:
                tasks.create_task(_follow(settings, instruments, board))
            else:
                instruments.log.warning("populate_is_off", variable="NOETL_CHAIN_POPULATE")
                instruments.health.clear(NotReady.STARTING)


async def _follow(settings: Settings, instruments: Instruments, board: Board) -> None:
    # The log first: no store is made for a log that cannot be read.
    async with open_log(settings, instruments.log) as source:
        await source.check_tail()
        try:
            opening = await ChainStore.open(
                settings.store,
                synchronous=settings.store_synchronous,
                max_bytes=settings.store_max_bytes,
                replicas=settings.store_replicas,
                evidence_max_bytes=settings.evidence_max_bytes,
                not_on=await compared_server(source, settings.store),
                look_s=look_s(settings),
                rejoining=settings.rejoin is Reading.ON,
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
    await hand_over(store, source, instruments.log)
    async with AsyncExitStack() as opened:
        controls = None
        if settings.compare is Reading.ON:
            controls = Controls(await opened.enter_async_context(scratch_of(store)))
        seen = membership(settings, store, instruments)
        await opened.enter_async_context(seen.fleet.present())
        yield await _composed(settings, store, source, instruments, board, controls, seen)


async def _composed(
    settings: Settings,
    store: ChainStore,
    source: LogSource,
    instruments: Instruments,
    board: Board,
    controls: Controls | None,
    seen: Membership,
) -> Line:
    certified = Certified(
        store.clock, on=settings.cert is Reading.ON, live_window=round(settings.live_window_s * SECOND)
    )
    feed = make_feed(settings, store, source.reader(store.clock), certified)
    comparator = None
    if settings.compare is Reading.ON:
        comparator = Comparator(
            store,
            source.reader(store.clock),
            feed.settling,
            settings.windows,
            projecting=True,
            certified=certified,
            exclusion=Exclusion(settings.exclude),
            advancing=settings.advance is Reading.ON,
            controls=controls,
        )
    await store.flag_held()
    await certified.begin(store)
    gauges = Gauges(
        store,
        settings,
        instruments,
        certified=certified,
        controls=lambda: Totals() if comparator is None else comparator.control_totals,
    )
    board.gauges = await gauges.begun()
    sampler = Sampler(source.roots(settings.invariant_window_hours), instruments)
    lanes = source.followed(store, store.clock)
    slot = SlotWatch(wal_lanes(lanes), instruments, every_s=settings.tick_s)
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
        beside=(sampler.run, pins.run, slot.run, *seen.loops),
        tick_s=settings.tick_s,
        replicas=[Follower(store, url) for url in settings.store_replicas],
        retention=Retention(store, keep * DAY_US).step if (keep := settings.retain_days) else None,
        audit=_audit(settings, store, source) if comparator is not None and settings.audit_share else None,
    )
    board.line, board.sampler, board.fleet = line, sampler, seen.fleet.document
    reader = source.reader(store.clock)
    board.data.sources = Sources(store, reader, settings.windows, instruments.metrics.probed, settings.shard)
    board.state = partial(certified.state, store)
    return line


def _audit(settings: Settings, store: ChainStore, source: LogSource) -> Audit:
    return Audit(
        source.summer(store.clock),
        store.summer,
        StoreAuditBook(store),
        store.clock,
        settings.windows,
        Pace(settings.audit_share, time.monotonic),
        round_us=micros(settings.audit_round_s),
        exclusion=Exclusion(settings.exclude),
    )


def make_feed(
    settings: Settings, store: ChainStore, log: PostgresLog, certified: Certified | None = None
) -> Feed:
    """The feed of `settings` into `store`, which reads whole logs from `log`."""
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
        shard=settings.shard,
        tail=settings.tail,
        wal_slot=settings.wal_slot,
        wal_publication=settings.wal_publication,
    )
    source = await LogSource.open(options)
    if source.table.missing:
        log.warning("columns_missing", columns=list(source.table.missing))
    try:
        yield source
    finally:
        await source.close()
