"""The six replay projections."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.event import Event
from sidecar.core.identity import payload_summary
from sidecar.core.jsonvalue import ABSENT, Number, rendered
from sidecar.core.replay import PROJECTIONS, Replay, checksum
from tests.unit.core.told import Tale

HARNESS_VARIABLE = "NOETL_CHAIN_PARITY_HARNESS"
OUTPUT = {"ref": "s3://out/1", "sha256": "ab" * 32, "media_type": "application/json", "row_count": 42}
CUSTOMER = {"ref": "s3://customers/1", "digest": "cd" * 32}


class Numbered(Tale):
    """Events with the ids 100, 101, … in the order they are told; columns may be of any type."""

    def tell(self, event_type: str, node: str | None = None, **columns: Any) -> Event:
        event_id = 100 + len(self.events)
        prev = event_id - 1 if self.events else None
        named = {"event_id": event_id, "event_type": event_type, "node_name": node, **columns}
        body = json.dumps({key: value for key, value in named.items() if value is not None})
        event = Event(1, event_id, prev, None, event_type, body)
        self.events.append(event)
        return event


def _harness_story() -> list[Event]:
    """Thirteen events with the ids 100…112 that touch all six projections."""
    tale = Numbered()
    frame = {"stage_id": "s-1", "frame_id": "f-1", "command_id": 9001, "worker_id": "w"}
    customer = {"object_type": "customer", "object_id": "c-99"}
    tale.tell("playbook_started")
    tale.tell("step.enter", "begin")
    tale.tell("stage.opened", "fanout", stage_id="s-1", meta={"kind": "fanout", "step_name": "fanout"})
    tale.tell("frame.dispatched", "fanout", **frame, meta={"attempt": 1})
    tale.tell("command.issued", "fanout", **frame)
    counted = {"row_count": 42, "events_emitted": 3}
    tale.tell(
        "frame.committed",
        "fanout",
        **frame,
        status="COMPLETED",
        meta=counted,
        result={"status": "ok", "reference": OUTPUT},
    )
    tale.tell("command.completed", "fanout", **frame, status="success")
    tale.tell("loop.shard.done", "each", status="", meta={"loop_id": "L-1", "collection_size": 2})
    tale.tell("loop.done", "each", status="", meta={"loop_id": "L-1"})
    created = {"business_object": {**customer, "state": {"name": "Ada", "city": "Turin"}}}
    tale.tell("customer.created", "in", meta=created, result={"status": "ok", "reference": CUSTOMER})
    tale.tell("customer.updated", "in", meta={"business_object": {**customer, "patch": {"name": "Ada L."}}})
    tale.tell("stage.closed", "fanout", stage_id="s-1", status="CLOSED")
    tale.tell("playbook.completed", status="COMPLETED")
    assert [event.event_id for event in tale.events] == list(range(100, 113))
    return tale.events


def _folded(events: list[Event]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(rendered(Replay(events).document()))
    return document


def test_the_conformance_story_of_thirteen_events() -> None:
    told = _folded(_harness_story())
    assert (told["event_count"], told["last_event_id"], told["last_event_type"]) == (
        13,
        112,
        "playbook.completed",
    )
    assert told["execution"] == {
        "status": "COMPLETED",
        "last_node_name": "fanout",
        "payload_refs": [
            {"event_id": 105, "reference": OUTPUT},
            {"event_id": 109, "reference": CUSTOMER},
        ],
    }
    assert told["stages"] == {
        "s-1": {
            "stage_id": "s-1",
            "kind": "fanout",
            "step_name": "fanout",
            "status": "CLOSED",
            "opened_event_id": 102,
            "closed_event_id": 111,
            "last_event_id": 111,
            "frame_count": 0,
            "row_count": 0,
            "events_emitted": 0,
            "failed_count": 0,
        }
    }
    assert told["frames"] == {
        "f-1": {
            "frame_id": "f-1",
            "stage_id": "s-1",
            "command_id": "9001",
            "status": "success",
            "attempts": 1,
            "row_count": 42,
            "events_emitted": 3,
            "claimed_event_id": 103,
            "terminal_event_id": 105,
            "last_event_id": 106,
            "output_ref": OUTPUT,
            "output_ref_summary": {**OUTPUT, "schema_digest": None},
        }
    }
    assert told["commands"] == {
        "9001": {
            "command_id": "9001",
            "status": "success",
            "stage_id": "s-1",
            "frame_id": "f-1",
            "worker_id": "w",
            "issued_event_id": 104,
            "terminal_event_id": 106,
            "last_event_id": 106,
        }
    }
    summary = {"sha256": "cd" * 32, "schema_digest": None, "row_count": None, "media_type": None}
    entry = {"event_id": 109, "reference": CUSTOMER, "summary": {**summary, "ref": "s3://customers/1"}}
    assert told["business_objects"] == {
        "customer/c-99": {
            "object_key": "customer/c-99",
            "object_type": "customer",
            "object_id": "c-99",
            "status": "ACTIVE",
            "version": 2,
            "event_count": 2,
            "first_event_id": 109,
            "last_event_id": 110,
            "last_event_type": "customer.updated",
            "deleted_event_id": None,
            "attributes": {"name": "Ada L.", "city": "Turin"},
            "payload_refs": [entry],
            "last_payload_ref": entry,
        }
    }
    assert told["loops"] == {
        "L-1": {
            "loop_id": "L-1",
            "step_name": "each",
            "total": 2,
            "done": 1,
            "failed": 0,
            "completed": True,
            "last_event_id": 108,
        }
    }


def test_the_public_harness_agrees_when_its_folder_is_named() -> None:
    """events.json and expected.json of the folder; without the variable there is nothing to ask."""
    named = os.environ.get(HARNESS_VARIABLE)
    if not named:
        pytest.skip(f"{HARNESS_VARIABLE} names no folder")
    rows = json.loads((Path(named) / "events.json").read_text("utf-8"))
    tale = Numbered()
    for row in sorted(rows, key=lambda row: int(row["event_id"])):
        columns = {key: value for key, value in row.items() if key not in ("event_type", "node_name")}
        tale.tell(row["event_type"], row["node_name"], **columns)
    assert _folded(tale.events) == json.loads((Path(named) / "expected.json").read_text("utf-8"))


def test_no_event_is_an_unknown_execution() -> None:
    told = _folded([])
    assert told["execution"] == {"status": "UNKNOWN", "last_node_name": None, "payload_refs": []}
    assert (told["event_count"], told["last_event_id"], told["last_event_type"]) == (0, None, None)


def test_the_events_stand_as_they_are_given_and_are_never_sorted() -> None:
    events = _harness_story()
    assert Replay(reversed(events)).last_event_id == 100


def test_a_replay_grows_with_its_chain() -> None:
    events = _harness_story()
    for cut in range(len(events) + 1):
        growing = Replay(events[:cut])
        growing.absorb(events[cut:])
        assert growing.checksums() == Replay(events).checksums()


def test_the_checksum_is_sha256_of_sorted_compact_json() -> None:
    expected = "666c1aa02e8068c6d5cc1d3295009432c16790bec28ec8ce119d0d1a18d61319"
    assert checksum({"k": "v"}) == expected
    assert checksum({"b": 1, "a": Number("1.10")}) == checksum({"a": Number("1.10"), "b": 1})


def test_each_projection_has_a_checksum_and_only_what_moved_moves_it() -> None:
    events = _harness_story()
    before, after = Replay(events[:7]).checksums(), Replay(events[:8]).checksums()
    assert list(before) == [*PROJECTIONS, "overall"]
    assert {name for name in before if before[name] != after[name]} == {"loops", "overall"}


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("playbook.completed", "COMPLETED"),
        ("playbook_completed", "COMPLETED"),
        ("workflow.completed", "COMPLETED"),
        ("execution.completed", "COMPLETED"),
        ("playbook.failed", "FAILED"),
        ("playbook_failed", "FAILED"),
        ("workflow.failed", "FAILED"),
        ("execution.failed", "FAILED"),
        ("playbook.cancelled", "CANCELLED"),
        ("playbook_cancelled", "CANCELLED"),
        ("execution.cancelled", "UNKNOWN"),
        ("playbook_started", "UNKNOWN"),
        ("step.enter", "RUNNING"),
        ("step_started", "RUNNING"),
        ("step.exit", "UNKNOWN"),
    ],
)
def test_the_status_of_the_execution_follows_the_type(kind: str, status: str) -> None:
    tale = Numbered()
    tale.tell(kind, "n")
    assert _folded(tale.events)["execution"]["status"] == status


def test_an_entry_starts_only_what_was_unknown_and_names_the_node() -> None:
    tale = Numbered()
    tale.tell("playbook.failed", "not this")
    tale.tell("step.enter", "one")
    tale.tell("step.enter")
    view = Replay(tale.events).execution
    assert (view.status, view.last_node_name) == ("FAILED", "one")
    tale.tell("step_completed", "two")
    assert Replay(tale.events).execution.last_node_name == "two"


# identities


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"stage_id": 7, "aggregate_type": "stage", "aggregate_id": "stage/8", "meta": {"stage_id": 9}}, "7"),
        ({"aggregate_type": "stage", "aggregate_id": "stage/8", "meta": {"stage_id": 9}}, "8"),
        ({"aggregate_type": "stage", "aggregate_id": "8"}, "8"),
        ({"aggregate_type": "stage", "aggregate_id": "stage/"}, None),
        ({"aggregate_type": "frame", "aggregate_id": "stage/8", "meta": {"stage_id": 9}}, "9"),
        ({"meta": {"stage_id": "s"}}, "s"),
        ({"meta": {"stage_id": ""}}, None),
        ({"meta": {"stage_id": None}}, None),
        ({"meta": ["stage_id"]}, None),
        ({}, None),
    ],
)
def test_a_stage_is_named_by_column_aggregate_or_meta(columns: dict[str, Any], found: str | None) -> None:
    tale = Numbered()
    tale.tell("stage.opened", **columns)
    assert list(Replay(tale.events).stages) == ([] if found is None else [found])


def test_frames_commands_and_loops_are_named_likewise() -> None:
    tale = Numbered()
    meta = {"command_id": "c", "loop_event_id": 5, "__loop_epoch_id": 6}
    tale.tell("x", aggregate_type="frame", aggregate_id="frame/f", meta=meta)
    tale.tell("x", command_id=2**62, meta={"command_id": "other", "loop_id": None, "__loop_epoch_id": 6})
    replay = Replay(tale.events)
    assert (list(replay.frames), list(replay.commands)) == (["f"], ["c", str(2**62)])
    assert list(replay.loops) == ["5", "6"]
    assert replay.frames["f"].command_id == "c"


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ({"meta": {"business_object": {"type": "t", "id": 5}}}, "t/5"),
        ({"meta": {"business_object": {"object_type": "", "type": "t", "object_id": 0, "id": "i"}}}, "t/i"),
        ({"meta": {"business_object_type": "t", "business_object_id": "i"}}, "t/i"),
        ({"meta": {"object_type": "t", "object_id": "i"}}, "t/i"),
        ({"aggregate_type": "business_object", "aggregate_id": "business_object/t/a/b"}, "t/a/b"),
        ({"aggregate_type": "business_object", "aggregate_id": "t/a"}, "t/a"),
        ({"aggregate_type": "business_object", "aggregate_id": "a"}, "business_object/a"),
        (
            {"aggregate_type": "business_object", "aggregate_id": "business_object/a"},
            "business_object/business_object/a",
        ),
        ({"aggregate_type": "business_object", "aggregate_id": "t/a", "meta": {"object_type": "m"}}, "m/a"),
        ({"aggregate_type": "stage", "aggregate_id": "t/a"}, None),
        ({"meta": {"object_type": "t"}}, None),
        ({"meta": {"business_object": "t/i"}}, None),
    ],
)
def test_a_business_object_is_named_by_meta_or_aggregate(columns: dict[str, Any], key: str | None) -> None:
    tale = Numbered()
    tale.tell("x", **columns)
    assert list(Replay(tale.events).business_objects) == ([] if key is None else [key])


def test_a_payload_reference_is_the_column_else_the_results() -> None:
    tale = Numbered()
    result = {"status": "ok", "reference": {"ref": "r"}}
    tale.tell("x", payload_ref={"ref": "c"}, result=result)
    tale.tell("x", result=result)
    tale.tell("x", result={"status": "ok", "reference": None})
    tale.tell("x", payload_ref="text")
    refs = _folded(tale.events)["execution"]["payload_refs"]
    assert [(ref["event_id"], ref["reference"]) for ref in refs] == [
        (100, {"ref": "c"}),
        (101, {"ref": "r"}),
        (103, "text"),
    ]


def test_a_payload_summary_looks_further_where_a_value_is_falsy() -> None:
    meta, ipc = {"sha256": "m", "row_count": 0}, {"sha256": "i", "row_count": 7, "media_type": "arrow"}
    reference = {"sha256": "", "digest": "d", "rows_ref": {"meta": meta, "ipc": ipc, "ref": "rr"}, "uri": "u"}
    assert payload_summary(reference) == {
        "sha256": "m",
        "schema_digest": None,
        "row_count": 7,
        "media_type": "arrow",
        "ref": "rr",
    }
    assert payload_summary({"digest": "d", "uri": "u", "schema_digest": "s"}) == {
        "sha256": "d",
        "schema_digest": "s",
        "row_count": None,
        "media_type": None,
        "ref": "u",
    }


@pytest.mark.parametrize("reference", [None, "text", 5, [], ABSENT])
def test_a_reference_that_is_no_object_says_nothing(reference: Any) -> None:
    assert set(payload_summary(reference).values()) == {None}


# records


def _frame(*events: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    tale = Numbered()
    for kind, columns in events:
        tale.tell(kind, frame_id=1, **columns)
    frame: dict[str, Any] = _folded(tale.events)["frames"]["1"]
    return frame


def test_a_frame_starts_unknown_and_takes_its_status_from_any_event() -> None:
    assert _frame(("x", {})) == {
        "frame_id": "1",
        "stage_id": None,
        "last_event_id": 100,
        "status": "UNKNOWN",
        "row_count": 0,
        "attempts": 0,
        "events_emitted": 0,
    }
    assert _frame(("x", {"status": "odd"}), ("x", {"status": ""}), ("x", {"stage_id": 4}))["status"] == "odd"


def test_attempts_only_grow_and_default_to_one() -> None:
    dispatched = [("frame.dispatched", {"meta": {"attempt": n}}) for n in (3, 2, "4", None, 0, "x")]
    assert [_frame(*dispatched[:n])["attempts"] for n in range(1, 7)] == [3, 3, 4, 4, 4, 4]
    assert _frame(("frame.dispatched", {}))["attempts"] == 1
    assert _frame(("frame.dispatched", {"status": "odd"}))["status"] == "CLAIMED"


@pytest.mark.parametrize(
    ("kind", "status", "rows", "emitted", "terminal"),
    [
        ("frame.committed", "COMPLETED", 5, 6, True),
        ("frame.failed", "FAILED", 0, 6, True),
        ("frame.abandoned", "ABANDONED", 0, 0, False),
        ("frame.started", "RUNNING", 0, 0, False),
    ],
)
def test_how_a_frame_ends(kind: str, status: str, rows: int, emitted: int, terminal: bool) -> None:
    frame = _frame((kind, {"meta": {"row_count": 5, "events_emitted": 6}}))
    assert (frame["status"], frame["row_count"], frame["events_emitted"]) == (status, rows, emitted)
    assert ("terminal_event_id" in frame, "output_ref" in frame) == (terminal, terminal)
    expected = status if kind == "frame.started" else "own"
    assert _frame((kind, {"status": "own"}))["status"] == expected


@pytest.mark.parametrize(
    ("kind", "status", "key"),
    [
        ("command.issued", "PENDING", "issued_event_id"),
        ("command.claimed", "CLAIMED", "claimed_event_id"),
        ("command.started", "RUNNING", "started_event_id"),
        ("command.completed", "COMPLETED", "terminal_event_id"),
        ("command.failed", "FAILED", "terminal_event_id"),
        ("command.cancelled", "CANCELLED", "terminal_event_id"),
    ],
)
def test_how_a_command_moves(kind: str, status: str, key: str) -> None:
    tale = Numbered()
    tale.tell(kind, command_id=1)
    command = _folded(tale.events)["commands"]["1"]
    assert command == {"command_id": "1", "last_event_id": 100, "status": status, key: 100}


def test_any_other_command_event_sets_the_status_and_others_do_not() -> None:
    tale = Numbered()
    tale.tell("command.heartbeat", command_id=1, status="beating")
    tale.tell("call.done", command_id=1, status="done")
    tale.tell("command.heartbeat", command_id=1)
    assert Replay(tale.events).commands["1"].status == "beating"
    tale.tell("command.failed", command_id=1, status="odd")
    assert Replay(tale.events).commands["1"].status == "odd"


def test_a_stage_keeps_what_its_first_event_said() -> None:
    tale = Numbered()
    tale.tell("frame.started", "node", stage_id=1)
    tale.tell(
        "stage.opened", "other", stage_id=1, meta={"kind": "fanout", "step_name": "later"}, status="odd"
    )
    tale.tell("stage.closed", stage_id=1)
    stage = Replay(tale.events).stages["1"]
    assert (stage.kind, stage.step_name, stage.status) == (None, "node", "CLOSED")
    assert (stage.opened_event_id, stage.closed_event_id) == (101, 102)


def test_a_stage_takes_its_names_from_meta_before_the_node() -> None:
    tale = Numbered()
    tale.tell("stage.opened", "node", stage_id=1, meta={"kind": "", "step_name": "step"})
    stage = Replay(tale.events).stages["1"]
    assert (stage.kind, stage.step_name) == ("", "step")


def test_a_frame_and_a_command_move_to_the_stage_named_last_and_keep_it() -> None:
    tale = Numbered()
    for stage in (None, 1, 2, None):
        tale.tell("x", frame_id=3, command_id=4, stage_id=stage, worker_id=stage and f"w{stage}")
    replay = Replay(tale.events)
    assert replay.frames["3"].stage_id == "2"
    command = replay.commands["4"]
    assert (command.stage_id, command.frame_id, command.worker_id) == ("2", "3", "w2")


def _object(*events: tuple[str, dict[str, Any], str | None]) -> dict[str, Any]:
    tale = Numbered()
    for kind, said, status in events:
        tale.tell(kind, status=status, meta={"business_object": {"type": "t", "id": "i", **said}})
    found: dict[str, Any] = _folded(tale.events)["business_objects"]["t/i"]
    return found


@pytest.mark.parametrize(
    ("kind", "status", "found", "deleted"),
    [
        ("T.Deleted", None, "DELETED", 100),
        ("t.removed", "", "DELETED", 100),
        ("t.created", None, "ACTIVE", None),
        ("t.UPSERTED", None, "ACTIVE", None),
        ("t.seen", None, "UNKNOWN", None),
        ("t.deleted", "ARCHIVED", "ARCHIVED", None),
        ("t.created", "DELETED", "DELETED", 100),
    ],
)
def test_the_status_of_an_object(kind: str, status: str | None, found: str, deleted: int | None) -> None:
    told = _object((kind, {}, status))
    assert (told["status"], told["deleted_event_id"]) == (found, deleted)


def test_a_deleted_object_keeps_the_id_of_its_deletion() -> None:
    told = _object(("t.deleted", {}, None), ("t.seen", {}, None), ("t.created", {}, None))
    assert (told["status"], told["deleted_event_id"], told["event_count"]) == ("ACTIVE", 100, 3)


def test_state_replaces_and_patch_or_attributes_merge() -> None:
    told = _object(
        ("x", {"attributes": {"a": 1}}, None),
        ("x", {"state": {"b": 1, "c": 1}, "patch": {"c": 2}, "attributes": {"d": 1}}, None),
        ("x", {"state": "no", "patch": {}, "attributes": {"e": 1}}, None),
    )
    assert told["attributes"] == {"b": 1, "c": 2, "e": 1}


def test_the_version_is_the_named_one_else_the_count() -> None:
    assert _object(("x", {"version": 9}, None))["version"] == 9
    assert _object(("x", {"version": "9"}, None))["version"] == 9
    assert _object(("x", {"version": 0}, None), ("x", {"version": "v2"}, None))["version"] == 2
    tale = Numbered()
    tale.tell("x", meta={"object_type": "t", "object_id": "i", "business_object_version": 4})
    assert Replay(tale.events).business_objects["t/i"].version == 4


def test_a_loop_counts_and_keeps_its_first_total() -> None:
    tale = Numbered()
    tale.tell("x", "node", meta={"loop_id": 1, "total": 3})
    for kind in ("command.completed", "loop.shard.done", "command.failed", "loop.shard.failed"):
        tale.tell(kind, "other", meta={"loop_id": 1, "collection_size": 9})
    loop = Replay(tale.events).loops["1"]
    assert (loop.step_name, loop.total, loop.done, loop.failed, loop.completed) == ("node", 3, 2, 2, False)
    tale.tell("loop.fanin.completed", meta={"loop_id": 1})
    assert Replay(tale.events).loops["1"].completed
    tale.tell("x", meta={"loop_id": 2})
    assert Replay(tale.events).loops["2"].total is None


def test_an_event_that_cannot_be_read_changes_nothing_and_is_named() -> None:
    events = _harness_story()
    broken = Event(1, 55, None, None, "playbook.failed", "{")
    replay = Replay([*events[:5], broken, *events[5:]])
    assert replay.unreadable == (55,)
    assert replay.document() == Replay(events).document()
