"""Who lends leaves to a store on the server for stores, by postgres_fdw: three servers, or three databases.

The servers are this process's own, started when they are first asked for; the coordinator is a fourth.
Databases of the coordinator's server are ready sooner, and can reach each other where the server is a
given one, which need not reach ours.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit

from sidecar.demo.postgres import EmbeddedPostgres
from sidecar.store.postgres.nodes import spread
from tests.support.databases import beside
from tests.support.storeserver import URL_VARIABLE, fresh_url, said, store_dsn


@dataclass(frozen=True)
class Lender:
    dsn: str
    server: EmbeddedPostgres | None = None
    """What is killed to make it go away; without one its database is closed."""


@dataclass(frozen=True)
class Lenders:
    nodes: tuple[Lender, ...]
    idle: list[str] = field(default_factory=list)
    """Places where an empty store of theirs stands: making one takes a while."""

    def empty_url(self) -> str:
        """A place where a store stands that holds nothing and whose leaves they lend."""
        if self.idle:
            return self.idle.pop()
        url = fresh_url()
        beside(spread(url, [node.dsn for node in self.nodes]))
        return url


@lru_cache(maxsize=1)
def servers() -> tuple[EmbeddedPostgres, ...]:
    """Three servers of this process.  Who kills one starts it again."""
    made = []
    for _ in range(3):
        server = EmbeddedPostgres.start({"max_connections": "100"})
        atexit.register(server.stop)
        made.append(server)
    return tuple(made)


@lru_cache(maxsize=1)
def three_servers() -> Lenders:
    """Each a server of its own; a given server for stores lends databases to itself."""
    if os.environ.get(URL_VARIABLE):
        return three_databases()
    return Lenders(tuple(Lender(server.dsn(), server) for server in servers()))


@lru_cache(maxsize=1)
def three_databases() -> Lenders:
    """Databases of the server for stores."""
    home = store_dsn()
    head, _, query = home.partition("?")
    base = head.rsplit("/", 1)[0]
    nodes = []
    for name in ("lender_0", "lender_1", "lender_2"):
        if not beside(said(home, "SELECT 1 FROM pg_database WHERE datname = $1", name)):
            beside(said(home, f"CREATE DATABASE {name}"))
        nodes.append(Lender(f"{base}/{name}" + (f"?{query}" if query else "")))
    return Lenders(tuple(nodes))


@contextmanager
def away(lender: Lender) -> Iterator[None]:
    """While it lasts, nobody reaches it, and who was there is cut off."""
    if lender.server is not None:
        lender.server.kill()
    else:
        _let_in(lender, False)
    try:
        yield
    finally:
        if lender.server is not None:
            lender.server.restart()
        else:
            _let_in(lender, True)


def _let_in(lender: Lender, allowed: bool) -> None:
    name, home = urlsplit(lender.dsn).path[1:], store_dsn()
    beside(said(home, f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS {allowed}"))
    if not allowed:
        beside(said(home, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name))
