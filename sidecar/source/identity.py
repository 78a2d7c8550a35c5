"""Which server holds the log, in the words that no copy or restart of it changes."""

from __future__ import annotations

from typing import Final

from sidecar.source.connection import Session

_IDENTITY: Final = "SELECT system_identifier::text FROM pg_control_system()"


async def system_identifier(session: Session) -> str:
    """The system identifier of the server; a standby of it has the same one.

    Raises:
        SourceError: the server cannot be asked.
    """
    async with session.transaction() as transaction:
        ((found,),) = await transaction.fetch(_IDENTITY)
    return str(found)
