"""`noetl-chain inspect`: one execution as log and store hold it, drawn and told.

Both sides are only read, so it works beside a running sidecar.  A side that cannot be read is
named and left out; it is never taken for empty.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from typing import Final

from sidecar.app import open_log
from sidecar.comparator.probe import judged
from sidecar.core.ports import ExecutionLog
from sidecar.core.shards import shard_of
from sidecar.errors import SourceError
from sidecar.inspection.drawn import dot, mermaid, text
from sidecar.inspection.inspected import Inspected, document, told
from sidecar.readings import Reading
from sidecar.settings import Settings, variable
from sidecar.store import ChainStore, StoreReader
from sidecar.store.clock import StoreClock
from sidecar.store.handover import filled_as
from sidecar.store.location import sqlite_path
from sidecar.store.postgres.url import is_postgres
from sidecar.telemetry import logs

NEVER_SEEN: Final = 3


def main_inspect(
    settings: Settings,
    execution_id: int,
    *,
    form: str,
    everything: bool,
    payload: bool,
    store_given: bool,
) -> int:
    """Show one execution on stdout.

    Args:
        everything: Fold no linear runs.
        payload: Show the bodies that findings keep.
        store_given: The store was named on the command line, so it has to be there.

    Returns:
        0 when it is shown, 3 when neither side has ever seen it.

    Raises:
        SourceError: the log cannot be read, and the store has nothing of it to show.
        StoreError: the store is there and cannot be read, or is not where it was said to be.
    """
    logs.configure(settings.log_level, settings.log_format)
    found = asyncio.run(inspected(settings, execution_id, store_given=store_given))
    for why in filter(None, (found.log_why, found.store_why)):
        print(f"noetl-chain: {why}", file=sys.stderr)  # noqa: T201 - what was left out
    if found.never_seen:
        print(f"noetl-chain: execution {execution_id} was never seen", file=sys.stderr)  # noqa: T201 - as above
        return NEVER_SEEN
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal without these signs gets their numbers
        sys.stdout.reconfigure(errors="backslashreplace")
    for line in _lines(found, form, everything=everything, payload=payload):
        print(line)  # noqa: T201 - machine output, or what was asked for
    return 0


def _lines(found: Inspected, form: str, *, everything: bool, payload: bool) -> Iterator[str]:
    match form:
        case "json":
            yield json.dumps(document(found, payload=payload))
        case "mermaid":
            yield from mermaid(found.picture, everything=everything)
        case "dot":
            yield from dot(found.picture, everything=everything)
        case _:
            yield from told(found, payload=payload)
            yield ""
            yield from text(found.picture, everything=everything)


async def inspected(settings: Settings, execution_id: int, *, store_given: bool = False) -> Inspected:
    """What log and store hold of one execution; see `main_inspect`."""
    path = None if is_postgres(settings.store) else sqlite_path(settings.store)
    if path is not None and not path.is_file() and not store_given:
        why = f"no store was read: there is none at {path} (name it by --store or {variable('store')})"
        log = await _log(settings, execution_id)
        return Inspected(execution_id, log, "", None, why, (), None)
    async with ChainStore.open_readonly(settings.store, rejoining=settings.rejoin is Reading.ON) as store:
        if not _names_a_log(settings):
            found = await _of_store(store, execution_id, "no connection to the log is configured")
            if not found.stored:
                settings.source_dsn()  # says how to name one
            return found
        try:
            # The log first, as everywhere; what it lacks of the store then is asked for once more.
            log = await _log(settings, execution_id)
            held = await store.snapshot(execution_id)
            absent = log.absent(held.rows)
            if absent:
                log = await _log(settings, execution_id)
        except SourceError as error:
            found = await _of_store(store, execution_id, str(error))
            if not found.stored:
                raise  # whether it was ever seen cannot be told
            return found
        findings = tuple(await store.findings(execution_id))
        if (why := await _not_ours(store, execution_id)) and not held.rows and not findings:
            return Inspected(execution_id, log, "", None, why, (), None)
        return Inspected(
            execution_id, log, "", held, "", findings, judged(held, log, absent, settings.windows)
        )


async def _not_ours(store: StoreReader, execution_id: int) -> str:
    """Why a store that lacks an execution is not behind for that; empty where it would be."""
    shard = await filled_as(store)
    if shard is None or shard.owns(execution_id):
        return ""
    owner = shard_of(execution_id, shard.count)
    return (
        f"the store is that of shard {shard.index} of {shard.count}, and the execution falls to shard {owner}"
    )


async def _of_store(store: StoreReader, execution_id: int, why: str) -> Inspected:
    held = await store.snapshot(execution_id)
    findings = tuple(await store.findings(execution_id))
    return Inspected(execution_id, None, f"the log was not read: {why}", held, "", findings, None)


async def _log(settings: Settings, execution_id: int) -> ExecutionLog:
    async with open_log(settings, logs.get("inspect")) as source:
        (log,) = await source.reader(StoreClock(0)).read([execution_id])
    return log


def _names_a_log(settings: Settings) -> bool:
    return any(each is not None for each in (settings.dsn, settings.dsn_file, settings.host))
