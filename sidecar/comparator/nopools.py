"""A hold's pools where nothing is fed: there are none."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.core.horizon import TailRow
from sidecar.core.ports import ExecutionLog, Populated, Unit
from sidecar.core.settle import Settled


class NoPools:
    """`hold.Pools` of a store that no lane feeds."""

    async def settle(
        self,
        unit: Unit,
        rows: Mapping[int, tuple[TailRow, ...]],
        logs: Mapping[int, ExecutionLog],
        populated: Mapping[int, Populated],
        *,
        epoch: str | None,
        now: int,
    ) -> dict[int, Settled]:
        return {}

    def drop_pool(self, unit: Unit, execution_id: int) -> None:
        return

    def pool(self, execution_id: int) -> Mapping[int, TailRow]:
        return {}
