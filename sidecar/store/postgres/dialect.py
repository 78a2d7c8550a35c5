"""A statement in SQLite's words becomes PostgreSQL's.

What is translated is a closed list: parameters, lists that travel as JSON, `IS ?`, `INDEXED BY`,
conflicts that are passed over, the length of a text in bytes.  Lazy changes of the layout are left out, since
PostgreSQL's layout holds everything from the start.  A `REPLACE` is a delete and an insert, in
columns, because neither a foreign table nor a key that is only the leaves' own takes ON CONFLICT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sidecar.errors import invariant
from sidecar.store.wording import POSTGRES

SPREAD: Final = {
    "partition": ("execution_id",),
    "event": ("execution_id", "exec_seq"),
    "due": ("execution_id",),
    "rejoin": ("execution_id", "root_event_id"),
    "d3_projection": ("execution_id", "proj_seq"),
    "audit_seen": ("execution_id",),
}
"""The hash-partitioned tables and their keys."""

_KEPT_KEYS: Final = {
    "meta": ("key",),
    "tail_cursor": ("lane",),
    "server_epoch": ("epoch",),
    "coverage_window": ("window_start", "verdict"),
    "audit_progress": ("round",),
    "replica_position": ("replica",),
    "sequence": ("dataset",),
    "apply_cursor": ("shard",),
    "d8_runtime": ("op_seq",),
    "finding": ("finding_id",),
}
KEYS: Final = SPREAD | _KEPT_KEYS

_LITERAL: Final = re.compile(r"('(?:[^']|'')*')")
_PARAMETER: Final = re.compile(r"\?(\d*)")
_ARRAY: Final = re.compile(r"\$(\d+)::(?:bigint|text)\[\]")
_LAZY: Final = re.compile(r"\s*(?:CREATE (?:UNIQUE )?(?:TABLE|INDEX) IF NOT EXISTS|DROP INDEX IF EXISTS)\b")
_BULK: Final = re.compile(
    r"\s*(REPLACE|INSERT)(?: OR REPLACE)? INTO (\w+) \(([\w, ]+)\) VALUES \((?:\?\d*(?:,\s*)?)+\)\s*"
)
_RULES: Final = (
    (re.compile(r"\bINDEXED BY \w+"), ""),
    (re.compile(r"\bIN \(SELECT value FROM json_each\((\$\d+)\)\)"), r"= ANY(\1::bigint[])"),
    (re.compile(r"\bjson_each\((\$\d+)\) AS (\w+)"), r"unnest(\1::bigint[]) AS \2(value)"),
    (re.compile(r"\bIS NOT (\$\d+)"), r"IS DISTINCT FROM \1"),
    (re.compile(r"\bIS (\$\d+)"), r"IS NOT DISTINCT FROM \1"),
    (re.compile(r"\blength\(CAST\((\w+) AS BLOB\)\)"), r"octet_length(\1)"),
    (re.compile(r"\bINSERT OR IGNORE INTO\b"), "INSERT INTO"),
    (re.compile(r"\bON CONFLICT \([\w, ]+\) DO NOTHING\b"), "ON CONFLICT DO NOTHING"),
)


@dataclass(frozen=True, slots=True)
class Bulk:
    """Rows for one table, column by column.  `replace`: what has the same key goes first."""

    table: str
    columns: tuple[str, ...]
    replace: bool

    @property
    def key(self) -> tuple[int, ...]:
        """The places of the key among the columns."""
        return tuple(self.columns.index(name) for name in KEYS[self.table])

    @property
    def execution(self) -> int | None:
        """The place of the column that decides the leaf; None: the table is not divided."""
        return self.columns.index("execution_id") if self.table in SPREAD else None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A statement as PostgreSQL takes it.  `text` empty: there is nothing to do."""

    text: str
    arrays: frozenset[int] = frozenset()
    bulk: Bulk | None = None

    def bound(self, parameters: Iterable[Any]) -> list[Any]:
        """The parameters; a list that travels as JSON becomes one."""
        return [
            json.loads(value) if at in self.arrays and isinstance(value, str) else value
            for at, value in enumerate(parameters, start=1)
        ]


@lru_cache(maxsize=2048)
def compiled(sql: str) -> Compiled:
    """Translate one statement of this package."""
    found = _BULK.fullmatch(sql)
    bulk = None
    if found is not None:
        columns = tuple(name.strip() for name in found[3].split(","))
        bulk = Bulk(found[2], columns, found[1] == "REPLACE" or " OR REPLACE " in sql)
    if _LAZY.match(sql):
        return Compiled("")
    text = POSTGRES.get(sql) or _translated(sql)
    return Compiled(text, frozenset(int(number) for number in _ARRAY.findall(text)), bulk)


def _translated(sql: str) -> str:
    count = 0

    def numbered(found: re.Match[str]) -> str:
        nonlocal count
        count = int(found[1]) if found[1] else count + 1
        return f"${count}"

    parts = _LITERAL.split(sql)
    # Every second part is a literal, in which a question mark is one.
    parts[::2] = [_PARAMETER.sub(numbered, part) for part in parts[::2]]
    for rule, words in _RULES:
        parts[::2] = [rule.sub(words, part) for part in parts[::2]]
    text = "".join(parts)
    return text + " ON CONFLICT DO NOTHING" if "INSERT OR IGNORE" in sql else text


def deleting(bulk: Bulk, types: Sequence[str]) -> str:
    """Delete the rows whose keys are given, a list for each column of the key."""
    names = [bulk.columns[at] for at in bulk.key]
    kinds = [types[at] for at in bulk.key]
    if len(names) == 1:
        return (
            f"DELETE FROM {bulk.table}"  # noqa: S608 - names of the layout
            f" WHERE {names[0]} = ANY($1::{kinds[0]}[])"
        )
    lists = ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(kinds, start=1))
    one = names[0]
    return (
        f"DELETE FROM {bulk.table} WHERE {one} = ANY($1::{kinds[0]}[])"  # noqa: S608 - names of the layout
        f" AND ({', '.join(names)}) IN (SELECT * FROM unnest({lists}))"
    )


def inserting(bulk: Bulk, types: Sequence[str]) -> str:
    """Insert rows, a list for each column."""
    invariant(len(types) == len(bulk.columns), "a column without a type")
    lists = ", ".join(f"${at}::{kind}[]" for at, kind in enumerate(types, start=1))
    return (
        f"INSERT INTO {bulk.table} ({', '.join(bulk.columns)})"  # noqa: S608 - names of the layout
        f" SELECT * FROM unnest({lists})"
    )
