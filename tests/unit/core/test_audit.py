"""What an audit makes of one execution, look by look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.audit import Found, Look, Standing, confirmed, found, is_known
from sidecar.core.sums import NOTHING, StoredSums, Sums
from sidecar.core.verdict import RETRY, Verdict

HERE = Sums(3, 1, 0xABC)
OTHER = Sums(4, 1, 0xDEF)
EQUAL = Look(HERE, StoredSums(HERE))
DIFFERENT = Look(OTHER, StoredSums(HERE))


def judged(look: Look, verdict: str, *, rows: int | None = None, seen: str | None = None) -> Look:
    """Handed over as it is, and judged since by a read that saw as many rows as are there."""
    seen = look.fingerprint if seen is None else seen
    rows = (look.log or NOTHING).rows if rows is None else rows
    return replace(look, standing=Standing(verdict, rows, seen=seen))


def test_a_fingerprint_holds_every_number_of_both_sides() -> None:
    assert DIFFERENT.fingerprint == "4.1.def/3.1.abc.1"
    assert Look(None, StoredSums(Sums(2, 0, 1), whole=False)).fingerprint == "-/2.0.1.0"


@pytest.mark.parametrize("look", [EQUAL, DIFFERENT, judged(EQUAL, "match"), judged(DIFFERENT, "divergent")])
def test_what_waits_to_be_read_is_nobodys_answer(look: Look) -> None:
    assert found(replace(look, standing=replace(look.standing, waiting=True))) is Found.IN_FLIGHT


def test_equal_sums_judge_what_nobody_has_and_leave_what_agrees() -> None:
    assert found(EQUAL) is Found.BY_SUMS
    assert found(replace(EQUAL, standing=Standing("match"))) is Found.EQUAL
    assert found(replace(EQUAL, standing=Standing("match_rejoined"))) is Found.EQUAL
    assert found(judged(EQUAL, "divergent")) is Found.EQUAL
    assert found(judged(EQUAL, "divergent", seen="other")) is Found.READ


def test_a_difference_is_known_while_both_sides_stand_still() -> None:
    assert found(DIFFERENT) is Found.READ
    assert found(judged(DIFFERENT, "divergent")) is Found.DIFFERENT
    assert found(judged(DIFFERENT, "divergent", seen="other")) is Found.READ
    assert found(judged(DIFFERENT, "divergent", rows=3)) is Found.READ, "that read saw another log"


@pytest.mark.parametrize("verdict", sorted(RETRY))
def test_a_verdict_that_is_to_be_tried_again_knows_nothing(verdict: str) -> None:
    assert not is_known(judged(DIFFERENT, verdict))


@pytest.mark.parametrize("verdict", [Verdict.MATCH, Verdict.MATCH_REJOINED])
def test_a_verdict_that_claims_agreement_never_excuses_a_difference(verdict: str) -> None:
    assert found(judged(DIFFERENT, verdict)) is Found.READ
    assert is_known(judged(EQUAL, verdict))
    broken = Look(HERE, StoredSums(HERE, whole=False))
    assert found(judged(broken, verdict)) is Found.READ


def test_without_a_verdict_nothing_is_known() -> None:
    assert not is_known(replace(DIFFERENT, standing=Standing(None, 4, seen=DIFFERENT.fingerprint)))


def test_a_log_that_cannot_be_summed_agrees_with_nothing_and_its_verdict_stands() -> None:
    cut = Look(None, StoredSums(HERE))
    assert found(cut) is Found.READ
    assert found(judged(cut, "log_truncated", rows=9)) is Found.DIFFERENT


def test_two_looks_hand_over_what_differs_and_stands_still() -> None:
    assert confirmed(DIFFERENT, DIFFERENT) is Found.READ
    assert confirmed(replace(DIFFERENT, log=Sums(5)), DIFFERENT) is Found.IN_FLIGHT, "its log moved"
    assert confirmed(DIFFERENT, EQUAL) is Found.BY_SUMS, "the store had not seen it yet"
    known = judged(DIFFERENT, "divergent")
    assert confirmed(replace(known, log=Sums(5)), known) is Found.DIFFERENT
