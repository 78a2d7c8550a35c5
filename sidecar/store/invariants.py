"""What must hold of one partition, and what is said when it does not.

A coverage is a promise to answer, so with one everything that spec 2.6 asks for must be
there.  Without one a marker may stand ahead of its rows or behind them: a refused call and an
append leave that, and it serves nothing.  Sequences with holes are legal where every row was
replicated, in whatever order they came.  Plain values in, contradictions out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.core.authority import Reason
from sidecar.core.exclusion import EXCLUDED
from sidecar.core.rejoin import Joins
from sidecar.core.verdict import Kind, Verdict

Record = Mapping[str, Any]

_CHUNK: Final = 1 << 16
_TIMES: Final = ("due_at", "reread", "changed", "labelled", "first_seen_at", "last_row_at", "terminal_seen")
_KINDS: Final = frozenset(kind.value for kind in Kind)
_VERDICTS: Final = frozenset({EXCLUDED, *(verdict.value for verdict in Verdict)})


@dataclass(frozen=True, slots=True)
class Contradiction:
    """`kind`: what does not hold, one word of a closed set; `detail`: where, without payload."""

    kind: str
    detail: str


@dataclass(slots=True)
class ChainSeen:
    """The rows of one partition, seen one by one in ascending exec_seq; memory stays the same.

    `joins`: what is kept of it.  A root stands behind the tip that it was joined to, also when the
    join was withdrawn: nothing is rewritten.  `over_withdrawn`: the first such root.
    """

    rows: int = 0
    first: int | None = None
    first_parent: int | None = None
    last: int | None = None
    last_seq: int = 0
    missing_seq: int | None = None
    unlinked: int | None = None
    all_replicated: bool = True
    joins: Joins = ()
    over_withdrawn: int | None = None

    def add(self, exec_seq: int, event_id: int, prev: int | None, parent: int | None, origin: object) -> None:
        if self.missing_seq is None and exec_seq != self.last_seq + 1:
            self.missing_seq = self.last_seq + 1
        if self.missing_seq is None and prev != self.last:
            self._look_behind(event_id, prev)
        if not self.rows:
            self.first, self.first_parent = event_id, parent
        self.rows += 1
        self.last, self.last_seq = event_id, exec_seq
        self.all_replicated = self.all_replicated and origin == "replicated"

    def _look_behind(self, event_id: int, prev: int | None) -> None:
        behind = (self.last, event_id)
        named = [each for each in self.joins if (each.tip_event_id, each.root_event_id) == behind]
        if prev is not None or not named:
            self.unlinked = event_id if self.unlinked is None else self.unlinked
        elif not named[0].stands and self.over_withdrawn is None:
            self.over_withdrawn = event_id

    @property
    def incomplete(self) -> bool:
        """Holes, and nobody ever said that there are none."""
        return self.missing_seq is not None and self.all_replicated


@dataclass(slots=True)
class Numbers:
    """Numbers that were seen; one bit each, and only where there are any."""

    _chunks: dict[int, bytearray] = field(default_factory=dict)

    def add(self, number: int) -> bool:
        """Whether `number` is seen for the first time."""
        chunk, place = divmod(number, _CHUNK)
        bits = self._chunks.setdefault(chunk, bytearray(_CHUNK // 8))
        byte, bit = place >> 3, 1 << (place & 7)
        if bits[byte] & bit:
            return False
        bits[byte] |= bit
        return True


def of_partition(record: Record | None, chain: ChainSeen) -> Iterator[Contradiction]:
    """What a partition's record and rows contradict.

    Args:
        record: By column; None when rows stand without one.
    """
    yield from _of_rows(chain)
    if record is None:
        yield Contradiction("no_partition", f"{chain.rows} rows belong to no partition")
        return
    yield from _of_head(record, chain)
    yield from _of_marks(record)
    yield from _of_words(record)
    if record["cov_total"] is not None and (reason := _unservable(record, chain)) is not None:
        yield Contradiction("coverage", f"covered, and cannot be served: {reason.value}")


def _of_rows(chain: ChainSeen) -> Iterator[Contradiction]:
    if chain.missing_seq is not None and not chain.all_replicated:
        yield Contradiction("sequence", f"exec_seq {chain.missing_seq} is missing")
    if chain.unlinked is not None:
        yield Contradiction("link", f"event {chain.unlinked} does not name the event before it")
    for each in chain.joins:
        if not each.proven:
            yield Contradiction("join", f"root {each.root_event_id} is not proven by its own numbers")


def _of_head(record: Record, chain: ChainSeen) -> Iterator[Contradiction]:
    head = (record["head_seq"], record["head_event_id"])
    if head != (chain.last_seq, chain.last):
        yield Contradiction(
            "head", f"the head is {head[0]}:{head[1]}, the last row {chain.last_seq}:{chain.last}"
        )
    begins = chain.rows and chain.missing_seq != 1
    if begins and record["parent_execution_id"] != chain.first_parent:
        yield Contradiction("parent", "the partition and its first row name different parents")


def _of_marks(record: Record) -> Iterator[Contradiction]:
    first, through = record["wm_first"], record["wm_through"]
    if (first is None) != (through is None):
        yield Contradiction("watermark", "half of it is missing")
    elif first is not None and not (0 < first <= through or first == through == 0):
        yield Contradiction("watermark", f"{first}:{through} is none")
    root, total = record["cov_root"], record["cov_total"]
    if (total is None and root is not None) or (total is not None and total < 0):
        yield Contradiction("coverage", f"a total of {total} is none")
    barred = record["label"] is not None or record["revoked_at"] is not None
    if barred and total is not None:
        yield Contradiction("coverage", "it was revoked and is there")
    for what, at in (("label", "labelled_at"), ("revoked_reason", "revoked_at")):
        if (record[what] is None) != (record[at] is None):
            yield Contradiction("bar", f"only one of {what} and {at} is set")


def _of_words(record: Record) -> Iterator[Contradiction]:
    for name in ("held", "rows_seen", "verdict_rows", "head_seq"):
        if record[name] < 0:
            yield Contradiction("count", f"{name} is {record[name]}")
    if record["terminal"] not in (0, 1):
        yield Contradiction("word", f"terminal is {record['terminal']}")
    if record["verdict"] is not None and record["verdict"] not in _VERDICTS:
        yield Contradiction("word", "the verdict is none")
    if (record["verdict"] is None) != (record["verdict_at"] is None):
        yield Contradiction("word", "only one of verdict and verdict_at is set")
    kinds = record["counted_kinds"]
    if kinds and not _KINDS.issuperset(kinds.split(",")):
        yield Contradiction("word", "the counted kinds are none")


def _unservable(record: Record, chain: ChainSeen) -> Reason | None:
    """The first reason of spec 2.6 that is not the feed's to say."""
    if record["wm_through"] is None or record["wm_first"] is None:
        return Reason.NOT_POPULATED
    if record["head_seq"] != record["wm_through"]:
        return Reason.WATERMARK_MISMATCH
    if chain.rows != record["cov_total"]:
        return Reason.COVERAGE_TOTAL_MISMATCH
    if chain.first != record["cov_root"]:
        return Reason.COVERAGE_ROOT_MISMATCH
    if any(gap is not None for gap in (chain.missing_seq, chain.unlinked, chain.over_withdrawn)):
        return Reason.CHAIN_GAP
    return None


def of_due(record: Record) -> Iterator[Contradiction]:
    """What one entry of the work list contradicts."""
    negative = [name for name in _TIMES if record[name] is not None and record[name] < 0]
    if negative:
        yield Contradiction("due", f"no time: {', '.join(negative)}")
    if record["tries"] < 0:
        yield Contradiction("due", f"tries is {record['tries']}")
    if (record["pending_key"] is None) != (record["pending_since"] is None):
        yield Contradiction("due", "only one of pending_key and pending_since is set")
