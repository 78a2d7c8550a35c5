"""JSON as values and back, with nothing lost on the way.

Bodies are parsed for the folds and nowhere else.  An integer is an int of any size; every other
number is the text that spelled it, so 1.10 stays 1.10 and 1e400 stays itself.  A key that is
not there is ABSENT, which is not the JSON null (None).

Postgres takes documents several thousand levels deep and numbers of a hundred thousand digits.
The fast parser gives up on those; they are built and printed here token by token without
recursion.  A text that neither way can read is no value at all: `parsed` says None, and what
that means is the caller's to say.

Source: spec 4.2, 5.3 (canonical JSON).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from sidecar.core.deepjson import is_object, tokens


class Absent(Enum):
    """The one value of a key that is not there.  It is falsy."""

    ABSENT = "absent"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent.ABSENT


class Number:
    """A number that is no int, as it was spelled.  Zero is falsy in every spelling.

    No dataclass: the encoder would print one as an object.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Number({self.text!r})"

    def __bool__(self) -> bool:
        return self.text.lower().partition("e")[0].strip("-0.") != ""


Json: TypeAlias = object
"""None, bool, int, Number, str, list of Json, dict of str to Json; ABSENT where it says so."""

_DECODER: Final = msgspec.json.Decoder(float_hook=Number)


def parsed(text: str) -> dict[str, Json] | None:
    """The JSON object that `text` is; None when it is none, or holds half a surrogate pair."""
    try:
        value = _DECODER.decode(text)
    except UnicodeEncodeError:
        return None
    except (msgspec.DecodeError, RecursionError):
        value = _built(text) if is_object(text) else None
    return value if isinstance(value, dict) else None


def rendered(value: Json) -> bytes:
    """Canonical JSON in UTF-8: keys in code-point order, no spaces."""
    try:
        return _ENCODER.encode(value)
    except RecursionError:
        return "".join(_pieces(value)).encode()


def at(value: Json, *path: str) -> Json:
    """The value below `path`, ABSENT when a key is missing or something on the way is no object."""
    for key in path:
        if not isinstance(value, dict):
            return ABSENT
        value = value.get(key, ABSENT)
    return value


def text_at(value: Json, *path: str) -> str | None:
    """The string below `path`, None when there is none."""
    found = at(value, *path)
    return found if isinstance(found, str) else None


def int_at(value: Json, *path: str) -> int | None:
    """The 64-bit integer below `path`, None when there is none.  A bool or 1.0 is none."""
    found = at(value, *path)
    return found if type(found) is int and -(2**63) <= found < 2**63 else None


def bool_at(value: Json, *path: str) -> bool | None:
    """The boolean below `path`, None when there is none."""
    found = at(value, *path)
    return found if isinstance(found, bool) else None


def _raw(value: object) -> msgspec.Raw:
    if isinstance(value, Number):
        return msgspec.Raw(value.text.encode())
    raise TypeError(f"no JSON value: {type(value).__name__}")


_ENCODER: Final = msgspec.json.Encoder(order="sorted", enc_hook=_raw)


def _built(text: str) -> Json:
    """The value of a text whose grammar was checked; None for half a surrogate pair."""
    open_: list[dict[str, Json] | list[Json]] = []
    keys: list[str | None] = []
    whole: Json = None
    for piece in tokens(text):
        if piece in ("}", "]"):
            open_.pop()
            keys.pop()
        elif piece in (":", ","):
            continue
        elif open_ and isinstance(open_[-1], dict) and keys[-1] is None:
            keys[-1] = _scalar_text(piece)
            if keys[-1] is None:
                return None
        else:
            value = _opened(piece)
            if value is ABSENT:
                return None
            if open_:
                _attach(open_[-1], keys, value)
            else:
                whole = value
            if isinstance(value, dict | list):
                open_.append(value)
                keys.append(None)
    return whole


def _attach(parent: dict[str, Json] | list[Json], keys: list[str | None], value: Json) -> None:
    if isinstance(parent, list):
        parent.append(value)
    elif (key := keys[-1]) is not None:
        parent[key] = value
        keys[-1] = None


def _opened(piece: str) -> Json:
    """An empty container or a whole scalar; ABSENT for a string that is no text."""
    match piece[0]:
        case "{":
            return {}
        case "[":
            return []
        case '"':
            text = _scalar_text(piece)
            return ABSENT if text is None else text
        case "t" | "f" | "n":
            return {"true": True, "false": False, "null": None}[piece]
        case _:
            return _number(piece)


def _number(piece: str) -> int | Number:
    # int() refuses what is no integer, and, as the fast parser does, more than 4,300 digits.
    try:
        return int(piece)
    except ValueError:
        return Number(piece)


def _scalar_text(piece: str) -> str | None:
    text = str(json.loads(piece))
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def _pieces(value: Json) -> Iterator[str]:
    """The canonical text in pieces.  The stack holds what is still to be printed."""
    todo: list[tuple[bool, Json]] = [(False, value)]
    while todo:
        verbatim, item = todo.pop()
        if verbatim:
            yield str(item)
        elif isinstance(item, dict):
            todo.append((True, "}"))
            names = sorted(item, reverse=True)
            for name in names:
                comma = "" if name is names[-1] else ","
                todo.extend([(False, item[name]), (True, f"{comma}{_leaf(name)}:")])
            todo.append((True, "{"))
        elif isinstance(item, list):
            todo.append((True, "]"))
            for index in range(len(item) - 1, -1, -1):
                todo.extend([(False, item[index]), (True, "," if index else "")])
            todo.append((True, "["))
        else:
            yield _leaf(item)


def _leaf(value: Json) -> str:
    return _ENCODER.encode(value).decode()
