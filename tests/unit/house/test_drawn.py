"""A picture for a terminal, for Mermaid, for Graphviz; hostile names stay names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from sidecar.core.event import Event
from sidecar.core.picture import Picture, picture
from sidecar.core.rejoin import Join
from sidecar.inspection.drawn import RUNS_SHOWN, dot, mermaid, text, visible
from tests.unit.core.build import E, chain, ev, placed

FORK = (ev(1), ev(2, 1), ev(3, 2), ev(4, 3), ev(5, 2))
DANGLING = (*chain(11, 12, 13), ev(15, 14), ev(16, 15), ev(17, 14))
HOSTILE = '\x1b[31m"]\n end; }\r\u202e<script>alert(1)</script>\\" -> x `rm` #quot; %%\x07\x9b'


def lines(log: tuple[Event, ...], **options: bool) -> list[str]:
    return list(text(picture(log, None), **options))


def test_a_fork_as_text() -> None:
    assert lines(FORK) == [
        "● 1 step.exit",
        "│ 2 step.exit",
        "├─● 3 step.exit",
        "│ └ 4 step.exit",
        "└─● 5 step.exit",
    ]


def test_a_gap_as_text() -> None:
    assert lines(DANGLING) == [
        "● 11 step.exit",
        "│ 12 step.exit",
        "└ 13 step.exit",
        "✗ 14 is missing",
        "├─● 15 step.exit",
        "│ └ 16 step.exit",
        "└─● 17 step.exit",
    ]


def test_roots_a_circle_and_marks_as_text() -> None:
    log = (ev(1), ev(5), ev(21, 22), ev(22, 21))
    assert list(text(picture(log, placed((ev(1, note="x"), ev(9, 1)))))) == [
        "● 1 step.exit  [payload differs]",
        "└ 9 step.exit  [store only]",
        "● 5 step.exit  [log only]",
        "↻ 21 step.exit  [log only]  [follows 22: a circle]",
        "└ 22 step.exit  [log only]",
    ]


def test_a_join_is_no_edge_in_any_form() -> None:
    drawing = picture((*chain(1, 2), *chain(8, 9)), None, (Join(E, 2, 8, 900, 870, "e", 1),))
    assert list(text(drawing)) == [
        "● 1 step.exit",
        "└ 2 step.exit",
        "┆ no event names it; proven to come after 2",
        "● 8 step.exit",
        "└ 9 step.exit",
    ]
    assert '  n1 -. "joined by proof" .-> n2' in list(mermaid(drawing))
    assert '  n1 -> n2 [style=dotted, label="joined by proof"];' in list(dot(drawing))


def test_two_73_and_500_events_are_readable_and_all_shows_them_all() -> None:
    assert lines(chain(1, 2)) == ["● 1 step.exit", "└ 2 step.exit"]
    assert lines(chain(*range(1, 74)))[5] == "│ … 64 more, linear, 6 to 69"
    assert len(lines(chain(*range(1, 74)))) == len(lines(chain(*range(1, 501)))) == 10
    assert len(lines(chain(*range(1, 501)), everything=True)) == 500


def test_many_roots_are_cut_and_their_number_is_told() -> None:
    roots = tuple(ev(n) for n in range(1, 1001))
    assert len(lines(roots)) == RUNS_SHOWN + 1
    assert lines(roots)[-1] == f"… {1000 - RUNS_SHOWN:,} more roots and branches: --all shows them"
    assert len(lines(roots, everything=True)) == 1000


def test_nothing_is_no_line_and_an_empty_graph() -> None:
    empty = picture((), ())
    assert list(text(empty)) == []
    assert list(mermaid(empty)) == ["flowchart TD"]
    assert list(dot(empty)) == ["digraph execution {", "  node [shape=box];", "}"]


def test_a_gap_and_a_fork_as_mermaid() -> None:
    assert list(mermaid(picture((ev(1), ev(2, 1), ev(3, 1), ev(9, 8)), None))) == [
        "flowchart TD",
        '  n0["1 step.exit"]',
        '  n1["2 step.exit"]',
        "  n0 --> n1",
        '  n2["3 step.exit"]',
        "  n0 --> n2",
        '  g0{{"8 is missing"}}',
        '  n3["9 step.exit"]',
        "  g0 -.-> n3",
    ]


def test_a_circle_and_a_fold_as_dot() -> None:
    circle = list(dot(picture((ev(1, 2), ev(2, 1)), None)))
    assert circle[2:-1] == [
        '  n0 [label="1 step.exit"];',
        '  n1 [label="2 step.exit"];',
        "  n0 -> n1;",
        "  n1 -> n0;",
    ]
    folded = list(dot(picture(chain(*range(1, 74)), None)))
    assert '  n5 [label="… 64 more, linear, 6 to 69"];' in folded
    assert len([line for line in folded if "->" in line]) == 9


def hostile() -> Picture:
    named = Event(E, 1, None, None, HOSTILE, json.dumps({"node_name": HOSTILE}))
    return picture((named, Event(E, 2, 1, None, "x" * 500, "{}")), None)


def test_the_hostile_name_is_read_as_it_is() -> None:
    assert next(hostile().nodes).name == HOSTILE


@pytest.mark.parametrize("draw", [text, mermaid, dot])
def test_no_line_can_steer_a_terminal_or_end_itself(draw: Callable[[Picture], Iterator[str]]) -> None:
    plain = picture((ev(1), ev(2, 1)), None)
    drawn = list(draw(hostile()))
    assert len(drawn) == len(list(draw(plain)))
    assert all(line.isprintable() for line in drawn)


def test_mermaid_labels_hold_nothing_but_letters_digits_and_entities() -> None:
    labels = [line for line in mermaid(hostile()) if '["' in line]
    assert len(labels) == 2
    for line in labels:
        assert re.fullmatch(r'  n\d+\["(?:[A-Za-z0-9 ._,:-]|#\d+;)*"\]', line), line


def test_dot_labels_are_one_quoted_string() -> None:
    for line in dot(hostile()):
        if "label=" in line:
            assert re.fullmatch(r'  n\d+ \[label="(?:[^"\\]|\\.)*"\];', line), line


def test_long_texts_are_cut_and_what_is_not_printable_is_its_number() -> None:
    assert visible("a\x1b\u202e\n") == "a\\u001b\\u202e\\u000a"
    assert visible("x" * 100) == "x" * 79 + "…"
    assert visible("Ünïcode 漢字") == "Ünïcode 漢字"
