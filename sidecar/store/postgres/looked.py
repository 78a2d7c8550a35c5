"""What can be seen of a store on PostgreSQL without opening it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.sql import quoted
from sidecar.store.format import Marker
from sidecar.store.postgres import layout as layouts
from sidecar.store.postgres.connection import connect
from sidecar.store.postgres.failure import postgres_errors
from sidecar.store.postgres.url import place_of
from sidecar.store.postgres.writer import unwritten

_USED: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
    " WHERE c.relnamespace = to_regnamespace($1) AND c.relkind = 'r'"
)


@dataclass(frozen=True, slots=True)
class Looked:
    """`made`: a store of this layout stands there.  `servers`: those that lend leaves.

    `identities`: the system identifiers of its server and of those.
    """

    made: bool
    identities: frozenset[str] = frozenset()
    holder: str = ""
    servers: int = 0
    used: int = 0


async def looked_at(url: str) -> Looked:
    """Look once; nobody is fenced and nothing is made.

    Raises:
        ConfigError: the URL cannot be read.
        StoreError: the server cannot be asked, or what stands there is no store of this layout.
    """
    place = place_of(url)
    raw = await connect(place)
    try:
        marker = await layouts.gate(raw, place)
        known = frozenset(await layouts.identities(raw, place))
        if marker is Marker.ABSENT:
            return Looked(made=False, identities=known)
        servers = (await layouts.read(raw, place)).servers
        with postgres_errors():
            async with raw.transaction(readonly=True):
                holder = await raw.fetchval(f"SELECT holder FROM {quoted(place.schema)}.writer")  # noqa: S608 - quoted
                used = await raw.fetchval(_USED, place.schema)
    finally:
        raw.terminate()
    if holder is None:
        raise unwritten()
    return Looked(made=True, identities=known, holder=holder, servers=len(servers), used=int(used))
