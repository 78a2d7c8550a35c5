"""The clauses of the rule for restarted executions, taken out one at a time; see `mutants`.

Spec 2.13 says what each is for.  Where seeds do not come near, `scenes` does.  The epoch's is not among
them: after a crash xids go on behind every row that survived it, so a false join over it could only be
one of rows that no log has any more.  `tests/unit/core/test_rejoin.py` holds that clause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import sidecar.core.intake
import sidecar.core.proofs
import sidecar.core.rejoin
import sidecar.core.settle
import sidecar.feed.pool
import sidecar.source.log
import sidecar.source.poll
import sidecar.store.populate
from sidecar.core.authority import Partition
from sidecar.core.event import Event
from sidecar.core.horizon import XID_SPAN, Facts, TailRow, xid_of
from sidecar.core.proofs import Proofs
from sidecar.core.rejoin import NOTHING_KEPT, Join, Kept, Missing, Piece, Sighting
from sidecar.source.connection import Session, fetch_alone
from sidecar.source.facts import ANCHOR_SQL

Broken = Callable[[], AbstractContextManager[object]]


@contextmanager
def _all(*patches: AbstractContextManager[object]) -> Any:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def _root_for_the_tip() -> AbstractContextManager[object]:
    """What came after the beginning of a piece is said to come after its end."""
    extended, prove = sidecar.core.intake.extended, sidecar.core.proofs.prove

    def grown(partition: Partition, run: tuple[TailRow, ...], now: int) -> Partition:
        return replace(extended(partition, run, now), head_anchor=partition.head_anchor)

    def proven(partition: Partition, rows: Sequence[TailRow], *given: Any, **more: Any) -> Proofs:
        begun = [
            row if row.event.prev_event_id is None else replace(row, anchor=partition.head_anchor)
            for row in rows
        ]
        return prove(partition, begun, *given, **more)

    return _all(
        patch.object(sidecar.core.settle, "extended", grown),
        patch.object(sidecar.core.settle, "prove", proven),
    )


def _anchor(taken: Callable[[Facts], int]) -> AbstractContextManager[object]:
    real = sidecar.source.log.read_anchor

    async def read_anchor(session: Session, facts: Facts) -> int:
        await real(session, facts)
        return taken(facts)

    return _all(
        patch.object(sidecar.source.log, "read_anchor", read_anchor),
        patch.object(sidecar.source.poll, "read_anchor", read_anchor),
    )


def _snapshots_xmax() -> AbstractContextManager[object]:
    return _anchor(lambda facts: facts.xmax)


def _horizon() -> AbstractContextManager[object]:
    return _anchor(lambda facts: facts.horizon)


def _read_before() -> AbstractContextManager[object]:
    real = sidecar.source.poll.Poller.run

    async def run(self: Any, request: Any, accept: Any) -> AsyncGenerator[Any, None]:
        before = (await fetch_alone(self._session, ANCHOR_SQL))[0][0]
        await asyncio.sleep(0.2)  # a slow network, which does not matter where it is read after
        async for piece in real(self, request, accept):
            if piece.anchor is None:
                yield piece
                continue
            xmax = piece.facts.xmax
            ahead = (before - xmax) % XID_SPAN
            anchor = xmax + (ahead if ahead < XID_SPAN // 2 else ahead - XID_SPAN)
            yield replace(piece, anchor=anchor, rows=tuple(replace(row, anchor=anchor) for row in piece.rows))

    return patch.object(sidecar.source.poll.Poller, "run", run)


def _polls_for_a_log_read() -> AbstractContextManager[object]:
    real, last = sidecar.source.log.read_anchor, list[int]()

    async def of_a_poll(session: Session, facts: Facts) -> int:
        last[:] = [await real(session, facts)]
        return last[0]

    async def of_a_read(session: Session, facts: Facts) -> int:
        anchor = await real(session, facts)
        return min([anchor, *last])

    return _all(
        patch.object(sidecar.source.log, "read_anchor", of_a_read),
        patch.object(sidecar.source.poll, "read_anchor", of_a_poll),
    )


def _part_of_a_poll() -> AbstractContextManager[object]:
    real = sidecar.core.rejoin.join

    def join(execution_id: int, tip: Sighting, root: Sighting, now: int) -> Join | Missing:
        return real(execution_id, tip, replace(root, anchor=root.anchor or 0), now)

    return patch.object(sidecar.core.proofs, "join", join)


def _forks() -> AbstractContextManager[object]:
    """One of two rows behind a row is as good as the other."""

    def pieces(events: Sequence[Event]) -> tuple[Piece, ...]:
        after: dict[int, Event] = {}
        for event in events:
            if event.prev_event_id is not None:
                after.setdefault(event.prev_event_id, event)
        roots = [event for event in events if event.prev_event_id is None]
        return tuple(Piece(sidecar.core.rejoin._from(root, after)) for root in roots)

    return _all(
        patch.object(sidecar.core.rejoin, "pieces", pieces),
        patch.object(sidecar.core.proofs, "_forked", lambda *_: False),
    )


def _updated_rows() -> AbstractContextManager[object]:
    real = sidecar.source.poll._Taken.add

    def add(self: Any, rows: Any, versions: Any, facts: Facts, seen_at: int) -> None:
        taken = len(self._rows)
        real(self, rows, versions, facts, seen_at)
        if self._filtered:
            self._rows[taken:] = [
                (event, xmin, xid_of(xmin, facts.xmax), *rest) for event, xmin, _, *rest in self._rows[taken:]
            ]

    return _all(
        patch.object(sidecar.source.poll._Taken, "add", add),
        patch.object(sidecar.feed.pool.HeldBack, "told", lambda _self, row: row),
    )


def _never_withdrawn() -> AbstractContextManager[object]:
    def nothing(*_: Any) -> Kept:
        return NOTHING_KEPT

    return _all(
        patch.object(sidecar.core.settle, "_against", nothing),
        patch.object(sidecar.store.populate, "spoken_against", nothing),
        patch.object(sidecar.store.populate, "is_withdrawn", lambda *_: False),
    )


REJOIN_MUTANTS: Mapping[str, tuple[str, Broken]] = {
    "rejoin: the root's anchor for the tip's": ("2.13", _root_for_the_tip),
    "rejoin: the snapshot's xmax for the anchor": ("2.13", _snapshots_xmax),
    "rejoin: H for the anchor": ("2.13", _horizon),
    "rejoin: the anchor read before the poll": ("2.13", _read_before),
    "rejoin: a poll's anchor for a log read": ("2.13", _polls_for_a_log_read),
    "rejoin: a root that came in a part of a poll": ("2.13", _part_of_a_poll),
    "rejoin: forks do not matter": ("2.7", _forks),
    "rejoin: an updated row's xid": ("2.13", _updated_rows),
    "rejoin: a join is never withdrawn": ("2.13", _never_withdrawn),
}
