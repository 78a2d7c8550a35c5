"""A logger that keeps what it is told, whatever the process has configured."""

from __future__ import annotations

from typing import Any, cast

import structlog
from structlog.testing import LogCapture
from structlog.typing import FilteringBoundLogger


def captured() -> tuple[FilteringBoundLogger, list[Any]]:
    """The logger, and its entries as they come."""
    capture = LogCapture()
    logger = structlog.wrap_logger(
        structlog.PrintLogger(),
        processors=[capture],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        cache_logger_on_first_use=False,
    )
    return cast("FilteringBoundLogger", logger), capture.entries
