"""Any interleaving of commits, polls, late log reads and restarts ends with the log's order.

And at no moment is a chain served that lacks a row already delivered: a second root or a
second successor is refused from the very batch that brings it (without labels at once the
short chain was served for up to 125 s, in 91 of 155 executions of a model).
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.links import Ordered, order_by_links
from tests.unit.core.build import chain, ev
from tests.unit.core.line import Line

STEPS = ("commit", "poll", "poll", "begin_read", "end_read", "restart_sidecar", "restart_server")


def run(line: Line, commits: list[Event], steps: list[str], chance: random.Random) -> None:
    waiting = list(commits)
    for step in steps:
        match step:
            case "commit":
                if waiting:
                    line.commit(waiting.pop(0))
            case "poll":
                line.poll(chance.randint(1, 3))
            case "begin_read":
                line.begin_read()
            case "end_read":
                line.end_read()
            case "restart_sidecar":
                line.restart_sidecar()
            case "restart_server":
                line.restart_server()
        line.check()
    for event in waiting:
        line.commit(event)
    line.drain()


CHAINS = st.lists(st.integers(1, 99), min_size=1, max_size=7, unique=True).map(lambda ids: chain(*ids))
PLANS = st.lists(st.sampled_from(STEPS), max_size=40)


@settings(max_examples=200)
@given(CHAINS, PLANS, st.integers(0, 2**32))
def test_every_interleaving_of_a_clean_chain_ends_with_the_whole_chain(
    events: tuple[Event, ...], steps: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    line = Line()
    run(line, chance.sample(events, len(events)), steps, chance)
    assert line.served() == events
    assert line.partition.label is None


@settings(max_examples=200)
@given(CHAINS, PLANS, st.integers(0, 2**32))
def test_a_second_root_or_a_fork_is_never_served_once_delivered(
    events: tuple[Event, ...], steps: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    named = chance.choice([None, *(event.event_id for event in events[:-1])])
    commits = [*events, ev(1_000, named), ev(1_001, 1_000)]
    chance.shuffle(commits)
    line = Line()
    run(line, commits, steps, chance)
    assert line.served() is None
    assert line.partition.label == ("multiple_roots" if named is None else "fork")


@settings(max_examples=200)
@given(CHAINS.filter(lambda events: len(events) > 2), PLANS, st.integers(0, 2**32))
def test_a_predecessor_that_never_comes_is_never_served_short(
    events: tuple[Event, ...], steps: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    lost = chance.randrange(1, len(events) - 1)
    commits = [*events[:lost], *events[lost + 1 :]]
    line = Line()
    run(line, chance.sample(commits, len(commits)), steps, chance)
    assert line.served() is None
    assert line.partition.label is None


@pytest.mark.parametrize("commits", list(itertools.permutations(chain(2, 4, 1, 3))))
@pytest.mark.parametrize("restart_at", range(5))
def test_a_restart_after_any_prefix_changes_nothing(commits: tuple[Event, ...], restart_at: int) -> None:
    line = Line()
    for number, event in enumerate(commits):
        if number == restart_at:
            line.restart_sidecar()
        line.commit(event)
        line.poll(1)
        line.check()
    line.drain()
    assert line.served() == chain(2, 4, 1, 3)


@pytest.mark.parametrize("arrival", list(itertools.permutations(chain(5, 2, 4, 1, 3))))
def test_every_arrival_order_extends_to_one_chain_without_another_log_read(
    arrival: tuple[Event, ...],
) -> None:
    """Behind a stored root the links alone rebuild the order."""
    line = Line()
    line.commit(ev(9))
    line.poll(1)
    first, *rest = chain(9, 5, 2, 4, 1, 3)
    linked = {event.event_id: event for event in rest}
    for event in arrival:
        line.commit(linked[event.event_id])
        line.poll(1)
        line.check()
    assert line.served() == (first, *rest)
    assert line.extensions >= 1


def test_a_log_read_older_than_the_label_does_not_bring_the_chain_back() -> None:
    line = Line()
    for event in chain(1, 2):
        line.commit(event)
    line.poll(9)
    assert line.served() == chain(1, 2)
    line.begin_read()
    line.commit(ev(7))
    line.poll(9)
    assert line.served() is None
    line.end_read()
    assert line.old_reads_refused == 1
    assert line.served() is None


def test_the_driver_can_serve_and_extend() -> None:
    """The checks above say nothing if nothing is ever served."""
    line = Line()
    for length, event in enumerate(chain(3, 1, 2), start=1):
        line.commit(event)
        line.poll(1)
        assert len(line.served() or ()) == length
    assert line.extensions == 2
    assert order_by_links(line.log) == Ordered(tuple(line.stored))
