"""How far each shard has been applied, in the store's own append sequence.

A cursor moves only forward: backwards would apply a window twice, beyond what was applied would
skip events.  One that was never set is 0; one that cannot be read is a failure, never 0.
Losing it costs time only.  Source: spec 6.1.
"""

from __future__ import annotations

from typing import Final

from sidecar.core.event import ID_MAX
from sidecar.errors import StoreCorrupt
from sidecar.store.connection import Row
from sidecar.store.unit import StoreUnit

LOAD: Final = "SELECT seq FROM apply_cursor WHERE shard = ?"
_ADVANCE: Final = "REPLACE INTO apply_cursor (shard, seq) VALUES (?, ?)"


def sequence_of(found: list[Row]) -> int:
    """The cursor in the answer of LOAD.

    Raises:
        StoreCorrupt: it is no sequence.
    """
    if not found:
        return 0
    (seq,) = found[0]
    if type(seq) is not int or not 0 <= seq <= ID_MAX:
        raise StoreCorrupt(
            "an apply cursor is no sequence",
            hint="somebody else wrote into the store: remove the row, what follows it is applied again",
        )
    return seq


async def advance(unit: StoreUnit, shard: int, seq: int) -> int:
    """Move the cursor of `shard` to `seq` if that is forward; where it stands afterwards."""
    current = sequence_of(await unit.rows(LOAD, (shard,)))
    if seq <= current:
        return current
    await unit.rows(_ADVANCE, (shard, seq))
    return seq
