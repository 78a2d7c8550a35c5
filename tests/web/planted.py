"""A sidecar over planted executions, every body with a mark that nobody without a token may read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.databases import Database
from tests.support.meddling import add_foreign_row
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service

E: Final = 9_007_199_254_740_993
"""Greater than 2^53: a JSON number would lose its last digit."""
MATCHED, REFUSED, HELD, FOREIGN = E, E + 1, E + 2, E + 3
NEVER: Final = E + 99
MARK: Final = 'a "secret" word é'
"""In the context of every event; MARKS is what of it and of the other fields a body shows."""
MARKS: Final = ("secret", "geheim")
COLUMNS: Final[dict[str, Any]] = {
    "context": '{"said": "a \\"secret\\" word é", "price": 1.50}',
    "result": {"status": "ok", "context": {"result": "geheim"}},
    "error": "the geheim of it",
    "node_name": "a step",
}


@asynccontextmanager
async def planted(pg: Database, store: Path, **settings: Any) -> AsyncIterator[Service]:
    """Every kind of execution that a route tells apart, judged."""
    await pg.insert(
        [
            *chain_rows(MATCHED, [1, 2, 3], **COLUMNS),
            *chain_rows(REFUSED, [11, 12], **COLUMNS),
            event_row(REFUSED, 13, **COLUMNS),
            *chain_rows(HELD, [21, 22], parent=MATCHED, **COLUMNS),
            *chain_rows(FOREIGN, [31, 32, 33], **COLUMNS),
        ]
    )
    given = {"serve": "on", "cert": "on", "dangling_s": 600, "settle_s": 600} | settings
    async with service(pg.dsn, store, **given) as sidecar:
        for execution_id, verdict in (
            (MATCHED, "match"),
            (REFUSED, "refused_multiple_roots"),
            (HELD, "match"),
            (FOREIGN, "match"),
        ):
            await sidecar.verdict(execution_id, verdict)
        await add_foreign_row(store, FOREIGN, 99, move_head=True)
        await pg.insert([event_row(FOREIGN, 34, prev=33, event_type="playbook.completed", **COLUMNS)])
        await pg.insert([event_row(HELD, 24, prev=23, event_type="playbook.completed", **COLUMNS)])
        await sidecar.verdict(FOREIGN, "second_writer")
        await sidecar.verdict(HELD, "pending_visibility")
        await sidecar.looked()
        yield sidecar
