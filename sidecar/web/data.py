"""What the API and the pages show of executions and findings: plain documents, read on demand.

Everything is read on connections that cannot write.  What costs Postgres something is bounded in
number and in time.  A thing that cannot be answered is a `Problem`; nothing here shows a body
except the guarded chain and a finding's evidence, which their routes keep behind the token.
Source: design 4, HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from sidecar.comparator.probe import Probed, probe
from sidecar.core.due import Windows
from sidecar.core.picture import Picture, picture
from sidecar.core.ports import ExecutionLog, LogReader, Snapshot
from sidecar.core.shards import Shard, shard_of
from sidecar.core.verdict import Verdict
from sidecar.errors import SourceError
from sidecar.inspection import documents
from sidecar.inspection.documents import Document
from sidecar.inspection.joins import document as proof
from sidecar.store import StoreReader
from sidecar.store.findings import Kept
from sidecar.store.listing import Place, executions, finding, findings, findings_of
from sidecar.web.problem import Problem, Refusal

LOG_READS_MAX: Final = 4
"""Requests that wait for Postgres at a time, probes and drawings together."""
LOG_READ_S: Final = 30.0
FINDINGS_SHOWN: Final = 100
"""Of one execution."""
DRAWN_MAX: Final = 10_000
"""Events of a picture."""
DRAWINGS_MAX: Final = 4
"""Executions read whole at a time, for each holds its bodies in memory; the others wait."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What the running line lends.

    `log`: used by nobody else.  `count`: the counter of probes.  `shard`: whose executions they know.
    """

    store: StoreReader
    log: LogReader
    windows: Windows
    count: Callable[[Verdict], None]
    shard: Shard = field(default_factory=Shard)


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution as it stands.

    `log`: None where it was not asked for or could not be read.  `drawn`: None where there is
    more than a picture has.  `not_read`: what was left out and why.
    """

    held: Snapshot
    log: ExecutionLog | None
    drawn: Picture | None
    findings: tuple[Kept, ...]
    not_read: tuple[str, ...]

    def document(self) -> Document:
        """JSON values without any body."""
        held = self.held
        partition, guarded = held.partition, held.guarded
        return {
            "execution_id": str(held.execution_id),
            "record": None if partition is None else documents.record(partition),
            "servable": guarded.events is not None,
            "reason": None if guarded.reason is None else guarded.reason.value,
            "due": None if held.due is None else documents.due(held.due),
            "joins": [proof(join) for join in held.joins],
            "findings": [documents.finding(each) for each in self.findings],
            "log": None if self.log is None else documents.log_side(self.log),
            "not_read": list(self.not_read),
            "picture": None if self.drawn is None else documents.drawing(self.drawn),
        }


class Data:
    """Filled by the composition root when the store is open; before that every question is 503."""

    def __init__(self) -> None:
        self.sources: Sources | None = None
        self._reading = 0
        self._drawing = asyncio.Semaphore(DRAWINGS_MAX)
        self._probed: set[int] = set()

    @property
    def open(self) -> Sources:
        """The parts.

        Raises:
            Problem: there is no store yet.
        """
        if self.sources is None:
            raise Problem(503, Refusal.UNAVAILABLE, "the store is not open")
        return self.sources

    async def executions(
        self, *, verdict: str | None = None, after: Place | None = None, limit: int = 50
    ) -> tuple[list[Document], Place | None]:
        """A page of executions, what changed last in front, and where the next one goes on."""
        found = await executions(self.open.store, verdict=verdict, after=after, limit=limit + 1)
        more = len(found) > limit
        last = found[limit - 1] if more else None
        place = None if last is None else Place(last.last_change_at, last.execution_id)
        return [documents.summary(each) for each in found[:limit]], place

    async def execution(self, execution_id: int, *, with_log: bool = False) -> Execution:
        """One execution, drawn from the store, or from both sides.

        Raises:
            Problem: neither side has ever seen it, it is another shard's, or too many read the log
                at this moment.
            SourceError: the log cannot be read, and the store has never seen it.
        """
        self.check_shard(execution_id)
        store = self.open.store
        not_read: list[str] = []
        log: ExecutionLog | None = None
        failed: SourceError | None = None
        if with_log:
            try:
                async with self._log_read():
                    (log,) = await self.open.log.read([execution_id])
            except SourceError as error:
                not_read.append(f"the log was not read: {error}")
                failed = error
        async with self._drawing:
            held = await store.snapshot(execution_id)
            noted = tuple(await findings_of(store, execution_id, FINDINGS_SHOWN))
            seen = held.partition is not None or held.rows or noted
            if not seen and failed is not None:
                raise failed  # whether it was ever seen cannot be told
            if not seen and (log is None or log.events == ()):
                raise never_seen(execution_id)
            drawn = await asyncio.to_thread(self._drawn, log, held, not_read)
        return Execution(held, log, drawn, noted, tuple(not_read))

    def _drawn(self, log: ExecutionLog | None, held: Snapshot, not_read: list[str]) -> Picture | None:
        most = max(len(held.rows), len((log.events if log is not None else None) or ()))
        if most > DRAWN_MAX:
            not_read.append(f"not drawn: {most} events are more than a picture has")
            return None
        return picture(None if log is None else log.events, held.rows, held.joins)

    async def chain(self, execution_id: int) -> Snapshot:
        """The guarded read with what stands beside it; its `guarded.events` is not None.

        Raises:
            Problem: never seen, or another shard's; or the store does not answer, with the reason of
                spec 2.6.
        """
        self.check_shard(execution_id)
        held = await self.open.store.snapshot(execution_id)
        if held.partition is None and not held.rows:
            raise never_seen(execution_id)
        if held.guarded.reason is not None:
            raise Problem(409, held.guarded.reason, "the store does not answer for this execution")
        return held

    def check_shard(self, execution_id: int) -> None:
        """Nobody here has ever heard of another shard's execution, and that says nothing of it.

        Raises:
            Problem: it falls to another shard.
        """
        shard = self.open.shard
        if not shard.owns(execution_id):
            owner = shard_of(execution_id, shard.count)
            why = f"execution {execution_id} falls to shard {owner} of {shard.count}, this is {shard.index}"
            raise Problem(404, Refusal.OTHER_SHARD, why)

    async def seen(self, execution_id: int) -> bool:
        """Whether the store has a record of it."""
        return await self.open.store.partition(execution_id) is not None

    async def probe(self, execution_id: int) -> Probed:
        """Compare one execution now; moves the counter of probes alone.

        Raises:
            Problem: it is another shard's, it is being probed, too many are, or Postgres takes too long.
        """
        self.check_shard(execution_id)
        parts = self.open
        if execution_id in self._probed:
            raise _busy(409, "this execution is being probed")
        async with self._log_read():
            self._probed.add(execution_id)
            try:
                return await probe(execution_id, parts.store, parts.log, parts.windows, parts.count)
            finally:
                self._probed.discard(execution_id)

    async def findings(
        self,
        *,
        verdict: str | None = None,
        only_open: bool = False,
        after: int | None = None,
        limit: int = 50,
    ) -> tuple[list[Document], int | None]:
        """A page of findings, the newest in front, and where the next one goes on."""
        store = self.open.store
        found = await findings(store, verdict=verdict, only_open=only_open, after=after, limit=limit + 1)
        place = found[limit - 1].finding_id if len(found) > limit else None
        return [documents.finding(each) for each in found[:limit]], place

    async def finding(self, finding_id: int, *, bodies: bool) -> Document:
        """One finding with its evidence.

        Args:
            bodies: Whoever asks may see them.

        Raises:
            Problem: there is none of this id.
        """
        found = await finding(self.open.store, finding_id)
        if found is None:
            raise Problem(404, Refusal.NOT_FOUND, f"there is no finding {finding_id}")
        evidence = found.evidence if bodies else documents.without_bodies(found.evidence)
        return {**documents.finding(found), "bodies": bodies, "evidence": evidence}

    @asynccontextmanager
    async def _log_read(self) -> AsyncIterator[None]:
        if self._reading >= LOG_READS_MAX:
            raise _busy(429, f"at most {LOG_READS_MAX} requests read the log at a time")
        self._reading += 1
        try:
            async with asyncio.timeout(LOG_READ_S):
                yield
        except TimeoutError:
            raise Problem(503, Refusal.UNAVAILABLE, "Postgres takes too long to answer") from None
        finally:
            self._reading -= 1


def never_seen(execution_id: int) -> Problem:
    """404: the store has no record of it."""
    return Problem(404, Refusal.NEVER_SEEN, f"execution {execution_id} was never seen")


def _busy(status: int, why: str) -> Problem:
    return Problem(status, Refusal.BUSY, why, headers={"retry-after": "1"})
