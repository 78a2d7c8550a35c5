"""What people see: the two numbers together, no green for nothing, no surprise on a small screen."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from sidecar.demo import report, view
from sidecar.demo.ledger import Entry, agreement
from sidecar.demo.scene import Outcome, Playing, Scene, Windows
from sidecar.demo.screen import screen
from sidecar.demo.watch import Look

BUSY = Look(
    verdicts={1: "match", 2: "refused_fork", 2**60: "divergent", 4: None},
    due=3,
    lanes={"live": 120, "late": 2, "sweep": 1, "comparator": 0},
    ages={"live": 1.5},
    divergences={"payload": 1},
    covered_executions=1,
    eligible_executions=3,
    covered_events=20,
    eligible_events=60,
    lag_s=0.25,
    behind=7,
)
ENTRIES = {
    1: Entry(1, "match", "set"),
    2: Entry(2, "refused_fork", "planted", "fork"),
    2**60: Entry(2**60, "divergent", "planted", "payload", "payload"),
}
SCENE = Scene(
    8.0, Windows(), "http://127.0.0.1:1/metrics", "playing", 12.0, (Playing("noetl-rust-clean", 3, 9),)
)


def drawn(thing: RenderableType, width: int = 110) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(thing)
    return out.getvalue()


def outcome(look: Look) -> Outcome:
    scene = replace(SCENE, look=look, entries=ENTRIES)
    result = agreement(ENTRIES, look.verdicts, look.divergences)
    return Outcome(scene, result, 4, True, 0.5, 2.0, 0.1, 9, 20.0)


def test_divergences_never_stand_without_coverage() -> None:
    text = drawn(view.view(replace(SCENE, look=BUSY, entries=ENTRIES)))
    assert "divergences" in text
    assert "33.3 %" in text
    assert "1 / 3 executions" in text
    one_line = view.line(replace(SCENE, look=BUSY))
    assert "divergences 1  coverage 33.3 % of 3" in one_line
    assert "\n" not in one_line


def test_nothing_compared_is_not_green() -> None:
    scene = replace(SCENE, look=Look())
    assert view.coverage(scene) == "n/a"
    assert "nothing compared yet" in drawn(view.view(scene))


def test_the_windows_and_the_gates_are_on_the_screen() -> None:
    text = drawn(view.view(SCENE))
    assert "settle 2 s" in text
    assert "dangling 6 s" in text
    assert "sweep round 5 s" in text
    assert "populate compare serve cert advance" in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_every_width_can_be_drawn(width: int) -> None:
    assert drawn(view.view(replace(SCENE, look=BUSY, entries=ENTRIES)), width)
    assert drawn(report.table(outcome(BUSY)), width)


@pytest.mark.parametrize(("height", "lines_max"), [(24, 24), (30, 30), (50, 50)])
def test_a_low_screen_keeps_the_numbers_and_the_faults(height: int, lines_max: int) -> None:
    text = drawn(view.view(replace(SCENE, look=BUSY, entries=ENTRIES), height), 100)
    assert len(text.splitlines()) <= lines_max
    assert "33.3 %" in text
    assert "a pruned partition" in text


def test_a_fault_is_ticked_only_when_the_sidecar_names_it() -> None:
    marks = {each.fault.name: each.agrees for each in replace(SCENE, look=BUSY, entries=ENTRIES).planted()}
    assert marks["fork"]
    assert marks["payload"]
    assert not marks["restart"]  # not planted yet
    wrong = replace(BUSY, verdicts={**BUSY.verdicts, 2: "match"})
    marks = {each.fault.name: each.agrees for each in replace(SCENE, look=wrong, entries=ENTRIES).planted()}
    assert not marks["fork"]


def test_the_end_says_what_contradicts() -> None:
    good = replace(BUSY, verdicts={1: "match", 2: "refused_fork", 2**60: "divergent"})
    assert "agreed: all 3 entries" in drawn(report.table(outcome(good)))
    bad = replace(good, verdicts={1: "match", 2: "match", 2**60: "divergent"}, divergences={})
    text = drawn(report.table(outcome(bad)), 160)
    assert "contradicted" in text
    assert "execution 2 (fork): ledger refused_fork, sidecar match" in text
    assert "kind payload: ledger 1, sidecar 0" in text
    assert not outcome(bad).agrees


def test_coverage_that_the_verdicts_do_not_bear_out_is_no_success() -> None:
    good = replace(BUSY, verdicts={1: "match", 2: "refused_fork", 2**60: "divergent"})
    assert outcome(good).agrees
    for wrong in (replace(good, covered_executions=2), replace(good, eligible_executions=2)):
        assert not outcome(wrong).agrees
        assert "exported coverage" in drawn(report.table(outcome(wrong)), 160)


def test_agreement_that_has_not_settled_is_no_success() -> None:
    good = replace(BUSY, verdicts={1: "match", 2: "refused_fork", 2**60: "divergent"})
    unsettled = replace(outcome(good), settled=False)
    assert not unsettled.agrees
    assert "not settled" in drawn(report.table(unsettled))


def test_the_json_keeps_ids_exact_as_text() -> None:
    told = json.loads(json.dumps(report.as_json(outcome(BUSY))))
    assert {each["execution_id"] for each in told["faults"]} == {"2", str(2**60)}
    assert told["extra"] == [{"execution_id": "4", "expected": None, "seen": "unjudged", "fault": None}]
    assert told["divergences"] == {"payload": 1}
    assert told["coverage"]["eligible_executions"] == 3


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with screen(as_json=False) as shown:
        shown.show(replace(SCENE, look=BUSY))
        shown.show(replace(SCENE, look=BUSY))
        shown.show(replace(SCENE, look=BUSY, phase="judging"))
        shown.end(report.table(outcome(BUSY)))
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert text.count("divergences 1  coverage") == 2  # the first, and the new phase


def test_with_json_nothing_but_the_object_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with screen(as_json=True) as shown:
        shown.show(SCENE)
        shown.note("a note")
    heard = capsys.readouterr()
    assert heard.out == ""
    assert "a note" in heard.err
