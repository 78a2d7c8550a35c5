"""Where an event keeps what the fold asks for.

Producers of different ages put the same thing in different places: the `context` column, the
`result.context` that the table's CHECK allows, `meta`.  The order in which the places are asked
is the rule, and it is written here once.  Nothing here raises: a value of another type than the
one wanted counts as not there.

Source: spec 5.1 (helpers), 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.core.event import Event
from sidecar.core.jsonvalue import ABSENT, Json, at, bool_at, int_at, parsed, text_at


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event with its body taken apart.  A NULL column is ABSENT; a JSON null in it is None.

    Ids, links and the type are the row's own columns, not the body's.
    """

    event: Event
    body: dict[str, Json]
    context: Json
    result: Json
    meta: Json
    node_name: str | None
    timestamp: str | None

    def dual_int(self, key: str) -> int | None:
        found = int_at(self.result, "context", key)
        return int_at(self.context, key) if found is None else found

    def dual_bool(self, key: str) -> bool | None:
        found = bool_at(self.result, "context", key)
        return bool_at(self.context, key) if found is None else found

    @property
    def command_id(self) -> str | None:
        """The first string of meta, result.context, result.data; the column is another id."""
        found = text_at(self.meta, "command_id")
        if found is None:
            found = text_at(self.result, "context", "command_id")
        return text_at(self.result, "data", "command_id") if found is None else found

    @property
    def is_parked(self) -> bool:
        """A worker said that somebody else will call back.

        A place is asked only when the one before it holds no boolean.  The SQL that looks for
        parked commands asks the same three places.
        """
        found = bool_at(self.result, "context", "pending_callback")
        if found is None:
            found = bool_at(self.context, "pending_callback")
        if found is None:
            found = bool_at(self.meta, "pending_callback")
        return found is True

    @property
    def error(self) -> str | None:
        found = text_at(self.result, "error")
        return text_at(self.result, "context", "error") if found is None else found


def opened(event: Event) -> Envelope | None:
    """The event with its body parsed, None when the body is no JSON object."""
    body = parsed(event.body)
    if body is None:
        return None
    return Envelope(
        event,
        body,
        body.get("context", ABSENT),
        body.get("result", ABSENT),
        body.get("meta", ABSENT),
        text_at(body, "node_name"),
        text_at(body, "timestamp"),
    )


def user_data(result: Json) -> Json:
    """What the step's own code returned, out of the envelopes around it; ABSENT for no result.

    Source: spec 5.3.
    """
    if result is None or result is ABSENT:
        return ABSENT
    inner = at(result, "context", "result", "context", "data")
    if inner is not ABSENT:
        return flatten(inner)
    context = at(result, "context")
    if context is ABSENT:
        return result
    data = at(context, "data")
    return context if data is ABSENT else flatten(data)


def flatten(data: Json) -> Json:
    """Lift the keys of labelled parts beside their labels.

    Only an object whose values are all objects is labelled.  Labels are taken in code-point
    order and a later one wins, over a label of the same name too.
    """
    if not isinstance(data, dict) or not data or not all(isinstance(part, dict) for part in data.values()):
        return data
    merged = dict(data)
    for label in sorted(data):
        merged.update(data[label])
    return merged


def reference(result: Json) -> str | None:
    """The address of a result that was too large to travel."""
    found = text_at(result, "context", "result", "reference", "ref")
    return text_at(result, "reference", "ref") if found is None else found
