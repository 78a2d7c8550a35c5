"""Changes of the write-ahead log -> rows as every lane hands them over.

The decoded texts go back to Postgres, which casts them to the column's types and builds the body
by the one expression that the poll selects: there is no second renderer.  A row whose texts are
not all at hand (too large, or an UPDATE that left a TOASTed value alone) is read by its key.

A row counts only when its transaction is visible.  A commit is decoded as soon as it is flushed,
which is a moment before others see it, or long before where it waits for a standby; until then
the log does not have it, and nothing may be concluded from it.
Source: spec 1.8, 2.13, 4.2.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any, Final

from sidecar.core.event import Event
from sidecar.core.horizon import XID_SPAN, Facts, TailRow
from sidecar.core.ports import Clock
from sidecar.source.body import BODY_COLUMNS, body_sql
from sidecar.source.changes import Change
from sidecar.source.connection import Transaction
from sidecar.source.log import event_columns, event_of, microseconds_sql
from sidecar.source.options import Shard
from sidecar.source.pieces import PieceSize, weight
from sidecar.source.poll import bodies_sql
from sidecar.source.table import EventTable

_ROW_COLUMNS: Final = (
    "execution_id", "event_id", "prev_event_id", "parent_execution_id", "event_type", "ingest_time",
)  # fmt: skip

# A raw xid lies within 2^31 of the snapshot's xmax, on either side: one that has committed and is
# not yet shown may be greater.
_VISIBLE: Final = (
    "select s.mx, array(select x from unnest($1::bigint[]) as x where not pg_visible_in_snapshot("
    "(s.mx + ((x - s.mx + 2147483648) & 4294967295) - 2147483648)::text::xid8, s.sn)) as hidden"
    " from (select sn, pg_snapshot_xmax(sn)::text::bigint as mx"
    " from (select pg_current_snapshot() as sn) z) s"
)


def needed_columns(table: EventTable) -> tuple[str, ...]:
    """The columns whose texts a row is made of."""
    names = dict.fromkeys((*_ROW_COLUMNS, *BODY_COLUMNS))
    return tuple(name for name in names if name in table.types)


class WalRows:
    """Makes rows of changes, inside the transaction that decoded them."""

    def __init__(self, table: EventTable, shard: Shard, clock: Clock) -> None:
        self.columns = needed_columns(table)
        self._shard = shard
        self._clock = clock
        self._cast = _cast_sql(table, self.columns, shard)
        self._by_key = bodies_sql(table)

    async def hidden(self, transaction: Transaction, xids: Collection[int]) -> tuple[int, frozenset[int]]:
        """The xmax, 64-bit, of a snapshot, and which of these top transactions it does not show yet."""
        row = (await transaction.fetch(_VISIBLE, list(xids)))[0]
        return row["mx"], frozenset(row["hidden"])

    async def rows(
        self, transaction: Transaction, changes: Sequence[Change], facts: Facts, xmax: int, *, orders: bool
    ) -> list[TailRow]:
        """The rows of this shard, in the order of the changes.

        Args:
            orders: Every row that the log shows with these is at hand, so that their positions may
                prove which of two came first (2.13).

        A row that was read by its key and is gone again is left out: its deletion follows.

        Raises:
            SourceError: a statement failed.
        """
        found: dict[int, TailRow] = {}
        at_hand = [(number, c) for number, c in enumerate(changes) if c.texts is not None]
        if at_hand:
            columns = zip(*(c.texts or () for _, c in at_hand), strict=True)
            rows = await transaction.fetch(self._cast, *map(list, columns))
            for row in rows:
                number, change = at_hand[row["ord"] - 1]
                found[number] = self._tail_row(change, event_of(row), row["ingested"], facts, xmax, orders)
        missing = {c.key: number for number, c in enumerate(changes) if c.texts is None}
        async for row in self._read(transaction, tuple(missing)):
            event = event_of(row)
            number = missing[event.execution_id, event.event_id]
            change = changes[number]
            found[number] = self._tail_row(change, event, row["ingested"], facts, xmax, orders, row["xmin"])
        return [found[number] for number in sorted(found)]

    async def _read(
        self, transaction: Transaction, keys: Sequence[tuple[int, int]]
    ) -> AsyncGenerator[Any, None]:
        size, at = PieceSize(), 0
        ours = await self._ours(transaction, keys)
        while at < len(ours):
            piece = ours[at : at + size.rows]
            rows = await transaction.fetch(self._by_key, [key[0] for key in piece], [key[1] for key in piece])
            size.learn(len(rows), weight(rows))
            at += len(piece)
            for row in rows:
                yield row

    async def _ours(
        self, transaction: Transaction, keys: Sequence[tuple[int, int]]
    ) -> Sequence[tuple[int, int]]:
        if self._shard.count == 1 or not keys:
            return keys
        sql = f"select i.id from unnest($1::bigint[]) as i(id) where true{self._shard.filter_sql('i.id')}"
        mine = {row[0] for row in await transaction.fetch(sql, [key[0] for key in keys])}
        return [key for key in keys if key[0] in mine]

    def _tail_row(
        self,
        change: Change,
        event: Event,
        ingested: int | None,
        facts: Facts,
        xmax: int,
        orders: bool,
        xmin: int | None = None,
    ) -> TailRow:
        # The top transaction's id is not greater than the row's own, so what it proves holds.
        proven = change.inserted and xmin in (None, change.xid)
        return TailRow(
            event,
            change.xid if xmin is None else xmin,
            widened(change.xid, xmax) if proven else None,
            facts.epoch,
            None,
            self._clock.now(),
            ingested,
            change.commit_lsn if proven else None,
            change.first_lsn if proven and orders else None,
        )


def widened(xid: int, xmax: int) -> int:
    """The 64-bit value of a raw xid within 2^31 of `xmax`."""
    return xmax + (xid - xmax + XID_SPAN // 2) % XID_SPAN - XID_SPAN // 2


def _cast_sql(table: EventTable, columns: Sequence[str], shard: Shard) -> str:
    """One array of texts a column; the rows keep their place in `ord`."""
    arrays = ", ".join(f"${number}::text[]" for number in range(1, len(columns) + 1))
    names = ", ".join(f"c{number}" for number in range(len(columns)))
    casts = ", ".join(
        f'u.c{number}::{table.types[column]} as "{column}"' for number, column in enumerate(columns)
    )
    ingested = microseconds_sql("l.ingest_time") if "ingest_time" in table.types else "null::bigint"
    return (
        f"select {event_columns(table, 'l', body_sql(table.types, 'l'))}, l.ord, {ingested} as ingested"
        f" from (select u.ord, {casts} from unnest({arrays}) with ordinality as u({names}, ord)) l"
        f" where true{shard.filter_sql('l.execution_id')} order by l.ord"
    )
