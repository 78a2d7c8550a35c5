"""How long a start looks whether somebody writes the store that it would take over."""

from __future__ import annotations

import pytest

from sidecar.service.compared import LOOK_S, look_s
from sidecar.settings import Settings


@pytest.mark.parametrize(("poll_ms", "seconds"), [(150, LOOK_S), (1000, LOOK_S), (5000, 10), (60_000, 120)])
def test_two_polls_of_another_one_are_waited_for(poll_ms: int, seconds: float) -> None:
    assert look_s(Settings.given(poll_ms=poll_ms)) == seconds
