"""`noetl-chain backfill`: fill the store from the whole log."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing

from sidecar.app import finish, make_feed, open_log
from sidecar.commands.console import progress, show_backfill
from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.ports import Batch
from sidecar.errors import StoreError
from sidecar.readings import Reading
from sidecar.service.compared import compared_server, look_s
from sidecar.service.resharding import hand_over
from sidecar.settings import Settings
from sidecar.source.choose import estimated_rows
from sidecar.source.compare import Comparison, compared
from sidecar.store import ChainStore
from sidecar.store.replication import caught_up
from sidecar.telemetry import logs


def main_backfill(settings: Settings, *, as_json: bool) -> int:
    """`noetl-chain backfill`: fill the store from the whole log.

    What the store already holds in the same number and with the same ids is not read again,
    so a backfill that was cut short goes on where it stopped.

    Returns:
        0 when everything of the log is stored, 3 when something was refused.
    """
    logs.configure(settings.log_level, settings.log_format)
    return finish(_backfill(settings, as_json))


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
                not_on=await compared_server(source, settings.store),
                look_s=look_s(settings),
                rejoining=settings.rejoin is Reading.ON,
            )
        )
        await hand_over(store, source, logs.get("backfill"))
        log = source.reader(store.clock)
        feed = make_feed(settings, store, log)
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
