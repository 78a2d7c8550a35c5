"""The chain as SVG: every shape has its words, nothing of a workflow becomes markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.event import Event
from sidecar.core.picture import Picture, picture
from sidecar.core.rejoin import Join
from sidecar.web.drawing import ROW, ROWS_MAX, Drawn, Edge, irregular, laid_out, legend, svg
from tests.support.changing import replace
from tests.unit.core.build import chain, ev, placed

SVG = "{http://www.w3.org/2000/svg}"


def shapes(drawing: Picture, *, everything: bool = False) -> list[tuple[str, tuple[str, ...]]]:
    return [(mark.shape, mark.marks) for mark in laid_out(drawing, everything=everything).marks]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(drawing: Picture, *, everything: bool = False) -> list[str]:
    root = parsed(svg(drawing, "a chain", everything=everything))
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def test_two_events_are_a_root_and_an_event_with_one_edge_between_them() -> None:
    drawn = laid_out(picture(chain(11, 12), None))
    assert [(mark.shape, mark.lane, mark.marks) for mark in drawn.marks] == [
        ("root", 0, ("root",)),
        ("event", 0, ()),
    ]
    assert drawn.edges == (Edge(0, 1),)


def test_73_and_500_events_are_folded_to_a_screen_and_drawn_whole_when_asked() -> None:
    for count in (73, 500):
        drawing = picture(chain(*range(1, count + 1)), None)
        folded = laid_out(drawing)
        assert len(folded.marks) <= 12
        assert [mark.label for mark in folded.marks if mark.shape == "fold"] == [
            f"{count - 9:,} more, linear, 6 to {count - 4}"
        ]
        assert len(laid_out(drawing, everything=True).marks) == count
        height = int(parsed(svg(drawing, "all", everything=True)).attrib["height"])
        assert ROW * count <= height <= ROW * count + 20


def test_a_fork_is_marked_by_shape_and_words_and_its_branches_hang_on_it() -> None:
    drawn = laid_out(picture((ev(1), ev(2, 1), ev(3, 2), ev(5, 2)), None))
    assert [(mark.shape, mark.lane) for mark in drawn.marks] == [
        ("root", 0),
        ("fork", 0),
        ("event", 1),
        ("event", 1),
    ]
    assert drawn.marks[1].marks == ("fork: 2 successors",)
    assert drawn.edges == (Edge(0, 1), Edge(1, 2), Edge(1, 3))


def test_a_gap_is_a_row_of_its_own_and_the_edges_behind_it_are_broken() -> None:
    drawn = laid_out(picture((ev(1), ev(7, 6), ev(8, 7), ev(9, 6)), None))
    assert [mark.shape for mark in drawn.marks] == ["root", "gap", "event", "event", "event"]
    assert drawn.marks[1].label == "6 is missing"
    assert drawn.edges == (Edge(1, 2, missing=True), Edge(2, 3), Edge(1, 4, missing=True))


def test_every_root_is_marked_and_none_is_joined_to_another() -> None:
    drawn = laid_out(picture((*chain(1, 2), *chain(8, 9)), None))
    assert [mark.shape for mark in drawn.marks] == ["root", "event", "root", "event"]
    assert drawn.edges == (Edge(0, 1), Edge(2, 3))


def test_a_circle_closes_with_an_edge_back() -> None:
    drawn = laid_out(picture((ev(7, 9), ev(8, 7), ev(9, 8)), None))
    assert drawn.marks[0].shape == "circle"
    assert drawn.marks[0].marks == ("circle: follows 9",)
    assert Edge(0, 2, back=True) in drawn.edges


def test_what_only_one_side_has_and_what_differs_says_so() -> None:
    rows = chain(1, 2, 3)
    stored = placed((rows[0], replace(rows[1], body="{}"), ev(9, 2)))
    assert shapes(picture(rows, stored))[1:] == [
        ("fork", ("fork: 2 successors", "payload differs")),
        ("alone", ("log only",)),
        ("alone", ("store only",)),
    ]
    assert any("[store only]" in each for each in texts(picture(rows, stored)))


def test_a_terminal_event_is_a_square() -> None:
    rows = (ev(1), replace(ev(2, 1), event_type="playbook.completed"))
    assert shapes(picture(rows, None)) == [("root", ("root",)), ("end", ())]


HOSTILE = "<script>alert(1)</script>\"'&]]><!--\u202e\u0000\ud800\x1b[31m"


def test_hostile_types_and_names_are_text_and_what_does_not_print_is_written_out() -> None:
    rows = (replace(ev(1), event_type=HOSTILE, body='{"node_name":"</text><image href=x onerror=y>"}'),)
    text = svg(picture(rows, None), HOSTILE.replace("\ud800", "").replace("\x00", "").replace("\x1b", ""))
    root = parsed(text)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {
        "svg",
        "title",
        "g",
        "circle",
        "text",
        "tspan",
    }
    assert "<script" not in text
    (label,) = (each for each in texts(picture(rows, None)) if "script" in each)
    assert "\\u202e" in label
    assert "\\u0000" in label


HEBREW = "\u05ea\u05d4\u05dc\u05d9\u05da"


def test_a_name_from_right_to_left_is_kept_to_itself() -> None:
    rows = (replace(ev(1), event_type=HEBREW),)
    (label,) = texts(picture(rows, None))
    assert f"\u2068{HEBREW}\u2069" in label


def test_no_style_stands_in_the_markup_and_no_event_handler() -> None:
    text = svg(picture((ev(1), ev(2, 1), ev(3, 1), ev(9, 8), ev(5, 5)), None), "all of it")
    assert re.search(r"\sstyle=|<style|\son\w+=|href", text) is None


def test_it_has_a_role_and_a_title_for_those_who_do_not_see_it() -> None:
    root = parsed(svg(picture(chain(1, 2), None), "Chain of execution 7"))
    assert root.attrib["role"] == "img"
    assert root.findtext(f"{SVG}title") == "Chain of execution 7"


def test_no_events_are_no_drawing() -> None:
    assert svg(picture((), ()), "nothing") == ""


def test_what_is_too_long_to_draw_is_counted() -> None:
    drawing = picture(chain(*range(1, ROWS_MAX + 501)), None)
    drawn = laid_out(drawing, everything=True)
    assert (len(drawn.marks), drawn.more) == (ROWS_MAX, 500)
    assert texts(drawing, everything=True)[-1] == "and 500 more events"
    roots = laid_out(picture([ev(n) for n in range(1, 101)], None))
    assert (len(roots.marks), roots.more) == (60, 40)


def test_a_label_fits_into_the_width() -> None:
    rows = (replace(ev(1), event_type="t" * 200, body='{"node_name":"' + "n" * 200 + '"}'),)
    root = parsed(svg(picture(rows, None), "wide"))
    assert 1000 < int(root.attrib["width"]) < 1600


def test_every_shape_stands_in_the_legend_and_looks_like_no_other() -> None:
    signs = [sign for sign, _ in legend()]
    assert len(set(signs)) == len(signs) == 9


def test_what_is_irregular_is_said_in_sentences() -> None:
    drawing = picture((ev(1), ev(2), ev(3, 2), ev(4, 2), ev(9, 8), ev(9, 8), ev(5, 5)), None)
    assert list(irregular(drawing)) == [
        "2 roots: 1, 2.",
        "Event 8 is missing; 9 names it as predecessor.",
        "Fork: 2 events follow 2: 3, 4.",
        "More than once in the log: 9.",
        "The links run in a circle at 5.",
    ]


def test_a_join_is_a_line_of_its_own_and_a_sentence_that_can_be_checked() -> None:
    kept = Join(1001, 2, 8, 4711, 4700, "7:1:0:0", 1_700_000_000_000_000)
    drawing = picture((*chain(1, 2), *chain(8, 9)), None, (kept,))
    assert laid_out(drawing).edges == (Edge(0, 1), Edge(1, 2, joined=True), Edge(2, 3))
    assert shapes(drawing)[2] == ("root", ("root, proven to come after 2",))
    assert svg(drawing, "x").count('class="edge joined"') == 1
    proof = (
        "Root 8 comes after tip 2: transaction 4711 inserted it, and when the tip had been seen the next one"
        " to begin was 4700 (epoch 7:1:0:0; joined 2023-11-14T22:13:20.000000+00:00)."
    )
    assert list(irregular(drawing)) == ["2 roots: 1, 8.", proof]
    gone = replace(kept, withdrawn_at=1_700_000_001_000_000)
    withdrawn = picture((*chain(1, 2), *chain(8, 9)), None, (gone,))
    assert "joined" not in svg(withdrawn, "x")
    ended = f"{proof} Not usable since 2023-11-14T22:13:21.000000+00:00: a later row spoke against it."
    assert list(irregular(withdrawn))[1:] == [ended]


def test_a_join_by_positions_says_which() -> None:
    kept = Join(1001, 2, 8, 4711, None, "7:1:0:0", 1_700_000_000_000_000, None, 2**32 + 255, 2**32 + 256)
    drawing = picture((*chain(1, 2), *chain(8, 9)), None, (kept,))
    proof = (
        "Root 8 comes after tip 2: its commit stands at 1/FF of the write-ahead log, and transaction 4711,"
        " which inserted the root, began to write behind it, at 1/100"
        " (epoch 7:1:0:0; joined 2023-11-14T22:13:20.000000+00:00)."
    )
    assert list(irregular(drawing))[1:] == [proof]


def rows_of(drawn: Drawn) -> int:
    return sum(mark.shape != "gap" for mark in drawn.marks)


@given(st.lists(st.tuples(st.integers(1, 8), st.none() | st.integers(1, 9)), max_size=10))
def test_every_event_of_any_set_has_one_row_and_every_edge_leads_somewhere(
    links: Sequence[tuple[int, int | None]],
) -> None:
    events: list[Event] = [ev(event_id, prev) for event_id, prev in links]
    drawing = picture(events, None)
    drawn = laid_out(drawing)
    assert rows_of(drawn) == len({event.event_id for event in events})
    assert all(0 <= edge.source < edge.target < len(drawn.marks) or edge.back for edge in drawn.edges)
    if events:
        parsed(svg(drawing, "any"))
