"""Read a whole store and say what in it contradicts itself.  Nothing is written, no lock taken.

First SQLite's own check of the file, which is one long snapshot; then every partition with its
rows, a page at a time, each page a snapshot of its own, so that a sidecar beside it goes on
and checkpoints.  Bodies are not read.  Memory: one page of records, one bit an event.
"""

# ruff: noqa: S608 - the statements are put together from constants of this package only

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.errors import StoreCorrupt, StoreError, StoreFormatError
from sidecar.store import joins
from sidecar.store.connection import Row
from sidecar.store.failure import sqlite_errors
from sidecar.store.format import Marker, gate, uri
from sidecar.store.invariants import ChainSeen, Contradiction, Numbers, Record, of_due, of_partition
from sidecar.store.reads import EXECUTIONS
from sidecar.store.rows import DUE_COLUMNS, PARTITION_COLUMNS

PAGE: Final = 500
FINDINGS_MAX: Final = 1000
DAMAGES_MAX: Final = 100

_BETWEEN: Final = "WHERE execution_id BETWEEN ?1 AND ?2"
PARTITIONS: Final = f"SELECT {PARTITION_COLUMNS} FROM partition {_BETWEEN}"
ROWS: Final = (
    "SELECT execution_id, exec_seq, event_id, prev_event_id, parent_execution_id, origin, gseq"
    f" FROM event {_BETWEEN} ORDER BY execution_id, exec_seq"
)
DUE: Final = f"SELECT {DUE_COLUMNS} FROM due WHERE execution_id >= ? ORDER BY execution_id LIMIT ?"
HIGH: Final = "SELECT coalesce((SELECT high FROM sequence WHERE dataset = 'event'), 0)"
CURSORS: Final = (
    "SELECT 'lane ' || lane FROM tail_cursor WHERE lane = '' OR horizon < 0 OR polled_at < 0",
    "SELECT 'shard ' || shard FROM apply_cursor WHERE shard < 0 OR seq < 0",
    "SELECT 'a replica position' FROM replica_position WHERE replica = '' OR gseq < 0",
    "SELECT 'the sequence ' || dataset FROM sequence WHERE high < 0",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction; `execution_id` None: of the store as a whole."""

    execution_id: int | None
    kind: str
    detail: str


@dataclass(slots=True)
class Checked:
    """What a check found.

    `incomplete`: replicated chains with holes, which is no contradiction.  `findings` are the
    first ones, `kinds` counts them all.  `damaged`: the file itself is; nothing more was read.
    """

    executions: int = 0
    events: int = 0
    incomplete: int = 0
    damaged: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def note(self, execution_id: int | None, found: Contradiction) -> None:
        self.kinds[found.kind] += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(execution_id, found.kind, found.detail))

    def malformed(self, cursors: Iterable[Row]) -> None:
        """Note what the CURSORS statements found."""
        for (what,) in cursors:
            self.note(None, Contradiction("cursor", f"{what} is malformed"))

    def entries(self, rows: Iterable[Row]) -> None:
        """Note what entries of the work list contradict."""
        for row in rows:
            for contradiction in of_due(_named(DUE_COLUMNS, row)):
                self.note(row[0], contradiction)

    def damage(self, text: str) -> None:
        """Note that nothing here can be relied on."""
        self.damaged = True
        self.note(None, Contradiction("damage", " ".join(text.split())))

    @property
    def exit_code(self) -> int:
        """0 nothing found, 1 findings, 20 the file is damaged: no part of it can be relied on."""
        if self.damaged:
            return StoreCorrupt.exit_code
        return 1 if self.kinds else 0


def check(
    path: Path,
    *,
    quick: bool = False,
    moved: Callable[[int], None] = lambda executions: None,
    page: int = PAGE,
) -> Checked:
    """Check the store at `path`.

    Args:
        quick: SQLite's quick_check, which compares no index with its table.
        moved: Called after every page with the executions in it.

    Raises:
        StoreFormatError: no chain store of this layout.
        StoreError: the file is missing or cannot be read.
    """
    if not path.is_file():
        raise StoreError(f"there is no store at {path}", hint="name the file that the sidecar writes")
    if gate(path) is Marker.ABSENT:
        raise StoreFormatError(f"{path} is no chain store", hint="name the file that the sidecar writes")
    checked = Checked()
    with sqlite_errors(), closing(_opened(path)) as store:
        _check_file(store, "quick_check" if quick else "integrity_check", checked)
        if not checked.damaged:
            _check_cursors(store, checked)
            _check_partitions(store, checked, moved, page)
            _check_due(store, checked, page)
    return checked


def partitions(path: Path) -> int:
    """How many partitions there are to check."""
    with sqlite_errors(), closing(_opened(path)) as store:
        return int(store.execute("SELECT count(*) FROM partition").fetchone()[0])


def _opened(path: Path) -> sqlite3.Connection:
    store = sqlite3.connect(uri(path, "ro"), uri=True, isolation_level=None, timeout=5.0)
    store.execute("PRAGMA query_only = ON")
    return store


@contextmanager
def _snapshot(store: sqlite3.Connection) -> Iterator[None]:
    store.execute("BEGIN")
    try:
        yield
    finally:
        store.rollback()


def _check_file(store: sqlite3.Connection, pragma: str, checked: Checked) -> None:
    try:
        with sqlite_errors():
            said = [str(row[0]) for row in store.execute(f"PRAGMA {pragma}({DAMAGES_MAX})")]
    except StoreCorrupt as error:  # damage that SQLite's own check does not get past
        said = [str(error)]
    for text in said:
        if text != "ok":
            checked.damage(text)


def _check_cursors(store: sqlite3.Connection, checked: Checked) -> None:
    for statement in CURSORS:
        checked.malformed(store.execute(statement))


def _check_partitions(
    store: sqlite3.Connection, checked: Checked, moved: Callable[[int], None], limit: int
) -> None:
    numbers = Numbers()
    low = ID_MIN
    while low <= ID_MAX:
        with _snapshot(store):
            found = [row[0] for row in store.execute(EXECUTIONS, (low, ID_MAX, limit))]
            if found:
                bounds = (found[0], found[-1])
                records, kept = store.execute(PARTITIONS, bounds), store.execute(joins.BETWEEN, bounds)
                high = int(store.execute(HIGH).fetchone()[0])
                page = Page(checked, numbers, high, found, records, kept)
                for row in store.execute(ROWS, bounds):
                    page.add(row)
                page.end(high)
        moved(len(found))
        if len(found) < limit:
            break
        low = found[-1] + 1


def _check_due(store: sqlite3.Connection, checked: Checked, page: int) -> None:
    low = ID_MIN
    while low <= ID_MAX:
        entries = store.execute(DUE, (low, page)).fetchall()
        checked.entries(entries)
        if len(entries) < page:
            break
        low = entries[-1][0] + 1


class Page:
    """The executions of one snapshot, judged one by one as their rows come.

    Args:
        high: The latest number that was given, as the snapshot has it.
        executions: Ascending.
        records, kept: Their records by column, and what is kept of their joins.
    """

    def __init__(
        self,
        checked: Checked,
        numbers: Numbers,
        high: int,
        executions: Sequence[int],
        records: Iterable[Row],
        kept: Iterable[Row],
    ) -> None:
        self._checked = checked
        self._numbers = numbers
        self._high = high
        self._records = {row[0]: _named(PARTITION_COLUMNS, row) for row in records}
        self._kept = joins.grouped(tuple(kept))
        self._left = iter(executions)
        self._at: int | None = None
        self._chain = ChainSeen()
        self._beyond: list[tuple[int, int]] = []
        self._next()

    def add(self, row: Row) -> None:
        """Take one row of ROWS; they come in that order."""
        execution_id, *seen, gseq = row
        while self._at is not None and self._at != execution_id:
            self._next()
        self._chain.add(*seen)
        if gseq is None:
            return  # somebody else's row: it has none
        if 0 < gseq <= self._high:
            self._number(execution_id, gseq)
        else:
            self._beyond.append((execution_id, gseq))

    @property
    def greatest(self) -> int:
        """The greatest number that the snapshot says was never given; 0 without one."""
        return max((gseq for _, gseq in self._beyond), default=0)

    def end(self, high: int) -> None:
        """Judge what is left.

        Args:
            high: The latest number that was given, as is known by now.
        """
        while self._at is not None:
            self._next()
        for execution_id, gseq in self._beyond:
            if 0 < gseq <= high:
                self._number(execution_id, gseq)
                continue
            found = Contradiction("gseq", f"{gseq} was never given: they end at {high}")
            self._checked.note(execution_id, found)

    def _number(self, execution_id: int, gseq: int) -> None:
        if not self._numbers.add(gseq):
            self._checked.note(execution_id, Contradiction("gseq", f"{gseq} was given twice"))

    def _next(self) -> None:
        if self._at is not None:
            self._judge(self._at, self._records.get(self._at), self._chain)
        self._at = next(self._left, None)
        self._chain = ChainSeen(joins=() if self._at is None else self._kept.get(self._at, ()))

    def _judge(self, execution_id: int, record: Record | None, chain: ChainSeen) -> None:
        self._checked.executions += 1
        self._checked.events += chain.rows
        self._checked.incomplete += chain.incomplete
        for contradiction in of_partition(record, chain):
            self._checked.note(execution_id, contradiction)


def _named(columns: str, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(columns.split(", "), row, strict=True))
