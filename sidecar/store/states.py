"""Writing one record of D3, as part of a unit of work.

The last record of an execution is its state; the one before is superseded and goes with it, so
that the table grows with the executions and not with the verdicts.  A number that was given is
never given again: the highest stands in `sequence`.  Source: spec 6.2, 6.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from sidecar.store.checked import check_id, check_text
from sidecar.store.connection import Row
from sidecar.store.wording import worded

DATASET: Final = "d3_projection"

Statement = Callable[[str, Sequence[object]], Awaitable[list[Row]]]

_HIGH: Final = worded(
    "SELECT coalesce(max(proj_seq), 0) FROM d3_projection",
    # The records stand in many places there: the count alone is asked, and they when it is lost.
    postgres="SELECT high FROM sequence WHERE dataset = 'd3_projection'",
)
_STORED: Final = "SELECT coalesce(max(proj_seq), 0) AS high FROM d3_projection"
_NEXT: Final = (
    "INSERT INTO sequence (dataset, high) VALUES (?1, max(?2, 0) + 1)"
    " ON CONFLICT (dataset) DO UPDATE SET high = max(sequence.high, ?2) + 1 RETURNING high"
)
_PUT: Final = "INSERT INTO d3_projection (proj_seq, execution_id, status, data) VALUES (?, ?, ?, ?)"
_SUPERSEDED: Final = "DELETE FROM d3_projection WHERE execution_id = ? AND proj_seq < ?"


async def record_state(rows: Statement, execution_id: int, status: str, data: str) -> int:
    """Write the state of an execution; its number over all executions.

    Raises:
        Invalid: the id or a text is not usable; nothing was written.
    """
    check_id(execution_id, "execution_id")
    check_text(status, "status")
    check_text(data, "data")
    ((high,),) = await rows(_HIGH, ()) or await rows(_STORED, ())
    ((number,),) = await rows(_NEXT, (DATASET, high))
    await rows(_PUT, (number, execution_id, status, data))
    await rows(_SUPERSEDED, (execution_id, number))
    return int(number)
