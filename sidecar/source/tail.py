"""The live and the late lane: rows of a window of created_at, as they become visible.

A lane is exact within its window; what lies outside is the sweep's.  Each poll is one snapshot;
its H is kept with the last batch of it, and only if nothing H depends on has changed.  A poll
that used an H which did not hold is discarded and repeated without predicate.

Without an H every body of the window is read, a piece at a time: a row may have been changed
while there was none, and a stored key says nothing of that.  While somebody's long transaction
pins H, keys are read first and bodies only of versions not seen; a pinned lane takes its time.
Of more rows than a lane can remember, a stored key with an old xid may be one whose row changed;
so H stays once more when that has ended, and what it covers is read with every body.
Source: spec 1.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sidecar.core import pulse
from sidecar.core.horizon import Cursor, Facts, keeps_horizon, left_behind
from sidecar.core.ports import Batch, Key, StoredKeys
from sidecar.source.options import Shard
from sidecar.source.poll import SEEN_MAX, Piece, Poller, Request, Seen, Unknown, Window
from sidecar.source.table import EventTable

PINNED_ROWS: Final = 2000
"""A lane that remembers more rows than this reads keys first."""

_BUSY_SHARE: Final = 0.1
_PAUSE_MAX_S: Final = 2.0


class LaneStore(StoredKeys, Protocol):
    """What a lane asks the chain store."""

    async def cursors(self) -> dict[str, Cursor]:
        """Every lane's cursor by lane key."""
        ...


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane as telemetry sees it, by Postgres's clock in microseconds.

    `caught_up`: a poll was stored to its end (the sweep: every partition has an H).
    `advanced_at`: when H last advanced, or last had nothing to wait for; None without H.
    """

    caught_up: bool = False
    polled_at: int | None = None
    advanced_at: int | None = None

    @property
    def horizon_age_s(self) -> float:
        """Seconds since H last advanced, at the time of the last poll."""
        if self.polled_at is None or self.advanced_at is None:
            return 0.0
        return max(0.0, (self.polled_at - self.advanced_at) / 1_000_000)


def scope_of(table: EventTable, shard: Shard, predicate: str) -> str:
    """What a saved H is valid for besides its epoch.  Source: spec 1.8 ("What H covers")."""
    return f"{table.database}/{table.relid}/{shard.index}of{shard.count}/{predicate}"


class WindowLane:
    """The lane `live` or `late`; see `core.ports.Lane`.

    Args:
        name: The lane's key in the store and its label.
        poller: Used by nobody else.
        every_s: From the begin of one poll to the begin of the next.
    """

    def __init__(
        self,
        name: str,
        poller: Poller,
        table: EventTable,
        store: LaneStore,
        *,
        window_s: float,
        every_s: float,
        shard: Shard,
    ) -> None:
        self.name = name
        self.state = LaneState()
        self._poller = poller
        self._store = store
        self._window = Window(window_s)
        self._every_s = every_s
        self._scope = scope_of(table, shard, self._window.predicate)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """See `core.ports.Lane`."""
        cursor = (await self._store.cursors()).get(self.name)
        seen: Seen = {}
        newer: int | None = None
        now = asyncio.get_running_loop().time
        while True:
            began = mark = now()
            polled_s = 0.0
            async with aclosing(self._polled(cursor, seen, newer)) as pieces:
                async for piece in pieces:
                    polled_s += now() - mark
                    batch = self._batch(piece, cursor, seen)
                    yield batch
                    mark = now()
                    if piece.last:
                        # Asked for more, so the batch is stored: only now it counts.
                        self.state = advanced(self.state, cursor, batch.cursor, piece.facts)
                        cursor, seen, newer = batch.cursor, piece.seen, piece.facts.xmax
            pause = pause_s(polled_s, self._every_s, pinned=len(seen) > PINNED_ROWS)
            rest = max(0.0, began + pause - now())
            with pulse.waiting(rest):
                await asyncio.sleep(rest)

    async def _polled(
        self, cursor: Cursor | None, seen: Seen, newer: int | None
    ) -> AsyncGenerator[Piece, None]:
        """One poll; with the cursor's H if it holds, else without predicate."""
        kept = cursor.horizon if cursor is not None and cursor.scope == self._scope else None
        for horizon in (None,) if kept is None else (kept, None):
            # What was seen belongs to an H: after a crash another row may bear the same xid.
            request = self._request(cursor, horizon, seen if horizon is not None else {}, newer)
            ended = False
            async with aclosing(self._poller.run(request, self._accepts(cursor, horizon))) as pieces:
                async for piece in pieces:
                    ended = piece.last
                    yield piece
            if ended:
                return

    def _accepts(self, cursor: Cursor | None, horizon: int | None) -> _Accepts:
        return _Accepts(cursor if horizon is not None else None, self._scope)

    def _request(self, cursor: Cursor | None, horizon: int | None, seen: Seen, newer: int | None) -> Request:
        unknown: Unknown | None = None
        if len(seen) >= SEEN_MAX:
            unknown = self._store.missing
        elif len(seen) > PINNED_ROWS:
            unknown = every_key
        polled_at = cursor.polled_at if cursor is not None else None
        return Request(self._window, polled_at, horizon, seen, unknown, newer=newer)

    def _batch(self, piece: Piece, cursor: Cursor | None, seen: Seen) -> Batch:
        facts, all_shown = piece.facts, len(seen) < SEEN_MAX
        left: Cursor | None = None
        if piece.last:
            left = left_behind(cursor, facts, lane=self.name, scope=self._scope)
            if (
                cursor is not None
                and left.horizon is not None
                and not all_shown
                and len(piece.seen) < SEEN_MAX
            ):
                left = replace(left, horizon=cursor.horizon)
        return Batch(
            self.name,
            facts.epoch,
            piece.anchor,
            facts.server_now,
            rows=piece.rows,
            cursor=left,
            read_at=piece.began_at,
            began_at=piece.began_at if piece.last and all_shown else None,
        )


@dataclass(frozen=True, slots=True)
class _Accepts:
    """Whether a poll's facts allow what it filtered by; a poll without H is always good."""

    cursor: Cursor | None
    scope: str

    def __call__(self, facts: Facts) -> bool:
        return self.cursor is None or keeps_horizon(self.cursor, facts, self.scope)


async def every_key(keys: Sequence[Key]) -> Sequence[Key]:
    """All of them: with an H a stored key may have come again because its row changed."""
    return keys


def advanced(state: LaneState, before: Cursor | None, after: Cursor | None, facts: Facts) -> LaneState:
    """The state after a stored poll.

    H cannot advance on a server where nothing is written; it is as new as can be then, and
    does not age.
    """
    if after is None or after.horizon is None:
        return LaneState(True, facts.server_now, None)
    old = before.horizon if before is not None else None
    moved = old is None or after.horizon > old or facts.horizon == facts.xmax
    at = facts.server_now if moved or state.advanced_at is None else state.advanced_at
    return LaneState(True, facts.server_now, at)


def pause_s(took_s: float, every_s: float, *, pinned: bool) -> float:
    """From the begin of a poll to the next; a pinned lane keeps a server busy a tenth of the time.

    Args:
        took_s: What the poll cost Postgres; storing its rows is our own time.
    """
    if not pinned:
        return every_s
    return max(every_s, min(took_s / _BUSY_SHARE, _PAUSE_MAX_S))
