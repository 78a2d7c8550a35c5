"""The shared fixture: small executions of every shape, and what each must come to.

`SPEC_ROWS` are the seven executions whose identity is checked before anything else, `OUR_ROWS`
the further shapes.  What becomes visible later (`LATE_ROW`, `GROWTH`) is not among them.
Source: spec 9.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.support.rows import Row, event_row, insert_rows

BORN: Final = datetime.now(UTC).replace(microsecond=0, tzinfo=None) - timedelta(hours=1)
"""An hour ago: what is much older is history, which the lanes leave to the audit."""

DELAYED: Final = 3001
FORK: Final = 3002
ISLAND: Final = 3003
SYSTEM: Final = 3004
INITIALIZED_ONLY: Final = 3005
NEVER_ARRIVES: Final = 3006
GROWING: Final = 3007

SHAPES: Final[dict[int, tuple[str, int]]] = {
    1001: ("ordered", 7),
    1002: ("dangling_prev", 6),
    1003: ("ordered", 3),
    2001: ("multiple_roots", 7),
    2002: ("ordered", 6),
    2003: ("ordered", 3),
    2004: ("ordered", 3),
}
"""Execution to (label of its link order, rows) for `SPEC_ROWS`."""

OUR_SHAPES: Final[dict[int, tuple[str, int]]] = {
    DELAYED: ("dangling_prev", 72),
    FORK: ("fork", 5),
    ISLAND: ("unreachable", 5),
    SYSTEM: ("ordered", 13),
    INITIALIZED_ONLY: ("ordered", 1),
    NEVER_ARRIVES: ("dangling_prev", 3),
    GROWING: ("ordered", 4),
}
"""The same for `OUR_ROWS`; `DELAYED` becomes ordered, 73 rows, with `LATE_ROW`."""

Link = tuple[int, int | None]


def _execution(execution_id: int, links: list[Link], start: str, end: str = "", **columns: Any) -> list[Row]:
    types = [start, *["step.exit"] * (len(links) - 1)]
    if end:
        types[-1] = end
    return [
        event_row(
            execution_id,
            event_id,
            prev=prev,
            event_type=event_type,
            created_at=BORN + timedelta(milliseconds=event_id),
            status="COMPLETED" if event_type == end else "RUNNING",
            node_name=columns.get("node_name", "mine/fixture") if event_type == start else f"step_{event_id}",
            **{name: value for name, value in columns.items() if name != "node_name"},
        )
        for (event_id, prev), event_type in zip(links, types, strict=True)
    ]


def _path(*event_ids: int) -> list[Link]:
    return list(zip(event_ids, (None, *event_ids[:-1]), strict=True))


def _spec_rows() -> list[Row]:
    several = [*_path(2001, 2002, 2003, 2004), (2005, None), *_path(2006, 2007)]
    gapped: list[Link] = [*_path(11, 12, 13), (15, 14), (16, 15), (17, 16)]
    return [
        *_execution(1001, _path(*range(1, 8)), "playbook.started"),
        *_execution(1002, gapped, "playbook.started"),
        *_execution(1003, _path(21, 22, 23), "playbook.started", "execution.completed"),
        *_execution(2001, several, "playbook.initialized"),
        *_execution(2002, _path(*range(2011, 2017)), "playbook.initialized"),
        *_execution(2003, _path(2021, 2022, 2023), "playbook.initialized"),
        *_execution(2004, _path(2031, 2032, 2033), "playbook.initialized", "playbook.completed", parent=2001),
    ]


def _our_rows() -> list[Row]:
    forked: list[Link] = [*_path(3201, 3202, 3203), (3204, 3202), (3205, 3204)]
    island: list[Link] = [*_path(3301, 3302, 3303), (3304, 3305), (3305, 3304)]
    orphan: list[Link] = [*_path(3601, 3602), (3604, 3603)]
    return [
        *(row for row in _DELAYED_ROWS if row is not LATE_ROW),
        *_execution(FORK, forked, "playbook.initialized"),
        *_execution(ISLAND, island, "playbook.initialized"),
        *_execution(SYSTEM, _path(*range(3401, 3414)), "playbook.initialized", node_name="system/reap"),
        *_execution(INITIALIZED_ONLY, _path(3501), "playbook.initialized"),
        *_execution(NEVER_ARRIVES, orphan, "playbook.initialized"),
        *_execution(GROWING, _path(*range(3701, 3705)), "playbook.initialized"),
    ]


_DELAYED_ROWS: Final = _execution(
    DELAYED, _path(*range(3101, 3174)), "playbook.initialized", "playbook.completed"
)
LATE_ROW: Final[Row] = _DELAYED_ROWS[71]
"""The row at position 72 of 73, which becomes visible last (I08)."""
GROWTH: Final[list[Row]] = _execution(
    GROWING, _path(*range(3701, 3709)), "playbook.initialized", "playbook.completed"
)[4:]
"""Four rows that end `GROWING`."""


SPEC_ROWS: Final = _spec_rows()
OUR_ROWS: Final = _our_rows()

IDENTITY_SQL: Final = """
    SELECT execution_id, count(*) AS rows, count(*) FILTER (WHERE prev_event_id IS NULL) AS roots
    FROM noetl.event WHERE execution_id = ANY($1::bigint[]) GROUP BY execution_id ORDER BY execution_id
"""


async def load_fixture(conn: Any, *, ours: bool = True) -> None:
    """Put the fixture into noetl.event: the seven executions, and ours unless told otherwise."""
    await insert_rows(conn, SPEC_ROWS + (OUR_ROWS if ours else []))
