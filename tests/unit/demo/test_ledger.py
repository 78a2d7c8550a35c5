"""The ledger is written first, and agreement has two directions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.demo.ledger import UNJUDGED, Entry, Found, Ledger, Miscounted, agreement
from sidecar.errors import InvariantError

CLEAN = Entry(1, "match", "set")
FORK = Entry(2, "refused_fork", "planted", "fork")
CHANGED = Entry(3, "divergent", "planted", "payload", "payload")
ENTRIES = {entry.execution_id: entry for entry in (CLEAN, FORK, CHANGED)}
SEEN = {1: "match", 2: "refused_fork", 3: "divergent"}
COUNTED = {"payload": 1}


def test_equal_sides_agree() -> None:
    result = agreement(ENTRIES, SEEN, COUNTED)
    assert result.holds
    assert result.entries == 3


def test_an_entry_without_a_verdict_is_missing() -> None:
    result = agreement(ENTRIES, {1: "match", 3: "divergent"}, COUNTED)
    assert not result.holds
    assert result.missing == (Found(2, "refused_fork", UNJUDGED, "fork"),)
    assert not agreement(ENTRIES, SEEN | {2: None}, COUNTED).holds


@pytest.mark.parametrize(("execution", "verdict"), [(1, "divergent"), (2, "match"), (3, "second_writer")])
def test_another_verdict_than_announced_is_missing(execution: int, verdict: str) -> None:
    result = agreement(ENTRIES, SEEN | {execution: verdict}, COUNTED)
    assert not result.holds
    assert [found.seen for found in result.missing] == [verdict]


@pytest.mark.parametrize("verdict", ["divergent", "refused_fork", "log_lost", "error", None])
def test_a_verdict_that_nobody_announced_is_extra(verdict: str | None) -> None:
    result = agreement(ENTRIES, SEEN | {4: verdict}, COUNTED)
    assert not result.holds
    assert result.extra == (Found(4, None, verdict or UNJUDGED),)
    assert not result.missing


def test_a_match_that_nobody_announced_accuses_nobody() -> None:
    assert agreement(ENTRIES, SEEN | {4: "match"}, COUNTED).holds


@pytest.mark.parametrize("counted", [{}, {"payload": 2}, {"payload": 1, "count": 1}])
def test_a_divergence_too_many_or_too_few_contradicts(counted: dict[str, int]) -> None:
    """Also one that a later match took back: the counter keeps it."""
    result = agreement(ENTRIES, SEEN, counted)
    assert not result.holds
    assert not result.missing
    assert not result.extra
    assert len(result.miscounted) == 1


@pytest.mark.parametrize("verdict", ["divergent", "refused_dangling_prev", "unservable", "error"])
def test_a_verdict_taken_back_on_the_way_contradicts(verdict: str) -> None:
    result = agreement(ENTRIES, SEEN, COUNTED, [(1, verdict), (1, verdict), (1, "match")])
    assert not result.holds
    assert result.taken_back == (Found(1, "match", verdict),)


def test_not_knowing_yet_accuses_nobody() -> None:
    said = [(1, "pending_visibility"), (1, "pending_settle"), (2, "refused_multiple_roots"), (9, "error")]
    assert agreement(ENTRIES, SEEN, COUNTED, said).holds


def test_a_miscount_names_both_numbers() -> None:
    assert agreement(ENTRIES, SEEN, {}).miscounted == (Miscounted("payload", 1, 0),)


def test_an_empty_ledger_proves_nothing() -> None:
    assert not agreement({}, {}, {}).holds


def test_an_announced_entry_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.announce([CLEAN, CHANGED])
        written = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        assert [(each["execution_id"], each["verdict"], each["kind"]) for each in written] == [
            ("1", "match", None),
            ("3", "divergent", "payload"),
        ]
        ledger.announce([FORK])
        assert len(path.read_text("utf-8").splitlines()) == 3
        assert list(ledger.faults()) == ["payload", "fork"]


def test_an_execution_is_announced_once(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.announce([CLEAN])
        with pytest.raises(InvariantError):
            ledger.announce([CLEAN])


def test_a_ledger_never_goes_over_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("")
    with pytest.raises(FileExistsError):
        Ledger(tmp_path / "ledger.jsonl")
