"""All checks, in the order people read them; what one cannot ask leaves the others standing.

Every name of `NAMES` has exactly one answer, whatever is broken: without Postgres the checks of
the log could not be told, without a store those of the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from sidecar.doctor import house, log, wal
from sidecar.doctor.checks import Check, cannot_tell, failed, ok
from sidecar.errors import ConfigError, SidecarError
from sidecar.settings import Reading, Settings
from sidecar.source import examine
from sidecar.source.connection import Session
from sidecar.source.examine import Role, Server, Table
from sidecar.source.identity import system_identifier
from sidecar.source.pins import Pins, find_pins

SERVER_CHECKS: Final = ("primary", "encoding", "clock", "durability", "timeouts")
TABLE_CHECKS: Final = ("table", "rights", "read_only", "columns")
LEAF_CHECKS: Final = ("indexes", "partitions")
PIN_CHECKS: Final = ("horizon", "prepared_transactions", "long_writers")
LOG_CHECKS: Final = (
    "connection", "server_version", *SERVER_CHECKS, "pooler", *TABLE_CHECKS, *LEAF_CHECKS, *PIN_CHECKS,
    "replication_slots", wal.NAME,
)  # fmt: skip
HOUSE_CHECKS: Final = ("gates", "settings", "variables")
NAMES: Final = (*LOG_CHECKS, *house.STORE_CHECKS, house.SHARD_CHECK, *HOUSE_CHECKS)

LOOKS_APART_S: Final = 1.0
"""Between two looks at what holds the horizon."""
POOL_TIMEOUT_S: Final = 3.0


async def examined(settings: Settings) -> list[Check]:
    """One check for each of `NAMES`, in that order."""
    logged, server = await _log_checks(settings)
    found = [
        *logged,
        *await asyncio.to_thread(house.store_checks, settings.store, server),
        await house.shard_check(settings.store, settings.shard),
        *house.settings_checks(settings),
    ]
    by_name = {check.name: check for check in found}
    return [by_name[name] for name in NAMES]


async def _log_checks(settings: Settings) -> tuple[list[Check], str | None]:
    """The checks of the log, and its server's system identifier where it was told."""
    try:
        dsn = settings.source_dsn()
    except ConfigError as error:
        nothing = settings.dsn is None and settings.dsn_file is None and settings.host is None
        said = cannot_tell if nothing else _misconfigured
        return _without_connection(said("connection", str(error), error.hint)), None
    session = Session(dsn, query_timeout_s=settings.query_timeout_s)
    try:
        began = time.monotonic()
        number = await examine.version(session)
        milliseconds = (time.monotonic() - began) * 1000
    except SidecarError as error:
        failure = failed("connection", str(error), error.hint, exit_code=error.exit_code)
        return _without_connection(failure), None
    try:
        patient = _Patient(settings, dsn, session)
        checks = [
            ok("connection", f"connected and answered in {milliseconds:.0f} ms"),
            log.version_check(number),
            *await patient.examined(),
        ]
        return checks, await _identifier(session)
    finally:
        await session.close()


async def _identifier(session: Session) -> str | None:
    try:
        return await system_identifier(session)
    except SidecarError:
        return None


def _misconfigured(name: str, why: str, remedy: str) -> Check:
    return failed(name, why, remedy, exit_code=ConfigError.exit_code)


def _without_connection(connection: Check) -> list[Check]:
    return [connection, *(cannot_tell(name, "there is no connection") for name in LOG_CHECKS[1:])]


class _Patient:
    """A server that answers; each group of checks asks and judges for itself."""

    def __init__(self, settings: Settings, dsn: str, session: Session) -> None:
        self._settings = settings
        self._dsn = dsn
        self._session = session

    async def examined(self) -> list[Check]:
        groups: tuple[tuple[tuple[str, ...], Callable[[], Awaitable[list[Check]]]], ...] = (
            ((*SERVER_CHECKS, "pooler"), self._server),
            (TABLE_CHECKS + LEAF_CHECKS, self._table),
            (PIN_CHECKS, self._pins),
            (("replication_slots",), self._slots),
            ((wal.NAME,), self._wal),
        )
        found: list[Check] = []
        for names, ask in groups:
            try:
                found += await ask()
            except SidecarError as error:
                found += [cannot_tell(name, str(error), error.hint) for name in names]
        return found

    async def _server(self) -> list[Check]:
        server: Server = await examine.server(self._session, lambda: time.time_ns() // 1000)
        return [
            log.primary_check(server),
            log.encoding_check(server),
            log.clock_check(server),
            log.durability_check(server),
            log.timeouts_check(server, self._settings.query_timeout_s),
            log.pooler_check(server, self._connections, await self._width(server)),
        ]

    @property
    def _connections(self) -> int:
        """Of a running sidecar: three lanes, the feed's reader, the comparator's."""
        return 5 if self._settings.compare is Reading.ON else 4

    async def _width(self, server: Server) -> int | None:
        """The pool is tried only where one is, and not with more than a sidecar takes."""
        if not server.pooled:
            return None
        timeout_s = min(POOL_TIMEOUT_S, self._settings.query_timeout_s)
        return await examine.pool_width(self._dsn, self._connections, timeout_s=timeout_s)

    async def _table(self) -> list[Check]:
        schema = self._settings.noetl_schema
        table: Table = await examine.table(self._session, schema)
        there = log.table_check(table, schema)
        if table.relid is None:
            others = (*TABLE_CHECKS[1:], *LEAF_CHECKS)
            return [there, *(cannot_tell(name, "there is no event table") for name in others)]
        role: Role = await examine.role(self._session)
        leaves = await examine.partitions(self._session, table.relid)
        return [
            there,
            log.rights_check(table, role),
            log.read_only_check(table, role),
            log.columns_check(table),
            log.indexes_check(leaves),
            log.partitions_check(table, leaves),
        ]

    async def _pins(self) -> list[Check]:
        bound = self._settings.pinned_s
        looks: list[Pins] = [await find_pins(self._session)]
        if looks[0].held:
            await asyncio.sleep(LOOKS_APART_S)
            looks.append(await find_pins(self._session))
        return [
            log.horizon_check(looks, LOOKS_APART_S, bound),
            log.prepared_check(looks[-1]),
            log.writers_check(looks[-1], bound),
        ]

    async def _slots(self) -> list[Check]:
        return [log.slots_check(*await examine.slots(self._session))]

    async def _wal(self) -> list[Check]:
        return [await wal.wal_check(self._settings, self._session)]
