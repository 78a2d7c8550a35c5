"""The check of the WAL source: what it needs is there, its slot stands and keeps no more than it may."""

from __future__ import annotations

from typing import Final

from sidecar.core.horizon import Cursor
from sidecar.core.walgap import WAL_LANE, Gap, gap_of
from sidecar.doctor.checks import Check, failed, ok, warning
from sidecar.errors import SourceContractError, StoreError
from sidecar.settings import Settings
from sidecar.source.connection import Session, fetch_alone
from sidecar.source.slot import Look, SlotReader
from sidecar.source.table import inspect
from sidecar.source.wal import wal_scope
from sidecar.store.reader import open_readonly

NAME: Final = "wal_source"
RETAINED_WARN_BYTES: Final = 4 * 2**30
WHY: Final = {
    Gap.TIMELINE: "a standby was promoted, or this is another server",
    Gap.PUBLICATION: "somebody changed the publication",
    Gap.SLOT_AHEAD: "somebody made it anew or has read from it: one sidecar a slot",
    Gap.OWED: "the sweep has not ended its round since an earlier gap",
}
_LEFT: Final = (
    "select (select count(*) from pg_replication_slots where slot_name = $1),"
    " (select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size')"
)


async def wal_check(settings: Settings, session: Session) -> Check:
    """Look at the source that the settings name.

    Raises:
        SourceError: it cannot be asked.
    """
    if settings.tail != "wal":
        there, _ = (await fetch_alone(session, _LEFT, (settings.wal_slot,)))[0]
        return _unused(settings.wal_slot, there=bool(there))
    try:
        table = await inspect(session, settings.noetl_schema)
        slot = SlotReader(
            session,
            table,
            settings.shard,
            slot=settings.wal_slot,
            publication=settings.wal_publication,
            timeout_s=settings.query_timeout_s,
        )
        async with slot.transaction() as transaction:
            look = await slot.look(transaction)
    except SourceContractError as error:
        return failed(NAME, str(error), error.hint, exit_code=error.exit_code)
    _, keep_mib = (await fetch_alone(session, _LEFT, (slot.name,)))[0]
    # The slot first: it is moved after the position is stored, never before.
    cursor = await _stored(settings)
    gap = None if cursor is None else _gap(cursor, look, wal_scope(table, settings.shard, slot))
    return judged(slot.name, look, keep_mib, gap)


async def _stored(settings: Settings) -> Cursor | None:
    """The lane's cursor, None without one; a store that cannot be read has checks of its own."""
    try:
        async with open_readonly(settings.store) as store:
            return (await store.cursors()).get(WAL_LANE)
    except StoreError:
        return None


def _gap(cursor: Cursor, look: Look, scope: str) -> Gap | None:
    return gap_of(
        cursor,
        cursor.horizon,
        look.slot,
        epoch=look.facts.epoch,
        scope=scope,
        publication=look.publication,
    )


def judged(name: str, look: Look, keep_mib: int, gap: Gap | None = None) -> Check:
    """What one look at the slot comes to.

    Args:
        keep_mib: max_slot_wal_keep_size, -1 without a bound.
        gap: Between the slot and the position that is stored.
    """
    if look.slot is None:
        return warning(
            NAME,
            f"there is no slot {name}",
            "the sidecar makes it at its start; the sweep reads what came before",
        )
    if look.slot.lost:
        return warning(
            NAME,
            f"the server has given the slot {name} up: it kept too much WAL",
            "the sidecar makes it anew and the sweep repairs; raise max_slot_wal_keep_size",
        )
    if gap is not None:
        return warning(
            NAME,
            f"the slot {name} does not go on from the stored position: {gap.value}",
            f"{WHY.get(gap, 'other settings, or another table, than before')};"
            " the sidecar goes on by itself, and the sweep reads what may be missing",
        )
    text = f"slot {name} keeps {look.retained / 2**20:,.1f} MiB of WAL"
    if look.retained > RETAINED_WARN_BYTES:
        return warning(NAME, text, "start the sidecar, end the oldest transaction, or drop the slot")
    if keep_mib < 0:
        return warning(
            NAME,
            f"{text}, without a bound",
            "set max_slot_wal_keep_size, so that a sidecar that is away does not fill the server's disk",
        )
    return ok(NAME, f"{text}, at most {keep_mib:,} MiB")


def _unused(name: str, *, there: bool) -> Check:
    if there:
        return warning(
            NAME,
            f"the slot {name} stands and NOETL_CHAIN_TAIL is poll: it keeps WAL for nobody",
            f"SELECT pg_drop_replication_slot('{name}')",
        )
    return ok(NAME, "not in use: the table is polled")
