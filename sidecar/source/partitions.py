"""The partitions of the event table, as the sweep's lanes.

A lane is one partition of the top level: its range of execution ids, its key (the partition and
the row that attached it), its part of the tree.  DEFAULT's range is what the others leave; where
there is no DEFAULT that rest is a lane too, so that rows of a dropped partition are missed.
A table that is not partitioned by one range of execution_id is one lane.
Source: spec 1.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.core.event import ID_MAX, ID_MIN
from sidecar.core.horizon import Facts
from sidecar.errors import broken
from sidecar.source.connection import Session, fetch_alone
from sidecar.source.facts import FACTS_BODY, Guard, facts_cte, tree_sql
from sidecar.source.poll import Intervals
from sidecar.source.table import EventTable

LANE_PREFIX: Final = "sweep:"

_BOUND: Final = re.compile(r"FOR VALUES FROM \((?P<low>[^,()]+)\) TO \((?P<high>[^,()]+)\)")
_DEFAULT: Final = "DEFAULT"


@dataclass(frozen=True, slots=True)
class Part:
    """One lane of the sweep.  `tree`: the fingerprint of this part of the tree alone."""

    lane: str
    over: Intervals
    tree: str


@dataclass(frozen=True, slots=True)
class Listing:
    """All lanes of the sweep as one statement saw them."""

    facts: Facts
    parts: tuple[Part, ...]


def listing_sql(table: EventTable) -> str:
    """One row a partition, the facts in each; one row without partition for a plain table."""
    return (
        f"with {facts_cte(table.regclass)} select {FACTS_BODY} as body, p.* from b left join"
        " (select i.inhrelid::bigint as relid, i.xmin::text as attached, i.inhdetachpending as leaving,"
        f" pg_get_expr(c.relpartbound, c.oid) as bound, {tree_sql('c.oid')} as tree"
        " from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        f" where i.inhparent = {table.regclass} order by i.inhrelid) p on true"
    )


async def list_parts(session: Session, table: EventTable) -> Listing:
    """List the sweep's lanes.

    Raises:
        SourceError: the statement failed, or the table is no longer ours to read.
    """
    rows = await fetch_alone(session, listing_sql(table))
    facts = Guard(table.relid).facts(rows[0]["body"])
    # A partition that is being detached is no longer read through its parent.
    attached = [row for row in rows if row["relid"] is not None and not row["leaving"]]
    return Listing(facts, parts_of(table.relid, attached, facts.tree))


def parts_of(relid: int, rows: Sequence[Any], tree: str) -> tuple[Part, ...]:
    """The lanes of a listing.

    Args:
        relid: The table's oid.
        rows: The attached partitions (relid, attached, bound, tree).
        tree: The whole tree's fingerprint.
    """
    bounds = [bounds_of(row["bound"]) for row in rows if row["bound"] != _DEFAULT]
    if None in bounds or not rows:
        return (Part(f"{LANE_PREFIX}{relid}:0", Intervals(((ID_MIN, ID_MAX),)), tree),)
    ranges = [bound for bound in bounds if bound is not None]
    rest = Intervals(complement(ranges))
    parts = [_part(row, rest if row["bound"] == _DEFAULT else Intervals((_bounds(row),))) for row in rows]
    if rest.ranges and all(row["bound"] != _DEFAULT for row in rows):
        parts.append(Part(f"{LANE_PREFIX}{relid}:0", rest, "-"))
    return tuple(part for part in parts if part.over.ranges)


def _part(row: Any, over: Intervals) -> Part:
    return Part(f"{LANE_PREFIX}{row['relid']}:{row['attached']}", over, row["tree"])


def _bounds(row: Any) -> tuple[int, int]:
    return bounds_of(row["bound"]) or broken("a bound was read before")


def bounds_of(expression: str | None) -> tuple[int, int] | None:
    """The ids of a partition, both ends included; None if it is no range of one bigint."""
    found = _BOUND.fullmatch(expression or "")
    if found is None:
        return None
    try:
        low = ID_MIN if found["low"] == "MINVALUE" else int(found["low"].strip("'"))
        high = ID_MAX if found["high"] == "MAXVALUE" else int(found["high"].strip("'")) - 1
    except ValueError:
        return None
    return low, high


def complement(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ids in none of `ranges`, which do not overlap."""
    rest: list[tuple[int, int]] = []
    at = ID_MIN
    for low, high in sorted(ranges):
        if low > at:
            rest.append((at, low - 1))
        at = high + 1
    if at <= ID_MAX:
        rest.append((at, ID_MAX))
    return tuple(rest)
