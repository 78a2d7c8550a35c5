"""Say whether a JSON text nested too deeply for a recursive parser names its event.

Postgres takes jsonb several thousand levels deep; parsers that recurse give up near one
thousand.  "We cannot parse it" is our limit and no fault of the row, so such a body is walked
here token by token with a stack of our own.  Slow, and only for those.

Accepts the JSON grammar of RFC 8259 with an object on top.  It builds no values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_STRING: Final = r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TOKEN: Final = re.compile(rf"[ \t\n\r]*+(?:({_STRING})|({_NUMBER})|(true|false|null)|([\[\]{{}}:,]))")
_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_EVENT_ID: Final = '"event_id"'

# What may come next.  A scalar and an opening bracket are both a "value".
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COLON, _COMMA_OR_END = range(6)


def names_event(body: str) -> bool:
    """Whether `body` is a JSON object with `event_id` at its top, an integer or a string."""
    walk = _walked(body)
    return walk is not None and walk.named


def is_object(text: str) -> bool:
    """Whether `text` is a JSON object."""
    return _walked(text) is not None


def _walked(text: str) -> _Walk | None:
    """The walk through the whole of `text`, None where it is no JSON object."""
    walk = _Walk()
    at = 0
    while not walk.ended:
        found = _TOKEN.match(text, at)
        if found is None or not walk.step(found[found.lastindex or 0]):
            return None
        at = found.end()
    return walk if _SPACE.fullmatch(text, at) is not None else None


def tokens(body: str) -> Iterator[str]:
    """The tokens of a text that `is_object` accepted, one by one."""
    for found in _TOKEN.finditer(body):
        yield found[found.lastindex or 0]


class _Walk:
    """The open brackets, what may come next, and whether event_id was seen."""

    def __init__(self) -> None:
        self.named = False
        self.ended = False
        self._open: list[str] = []
        self._next = _VALUE
        self._key = ""

    def step(self, piece: str) -> bool:
        """Take one token; False when it may not stand here."""
        if piece in ("}", "]"):
            return self._close("{" if piece == "}" else "[")
        if piece == ":":
            return self._move(_COLON, _VALUE)
        if piece == ",":
            return self._move(_COMMA_OR_END, _KEY if self._open[-1:] == ["{"] else _VALUE)
        if self._next in (_KEY, _KEY_OR_END):
            self._key = piece
            self._next = _COLON
            return piece.startswith('"')
        return self._value(piece)

    def _move(self, expected: int, then: int) -> bool:
        if self._next != expected:
            return False
        self._next = then
        return True

    def _value(self, piece: str) -> bool:
        if self._next not in (_VALUE, _VALUE_OR_END) or (not self._open and piece != "{"):
            return False
        if len(self._open) == 1 and self._key == _EVENT_ID:
            self.named = piece.startswith('"') or _INTEGER.fullmatch(piece) is not None
        if piece in ("{", "["):
            self._open.append(piece)
            self._next = _KEY_OR_END if piece == "{" else _VALUE_OR_END
        else:
            self._next = _COMMA_OR_END
        return True

    def _close(self, bracket: str) -> bool:
        empty = _KEY_OR_END if bracket == "{" else _VALUE_OR_END
        if self._open[-1:] != [bracket] or self._next not in (empty, _COMMA_OR_END):
            return False
        self._open.pop()
        self._next = _COMMA_OR_END
        self.ended = not self._open
        return True
