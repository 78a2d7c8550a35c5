"""What the words of a command line may be: ids, numbers, times, formats."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import typer

from sidecar.core.event import ID_MAX, ID_MIN


class Format(StrEnum):
    """How `inspect` shows an execution."""

    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"
    DOT = "dot"


class Group(StrEnum):
    """The folders under `migrations/`."""

    STORE = "store"
    NOETL = "noetl"
    POSTGRES = "postgres"
    WAL = "wal"


class Shell(StrEnum):
    """The shells that are helped to complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SPAN: Final = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_UNIT: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str, *, now: datetime) -> datetime:
    """The time behind `--since`, in UTC: a span before `now`, or an ISO 8601 time.

    Raises:
        typer.BadParameter: it is neither, or before the year 1.
    """
    span = _SPAN.fullmatch(text.strip())
    try:
        if span is not None:
            return now - timedelta(**{_UNIT[span[2]]: int(span[1])})
        at = datetime.fromisoformat(text.strip())
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("write 90s, 15m, 2h, 7d or an ISO 8601 time", param_hint="--since") from None


def execution_id(text: str, *, hint: str = "--execution") -> int:
    """A 64-bit id in decimal.

    Raises:
        typer.BadParameter: it is none.
    """
    if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) is None or not ID_MIN <= int(text) <= ID_MAX:
        raise typer.BadParameter("an execution id is a decimal 64-bit number", param_hint=hint)
    return int(text)


def finding_number(text: str) -> int:
    """The number of a finding: decimal, from 1.

    Raises:
        typer.BadParameter: it is none.
    """
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) is None or not 0 < int(text) <= ID_MAX:
        raise typer.BadParameter("a finding has a decimal number from 1", param_hint="ID")
    return int(text)
