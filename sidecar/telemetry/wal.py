"""Say once that the write-ahead log has grown too far, and once that it is back.

A reader that stays open holds back what the writer could put into the database, and nothing
fails until the disk is full; so it is told to people early.
"""

from __future__ import annotations

from typing import Final

from structlog.typing import FilteringBoundLogger

WAL_WARN_BYTES: Final = 256 * 1024 * 1024
"""Four times what the log is cut back to when nobody reads."""


class WalWatch:
    """What was said last.

    Args:
        bound: Bytes from which the log is too long.
    """

    def __init__(self, log: FilteringBoundLogger, *, bound: int = WAL_WARN_BYTES) -> None:
        self._log = log
        self._bound = bound
        self._long = False

    def saw(self, size: int) -> None:
        """Take one measurement, in bytes."""
        if size > self._bound and not self._long:
            self._log.warning(
                "store_wal_long",
                bytes=size,
                bound=self._bound,
                hint="somebody reads the store without end: a backup, a check or an sqlite3 shell",
            )
        if size <= self._bound and self._long:
            self._log.info("store_wal_back", bytes=size)
        self._long = size > self._bound
