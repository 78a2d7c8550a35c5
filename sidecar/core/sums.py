"""Three numbers that say whether store and log hold the same chain of an execution.

(rows, rows without a predecessor, sum of the first 8 bytes of sha256(body) modulo 2^64).  The
body holds the row's ids, its predecessor among them, so an equal multiset of bodies is an equal
chain: 2^-64 an execution, against accidents, not against an attacker.

That holds for rows of the log, whose columns and body are one row.  In the store somebody may
have changed a column, or the order, and left the bodies alone.  So a stored chain has one more
answer, `whole`: its places are 1..n, each row names the one before it, and no column contradicts
its body.  Equal numbers and a whole chain mean that the log is this one chain: then, and only
then, nothing has to be read row by row.  A root behind a tip is whole where a join stands for it;
the rows of the log are then the same pieces, and the proof is as good.  Source: design 3.4, spec 2.7.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from sidecar.core.authority import NO_JOINS
from sidecar.core.event import Event
from sidecar.core.verdict import Verdict

MODULUS: Final = 2**64

StoredRow = tuple[int, int, int, int | None, int | None, bytes, bytes]
"""exec_seq, execution_id, event_id, prev_event_id, parent_execution_id, event_type, body, in UTF-8."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What one side holds of an execution; all zero: nothing."""

    rows: int = 0
    roots: int = 0
    digest: int = 0


NOTHING: Final = Sums()


@dataclass(frozen=True, slots=True)
class StoredSums:
    """The same of stored rows, recomputed from them.  `whole`: they are one chain by their columns."""

    sums: Sums = NOTHING
    whole: bool = True

    @property
    def verdict(self) -> Verdict:
        """That of a whole chain whose sums agree: over joins, where it has several roots."""
        return Verdict.MATCH_REJOINED if self.sums.roots > 1 else Verdict.MATCH


def agree(log: Sums | None, stored: StoredSums) -> bool:
    """Whether the stored chain is the log.  `log` None: it could not be summed, which is no agreement."""
    return log is not None and stored.whole and stored.sums == log


def word(body: bytes) -> int:
    """The number that one body adds."""
    return int.from_bytes(sha256(body).digest()[:8], "big")


def sums_of(events: Iterable[Event]) -> Sums:
    """The numbers of some events, as Postgres computes them from the log."""
    rows = roots = digest = 0
    for event in events:
        rows += 1
        roots += event.prev_event_id is None
        digest += word(event.body.encode())
    return Sums(rows, roots, digest % MODULUS)


def stored_sums(rows: Iterable[StoredRow], joined: Mapping[int, int] = NO_JOINS) -> StoredSums:
    """The numbers of one execution's stored rows, given in ascending exec_seq.

    Args:
        joined: For each root that may stand behind a tip, that tip.
    """
    count = roots = digest = 0
    whole, before = True, None
    for row in rows:
        seq, _, event_id, prev, _, _, body = row
        count += 1
        roots += prev is None
        digest += word(body)
        # The first names nobody, and so does `before` then.
        linked = prev == before or (prev is None and joined.get(event_id) == before)
        whole = whole and seq == count and linked and _says_the_same(row)
        before = event_id
    return StoredSums(Sums(count, roots, digest % MODULUS), whole)


def _says_the_same(row: StoredRow) -> bool:
    """Whether the body holds the ids and the type of its columns.

    Found as text: inside a value every quote is escaped, and jsonb puts a blank behind the
    colon, so these keys stand nowhere else in a canonical body.
    """
    _, execution_id, event_id, prev, parent, event_type, body = row
    return (
        any(
            b'"event_id":%d,%s"execution_id":%d,' % (event_id, spelled, execution_id) in body
            for spelled in _spellings(event_type)
        )
        and _link_stands(b'"prev_event_id":', prev, body)
        and _link_stands(b'"parent_execution_id":', parent, body)
    )


def _link_stands(key: bytes, value: int | None, body: bytes) -> bool:
    if value is None:  # then the key stands inside values only
        return body.count(key) == body.count(key + b" ")
    return b"%s%d," % (key, value) in body


@lru_cache(maxsize=1024)
def _spellings(event_type: bytes) -> tuple[bytes, ...]:
    """How a body may say it; a row without a type has no such key, and its column is empty."""
    quoted = json.dumps(event_type.decode(), ensure_ascii=False).encode()
    given = b'"event_type":%s,' % quoted
    return (given,) if event_type else (given, b"")
