"""Which test has its turn when a suite has a time to end by."""

from __future__ import annotations

from typing import Final

import pytest

UNTIL_VARIABLE: Final = "NOETL_TEST_UNTIL"
"""Seconds since 1970."""
GRACE_S: Final = 600
"""By so much a test that was begun in time may end later: .ci/run waits as long."""


def bound(item: pytest.Item) -> float:
    """The seconds that a test asks for itself, 0 where it asks for none."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


def may_begin(bound_s: float, left_s: float) -> bool:
    """Whether a test of this bound ends before its suite is cut off."""
    return left_s > max(0.0, bound_s - GRACE_S)
