"""`noetl-chain store …`: the commands for a store file, put together from the adapters."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from sidecar.app import open_log
from sidecar.commands.console import progress, show_check, show_rebuild
from sidecar.core.populate import InSync, Refused
from sidecar.errors import ConfigError, StoreError, StoreFormatError
from sidecar.readings import Reading
from sidecar.service.compared import compared_server, look_s
from sidecar.settings import Settings, variable
from sidecar.store import ChainStore
from sidecar.store.backup import backup
from sidecar.store.check import Checked, check, partitions
from sidecar.store.format import FORMAT_VERSION, Marker, gate
from sidecar.store.location import sqlite_path
from sidecar.store.postgres import check as postgres
from sidecar.store.postgres.url import is_postgres
from sidecar.store.rebuild import Rebuilt
from sidecar.telemetry import logs


def main_store_check(settings: Settings, *, quick: bool, as_json: bool) -> int:
    """`noetl-chain store check`: read the whole store, beside a sidecar or without one.

    Returns:
        0 when nothing in it contradicts itself, 1 otherwise.

    Raises:
        StoreError: it cannot be read.
    """
    began = time.monotonic()
    if is_postgres(settings.store):
        total = asyncio.run(postgres.partitions(settings.store))
        with progress("check", total, unit="partitions") as advance:
            checked = asyncio.run(postgres.check(settings.store, moved=advance))
    else:
        path = existing_store(settings)
        with progress("check", partitions(path), unit="partitions") as advance:
            checked = check(path, quick=quick, moved=advance)
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps(_document(checked, seconds)))  # noqa: T201 - machine output
    else:
        show_check(checked, seconds)
    return checked.exit_code


def _document(checked: Checked, seconds: float) -> dict[str, object]:
    return {
        "executions": checked.executions,
        "events": checked.events,
        "incomplete": checked.incomplete,
        "damaged": checked.damaged,
        "kinds": dict(sorted(checked.kinds.items())),
        "findings": [
            {
                "execution_id": None if found.execution_id is None else str(found.execution_id),
                "kind": found.kind,
                "detail": found.detail,
            }
            for found in checked.findings
        ],
        "findings_left_off": checked.kinds.total() - len(checked.findings),
        "seconds": round(seconds, 3),
    }


def main_store_backup(settings: Settings, target: Path, *, as_json: bool) -> int:
    """`noetl-chain store backup`: one instant of the store in one file.

    Raises:
        ConfigError: the file exists.
        StoreError: it cannot be made; nothing is left of it.
    """
    path = existing_store(settings)
    began = time.monotonic()
    with progress("backup", None, unit="pages") as advance:
        before = 0

        def moved(done: int, total: int) -> None:
            nonlocal before
            advance(done - before, f"of {total:,} pages")
            before = done

        size = backup(path, target.expanduser().absolute(), moved)
    if as_json:
        document = {"bytes": size, "seconds": round(time.monotonic() - began, 3)}
        print(json.dumps(document))  # noqa: T201 - machine output
    return 0


def main_store_rebuild(settings: Settings, execution_id: int, *, as_json: bool) -> int:
    """`noetl-chain store rebuild`: one partition anew from the log.

    Returns:
        0 when it was rebuilt, 3 when the log does not allow it and nothing was changed.

    Raises:
        ConfigError: the store holds nothing of the execution.
        StoreLocked: a sidecar has the store.
        SourceError: the log cannot be read; nothing was changed.
    """
    logs.configure(settings.log_level, settings.log_format)
    done = asyncio.run(rebuilt(settings, execution_id))
    if as_json:
        document = {
            "execution_id": str(execution_id),
            "outcome": done.outcome.label,
            "rows_kept": done.kept,
            "rows": done.rows,
        }
        print(json.dumps(document))  # noqa: T201 - machine output
    else:
        show_rebuild(done)
    return 0 if isinstance(done.outcome, InSync) else 3


async def rebuilt(settings: Settings, execution_id: int) -> Rebuilt:
    """What a rebuild came to; see `main_store_rebuild`."""
    if is_postgres(settings.store):
        async with open_log(settings, logs.get("rebuild")) as source:
            compared = await compared_server(source, settings.store)
        async with ChainStore.open_readonly(settings.store, not_on=compared):
            pass  # one that is not there is not made
    else:
        existing_store(settings)
    # The store first: beside a running sidecar there is no need to ask Postgres.
    async with ChainStore.open(
        settings.store,
        look_s=look_s(settings),
        synchronous=settings.store_synchronous,
        evidence_max_bytes=settings.evidence_max_bytes,
        rejoining=settings.rejoin is Reading.ON,
    ) as store:
        rows = len(await store.chain(execution_id))
        known = await store.query("SELECT 1 FROM partition WHERE execution_id = ?", (execution_id,))
        if not rows and not known:
            raise ConfigError(
                f"the store holds nothing of execution {execution_id}",
                hint="`run` and `backfill` store what the log has",
            )
        async with open_log(settings, logs.get("rebuild")) as source:
            (log,) = await source.reader(store.clock).read([execution_id])
        if log.events is None:
            return Rebuilt(Refused("log_truncated"), 0, rows)
        return await store.rebuild(execution_id, log.events, read=log.read)


def main_store_upgrade(settings: Settings) -> int:
    """`noetl-chain store upgrade`: there is no older layout than the first one.

    Raises:
        ConfigError: the store has this layout already.
        StoreFormatError: it has another one.
    """
    existing_store(settings)
    raise ConfigError(
        f"the store has layout {FORMAT_VERSION}, the only one there is: nothing to upgrade",
        hint="docs/store.md says how a later layout will be reached",
    )


def existing_store(settings: Settings) -> Path:
    """The path of the store, which is there and has this layout.

    Raises:
        ConfigError: it is kept by a server.
        StoreError: it is not, or has not.
    """
    if is_postgres(settings.store):
        raise ConfigError(
            "this command looks after a store in a file, and this one is in PostgreSQL",
            hint="pg_dump copies it, `store check` reads it, and `verify --store` compares it with the log",
        )
    path = sqlite_path(settings.store)
    if not path.is_file():
        raise StoreError(f"there is no store at {path}", hint=f"name it by --store or {variable('store')}")
    if gate(path) is Marker.ABSENT:
        raise StoreFormatError(f"{path} is no chain store", hint="name the file that the sidecar writes")
    return path
