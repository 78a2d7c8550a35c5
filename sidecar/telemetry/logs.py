"""Structured logs on stderr: one event name, a few plain values.

Event names are stable words (`gate`, `poll_failed`); ids are decimal strings, because 64-bit
numbers lose digits in JSON.  No payload, connection string, host, user or password is ever a
value; a field that says it holds one is withheld, whoever wrote it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]
Event = MutableMapping[str, Any]

WITHHELD: Final = "[withheld]"
_SECRET_FIELDS: Final = frozenset(
    {"body", "payload", "result", "context", "dsn", "url", "host", "user", "password", "token", "key"}
)
_ID_FIELDS: Final = ("execution_id", "event_id", "prev_event_id", "parent_execution_id")
_URL: Final = re.compile(r"\b[a-z][a-z0-9+]*://\S+", re.IGNORECASE)


def configure(level: Level = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Set up structlog, and let other libraries' warnings pass through it.

    Args:
        stream: Where lines go; stderr when None.
    """
    out = sys.stderr if stream is None else stream
    console = form == "console" or (form == "auto" and out.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        withhold,
        ids_as_text,
    ]
    render: Processor = (
        structlog.dev.ConsoleRenderer(colors=coloured(out))
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    _adopt_stdlib(shared, render, max(number, logging.WARNING), out)


def coloured(out: TextIO) -> bool:
    """Whether colours are wanted there: NO_COLOR takes them away, FORCE_COLOR gives them to a pipe."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or out.isatty()


def get(part: str) -> FilteringBoundLogger:
    """A logger whose lines carry `part`."""
    logger: FilteringBoundLogger = structlog.get_logger(part=part)
    return logger


def withhold(logger: object, method: str, event: Event) -> Event:
    """Take out fields that hold what must not be logged, and URLs inside texts."""
    for name, value in event.items():
        if name in _SECRET_FIELDS:
            event[name] = WITHHELD
        elif isinstance(value, str):
            event[name] = _URL.sub(WITHHELD, value)
    return event


def ids_as_text(logger: object, method: str, event: Event) -> Event:
    for name in _ID_FIELDS:
        if isinstance(event.get(name), int):
            event[name] = str(event[name])
    return event


def _adopt_stdlib(shared: list[Processor], render: Processor, level: int, out: TextIO) -> None:
    """Other libraries log through the standard library; the root handler gives them our form."""
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    for old in [
        each for each in root.handlers if isinstance(each.formatter, structlog.stdlib.ProcessorFormatter)
    ]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
