"""What the text of one variable may be.

A gate is on, off or unrecognised; a number is decimal digits and nothing else; a name is a plain
identifier.  What is not readable raises ValueError with a reason that does not repeat the text.
Source: spec 8.2.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, SecretStr


class Reading(StrEnum):
    """What the environment says about one gate.  Only ON is on."""

    ABSENT = "absent"
    ON = "on"
    OFF = "off"
    UNRECOGNISED = "unrecognised"


_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"0", "false", "no", "off", ""})


def reading(text: object) -> Reading:
    """Read a gate's text.  A text that is neither on nor off is never on.  Source: spec 8.2."""
    if isinstance(text, Reading):
        return text
    word = str(text).strip().lower()
    if word in _ON:
        return Reading.ON
    return Reading.OFF if word in _OFF else Reading.UNRECOGNISED


@dataclass(frozen=True, slots=True)
class Bind:
    """Where a listener listens; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


PORT_MAX: Final = 65535
DEFAULT_METRICS_BIND: Final = Bind("0.0.0.0", 9109)  # noqa: S104 - the scraper is another machine

DEFAULT_API_BIND: Final = Bind("127.0.0.1", 9110)


def bind(text: object) -> Bind:
    """Read `host:port`, `[v6]:port`.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(text, Bind):
        return text
    host, colon, port = str(text).strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError("write it as host:port")
    return Bind(host.removeprefix("[").removesuffix("]"), int(port))


_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}", re.ASCII)


def identifier(text: object) -> str:
    """A Postgres name of letters, digits, `_` and `$`; it is still quoted where it is used.

    Raises:
        ValueError: it is none.
    """
    name = str(text)
    if _IDENTIFIER.fullmatch(name) is None:
        raise ValueError("not a plain Postgres identifier of at most 63 letters, digits, _ or $")
    return name


def store_url(text: object) -> str:
    """A store's URL; a path becomes `sqlite:///` and its absolute form.

    Raises:
        ValueError: empty, or a scheme that is no store's.
    """
    place = str(text).strip()
    if not place:
        raise ValueError("it is empty")
    if place.startswith(("sqlite:///", "postgresql://", "postgres://")):
        return place
    if "://" in place or place.startswith("sqlite:"):
        raise ValueError("write a path, sqlite:///PATH or postgresql://…")
    return "sqlite:///" + os.path.abspath(os.path.expanduser(place))


def store_urls(text: object) -> tuple[str, ...]:
    """Store URLs divided by commas; blank: none.

    Raises:
        ValueError: one of them is none, or empty between two commas.
    """
    if isinstance(text, tuple | list):
        return tuple(store_url(each) for each in text)
    return tuple(store_url(each) for each in str(text).split(",")) if str(text).strip() else ()


PATTERNS_MAX: Final = 100


def patterns(text: object) -> tuple[str, ...]:
    """Path patterns divided by commas; blank: none.

    Raises:
        ValueError: one of them is empty, or there are too many.
    """
    if isinstance(text, tuple | list):
        return tuple(text)
    if not str(text).strip():
        return ()
    found = tuple(each.strip() for each in str(text).split(","))
    if not all(found):
        raise ValueError("a pattern between two commas is empty")
    if len(found) > PATTERNS_MAX:
        raise ValueError(f"more than {PATTERNS_MAX} patterns")
    return found


def lower(text: object) -> object:
    return text.strip().lower() if isinstance(text, str) else text


def _unset_if_empty(text: object) -> object:
    return None if text == "" else text


def _integer(text: object) -> object:
    """Take decimal digits only; pydantic alone would also read `1_000` and `5.0`."""
    if isinstance(text, str):
        if re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text, re.ASCII) is None:
            raise ValueError("not an integer")
        return int(text)
    return text


def _decimal(text: object) -> object:
    """Take a decimal number only, not `inf`, `1e3` or `5s`."""
    if isinstance(text, str):
        if re.fullmatch(r"\s*[+-]?[0-9]{1,19}(\.[0-9]{1,9})?\s*", text, re.ASCII) is None:
            raise ValueError("not a decimal number")
        return float(text)
    return text


def _seconds(text: object) -> object:
    try:
        return _decimal(text)
    except ValueError:
        raise ValueError("not a number of seconds") from None


Gate = Annotated[Reading, BeforeValidator(reading)]
Text = Annotated[str | None, BeforeValidator(_unset_if_empty)]
Secret = Annotated[SecretStr | None, BeforeValidator(_unset_if_empty)]
File = Annotated[Path | None, BeforeValidator(_unset_if_empty)]
Int = Annotated[int, BeforeValidator(_integer)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(allow_inf_nan=False)]
Hours = Annotated[float, BeforeValidator(_decimal), Field(allow_inf_nan=False)]
Ratio = Annotated[float, BeforeValidator(_decimal), Field(allow_inf_nan=False)]
