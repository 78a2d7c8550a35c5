"""Which executions a pattern leaves out, and that nothing is left out that cannot be seen."""

from __future__ import annotations

import json

import pytest

from sidecar.core.event import Event
from sidecar.core.exclusion import EXCLUDED, NOBODY, START_EVENT_TYPES, Exclusion


def start(path: str | None, *, event_type: str = "playbook_started", prev: int | None = None) -> Event:
    body = json.dumps({} if path is None else {"node_name": path})
    return Event(1, 1, prev, None, event_type, body)


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("system/*", "system/prune", True),
        ("system/*", "system/a/b", True),
        ("system/*", "my/system/prune", False),
        ("system/*", "system", False),
        ("system/prune", "/system/prune", True),
        ("/system/prune", "system/prune", True),
        ("load/?", "load/1", True),
        ("load/?", "load/12", False),
        ("a.b", "axb", False),
        ("a[1]", "a[1]", True),
        ("*", "any\nthing", True),
    ],
)
def test_a_pattern_is_the_whole_path(pattern: str, path: str, covered: bool) -> None:
    assert Exclusion((pattern,)).covers((start(path),)) is covered


@pytest.mark.parametrize("event_type", sorted(START_EVENT_TYPES))
def test_every_spelling_of_the_start_names_the_path(event_type: str) -> None:
    assert Exclusion(("a/*",)).covers((start("a/b", event_type=event_type),))


def test_by_default_nothing_is_left_out_and_system_is_compared() -> None:
    assert not NOBODY
    assert not NOBODY.covers((start("system/prune"),))
    assert not NOBODY.covers(None, EXCLUDED)


@pytest.mark.parametrize(
    "events",
    [
        (),
        (start(None),),
        (start("a/b", event_type="step.exit"),),
        (start("a/b", prev=7),),
        (start("a/b"), start("c/d")),
        (Event(1, 1, None, None, "playbook_started", "no json"),),
    ],
    ids=["empty", "no path", "no start", "no root", "another path too", "unreadable"],
)
def test_what_does_not_show_a_covered_start_is_judged(events: tuple[Event, ...]) -> None:
    assert not Exclusion(("a/*",)).covers(events)


def test_where_nothing_could_be_read_the_record_decides() -> None:
    exclusion = Exclusion(("a/*",))
    assert exclusion.covers(None, EXCLUDED)
    assert not exclusion.covers(None, "match")
    assert not exclusion.covers((), EXCLUDED), "an empty log was read, and is pruned"


def test_without_patterns_it_is_false() -> None:
    assert not Exclusion(())
    assert Exclusion(("a/*",))
