"""A script of calls that a chain store gets in its life, and what can be seen of it after each.

Every step can be asked again.  Times of the clock are left out of what is seen, so two runs of
the script can be compared; everything else that is stored is in.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from sidecar.core.authority import Partition, StoredEvent, Watermark
from sidecar.core.due import Due
from sidecar.core.event import Event
from sidecar.core.horizon import Cursor
from sidecar.errors import Forked, Invalid, NotHead
from sidecar.store import ChainStore
from sidecar.store.unit import StoreUnit
from tests.contract.events import chain
from tests.support.changing import replace

Step = Callable[[ChainStore], Awaitable[object]]

_TIMES: Final = {
    "seen_at", "last_change_at", "first_seen_at", "last_seen_at", "last_row_at", "labelled_at", "revoked_at",
    "verdict_at", "due_at", "reread", "changed", "labelled", "terminal_seen", "pending_since", "updated_at",
}  # fmt: skip
LOGGED, EMPTY, FORKED_LOG, BROKEN, SINGLE, REPLICA, FED, MARKED = range(1, 9)


def log_of(e: int, *ids: int) -> tuple[Event, ...]:
    return chain(*(e * 100 + n for n in ids), execution_id=e)


def populate(e: int, *ids: int) -> Step:
    return lambda store: store.populate_from_log(e, log_of(e, *ids))


def other_body(e: int, *ids: int) -> tuple[Event, ...]:
    *kept, last = log_of(e, *ids)
    return (*kept, replace(last, body='{"other":true}'))


def one(e: int, prev: int | None, event_id: int) -> Event:
    at = None if prev is None else e * 100 + prev
    return Event(e, e * 100 + event_id, at, None, "step.exit", "{}")


async def fork(store: ChainStore) -> object:
    root, left = log_of(FORKED_LOG, 1, 2)
    return await store.populate_from_log(FORKED_LOG, (root, left, replace(left, event_id=left.event_id + 9)))


async def fed(store: ChainStore) -> object:
    """As a feed extends: rows, record, work list, cursor and epoch in one unit."""

    async def work(unit: StoreUnit) -> int:
        now = store.clock.now()
        record = (await unit.partitions((FED,))).get(FED) or Partition(FED)
        rows = log_of(FED, 1, 2, 3)[record.head_seq :]
        for row in rows:
            unit.append((StoredEvent(row.event_id % 100, row, "tail", now),))
        unit.put_partition(
            replace(record, head_seq=3, head_event_id=FED * 100 + 3, watermark=Watermark(1, 3), held=0)
        )
        unit.put_due(Due(FED, now))
        unit.drop_due(LOGGED)
        unit.put_cursor(Cursor("live", 7, "s/1/a/b", "s", "t", 1))
        unit.put_cursor(Cursor("late", None, "s/1/a/b", "s", "t", 1))
        await unit.see_epoch("s/1/a/b", now)
        return (await unit.row_counts((FED,)))[FED][0]

    return await store.transact(work)


async def cursor_moves(store: ChainStore) -> object:
    async def work(unit: StoreUnit) -> None:
        unit.put_cursor(Cursor("live", 9, "s/1/a/b", "s", "t", 2))
        unit.drop_cursor("late")
        unit.drop_due(FED)

    return await store.transact(work)


async def looked(store: ChainStore) -> object:
    """Every way to read; none may answer "nothing" for a failure."""
    executions = [e async for e in store.executions()]
    return (
        executions,
        await store.guarded_reads(executions),
        await store.walk_from_head(LOGGED),
        await store.chain_is_complete(REPLICA),
        await store.missing([(LOGGED, LOGGED * 100 + 1), (LOGGED, 5)]),
        await store.sums(0, 100),
        await store.parent_of(log_of(LOGGED, 1, 2)[1]) is not None,
        await store.parent_execution_of(LOGGED),
        sorted(await store.cursors()),
        await store.due_now(2**60, 10),
        await store.load_apply_cursor(3),
    )


STEPS: Final[dict[str, Step]] = {
    "first log": populate(LOGGED, 1, 2, 3),
    "longer log": populate(LOGGED, 1, 2, 3, 4, 5),
    "empty log": populate(EMPTY),
    "stale log": populate(LOGGED, 1, 2),
    "fork in the log": fork,
    "conflicting log": lambda store: store.populate_from_log(LOGGED, other_body(LOGGED, 1, 2, 3)),
    "clean log again": populate(LOGGED, 1, 2, 3, 4, 5, 6),
    "append": lambda store: store.append(one(SINGLE, None, 1)),
    "append refused": lambda store: store.append(one(SINGLE, 7, 2)),
    "append of a taken id": lambda store: store.append(one(SINGLE, 1, 1)),
    "populate": lambda store: store.populate(one(MARKED, None, 1)),
    "populate again": lambda store: store.populate(one(MARKED, 1, 2)),
    "populate refused": lambda store: store.populate(one(MARKED, 9, 3)),
    "populate refused on a covered one": lambda store: store.populate(one(LOGGED, 99, 50)),
    "log after a refusal": populate(LOGGED, 1, 2, 3, 4, 5, 6, 50),
    "replicated 3": lambda store: store.apply_replicated(log_of(REPLICA, 1, 2, 3)[2], 3),
    "replicated 1": lambda store: store.apply_replicated(log_of(REPLICA, 1)[0], 1),
    "replicated again": lambda store: store.apply_replicated(log_of(REPLICA, 1)[0], 1),
    "replicated against another": lambda store: store.apply_replicated(other_body(REPLICA, 1)[0], 1),
    "populate replicated": lambda store: store.populate_replicated(log_of(REPLICA, 1, 2)[1], 2),
    "populate replicated refused": lambda store: store.populate_replicated(log_of(REPLICA, 1, 9)[1], 2),
    "fed": fed,
    "cursor moves": cursor_moves,
    "apply cursor": lambda store: store.advance_apply_cursor(3, 15),
    "apply cursor back": lambda store: store.advance_apply_cursor(3, 5),
    "flag held": lambda store: store.flag_held(),
    "looked": looked,
    "revoke": lambda store: store.revoke(LOGGED, "operator"),
    "revoke nothing": lambda store: store.revoke(99, "operator"),
    "log after a revocation": populate(LOGGED, 1, 2, 3, 4, 5, 6, 50),
}


async def answer(step: Step, store: ChainStore) -> object:
    """What the call says; a refusal is an answer, a failure of the engine is raised."""
    try:
        return await step(store)
    except (NotHead, Invalid, Forked) as refusal:
        return type(refusal).__name__, str(refusal)


def seen(path: Path) -> dict[str, Any]:
    """Every table without its times, straight from the file, which SQLite finds nothing wrong with."""
    with closing(sqlite3.connect(path, timeout=5)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {name: _rows(connection, name) for (name,) in sorted(tables)}


def _rows(connection: sqlite3.Connection, table: str) -> list[Any]:
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info('{table}')")]
    columns = ", ".join(f'"{name}"' for name in names if name not in _TIMES)
    rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
    return sorted((row for row in rows if "clock" not in row), key=repr)


def accounted(path: Path) -> None:
    """Rows, heads and the engine's sequence speak of the same events."""
    with closing(sqlite3.connect(path)) as connection:
        ahead = connection.execute(
            "SELECT execution_id FROM partition AS p WHERE head_seq !="
            " coalesce((SELECT max(exec_seq) FROM event AS e WHERE e.execution_id = p.execution_id), 0)"
        ).fetchall()
        assert ahead == []
        ((high, rows, greatest),) = connection.execute(
            "SELECT coalesce((SELECT high FROM sequence WHERE dataset = 'event'), 0), count(*),"
            " coalesce(max(gseq), 0) FROM event"
        )
        assert high == rows == greatest
