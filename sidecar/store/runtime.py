"""D8: who is alive, as a log of operations.

Every operation gets the next number of one sequence over all workers.  It is validated, then its
origin is asked, and only then is anything written; a call that changes several workers is one
transaction, and each of its operations is accepted or refused by itself.  Nothing is ever taken
out of the log.  Source: spec 6.2, 6.4.
"""

# ruff: noqa: S608 - the statements are put together from constants of this module only

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from sidecar.core import membership
from sidecar.core.membership import (
    Op,
    OpKind,
    OpOrigin,
    TrustedLocalOrigin,
    Worker,
    fold,
    validate_op,
)
from sidecar.errors import Invalid, OpRefused
from sidecar.store.chain import ChainStore
from sidecar.store.checked import check_sequence, check_text
from sidecar.store.connection import Row
from sidecar.store.reader import StoreReader, open_readonly
from sidecar.store.unit import HIGH, PUT_HIGH, StoreUnit

T = TypeVar("T")
DATASET: Final = "d8_runtime"
OPS_MAX: Final = 256
"""Operations of one transaction: the writer is not held longer than for a batch of the feed."""

_COLUMNS: Final = "op_seq, worker_id, event, heartbeat, contract"
LATEST: Final = f"SELECT {_COLUMNS} FROM d8_runtime WHERE worker_id = ? ORDER BY op_seq DESC LIMIT 1"
# One search for every worker, however many operations each has: DISTINCT would read them all.
ALL_LATEST: Final = (
    "WITH RECURSIVE worker (id) AS ("
    "SELECT min(worker_id) FROM d8_runtime"
    " UNION ALL SELECT (SELECT min(r.worker_id) FROM d8_runtime AS r WHERE r.worker_id > worker.id)"
    " FROM worker WHERE worker.id IS NOT NULL)"
    f" SELECT {', '.join(f'd.{column}' for column in _COLUMNS.split(', '))} FROM worker JOIN d8_runtime AS d"
    " ON d.op_seq = (SELECT max(l.op_seq) FROM d8_runtime AS l WHERE l.worker_id = worker.id)"
)
_OF: Final = (
    f"SELECT {', '.join(f'd.{column}' for column in _COLUMNS.split(', '))} FROM (VALUES %s) AS wanted"
    " JOIN d8_runtime AS d ON d.op_seq ="
    " (SELECT max(l.op_seq) FROM d8_runtime AS l WHERE l.worker_id = wanted.column1)"
)
AFTER: Final = f"SELECT {_COLUMNS} FROM d8_runtime WHERE op_seq > ? ORDER BY op_seq LIMIT ?"
_STORED: Final = "SELECT coalesce(max(op_seq), 0) FROM d8_runtime"
_ROW: Final = "(?, ?, ?, ?, ?)"
_PUT: Final = f"INSERT INTO d8_runtime ({_COLUMNS}) VALUES "
_FIELDS: Final = frozenset(_COLUMNS.split(", "))


@dataclass(frozen=True, slots=True)
class RuntimeRecord:
    """One operation with its number."""

    op_seq: int
    op: Op

    def to_json(self) -> str:
        """The record as JSON."""
        fields = dict(zip(_COLUMNS.split(", "), _row(self.op_seq, self.op), strict=True))
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RuntimeRecord:
        """The record behind `to_json`.

        Raises:
            Invalid: no such record: a field is missing, unknown, or of another type, or the
                operation is not valid.
        """
        try:
            fields = json.loads(text)
        except ValueError:
            raise Invalid("a runtime record is no JSON") from None
        if not isinstance(fields, dict) or fields.keys() != _FIELDS:
            raise Invalid(f"a runtime record has exactly {_COLUMNS}")
        check_sequence(fields["op_seq"], "op_seq", least=1)
        check_sequence(fields["heartbeat"], "heartbeat", least=0)
        check_text(fields["worker_id"], "worker_id")
        check_text(fields["contract"], "contract")
        if fields["event"] not in list(OpKind):
            raise Invalid("event is no operation")
        record = _record(tuple(fields[column] for column in _COLUMNS.split(", ")))
        _check(record.op)
        return record


class RuntimeWork:
    """Operations of one transaction; made by `RuntimeStore.transact`.

    Every method is accepted or refused by itself: a refusal has written nothing.
    """

    def __init__(self, unit: StoreUnit, origin: OpOrigin) -> None:
        self._unit = unit
        self._origin = origin
        self._latest: dict[str, Op | None] = {}
        self._new: list[Op] = []

    async def register(self, worker_id: str, contract: str) -> int:
        """Register, or begin anew.

        Raises:
            Invalid, OpRefused: see `RuntimeStore.append`.
        """
        return self.append(membership.registered(worker_id, contract)).heartbeat

    async def heartbeat(self, worker_id: str) -> int | None:
        """Beat a live worker; None, and nothing is written, for any other.

        Raises:
            Invalid, OpRefused: see `RuntimeStore.append`.
        """
        op = membership.beaten(await self.latest(worker_id))
        return None if op is None else self.append(op).heartbeat

    async def deregister(self, worker_id: str) -> bool:
        """Let go of a live worker; False, and nothing is written, for any other.

        Raises:
            Invalid, OpRefused: see `RuntimeStore.append`.
        """
        op = membership.deregistered(await self.latest(worker_id))
        return op is not None and bool(self.append(op))

    async def live(self) -> list[str]:
        """Everybody who was registered before this transaction, by id."""
        latest = fold(_record(row).op for row in await self._unit.rows(ALL_LATEST))
        return [worker.worker_id for worker in membership.live(latest.values())]

    async def is_live(self, worker_id: str) -> bool:
        return membership.is_live(await self.latest(worker_id))

    async def look_up(self, worker_ids: Iterable[str]) -> None:
        """Read the latest operations of all these in a few statements, for the calls to come."""
        wanted = [each for each in dict.fromkeys(worker_ids) if each not in self._latest]
        for start in range(0, len(wanted), OPS_MAX):
            part = wanted[start : start + OPS_MAX]
            found = await self._unit.rows(latest_of(len(part)), part)
            self._latest |= dict.fromkeys(part)
            self._latest |= {record.op.worker_id: record.op for record in map(_record, found)}

    async def latest(self, worker_id: str) -> Op | None:
        """The last operation of the worker, those of this transaction included."""
        if worker_id not in self._latest:
            found = await self._unit.rows(LATEST, (worker_id,))
            self._latest[worker_id] = _record(found[0]).op if found else None
        return self._latest[worker_id]

    def append(self, op: Op) -> Op:
        """Accept one operation as it is; it is written with the transaction.

        Raises:
            Invalid, OpRefused: see `RuntimeStore.append`.
        """
        _check(op)
        refused = self._origin.authorize(op)
        if refused is not None:
            raise OpRefused(refused.why)
        self._latest[op.worker_id] = op
        self._new.append(op)
        return op

    async def write(self) -> int:
        """Write what was accepted; the number of the last operation ever, 0 when there is none."""
        ((stored,),) = await self._unit.rows(_STORED)
        # Whichever is higher: a row that went, or a high-water mark that was lost, gives no number twice.
        high = max(stored, *(row[0] for row in await self._unit.rows(HIGH, (DATASET,))), 0)
        for start in range(0, len(self._new), OPS_MAX):
            part = self._new[start : start + OPS_MAX]
            rows = [_row(high + n, op) for n, op in enumerate(part, start=1)]
            values = ", ".join([_ROW] * len(rows))
            await self._unit.rows(_PUT + values, [value for row in rows for value in row])
            high += len(rows)
        if self._new:
            await self._unit.rows(PUT_HIGH, (DATASET, high))
        return int(high)


class RuntimeStore:
    """D8 in the file of a chain store.

    Args:
        origin: Who answers for the operations of this view; see `with_origin`.
    """

    def __init__(self, store: ChainStore, origin: OpOrigin | None = None) -> None:
        self._store = store
        self._origin = TrustedLocalOrigin() if origin is None else origin

    def with_origin(self, origin: OpOrigin) -> RuntimeStore:
        """The same record, written by somebody else."""
        return RuntimeStore(self._store, origin)

    async def transact(self, work: Callable[[RuntimeWork], Awaitable[T]]) -> T:
        """Run `work`; what it had accepted is committed together when this returns.

        Raises:
            StoreFull, StoreBusy: nothing was written; try again.
            StoreError, or whatever `work` raised: nothing was written.
        """

        async def perform(unit: StoreUnit) -> T:
            runtime = RuntimeWork(unit, self._origin)
            result = await work(runtime)
            await runtime.write()
            return result

        return await self._store.transact(perform)

    async def append(self, op: Op) -> int:
        """Record one operation as it is; its number.

        Raises:
            Invalid: it is no valid operation; nothing was written, nobody was asked.
            OpRefused: its origin does not stand behind it; nothing was written.
        """

        async def perform(unit: StoreUnit) -> int:
            runtime = RuntimeWork(unit, self._origin)
            runtime.append(op)
            return await runtime.write()

        return await self._store.transact(perform)

    async def register(self, worker_id: str, contract: str) -> int:
        """Register a worker; one that is registered begins anew.

        Returns:
            Its heartbeat: 1.

        Raises:
            Invalid, OpRefused: as for `append`.
        """
        return await self.transact(lambda work: work.register(worker_id, contract))

    async def heartbeat(self, worker_id: str) -> int | None:
        """Count one heartbeat of a live worker.

        Returns:
            How many it has had.  None: it never registered, or it left; nothing was written.

        Raises:
            OpRefused: as for `append`.
        """
        return await self.transact(lambda work: work.heartbeat(worker_id))

    async def deregister(self, worker_id: str) -> bool:
        """Let go of a worker.

        Returns:
            False: it was not registered; nothing was written.

        Raises:
            OpRefused: as for `append`.
        """
        return await self.transact(lambda work: work.deregister(worker_id))

    async def beat(self) -> int:
        """Count one heartbeat of every live worker that the origin stands behind.

        Returns:
            How many were beaten.  Nobody's leaving or coming in between is undone by it.
        """
        beaten = 0
        workers = [worker.worker_id for worker in await self.list_live()]
        for start in range(0, len(workers), OPS_MAX):
            beaten += await self.transact(partial(_beat, workers[start : start + OPS_MAX]))
        return beaten

    async def get(self, worker_id: str) -> Worker | None:
        """The worker; None when it is not registered."""
        found = membership.live([_record(row).op for row in await self._store.query(LATEST, (worker_id,))])
        return found[0] if found else None

    async def list_live(self) -> list[Worker]:
        """Everybody who is registered, by id."""
        return await self.list_live_since(0)

    async def list_live_since(self, heartbeat: int) -> list[Worker]:
        """Everybody who is registered with at least so many heartbeats, by id."""
        return membership.live((await _latest(self._store)).values(), since=heartbeat)

    async def ops_after(self, op_seq: int, limit: int) -> list[RuntimeRecord]:
        """At most `limit` operations with a greater number, ascending."""
        return [_record(row) for row in await self._store.query(AFTER, (op_seq, limit))]

    @staticmethod
    async def cold_load(url: str) -> dict[str, Worker]:
        """Who is registered, by the record that another process left, or is writing, at `url`.

        Nothing is written and no lock is taken.

        Raises:
            StoreError: there is no store of this layout.
        """
        async with open_readonly(url) as other:
            return {w.worker_id: w for w in membership.live((await _latest(other)).values())}


async def live_workers(store: StoreReader) -> list[Worker]:
    """Everybody who is registered in a store that is only read, by id."""
    return membership.live((await _latest(store)).values())


def latest_of(count: int) -> str:
    """The statement that reads the latest operations of so many workers."""
    return _OF % ", ".join(["(?)"] * count)


async def _latest(store: StoreReader) -> dict[str, Op]:
    return fold(_record(row).op for row in await store.query(ALL_LATEST))


async def _beat(workers: Sequence[str], work: RuntimeWork) -> int:
    beaten = 0
    await work.look_up(workers)
    for worker_id in workers:
        try:
            beaten += await work.heartbeat(worker_id) is not None
        except (Invalid, OpRefused):
            continue  # nobody answers for it, or its count is full: it stays as quiet as it is
    return beaten


def _check(op: Op) -> None:
    fault = validate_op(op)
    if fault is not None:
        raise Invalid(f"no operation of a worker: {fault}")
    check_text(op.contract, "contract")


def _row(op_seq: int, op: Op) -> Row:
    return op_seq, op.worker_id, op.kind.value, op.heartbeat, op.contract


def _record(row: Row) -> RuntimeRecord:
    op_seq, worker_id, event, heartbeat, contract = row
    return RuntimeRecord(op_seq, Op(worker_id, OpKind(event), heartbeat, contract))
