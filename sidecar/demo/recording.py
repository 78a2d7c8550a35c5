"""A recorded log: the rows a real engine wrote, and the transactions they came in.

A recording is two files of JSON Lines.  `NAME.events.jsonl.xz` holds the rows, each exactly
as it goes back into the table: the text is never parsed and rendered again, only a few of
its keys are looked at.  `NAME.commits.jsonl.xz` says which rows were one transaction and in
which order the transactions became visible.  `NAME.expected.json`, where there is one, says
what each execution must be judged as.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from sidecar.errors import ConfigError

DATA: Final = Path(__file__).resolve().parent / "data"
"""The recordings that travel with this program."""

BUNDLED: Final = ("noetl-rust-clean", "noetl-rust-restarts", "noetl-rust-published")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table; `text` is its line of JSON, byte for byte."""

    execution_id: int
    event_id: int
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Rows that became visible together.

    `position` counts from 0 in the order of commit.  `opened_at`: when its first row was
    written; `committed_at`: when its rows became visible.  `rows` stand in the order in
    which they were written.
    """

    position: int
    opened_at: int
    committed_at: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """A log as it was written.  `transactions` stand in the order of commit.

    `verdicts`: what a comparator must say of each execution in the end, None when the
    recording came without.
    """

    name: str
    transactions: tuple[Transaction, ...]
    verdicts: Mapping[int, str] | None = None

    @property
    def rows(self) -> int:
        return sum(len(transaction.rows) for transaction in self.transactions)

    @property
    def executions(self) -> frozenset[int]:
        return frozenset(row.execution_id for each in self.transactions for row in each.rows)

    @property
    def began_at(self) -> int:
        return min((each.opened_at for each in self.transactions), default=0)

    @property
    def ended_at(self) -> int:
        return max((each.committed_at for each in self.transactions), default=0)

    @property
    def span_s(self) -> float:
        """Seconds from the first row to the last commit, as recorded."""
        return (self.ended_at - self.began_at) / 1e6

    def played_s(self, speed: float) -> float:
        """How many seconds a playback takes on a machine that keeps up."""
        return self.span_s / speed

    def backlog_s(self, speed: float) -> float:
        """How far behind its commit a row's created_at can lie because gaps were divided.

        A live window must be this much wider than for the recorded engine.
        """
        return max(0.0, self.span_s - self.played_s(speed))


def bundled(name: str) -> Recording:
    """One of `BUNDLED`."""
    return load(DATA, name)


def load(folder: Path, name: str) -> Recording:
    """Read a recording.

    Raises:
        ConfigError: a file is missing or damaged, or the two files do not fit together.
    """
    try:
        events = _lines(folder / f"{name}.events.jsonl.xz")
        commits = _lines(folder / f"{name}.commits.jsonl.xz")
        transactions = _transactions(events, commits)
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError, msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"the recording {name} cannot be read: {type(error).__name__}", hint="install noetl-chain again"
        ) from error
    return Recording(name, transactions, _verdicts(folder / f"{name}.expected.json"))


def whole(recording: Recording, recorded_s: float) -> Recording:
    """The executions that are complete within the first `recorded_s` seconds, and only they.

    An execution that would be cut off is left out altogether, so that every expected verdict
    stays what it was.  Transactions keep their times; emptied ones are dropped.
    """
    bound = recording.began_at + round(recorded_s * 1e6)
    cut = {
        row.execution_id for each in recording.transactions if each.committed_at > bound for row in each.rows
    }
    return only(recording, recording.executions - cut)


def only(recording: Recording, executions: Iterable[int]) -> Recording:
    """The same log as if no other execution had run."""
    wanted = frozenset(executions)
    kept: list[Transaction] = []
    for each in recording.transactions:
        rows = tuple(row for row in each.rows if row.execution_id in wanted)
        if rows:
            kept.append(replace(each, position=len(kept), rows=rows))
    verdicts = recording.verdicts and {
        execution: verdict for execution, verdict in recording.verdicts.items() if execution in wanted
    }
    return Recording(recording.name, tuple(kept), verdicts)


class _Event(msgspec.Struct):
    """The keys of a row that a playback needs; all others stay unread in its text."""

    execution_id: int
    event_id: int
    ingest_time: str


class _Commit(msgspec.Struct):
    execution_id: int
    event_id: int
    commit_seq: int
    commit_ts: str
    row_in_txn: int
    rows_in_txn: int


def _lines(path: Path) -> list[str]:
    # Only "\n" ends a line: the rows hold raw U+2028, which splitlines() would cut at.
    return [line for line in lzma.decompress(path.read_bytes()).decode("utf-8").split("\n") if line]


def _transactions(events: list[str], commits: list[str]) -> tuple[Transaction, ...]:
    event_of = msgspec.json.Decoder(_Event)
    commit_of = msgspec.json.Decoder(_Commit)
    grouped: defaultdict[int, list[tuple[_Commit, _Event, Row]]] = defaultdict(list)
    for line, commit_line in zip(events, commits, strict=True):
        event, commit = event_of.decode(line), commit_of.decode(commit_line)
        if (event.execution_id, event.event_id) != (commit.execution_id, commit.event_id):
            raise ValueError("events and commits do not describe the same rows")
        grouped[commit.commit_seq].append((commit, event, Row(event.execution_id, event.event_id, line)))
    return tuple(_transaction(at, grouped[seq]) for at, seq in enumerate(sorted(grouped)))


def _transaction(position: int, members: list[tuple[_Commit, _Event, Row]]) -> Transaction:
    members.sort(key=lambda member: member[0].row_in_txn)
    if len(members) != members[0][0].rows_in_txn:
        raise ValueError("a transaction is incomplete")
    committed_at = _micros(members[0][0].commit_ts)
    # ingest_time is the server's now(): the start of the transaction.
    opened_at = min(_micros(event.ingest_time) for _, event, _ in members)
    rows = tuple(row for _, _, row in members)
    return Transaction(position, min(opened_at, committed_at), committed_at, rows)


def _micros(text: str) -> int:
    at = datetime.fromisoformat(text)
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _verdicts(path: Path) -> Mapping[int, str] | None:
    if not path.exists():
        return None
    per_execution = json.loads(path.read_text("utf-8"))["per_execution"]
    return {int(execution): str(verdict) for execution, verdict in per_execution.items()}
