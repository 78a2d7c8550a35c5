"""What becomes of an acknowledgement, and what it is refused for, in words that name the remedy."""

from __future__ import annotations

import pytest

from sidecar.errors import ConfigError
from sidecar.store.acknowledge import WHY_MAX, Acknowledged, changed, reason_of

OPEN = (7, "divergent", "payload", 0, None, 50)
KNOWN = (7, "divergent", None, 1, 60, 50)


def test_a_finding_is_marked_with_when_and_why() -> None:
    assert changed(3, OPEN, "why", 70) == Acknowledged(3, 7, "divergent", "payload", False, 70, "why")
    assert changed(3, OPEN, "why", 40).at == 50, "the clock stood before it was found"


def test_a_mark_is_taken_back() -> None:
    assert changed(3, KNOWN, None, None) == Acknowledged(3, 7, "divergent", None, True, None, None)


def test_a_reason_is_kept_without_what_stands_around_it_up_to_its_bound() -> None:
    assert reason_of(" \tas planned\n") == "as planned"
    assert reason_of(f" {'x' * WHY_MAX} ") == "x" * WHY_MAX


def refused(error: pytest.ExceptionInfo[ConfigError]) -> tuple[str, str | None]:
    return str(error.value), error.value.hint


def test_a_reason_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        reason_of(" \n")
    assert refused(error) == ("an acknowledgement needs a reason", "say why: --why 'restored from backup'")
    with pytest.raises(ConfigError) as error:
        reason_of("x" * (WHY_MAX + 1))
    assert refused(error) == ("the reason is longer than 1000 characters", "name a ticket instead")


def test_what_cannot_be_changed_says_so_and_what_to_do() -> None:
    for found, why, told in (
        (
            None,
            "why",
            (
                "there is no finding 3 in this store",
                "`noetl-chain inspect EXECUTION` shows the findings of an execution with their numbers",
            ),
        ),
        (KNOWN, "why", ("finding 3 is acknowledged already", "take it back with --undo first")),
        (OPEN, None, ("finding 3 is not acknowledged", "nothing to take back")),
    ):
        with pytest.raises(ConfigError) as error:
            changed(3, found, why, 70)
        assert refused(error) == told
