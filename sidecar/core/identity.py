"""Which stage, frame, command, loop, business object and payload an event speaks of.

Columns come first, then the aggregate the event belongs to, then `meta`: older producers knew
only the later ones.  An empty id is none.  Values of unexpected types never raise.

Source: spec 5.4 (identity extraction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar.core.envelope import Envelope
from sidecar.core.jsonvalue import ABSENT, Json, at, rendered, text_at

_SUMMARY_KEYS: Final = ("sha256", "schema_digest", "row_count", "media_type")


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """Type and id of a business object."""

    object_type: str
    object_id: str

    @property
    def key(self) -> str:
        return f"{self.object_type}/{self.object_id}"


def stage_id(event: Envelope) -> str | None:
    return _of_aggregate(event, "stage")


def frame_id(event: Envelope) -> str | None:
    return _of_aggregate(event, "frame")


def command_id(event: Envelope) -> str | None:
    return _as_text(_first_there(at(event.body, "command_id"), at(event.meta, "command_id")))


def loop_id(event: Envelope) -> str | None:
    names = ("loop_id", "loop_event_id", "__loop_epoch_id")
    return _as_text(_first_there(*(at(event.meta, name) for name in names)))


def business_object(event: Envelope) -> ObjectIdentity | None:
    """The object of `meta.business_object`, else of other keys of meta, else of the aggregate."""
    meta, named = event.meta, at(event.meta, "business_object")
    aggregate_type, aggregate_id = _aggregate_object(event)
    object_type = _as_text(
        at(named, "object_type")
        or at(named, "type")
        or at(meta, "business_object_type")
        or at(meta, "object_type")
        or aggregate_type
    )
    object_id = _as_text(
        at(named, "object_id")
        or at(named, "id")
        or at(meta, "business_object_id")
        or at(meta, "object_id")
        or aggregate_id
    )
    return ObjectIdentity(object_type, object_id) if object_type and object_id else None


def payload_reference(event: Envelope) -> Json:
    """The reference to the event's payload, None when there is none."""
    found = _first_there(at(event.body, "payload_ref"), at(event.result, "reference"))
    return None if found is ABSENT else found


def payload_summary(reference: Json) -> dict[str, Json]:
    """What a reference says of its payload, all keys there; falsy values fall through.

    A reference that is no object says nothing.
    """
    rows = at(reference, "rows_ref")
    summary: dict[str, Json] = {}
    for key in _SUMMARY_KEYS:
        summary[key] = at(reference, key) or at(rows, "meta", key) or at(rows, "ipc", key) or None
    summary["sha256"] = summary["sha256"] or at(reference, "digest") or None
    summary["ref"] = at(reference, "ref") or at(rows, "ref") or at(reference, "uri") or None
    return summary


def _of_aggregate(event: Envelope, kind: str) -> str | None:
    """The id of a stage or frame: column, else aggregate, else meta."""
    column = at(event.body, f"{kind}_id")
    aggregate = text_at(event.body, "aggregate_id")
    if _first_there(column) is ABSENT and text_at(event.body, "aggregate_type") == kind and aggregate:
        return aggregate.removeprefix(f"{kind}/") or None
    return _as_text(_first_there(column, at(event.meta, f"{kind}_id")))


def _aggregate_object(event: Envelope) -> tuple[str | None, str | None]:
    whole = text_at(event.body, "aggregate_id")
    if whole is None or text_at(event.body, "aggregate_type") != "business_object":
        return None, None
    parts = [part for part in whole.split("/") if part]
    parts = parts[1:] if parts[:1] == ["business_object"] else parts
    return (parts[0], "/".join(parts[1:])) if len(parts) > 1 else ("business_object", whole)


def _first_there(*values: Json) -> Json:
    """The first value that is neither missing nor null."""
    return next((value for value in values if value is not None and value is not ABSENT), ABSENT)


def _as_text(value: Json) -> str | None:
    """An id as text; None for none and for the empty text."""
    if value is None or value is ABSENT or value == "":
        return None
    return value if isinstance(value, str) else rendered(value).decode()
