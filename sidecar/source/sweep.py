"""The sweep: every partition in turn, so that a row of any created_at is found.

Each partition has its own H.  With one, the rows since then are streamed.  Without one (first
start, new or changed partition, new epoch, other scope) the partition is compared: count and
exact sum of ids of each execution, log against store; only executions that differ are read,
whole.  The same comparison is the catch-up of an empty store, and it names the executions of
which the store has rows that the log has not.

Partitions without H come first, back to back; the others roll, so that a round takes at most
the round's time.  When somebody doubts that all was seen, every partition is polled once more and
compared, at once: rows that came, changed or went are found.  The H, epoch and tree of a
comparison are those of its first statement, and its cursor stands in its last batch.
Source: spec 1.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from sidecar.core import pulse
from sidecar.core.horizon import Cursor, Facts, keeps_horizon
from sidecar.core.ports import Batch, ExecutionLog
from sidecar.source.compare import Comparison, compared
from sidecar.source.connection import Session
from sidecar.source.doubt import Doubt
from sidecar.source.log import PostgresLog
from sidecar.source.options import Shard
from sidecar.source.partitions import LANE_PREFIX, Listing, Part, list_parts
from sidecar.source.poll import Poller, Request, Seen
from sidecar.source.table import EventTable
from sidecar.source.tail import PINNED_ROWS, LaneState, LaneStore, every_key, scope_of

LIST_EVERY_S: Final = 1.0
_TREE_SETTLE_S: Final = 0.1


class SweepLane:
    """The lane `sweep`; see `core.ports.Lane`.

    Args:
        session: For listings; it may be the poller's and the log's, for the lane uses them
            in turn, and nobody else does.
        log: For the reads of a comparison.
        round_s: A full round over all partitions takes at most this.
        scan_timeout_s: Deadline of one statement that reads a whole partition.
        doubt: Who asks for a round at once.
        before: Cursors of another source, which ended somewhere: it is asked for them, too.
    """

    name = "sweep"

    def __init__(
        self,
        session: Session,
        poller: Poller,
        log: PostgresLog,
        table: EventTable,
        store: LaneStore,
        *,
        round_s: float,
        scan_timeout_s: float,
        shard: Shard,
        doubt: Doubt | None = None,
        before: Collection[str] = (),
    ) -> None:
        self._doubt = doubt or Doubt()
        self._before = before
        self.state = LaneState()
        self._session = session
        self._poller = poller
        self._log = log
        self._table = table
        self._store = store
        self._round_s = round_s
        self._scan_timeout_s = scan_timeout_s
        self._shard = shard

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """See `core.ports.Lane`."""
        run = _Run(await self._store.cursors(), self._doubt.answered)
        ended = tuple(sorted(run.others & set(self._before)))
        handover = self._doubt.ask() if ended else None
        now = asyncio.get_running_loop().time
        while True:
            listing = await self._listed(run)
            if left := run.left_the_tree(listing):
                yield _batch(self.name, listing.facts, dropped_lanes=left)
                run.forget(left)
            run.doubted(self._doubt.asked, listing)
            fresh = [part for part in listing.parts if not self._usable(run, part, listing.facts)]
            owed = [part for part in listing.parts if part.lane in run.owed]
            if not fresh and not owed:
                self._doubt.settle(run.ticket)
                if handover is not None and handover <= run.ticket:
                    yield _batch(self.name, listing.facts, dropped_lanes=ended)
                    handover = None
            self._show(run, listing.facts, caught_up=not fresh and not owed)
            if fresh or owed:
                part = (fresh or owed)[0]
            elif now() < run.next_at:
                rest = min(LIST_EVERY_S, max(0.0, run.next_at - now()))
                with pulse.waiting(rest):
                    await asyncio.sleep(rest)
                continue
            else:
                part = min(listing.parts, key=run.polled_at)
                run.next_at = now() + self._round_s / len(listing.parts)
            steps = self._steps(run, part, listing, fresh=bool(fresh), owed=bool(owed))
            async with aclosing(steps) as batches:
                async for batch in batches:
                    yield batch
                    if batch.cursor is not None:
                        run.stored(batch.cursor)

    async def _steps(
        self, run: _Run, part: Part, listing: Listing, *, fresh: bool, owed: bool
    ) -> AsyncGenerator[Batch, None]:
        """Poll with an H, compare without one, and both where it is doubted."""
        if not fresh:
            async with aclosing(self._polled(run, part, listing)) as polled:
                async for batch in polled:
                    yield batch
        if fresh or owed:
            async with aclosing(self._compared(part, listing, run, fresh=fresh)) as compared:
                async for batch in compared:
                    yield batch

    async def _listed(self, run: _Run) -> Listing:
        """The partitions, of a tree that has been standing for a moment.

        A new tree is visible an instant before every backend has heard that its list of
        partitions is old.
        """
        listing = await list_parts(self._session, self._table)
        while run.tree != listing.facts.tree:
            run.tree = listing.facts.tree
            await asyncio.sleep(_TREE_SETTLE_S)
            listing = await list_parts(self._session, self._table)
        return listing

    def _scope(self, part: Part) -> str:
        return scope_of(self._table, self._shard, part.over.predicate)

    def _usable(self, run: _Run, part: Part, facts: Facts) -> bool:
        cursor = run.cursors.get(part.lane)
        return (
            cursor is not None
            and cursor.tree == part.tree
            and keeps_horizon(cursor, facts, self._scope(part))
        )

    def _show(self, run: _Run, facts: Facts, *, caught_up: bool) -> None:
        oldest = min(run.advanced_at.values(), default=None) if caught_up else None
        self.state = LaneState(caught_up, facts.server_now, oldest)

    async def _polled(self, run: _Run, part: Part, listing: Listing) -> AsyncGenerator[Batch, None]:
        """The rows since the partition's H.  Nothing is yielded when H no longer holds."""
        cursor = run.cursors[part.lane]
        seen = run.seen.get(part.lane, {})
        unknown = every_key if len(seen) > PINNED_ROWS else None
        request = Request(part.over, None, cursor.horizon, seen, unknown, self._scan_timeout_s)

        def accept(facts: Facts) -> bool:
            return facts.tree == listing.facts.tree and keeps_horizon(cursor, facts, self._scope(part))

        async with aclosing(self._poller.run(request, accept)) as pieces:
            async for piece in pieces:
                batch = _batch(part.lane, piece.facts, piece.anchor)
                left = self._cursor(part, piece.facts) if piece.last else None
                yield replace(batch, rows=piece.rows, cursor=left)
                if piece.last:
                    run.polled(part.lane, piece.seen, cursor, piece.facts)

    async def _compared(
        self, part: Part, listing: Listing, run: _Run, *, fresh: bool
    ) -> AsyncGenerator[Batch, None]:
        """The executions in which log and store differ; the cursor only if the tree stood still.

        A partition that is not `fresh` keeps the H of its poll: what changes bodies between the
        two is left to the next one.
        """
        first: Facts | None = None
        last = listing.facts
        for low, high in part.over.ranges:
            comparison = Comparison(self._log, self._store, self._shard, low, high)
            async with aclosing(compared(comparison)) as steps:
                async for step in steps:
                    first, last = first or step.facts, step.facts
                    if _moved(listing.facts, last):
                        return
                    if step.logs or step.gone:
                        yield _found(part.lane, last, step.logs, step.gone)
        if first is None:
            return
        if fresh:
            yield replace(_batch(part.lane, last), cursor=self._cursor(part, first))
        run.owed.discard(part.lane)

    def _cursor(self, part: Part, facts: Facts) -> Cursor:
        return Cursor(part.lane, facts.horizon, facts.epoch, self._scope(part), part.tree, facts.server_now)


class _Run:
    """What one run of the sweep knows: cursors that are stored, rows seen above each H."""

    def __init__(self, cursors: Mapping[str, Cursor], answered: int = 0) -> None:
        self.cursors = {lane: c for lane, c in cursors.items() if lane.startswith(LANE_PREFIX)}
        self.others = cursors.keys() - self.cursors.keys()
        self.owed: set[str] = set()
        self.ticket = answered
        self.seen: dict[str, Seen] = {}
        self.advanced_at = {lane: cursor.polled_at for lane, cursor in self.cursors.items()}
        self.tree: str | None = None
        self.next_at = 0.0

    def doubted(self, ticket: int, listing: Listing) -> None:
        """Owe a round for a new ticket; a partition that comes later is compared anyhow."""
        if ticket > self.ticket:
            self.ticket = ticket
            self.owed = {part.lane for part in listing.parts}

    def polled_at(self, part: Part) -> int:
        return self.cursors[part.lane].polled_at

    def left_the_tree(self, listing: Listing) -> tuple[str, ...]:
        return tuple(sorted(self.cursors.keys() - {part.lane for part in listing.parts}))

    def forget(self, lanes: Sequence[str]) -> None:
        for lane in lanes:
            del self.cursors[lane]
            self.owed.discard(lane)
            self.seen.pop(lane, None)
            self.advanced_at.pop(lane, None)

    def stored(self, cursor: Cursor) -> None:
        self.cursors[cursor.lane] = cursor
        # What was seen belongs to the H before; a poll says anew what it saw.
        self.seen.pop(cursor.lane, None)
        self.advanced_at.setdefault(cursor.lane, cursor.polled_at)

    def polled(self, lane: str, seen: Seen, before: Cursor, facts: Facts) -> None:
        self.seen[lane] = seen
        moved = before.horizon is None or facts.horizon > before.horizon or facts.horizon == facts.xmax
        if moved:
            self.advanced_at[lane] = facts.server_now


def _moved(listed: Facts, facts: Facts) -> bool:
    return facts.tree != listed.tree or facts.epoch != listed.epoch


def _batch(
    lane: str, facts: Facts, anchor: int | None = None, *, dropped_lanes: tuple[str, ...] = ()
) -> Batch:
    return Batch(lane, facts.epoch, anchor, facts.server_now, dropped_lanes=dropped_lanes)


def _found(lane: str, facts: Facts, logs: Sequence[ExecutionLog], gone: Sequence[int]) -> Batch:
    return replace(_batch(lane, facts), logs=tuple(logs), gone=tuple(gone))
