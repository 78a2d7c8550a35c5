"""The numbered SQL files under `migrations/`, and names that are safe to put into SQL.

The files are written for psql (`psql -v schema=noetl -f …`): a name stands as `:"schema"`.
Here the same interpolation is done for a driver; lines that begin with a backslash are
psql's own and are left out.  An installed wheel carries the folder inside the package, a
checkout beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.errors import ConfigError

IDENTIFIER_BYTES_MAX: Final = 63
"""Postgres cuts longer names silently; two different names could then be one."""

_VARIABLE = re.compile(r':"(\w+)"')


@dataclass(frozen=True, slots=True)
class Script:
    """One file: its name without folder, and its text as it stands on disk."""

    name: str
    text: str


def quoted(identifier: str) -> str:
    """The identifier in double quotes, as Postgres reads it back unchanged.

    Raises:
        ConfigError: empty, longer than 63 bytes, or with a NUL in it.
    """
    if not identifier or "\0" in identifier:
        raise ConfigError("an SQL name is empty or holds a NUL", hint="set NOETL_SCHEMA to the schema's name")
    if len(identifier.encode()) > IDENTIFIER_BYTES_MAX:
        raise ConfigError(f"an SQL name is longer than {IDENTIFIER_BYTES_MAX} bytes", hint="shorten it")
    return '"' + identifier.replace('"', '""') + '"'


def folder() -> Path:
    """Where `migrations/` stands.

    Raises:
        ConfigError: neither inside the package nor beside it: the installation is broken.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "migrations", package.parent / "migrations"):
        if (candidate / "noetl").is_dir():
            return candidate
    raise ConfigError("the SQL files of this program are missing", hint="install noetl-chain again")


def scripts(group: str) -> tuple[Script, ...]:
    """The files of one group (`noetl`, `postgres`, `store`), in the order of their numbers."""
    return tuple(
        Script(path.name, path.read_text("utf-8")) for path in sorted((folder() / group).glob("*.sql"))
    )


def rendered(text: str, names: Mapping[str, str]) -> str:
    """The SQL with every `:"variable"` replaced by the quoted name, without psql's own lines.

    Raises:
        ConfigError: a variable has no name, or a name is no identifier.
    """
    sql = "\n".join(line for line in text.split("\n") if not line.startswith("\\"))
    return _VARIABLE.sub(lambda found: _name(found.group(1), names), sql)


def _name(variable: str, names: Mapping[str, str]) -> str:
    if variable not in names:
        raise ConfigError(f"the SQL needs a name for {variable}", hint=f"give {variable}")
    return quoted(names[variable])
