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
from pydantic_settings import NoDecode

from sidecar.core.shards import Shard
from sidecar.errors import ConfigError


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
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if "[" in host or "]" in host:  # half of [::1]:9110, and its last group is no port
        raise ValueError("write it as host:port, an IPv6 address in brackets")
    return Bind(host, int(port))


def no_bind(text: object) -> Bind | None:
    """As `bind`; blank: nothing listens."""
    return None if text is None or str(text).strip() == "" else bind(text)


PEERS_MAX: Final = 100


def peers(text: object) -> tuple[str, ...]:
    """`host:port` divided by commas; blank: none.

    Raises:
        ValueError: one of them is none, or there are too many.
    """
    if isinstance(text, tuple | list):
        return tuple(str(bind(each)) for each in text)
    found = tuple(str(bind(each)) for each in str(text).split(",")) if str(text).strip() else ()
    if len(found) > PEERS_MAX:
        raise ValueError(f"more than {PEERS_MAX} peers")
    return found


_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}", re.ASCII)
_SSLMODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def tls_mode(text: object) -> str | None:
    """One of libpq's words; blank: none.

    Raises:
        ValueError: it is another.
    """
    word = "" if text is None else str(text).strip()
    if word and word not in _SSLMODES:
        raise ValueError(f"not one of {', '.join(_SSLMODES)}")
    return word or None


_SLOT = re.compile(r"[a-z0-9_]{1,50}")


def slot_name(text: object) -> str:
    """A name of a replication slot, with room for a shard's ending.

    Raises:
        ValueError: it is none.
    """
    name = str(text)
    if _SLOT.fullmatch(name) is None:
        raise ValueError("not 1 to 50 lower-case letters, digits and _")
    return name


def identifier(text: object) -> str:
    """A Postgres name of letters, digits, `_` and `$`; it is still quoted where it is used.

    Raises:
        ValueError: it is none.
    """
    name = str(text)
    if _IDENTIFIER.fullmatch(name) is None:
        raise ValueError("not a plain Postgres identifier of at most 63 letters, digits, _ or $")
    return name


_NO_PATH: Final = re.compile(
    r"(sqlite|postgres|postgresql):|(.*\s)?(user|host|hostaddr|port|dbname|password|service|sslmode)\s*=",
    re.IGNORECASE | re.DOTALL,
)
"""A URL that lacks a slash, or libpq's keywords."""


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
    if "://" in place or _NO_PATH.match(place):
        # Taken for a path it would be shown, with the password in it.
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


_ORDINAL: Final = re.compile(r"-([0-9]{1,4})\Z", re.ASCII)


def shard_of(index: int | None, count: int, host: str) -> Shard:
    """The shard that was asked for; without an index the ordinal of a StatefulSet's pod.

    Args:
        host: The host's name, asked only where there are several shards and no index.

    Raises:
        ConfigError: there is no such shard, or nothing says which one.
    """
    name = "NOETL_CHAIN_SHARD_INDEX"
    if index is None and count > 1:
        ordinal = _ORDINAL.search(host.partition(".")[0])
        if ordinal is None:
            raise ConfigError(
                "NOETL_CHAIN_SHARD_COUNT asks for several shards and nothing says which one this is",
                hint=f"set {name}, or run as a StatefulSet, whose pods end in -0, -1, …",
            )
        name, index = "the number that ends the host's name", int(ordinal[1])
    if (index or 0) >= count:
        raise ConfigError(
            f"{name} must be below NOETL_CHAIN_SHARD_COUNT: there is no shard {index} of {count}",
            hint=f"{count} shard(s) are numbered from 0; a StatefulSet has as many replicas as shards",
        )
    return Shard(index or 0, count)


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
OptionalBind = Annotated[Bind | None, NoDecode, BeforeValidator(no_bind)]
Int = Annotated[int, BeforeValidator(_integer)]
Index = Annotated[int | None, BeforeValidator(_integer), BeforeValidator(_unset_if_empty)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(allow_inf_nan=False)]
Hours = Annotated[float, BeforeValidator(_decimal), Field(allow_inf_nan=False)]
Ratio = Annotated[float, BeforeValidator(_decimal), Field(allow_inf_nan=False)]
