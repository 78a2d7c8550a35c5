"""Recorded logs for tests: their lines as they stand, and the way into a database.

The three sets of the demo travel with the program.  Further ones are looked for in the
folder that NOETL_CHAIN_TEST_DATA names, else beside the checkout; a test that needs one
which is not there is skipped and says so.
"""

from __future__ import annotations

import json
import lzma
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.demo.recording import DATA

DATA_VARIABLE: Final = "NOETL_CHAIN_TEST_DATA"
CLEAN: Final = "noetl-rust-clean"
RESTARTS: Final = "noetl-rust-restarts"
PUBLISHED: Final = "noetl-rust-published"
LONG: Final = "noetl-rust-long"
UNLINKED_SMALL: Final = "noetl-4.26-small"
UNLINKED_LARGE: Final = "noetl-4.26-large"


@dataclass(frozen=True, slots=True)
class RecordedSet:
    """One set of files; what is in them is read when asked for."""

    name: str
    folder: Path

    def lines(self) -> list[str]:
        """The rows in physical order, each one JSON object, byte for byte."""
        return list(_lines(self.folder / f"{self.name}.events.jsonl.xz"))

    def commits(self) -> list[dict[str, Any]]:
        """For each row its transaction: commit_seq, commit_ts, row_in_txn, rows_in_txn, xmin…"""
        return [json.loads(line) for line in _lines(self.folder / f"{self.name}.commits.jsonl.xz")]

    def verdicts(self) -> dict[int, str]:
        """What a one-shot verify must say of every execution; a set without links: roots, all of them."""
        file = self.folder / f"{self.name}.expected.json"
        if file.exists():
            per_execution = json.loads(file.read_text("utf-8"))["per_execution"]
            return {int(execution): verdict for execution, verdict in per_execution.items()}
        return {int(commit["execution_id"]): "refused_multiple_roots" for commit in self.commits()}


def recorded_set(name: str) -> RecordedSet:
    """The set of this name, or a skipped test."""
    for folder in (DATA, _elsewhere()):
        if (folder / f"{name}.events.jsonl.xz").exists():
            return RecordedSet(name, folder)
    pytest.skip(f"the recorded set {name} is not here; {DATA_VARIABLE} names the folder that has it")


async def load_set(conn: Any, recorded: RecordedSet, *, table: str = "noetl.event") -> int:
    """Put every row of the set into `table` in physical order, in one transaction; the row count.

    The lines travel as text and Postgres takes them apart: no value passes through a parser here.
    """
    lines = recorded.lines()
    async with conn.transaction():
        await conn.execute("CREATE TEMPORARY TABLE recorded_line (n integer, line text) ON COMMIT DROP")
        await conn.copy_records_to_table("recorded_line", records=list(enumerate(lines)))
        columns = await _columns(conn, table)
        names = ", ".join(f'"{name}"' for name in columns)
        picked = ", ".join(f'r."{name}"' for name in columns)
        await conn.execute(
            f"INSERT INTO {table} ({names}) SELECT {picked} FROM recorded_line,"
            f" LATERAL json_populate_record(NULL::{table}, line::json) AS r ORDER BY n"
        )
    return len(lines)


async def _columns(conn: Any, table: str) -> list[str]:
    rows = await conn.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0"
        " AND NOT attisdropped ORDER BY attnum",
        table,
    )
    return [row["attname"] for row in rows]


def _elsewhere() -> Path:
    named = os.environ.get(DATA_VARIABLE)
    return Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"


@lru_cache(maxsize=2)  # decompressing takes a second, holding every set a gigabyte
def _lines(path: Path) -> tuple[str, ...]:
    # Only "\n" ends a line: rows hold raw U+2028.
    return tuple(line for line in lzma.decompress(path.read_bytes()).decode("utf-8").split("\n") if line)
