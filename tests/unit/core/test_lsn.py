"""Positions of the write-ahead log as text and as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.lsn import LSN_MAX, lsn_of, lsn_text


@settings(deadline=None)
@given(st.integers(0, LSN_MAX))
def test_every_position_comes_back(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn


def test_a_position_is_written_as_postgres_writes_it() -> None:
    assert lsn_text(0x16_B374D848) == "16/B374D848"
    assert lsn_text(1) == "0/1"
    assert lsn_of("16/b374d848") == 0x16_B374D848


@pytest.mark.parametrize("text", ["", "16", "16/", "/1", "G/1", "1/123456789", "1/1 ", "-1/1"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no position"):
        lsn_of(text)
