"""Play a recorded log into an event table, as several writers wrote it.

Every transaction is one again: opened when it was, committed in the recorded order, with the
same rows in the same order of writing.  All gaps are divided by `speed`.  `created_at`,
`event_time` and `ingest_time` are shifted by one constant, chosen so that the recording's
last commit falls on the playback's last instant: as in the recorded engine no row is created
after it commits.  Because the gaps between commits shrink and those between timestamps do
not, an early row's created_at lies up to `Recording.backlog_s(speed)` further in the past
than it did; a live window has to be that much wider.

Rows go in as their recorded text and are taken apart by Postgres, so every number, escape
and code point arrives as it was.  Nothing here orders rows by id.  A log names each row once; two
transactions that wrote the same key would wait for each other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from sidecar import sql
from sidecar.demo.driver import translated
from sidecar.demo.recording import Recording, Transaction
from sidecar.demo.score import Score
from sidecar.errors import ConfigError

SHIFTED: Final = frozenset({"created_at", "event_time", "ingest_time"})
CLOSE_S: Final = 5.0
LEAD_S: Final = 0.05
"""The first transaction opens this long after the connections stand, so that none is late."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What has become visible so far, and how many transactions stand open.

    `last`: the transaction that has just committed.
    """

    transactions: int
    rows: int
    open_now: int
    last: Transaction


@dataclass(frozen=True, slots=True)
class PlayReport:
    """How a playback went.

    `shift` was added to the three times of every row.  `max_open`: the most transactions
    with rows that stood open at once.  `late_s`: the longest a commit came behind its time.
    `complete` is False when `stop` ended it; the committed part is then a prefix.
    """

    transactions: int
    rows: int
    max_open: int
    shift: timedelta
    seconds: float
    late_s: float
    complete: bool


@dataclass(frozen=True, slots=True)
class _Tempo:
    """Recorded microseconds to the event loop's seconds."""

    began_at: int
    starts_at: float
    speed: float

    def due(self, recorded_at: int) -> float:
        return self.starts_at + (recorded_at - self.began_at) / 1e6 / self.speed

    async def until(self, recorded_at: int) -> None:
        pause = self.due(recorded_at) - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)


async def play(
    dsn: str,
    recording: Recording,
    *,
    speed: float = 8.0,
    connections: int = 8,
    schema: str = "noetl",
    stop: asyncio.Event | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> PlayReport:
    """Play `recording` into `schema`.event until its end, or until `stop` is set.

    Args:
        speed: All gaps are divided by it; infinity plays as fast as the server takes it.
        connections: How many writers there are at most; any number from 1 works.
        on_progress: Called after every commit; it must not block.

    Raises:
        ConfigError: `speed` or `connections` is not positive.
        SourceUnavailable: a connection failed; the committed transactions stay.
        SourceContractError: the server refused a row; the committed transactions stay.
    """
    if not speed > 0 or connections < 1:
        raise ConfigError("speed and connections must be above zero")
    if not recording.transactions:
        return PlayReport(0, 0, 0, timedelta(0), 0.0, 0.0, complete=True)
    with translated("the playback stopped"):
        async with _writers(dsn, connections) as writers:
            player = await _Player.ready(writers, recording, speed, schema, on_progress)
            return await player.run(writers, stop or asyncio.Event())


class _Player:
    """One playback."""

    def __init__(
        self,
        recording: Recording,
        score: Score,
        tempo: _Tempo,
        insert: str,
        shift: timedelta,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._score = score
        self._tempo = tempo
        self._insert = insert
        self._shift = shift
        self._on_progress = on_progress
        self._total = len(recording.transactions)
        self._rows = self._open = self._max_open = 0
        self._late = 0.0

    @classmethod
    async def ready(
        cls,
        writers: Sequence[Any],
        recording: Recording,
        speed: float,
        schema: str,
        on_progress: Callable[[Progress], None] | None,
    ) -> _Player:
        insert = await insert_statement(writers[0], schema, _columns(recording), shifted=True)
        now: datetime = await writers[0].fetchval("SELECT clock_timestamp()")
        ends = now + timedelta(seconds=LEAD_S + recording.played_s(speed))
        shift = ends - (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=recording.ended_at))
        tempo = _Tempo(recording.began_at, asyncio.get_running_loop().time() + LEAD_S, speed)
        return cls(recording, Score(recording.transactions, len(writers)), tempo, insert, shift, on_progress)

    async def run(self, writers: Sequence[Any], stop: asyncio.Event) -> PlayReport:
        playing = asyncio.ensure_future(self._play_all(writers))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(stopping)
            complete = await _ended(playing)
        return self._report(complete=complete)

    async def _play_all(self, writers: Sequence[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(self._write(writer))

    async def _write(self, writer: Any) -> None:
        insert = await writer.prepare(self._insert)
        while (transaction := await self._score.take()) is not None:
            await self._tempo.until(transaction.opened_at)
            opened = writer.transaction()
            await opened.start()
            await insert.fetch(_text(transaction), self._shift)
            self._opened()
            await self._score.turn(transaction)
            await self._tempo.until(transaction.committed_at)
            await opened.commit()
            self._committed(transaction)

    def _opened(self) -> None:
        self._open += 1
        self._max_open = max(self._max_open, self._open)

    def _committed(self, transaction: Transaction) -> None:
        late = asyncio.get_running_loop().time() - self._tempo.due(transaction.committed_at)
        self._late = max(self._late, late)
        self._open -= 1
        self._rows += len(transaction.rows)
        self._score.commit(transaction)
        if self._on_progress is not None:
            self._on_progress(Progress(self._score.committed, self._rows, self._open, transaction))

    def _report(self, *, complete: bool) -> PlayReport:
        seconds = asyncio.get_running_loop().time() - self._tempo.starts_at
        return PlayReport(
            transactions=self._score.committed,
            rows=self._rows,
            max_open=self._max_open,
            shift=self._shift,
            seconds=max(0.0, seconds),
            late_s=self._late,
            complete=complete,
        )


async def insert_statement(connection: Any, schema: str, columns: frozenset[str], *, shifted: bool) -> str:
    """The statement that inserts rows from a JSON array, `$1`; with `shifted`, `$2` is an interval.

    Columns that the table lacks (an older install) are left out; those that the rows lack
    take their default.
    """
    table = f"{sql.quoted(schema)}.event"
    present = await connection.fetch(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        table,
    )
    names = [record["attname"] for record in present if record["attname"] in columns]
    targets = ", ".join(map(sql.quoted, names))
    values = ", ".join(_value(name, shifted=shifted) for name in names)
    return (
        f"INSERT INTO {table} ({targets})"  # noqa: S608 - every name is quoted
        f" SELECT {values} FROM jsonb_populate_recordset(NULL::{table}, $1::text::jsonb) r"
    )


def _value(column: str, *, shifted: bool) -> str:
    moved = " + $2::interval" if shifted and column in SHIFTED else ""
    return f"r.{sql.quoted(column)}{moved}"


def _columns(recording: Recording) -> frozenset[str]:
    # A recorded row names every column of its table, so the first row speaks for all.
    return frozenset(json.loads(recording.transactions[0].rows[0].text))


def _text(transaction: Transaction) -> str:
    return "[" + ",".join(row.text for row in transaction.rows) + "]"


@asynccontextmanager
async def _writers(dsn: str, count: int) -> AsyncIterator[list[Any]]:
    """`count` connections in UTC.  What is still open in them at the end rolls back."""
    writers: list[Any] = []
    try:
        while len(writers) < count:
            # In another zone an interval with days could move a timestamp by 23 hours.
            writers.append(await asyncpg.connect(dsn, server_settings={"timezone": "UTC"}))
        yield writers
        for writer in writers:
            await writer.close(timeout=CLOSE_S)
    finally:
        for writer in writers:
            if not writer.is_closed():
                writer.terminate()


async def _ended(task: asyncio.Future[Any]) -> bool:
    """Cancel what still runs and see it end; whether it had finished by itself."""
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return False
