"""Divergence kinds are recorded at one place, under two verdicts.  Source: spec 3.3.

Looked up in the syntax tree, so that comments and strings do not count, and each search must
find something, so that a name that changed does not pass for agreement.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.comparator.record import COUNTED, recorded
from sidecar.core.authority import Partition
from sidecar.core.verdict import Judgement, Kind, Verdict

ROOT = Path(__file__).resolve().parents[2]
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
    for path in sorted((ROOT / "sidecar").rglob("*.py"))
}


def _calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a function or method of this name, with its file."""
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = node.func
                if (isinstance(called, ast.Attribute) and called.attr == name) or (
                    isinstance(called, ast.Name) and called.id == name
                ):
                    yield file, node


def test_the_counter_of_divergences_moves_at_one_place() -> None:
    ((file, call),) = _calls("divergence")
    assert file == "sidecar/service/told.py"
    loops = [
        node
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.For) and call in list(ast.walk(node)) and "new_kinds" in ast.dump(node.iter)
    ]
    assert loops, "it counts what was recorded as new, and nothing else"


def test_what_was_counted_is_written_at_one_place() -> None:
    """Beside the two that carry the column over as it stands: the store's decoder and a rebuild."""
    written = {
        file
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "counted_kinds"
    }
    assert written == {"sidecar/comparator/record.py", "sidecar/store/rows.py", "sidecar/store/rebuild.py"}


def test_every_recorded_verdict_takes_its_new_kinds_from_that_place() -> None:
    made = [file for file, _ in _calls("Judged")]
    assert set(made) == {file for file, _ in _calls("recorded")} >= {"sidecar/comparator/hold.py"}
    assert len(made) == len(list(_calls("recorded")))


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_two_verdicts_count_a_kind_whatever_the_judgement_carries(verdict: Verdict) -> None:
    judgement = Judgement(1, verdict, (Kind.COUNT, Kind.EXTRA_EVENT))
    partition, new = recorded(Partition(1), judgement, 5)
    counts = verdict in {Verdict.DIVERGENT, Verdict.SECOND_WRITER}
    assert new == (judgement.kinds if counts else ())
    assert partition.counted_kinds == set(judgement.kinds if counts else ())
    assert (verdict in COUNTED) is counts
