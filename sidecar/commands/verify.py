"""`noetl-chain verify`: compare every execution once."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from sidecar.app import finish, open_log
from sidecar.commands.console import progress, show_verification
from sidecar.commands.report import Report, reporting
from sidecar.comparator.controls import Controls
from sidecar.comparator.findings import Verification
from sidecar.comparator.verify import Logs, against_store, against_temporary, by_sums, read_whole, verify
from sidecar.core.exclusion import Exclusion
from sidecar.core.shards import Shard, shard_of
from sidecar.core.verdict import Judgement
from sidecar.errors import ConfigError
from sidecar.readings import Reading
from sidecar.service.compared import compared_server
from sidecar.settings import Settings
from sidecar.source.choose import estimated_rows, read_each, read_since
from sidecar.source.log import PostgresLog
from sidecar.source.scan import scan
from sidecar.source.sums import LogSums
from sidecar.store import ChainStore, StoreReader
from sidecar.store.clock import StoreClock
from sidecar.store.handover import filled_as
from sidecar.store.scratch import scratch
from sidecar.telemetry import logs


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
        store: A store to compare, opened read-only, as the shard it was filled as, whatever the
            settings say; None: a temporary one.
        settle: Seconds after which what is not good is read once more.
        report: Where a page is written, too.

    Returns:
        0 good, 1 findings, 3 incomplete.

    Raises:
        SidecarError: it could not be finished; nothing was written.
    """
    logs.configure(settings.log_level, settings.log_format)
    with reporting(report) as told:
        return finish(_verify(settings, executions, since, store, settle, as_json, told))


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
            not_on = await compared_server(source, store_url)
            rejoining = settings.rejoin is Reading.ON
            reading = ChainStore.open_readonly(store_url, not_on=not_on, rejoining=rejoining)
            raw = compared_with = await opened.enter_async_context(reading)
            log = source.reader(StoreClock(0), shard=await filled_as(raw))
            _check_shard(log.shard, executions)
            judge = against_store(raw, log, exclusion)
            if executions or since is not None:
                parts = read_whole(_chosen(log, executions, since))
            else:
                parts = by_sums(LogSums(log), raw.summer, log, exclusion)
        total = None if executions or since is not None else await estimated_rows(log)
        with progress("verify", total) as advance:

            def record(judgements: Sequence[Judgement]) -> None:
                found.add(judgements)
                advance(sum(j.log_rows for j in judgements), f"{len(found.findings):,} findings")

            await verify(parts, judge, log, record, settle_s=settle_s)
        if report is not None:
            await report.draw(found, log, compared_with)
    return found


def _check_shard(shard: Shard, executions: Sequence[int]) -> None:
    """A store lacks what falls to another shard, and is not behind for that."""
    foreign = [each for each in executions if not shard.owns(each)]
    if foreign:
        raise ConfigError(
            f"execution {foreign[0]} falls to shard {shard_of(foreign[0], shard.count)} of {shard.count}"
            f" and the store is that of shard {shard.index}",
            hint="name the store of that shard",
        )


def _chosen(log: PostgresLog, executions: Sequence[int], since: datetime | None) -> Logs:
    """The logs a one-shot command asks for: some, those since a time, or all."""
    if executions:
        return read_each(log, executions)
    if since is not None:
        return read_since(log, since)
    return scan(log)
