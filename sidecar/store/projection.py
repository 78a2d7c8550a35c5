"""D3: the latest state of each execution.

Every record gets the next number of one sequence over all executions; the last record of an
execution is its state, earlier ones are superseded.  The sequence's row is bookkeeping, never
the read model: what counts are the records.  Source: spec 6.2, 6.3.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from sidecar.core.event import is_id
from sidecar.errors import Invalid
from sidecar.store.chain import ChainStore
from sidecar.store.checked import check_id, check_sequence, check_text
from sidecar.store.connection import Row
from sidecar.store.reader import open_readonly
from sidecar.store.unit import StoreUnit

_DECIMAL: Final = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)

LATEST: Final = (
    "SELECT proj_seq, execution_id, status, data FROM d3_projection"
    " WHERE execution_id = ? ORDER BY proj_seq DESC LIMIT 1"
)
EXECUTIONS: Final = "SELECT DISTINCT execution_id FROM d3_projection ORDER BY execution_id"
_ALL_LATEST: Final = (
    "SELECT proj_seq, execution_id, status, data FROM d3_projection AS d WHERE proj_seq ="
    " (SELECT max(proj_seq) FROM d3_projection WHERE execution_id = d.execution_id) ORDER BY execution_id"
)


@dataclass(frozen=True, slots=True)
class Record:
    """One state of one execution; `status` and `data` are texts that nothing here reads."""

    proj_seq: int
    execution_id: int
    status: str
    data: str

    def to_json(self) -> str:
        """The record as JSON; ids are decimal strings."""
        fields = {
            "proj_seq": self.proj_seq,
            "execution_id": str(self.execution_id),
            "status": self.status,
            "data": self.data,
        }
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record behind `to_json`.

        Raises:
            Invalid: no such record: a field is missing, unknown, or of another type.
        """
        try:
            fields = json.loads(text)
        except ValueError:
            raise Invalid("a projection record is no JSON") from None
        if not isinstance(fields, dict) or fields.keys() != {"proj_seq", "execution_id", "status", "data"}:
            raise Invalid("a projection record has exactly proj_seq, execution_id, status and data")
        check_sequence(fields["proj_seq"], "proj_seq", least=1)
        check_text(fields["status"], "status")
        check_text(fields["data"], "data")
        return cls(fields["proj_seq"], _decimal(fields["execution_id"]), fields["status"], fields["data"])


def _decimal(text: object) -> int:
    if isinstance(text, str) and _DECIMAL.fullmatch(text) and is_id(int(text)):
        return int(text)
    raise Invalid("execution_id is no decimal 64-bit integer")


class ProjectionStore:
    """D3 in the file of a chain store."""

    def __init__(self, store: ChainStore) -> None:
        self._store = store

    async def record_state(self, execution_id: int, status: str, data: str) -> int:
        """Record a state; committed when it returns.

        Returns:
            Its number over all executions.

        Raises:
            Invalid: the id or a text is not usable; nothing was written.
        """
        return await self._store.transact(lambda unit: unit.record_state(execution_id, status, data))

    async def get_state(self, execution_id: int) -> Record | None:
        """The last record of the execution."""
        check_id(execution_id, "execution_id")
        return _record(await self._store.query(LATEST, (execution_id,)))

    async def list_executions(self) -> list[int]:
        """Every execution with a state, ascending."""
        return [row[0] for row in await self._store.query(EXECUTIONS)]

    async def flush(self) -> None:
        """Return when every record_state that began before is committed."""
        await self._store.transact(_nothing)

    @staticmethod
    async def cold_load(url: str) -> dict[int, Record]:
        """The states that another process left, or is writing, in the store at `url`.

        Nothing is written and no lock is taken.

        Raises:
            StoreError: there is no store of this layout.
        """
        async with open_readonly(url) as other:
            records = [Record(*row) for row in await other.query(_ALL_LATEST)]
        return {record.execution_id: record for record in records}


async def _nothing(unit: StoreUnit) -> None:
    return


def _record(found: list[Row]) -> Record | None:
    return Record(*found[0]) if found else None
