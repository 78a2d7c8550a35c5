"""What the replay keeps of who opened a stage, a frame, a command; and what it could not read."""

from __future__ import annotations

import json
from typing import Any

from sidecar.core.event import Event
from sidecar.core.replay import Replay
from tests.unit.core.test_replay import Numbered


def _told(**kinds: Any) -> Replay:
    tale = Numbered()
    tale.tell("playbook_started")
    for kind, columns in kinds.values():
        tale.tell(kind, "n", **columns)
    return Replay(tale.events)


def test_what_is_opened_keeps_who_opened_it() -> None:
    frame = {"stage_id": "s", "frame_id": "f", "command_id": 9}
    made = _told(
        a=("stage.opened", {"stage_id": "s", "meta": {"kind": "k"}}),
        b=("frame.dispatched", frame),
        c=("command.issued", frame),
        d=("customer.updated", {"meta": {"object_type": "customer", "object_id": "c"}}),
    )
    said = json.dumps({name: str(getattr(made, name, None)) for name in ("stages", "frames", "commands")})
    assert all(str(event_id) in said for event_id in (101, 102, 103))
    assert made.stages["s"].status == "OPEN"


def test_every_event_that_cannot_be_read_is_named() -> None:
    bad = [Event(1, n, n - 1 if n > 1 else None, None, "x", "{") for n in (1, 2, 3)]
    assert Replay(bad).unreadable == (1, 2, 3)
