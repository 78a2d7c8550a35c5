"""The lane `wal`: every committed change of the table, in the order of the commits.

Peek, store, advance: the slot moves only after the store's transaction, so a crash anywhere reads
again, and what is known is dropped.  The lane's cursor holds the position up to which everything
is stored.  A slot that no longer holds everything since then is a gap (`core.walgap`): it gets a
new slot where the old one is of no use, the sweep is asked for a round, and until that has ended
the cursor has no position, so that a restart asks again and readiness says catching up.

A peek is bounded by messages and by WAL, and never ends inside a transaction: a huge one is
handed over in pieces, the position stands behind its last one.
Source: spec 1.8.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from sidecar.core import pulse
from sidecar.core.horizon import Cursor, TailRow
from sidecar.core.ports import Batch, Clock
from sidecar.core.walgap import NEEDS_A_NEW_SLOT, WAL_LANE, Gap, gap_of
from sidecar.source.changes import Changes, Decoder
from sidecar.source.connection import Session, Transaction
from sidecar.source.doubt import Doubt
from sidecar.source.log import read_anchor
from sidecar.source.options import Shard
from sidecar.source.pieces import PieceSize
from sidecar.source.poll import PIECE_BYTES, PIECE_ROWS
from sidecar.source.slot import Look, SlotReader
from sidecar.source.table import EventTable
from sidecar.source.tail import LaneState, LaneStore, scope_of
from sidecar.source.walrows import WalRows

CHANGES_MAX: Final = 10_000
"""Messages of one peek, but for the transaction that passes it."""
SPAN_BYTES: Final = 256 * 2**20
"""WAL that one peek passes over, whatever else was written into it."""
MESSAGE_BYTES: Final = 256 * 1024
"""A larger message is not carried: its row is read by its key."""
HEAD_BYTES: Final = 4096
"""What is carried of it; the key columns stand in front."""
IDLE_BYTES: Final = 2**20
"""WAL without a change of ours after which the slot is moved nevertheless."""
POLL_LANES: Final = ("late", "live")


@dataclass(frozen=True, slots=True)
class WalState:
    """The source as telemetry sees it.  `retained_bytes`: WAL that is kept for the slot.

    `size_left`: bytes until the server gives the slot up, None without a bound.
    """

    retained_bytes: int = 0
    size_left: int | None = None


def wal_scope(table: EventTable, shard: Shard, slot: SlotReader) -> str:
    """The scope of the lane's cursor."""
    return scope_of(table, shard, f"{WAL_LANE}:{slot.name}:{slot.publication}")


class WalLane:
    """The lane `wal`; see `core.ports.Lane`.

    Args:
        session: Used by nobody else.
        every_s: From the begin of one peek to the begin of the next, where nothing waits.
        doubt: Asks the sweep for a round.
    """

    name = WAL_LANE

    def __init__(
        self,
        session: Session,
        slot: SlotReader,
        table: EventTable,
        store: LaneStore,
        clock: Clock,
        doubt: Doubt,
        *,
        every_s: float,
        shard: Shard,
        changes_max: int = CHANGES_MAX,
        message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        self.state = LaneState()
        self.wal = WalState()
        self.gaps: Counter[Gap] = Counter()
        """How often each was found since the start."""
        self._session = session
        self._slot = slot
        self._table = table
        self._store = store
        self._doubt = doubt
        self._every_s = every_s
        self._changes_max = changes_max
        self._message_bytes = message_bytes
        self._clock = clock
        self._rows = WalRows(table, shard, clock)
        self._scope = wal_scope(table, shard, slot)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """See `core.ports.Lane`."""
        cursors = await self._store.cursors()
        run = _Run(cursors.get(self.name), tuple(lane for lane in POLL_LANES if lane in cursors))
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            async with aclosing(self._cycle(run)) as steps:
                async for step in steps:
                    yield step.batch
                    run.stored(step)
            if (position := run.to_confirm()) is not None:
                await self._slot.advance(position)
            rest = 0.0 if run.more else max(0.0, began + self._every_s - now())
            with pulse.waiting(rest):
                await asyncio.sleep(rest)

    async def _cycle(self, run: _Run) -> AsyncGenerator[_Step, None]:
        """One peek, or the repair of what stands against one."""
        run.more = run.whole = False
        if run.ticket is not None and self._doubt.settled(run.ticket):
            run.ticket = None
        last: _Step | None = None
        async with self._slot.transaction() as transaction:
            run.read_at = self._clock.now()
            look = await self._slot.look(transaction)
            gap = self._gap(run, look)
            if look.slot is not None and gap not in NEEDS_A_NEW_SLOT:
                if gap is not None:
                    self._found(run, gap, look, look.slot.confirmed)
                run.confirmed = look.slot.confirmed
                async with aclosing(self._peeked(run, look, transaction)) as steps:
                    async for step in steps:
                        if last is not None:
                            yield last
                        last = step
        if gap in NEEDS_A_NEW_SLOT:
            self._found(run, gap, look, await self._slot.make())
            run.more = True
        if last is not None:
            yield await self._anchored(run, last, look)
            self._show(run, look)

    async def _anchored(self, run: _Run, step: _Step, look: Look) -> _Step:
        """Every row was visible before: whatever is assigned an xid from here on came after.

        None where the log may show rows that are still to come here, left in the slot or for the
        sweep: one of them may stand behind a tip that a root would be joined to (2.13).
        """
        if not step.batch.rows or not run.whole or run.ticket is not None:
            return step
        anchor = await read_anchor(self._session, look.facts)
        rows = tuple(replace(row, anchor=anchor) for row in step.batch.rows)
        return replace(step, batch=replace(step.batch, anchor=anchor, rows=rows))

    def _gap(self, run: _Run, look: Look) -> Gap | None:
        return gap_of(
            run.cursor,
            run.position,
            look.slot,
            epoch=look.facts.epoch,
            scope=self._scope,
            publication=look.publication,
        )

    def _found(self, run: _Run, gap: Gap, look: Look, position: int) -> None:
        """Ask the sweep, and go on from `position`."""
        self._ask(run, gap)
        run.position = position
        run.cursor = self._cursor(run, look, position)

    def _ask(self, run: _Run, gap: Gap) -> None:
        self.gaps[gap] += 1
        run.ticket = self._doubt.ask()
        self.state = replace(self.state, caught_up=False)

    async def _peeked(self, run: _Run, look: Look, transaction: Transaction) -> AsyncGenerator[_Step, None]:
        """What the slot holds up to a bound.

        Nothing is yielded when it turns out that the slot was moved meanwhile, or of a piece in which
        there is a transaction that others do not see yet.
        """
        position = run.position or 0
        up_to = min(run.up_to or look.flushed, look.flushed, position + SPAN_BYTES)
        run.up_to = None
        run.more = up_to < look.flushed
        if up_to <= position:
            yield self._step(run, look, position)
            return
        kinds = {column: look.columns[column][0] for column in self._rows.columns}
        decoder = Decoder(self._table.relid, kinds)
        portal = await self._slot.peek(
            transaction, up_to, self._changes_max, bound=self._message_bytes, head=HEAD_BYTES
        )
        size, taken, checked = PieceSize(), 0, False
        while True:
            wanted = size.rows
            messages = await portal.fetch(wanted)
            if not checked:
                # The whole answer stands now; whoever moves the slot later takes nothing from it.
                confirmed = await self._slot.confirmed(transaction)
                if confirmed is None or confirmed > position:
                    return
                checked = True
            for message in messages:
                decoder.take(message["data"], message["size"], message["lsn"])
                if self._full(decoder):
                    whole = None if decoder.open else decoder.end_lsn
                    step = await self._decoded(run, look, transaction, decoder, whole)
                    if step is None:
                        return
                    yield step
            size.learn(len(messages), sum(len(message["data"]) for message in messages))
            taken += len(messages)
            if len(messages) < wanted:
                break
        cut_short = taken >= self._changes_max
        run.more = run.more or cut_short
        end = decoder.end_lsn if cut_short else max(up_to, decoder.end_lsn)
        step = await self._decoded(run, look, transaction, decoder, end, whole=not run.more)
        if step is not None:
            run.whole = not run.more
            yield step

    def _full(self, decoder: Decoder) -> bool:
        """Whether to hand over: at a commit if that comes in time, else inside a transaction."""
        factor = 2 if decoder.open else 1
        return decoder.rows >= factor * PIECE_ROWS or decoder.weight >= factor * PIECE_BYTES

    async def _decoded(
        self,
        run: _Run,
        look: Look,
        transaction: Transaction,
        decoder: Decoder,
        position: int | None,
        *,
        whole: bool = False,
    ) -> _Step | None:
        """What was decoded since the last step; None: not all of it is visible yet.

        Args:
            whole: Nothing is left behind it that the log may show.
        """
        xids, xmax, hidden = decoder.xids, look.facts.xmax, frozenset[int]()
        if xids:
            xmax, hidden = await self._rows.hidden(transaction, xids)
        if hidden:
            # What was committed before it is handed over by a peek of its own.
            before = decoder.end_before(hidden)
            run.up_to = before if before > (run.position or 0) else None
            run.more = run.up_to is not None
            return None
        changes = decoder.cut()
        if changes.truncated:
            self._ask(run, Gap.TRUNCATED)
        if changes.unreadable:
            self._ask(run, Gap.UNREADABLE)
        orders = whole and run.ticket is None
        rows = await self._rows.rows(transaction, changes.rows, look.facts, xmax, orders=orders)
        return self._step(run, look, position, tuple(rows), await self._gone(changes), moved=bool(xids))

    async def _gone(self, changes: Changes) -> tuple[int, ...]:
        """The executions of which the log has lost a stored row."""
        if not changes.gone:
            return ()
        missing = set(await self._store.missing(tuple(changes.gone)))
        return tuple(sorted({key[0] for key in changes.gone - missing}))

    def _step(
        self,
        run: _Run,
        look: Look,
        position: int | None,
        rows: tuple[TailRow, ...] = (),
        gone: tuple[int, ...] = (),
        *,
        moved: bool = False,
    ) -> _Step:
        facts = look.facts
        cursor = None if position is None else self._cursor(run, look, position)
        dropped = run.poll_lanes if cursor is not None else ()
        batch = Batch(
            self.name,
            facts.epoch,
            None,
            facts.server_now,
            rows=rows,
            gone=gone,
            cursor=cursor,
            dropped_lanes=dropped,
            read_at=run.read_at,
        )
        return _Step(batch, position, moved)

    def _cursor(self, run: _Run, look: Look, position: int) -> Cursor:
        """Without a position while a gap is open: then a restart begins with asking."""
        facts = look.facts
        known = position if run.ticket is None else None
        return Cursor(self.name, known, facts.epoch, self._scope, look.publication, facts.server_now)

    def _show(self, run: _Run, look: Look) -> None:
        self.wal = WalState(look.retained, look.slot.size_left if look.slot is not None else None)
        now = look.facts.server_now
        self.state = LaneState(run.ticket is None and not run.more, now, now)


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch and where it ends; `position` None: inside a transaction.

    `moved`: there were changes of ours before it.
    """

    batch: Batch
    position: int | None
    moved: bool


class _Run:
    """What one run of the lane knows.

    `position`: up to where everything is stored, also while the cursor does not say it.
    `confirmed`: where the slot stands.  `ticket`: a round of the sweep that is waited for.
    `up_to`: where the next peek has to end, because others do not see yet what follows.
    `more`: something is left to peek.  `whole`: the peek handed over all that the log shows.
    `read_at`: the store's clock before the last look.  `poll_lanes`: cursors of the poll, which
    end with the first batch: their horizons would make its lanes read all that came since.
    """

    def __init__(self, cursor: Cursor | None, poll_lanes: tuple[str, ...]) -> None:
        self.cursor = cursor
        self.position = cursor.horizon if cursor is not None else None
        self.confirmed = 0
        self.read_at: int | None = None
        self.ticket: int | None = None
        self.more = False
        self.whole = False
        self.up_to: int | None = None
        self.poll_lanes = poll_lanes
        self._moved = False

    def stored(self, step: _Step) -> None:
        self._moved = self._moved or step.moved
        if step.position is not None:
            self.cursor, self.position, self.poll_lanes = step.batch.cursor, step.position, ()

    def to_confirm(self) -> int | None:
        """Where the slot is to be moved now, None: it may stay."""
        if self.position is None or self.position <= self.confirmed:
            return None
        if not self._moved and self.position - self.confirmed < IDLE_BYTES:
            return None
        self._moved = False
        return self.position
