"""Refuse at the edge what the chain cannot hold exactly.

Ids are 64-bit integers and texts are Unicode; anything else never reaches SQLite.
Source: spec 2.1, point 3.
"""

from __future__ import annotations

from typing import Final

from sidecar.core.event import ID_MAX, Event, is_id
from sidecar.errors import Invalid

_SURROGATES: Final = frozenset(map(chr, range(0xD800, 0xE000)))


def check_event(event: Event) -> None:
    """Refuse an event of which something is not usable.

    Raises:
        Invalid: an id is no 64-bit integer, or a text is no Unicode.
    """
    check_id(event.execution_id, "execution_id")
    check_id(event.event_id, "event_id")
    if event.prev_event_id is not None:
        check_id(event.prev_event_id, "prev_event_id")
    if event.parent_execution_id is not None:
        check_id(event.parent_execution_id, "parent_execution_id")
    check_text(event.event_type, "event_type")
    check_text(event.body, "body")


def check_id(value: object, name: str) -> None:
    if not is_id(value):
        raise Invalid(f"{name} is no 64-bit integer")


def check_sequence(value: object, name: str, *, least: int) -> None:
    """A number that counts: an integer from `least` on."""
    if type(value) is not int or not least <= value <= ID_MAX:
        raise Invalid(f"{name} is no integer from {least} to {ID_MAX}")


def check_text(value: object, name: str) -> None:
    if not isinstance(value, str) or not (value.isascii() or _SURROGATES.isdisjoint(value)):
        raise Invalid(f"{name} is no Unicode text")
