"""The store must not stand on the server whose log it is compared with."""

from __future__ import annotations

from typing import Final

from sidecar.settings import Settings
from sidecar.source.identity import system_identifier
from sidecar.source.opened import LogSource
from sidecar.store.postgres.url import is_postgres

LOOK_S: Final = 2.0


def look_s(settings: Settings) -> float:
    """Seconds for which a writer is looked for before its store is taken over.

    One that follows a log stores each poll, found something or not; it is taken to poll as often
    as this one.
    """
    return max(LOOK_S, 2 * settings.poll_ms / 1000)


async def compared_server(source: LogSource, store_url: str) -> str | None:
    """The server that a store at `store_url` must not stand on; None: a file stands on none.

    Raises:
        SourceError: the log's server cannot be asked.
    """
    return await system_identifier(source.session()) if is_postgres(store_url) else None
