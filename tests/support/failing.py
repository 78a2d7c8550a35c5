"""SQLite whose n-th call fails, once or from then on, under everything that opens a database.

`sqlite3.connect` is given a connection class of ours, so the gate, the layout, the writer and
both readers are counted alike.  A call is one step of the driver: a statement, the rows of
one, a script, a rollback that has something to roll back.  Closing does not fail: SQLite does
not report an I/O error there.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Self, TypeVar

import pytest

T = TypeVar("T")


class Kind(Enum):
    """What fails, by SQLite's code; the name is the test's."""

    IOERR = sqlite3.SQLITE_IOERR_WRITE
    FULL = sqlite3.SQLITE_FULL
    BUSY = sqlite3.SQLITE_BUSY
    CORRUPT = sqlite3.SQLITE_CORRUPT


@dataclass(frozen=True, slots=True)
class Fault:
    """`nth` counts from 1.  `late`: the call is done, and then its answer is lost."""

    kind: Kind
    nth: int
    for_ever: bool = False
    late: bool = False


class Faults:
    """Counts calls and fails the chosen ones; without a fault it only counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fault: Fault | None = None
        self.fired = 0
        self._one_at_a_time = threading.Lock()

    def arm(self, fault: Fault | None) -> None:
        with self._one_at_a_time:
            self.calls, self.fault, self.fired = [], fault, 0

    @contextmanager
    def armed(self, fault: Fault | None) -> Iterator[Self]:
        self.arm(fault)
        try:
            yield self
        finally:
            self.fault = None

    def of(self, connection: sqlite3.Connection, what: str, call: Callable[[], T]) -> T:
        with self._one_at_a_time:
            self.calls.append(what)
            fault = self.fault
            fails = fault is not None and (
                len(self.calls) == fault.nth or (fault.for_ever and len(self.calls) > fault.nth)
            )
            self.fired += fails
        if fault is None or not fails:
            return call()
        if fault.late:
            call()
        elif fault.kind is Kind.IOERR and connection.in_transaction:
            sqlite3.Connection.rollback(connection)  # as SQLite does by itself after some failures
        raise failure(fault.kind)


def failure(kind: Kind) -> sqlite3.OperationalError:
    made = sqlite3.OperationalError("text of the driver")
    made.sqlite_errorcode = kind.value
    return made


def install(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Put the counting classes under `sqlite3.connect` until the test ends."""
    faults = Faults()

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> Self:
            return faults.of(self.connection, sql, partial(super().execute, sql, parameters))

        def executemany(self, sql: str, parameters: Iterable[Any], /) -> Self:
            return faults.of(self.connection, sql, partial(super().executemany, sql, parameters))

        def executescript(self, sql: str, /) -> Self:
            faults.of(self.connection, sql, partial(super().executescript, sql))
            return self

        def fetchall(self) -> list[Any]:
            return faults.of(self.connection, "fetchall", super().fetchall)

        def fetchone(self) -> Any:
            return faults.of(self.connection, "fetchone", super().fetchone)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = None) -> Any:
            return super().cursor(Cursor)

        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            return self.cursor().execute(sql, parameters)

        def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
            return self.cursor().executemany(sql, parameters)

        def executescript(self, sql: str, /) -> Any:
            return self.cursor().executescript(sql)

        def rollback(self) -> None:
            if self.in_transaction:
                faults.of(self, "ROLLBACK", super().rollback)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    return faults
