"""Every label has words, and no way of not knowing looks good."""

from __future__ import annotations

import pytest

from sidecar.core.coverage import AWAITED, UNJUDGED
from sidecar.core.verdict import Verdict
from sidecar.web.values import duration, percent, size, when
from sidecar.web.words import tone, words


@pytest.mark.parametrize("label", [*Verdict, AWAITED, UNJUDGED, None])
def test_every_label_has_words(label: str | None) -> None:
    assert words(label).endswith(".")


def test_only_a_match_is_good() -> None:
    good = {label for label in (*Verdict, AWAITED, UNJUDGED, None) if tone(label) == "good"}
    assert good == {Verdict.MATCH, Verdict.MATCH_REJOINED}
    assert tone(Verdict.DIVERGENT) == tone(Verdict.SECOND_WRITER) == tone(Verdict.LOG_LOST) == "bad"
    assert tone(Verdict.PENDING_STALE) == tone(AWAITED) == tone(None) == "wait"
    assert tone(UNJUDGED) == tone(Verdict.REFUSED_FORK) == tone(Verdict.ERROR) == "warn"


def test_a_share_is_never_rounded_to_the_whole_or_to_nothing() -> None:
    assert [percent(each) for each in (None, 1.0, 0.999999, 0.5, 0.000001, 0.0)] == [
        "—",
        "100.00%",
        "> 99.99%",
        "50.00%",
        "< 0.01%",
        "0.00%",
    ]


def test_values_as_people_say_them() -> None:
    assert [duration(each) for each in (None, 0.04, 119.9, 7200, 172_800)] == [
        "—",
        "0.0 s",
        "119.9 s",
        "2.0 h",
        "2.0 d",
    ]
    assert [size(each) for each in (None, 0, 2048, 3 * 2**20, 5 * 2**40)] == [
        "—",
        "0 B",
        "2.0 KiB",
        "3.0 MiB",
        "5,120.0 GiB",
    ]
    assert when(0) == "1970-01-01 00:00:00 UTC"
    assert when(2**63) == f"{2**63} µs"
    assert when(None) == "—"
