"""Secrets of the settings: from a variable or from a file, never from both, never in a message.

A file is read at every call, so that a rotated secret counts without a restart.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlencode

from pydantic import SecretStr

from sidecar.errors import ConfigError


def one_of(
    value: SecretStr | None, value_name: str, file: Path | None, file_name: str
) -> tuple[str, str] | None:
    """The secret and the variable that it came from; None when neither is set.

    Raises:
        ConfigError: both are set, or the file cannot be read, is no text or is empty.
    """
    if value is not None and file is not None:
        raise ConfigError(f"{value_name} and {file_name} are both set", hint="set one of the two")
    if file is not None:
        return _read(file, file_name), file_name
    return None if value is None else (value.get_secret_value(), value_name)


def sendable(token: str, name: str) -> str:
    """`token` as a header carries it.

    A blank one would open the API to everybody, another one that no header carries to nobody.

    Raises:
        ConfigError: it is no line of ASCII characters.
    """
    token = token.strip()
    if token and token.isascii() and token.isprintable():
        return token
    raise ConfigError(
        f"{name} holds no token: one line of ASCII characters", hint="make one: openssl rand -hex 32"
    )


def checked_url(text: str, name: str) -> str:
    """`text` if it is a URL of Postgres.

    Raises:
        ConfigError: it is none.
    """
    if not text.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"{name} does not hold a postgresql:// URL")
    return text


def url(**parts: str | None) -> str:
    """The URL with `parts` that are given, by the driver's names.

    Every part goes into the query string, so that none has to be escaped twice.  No slash before
    it: the driver takes an empty path for the name of the database.
    """
    given = {name: value for name, value in parts.items() if value is not None}
    return "postgresql://?" + urlencode(given, quote_via=quote)


def _read(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"the file of {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the file of {name} is no UTF-8 text") from None
    if not text:
        raise ConfigError(f"the file of {name} is empty")
    return text
