"""Whose deadline ends a statement: the server's comes first, by a tenth, which a busy machine makes up."""

from __future__ import annotations

from typing import Final

import pytest

from sidecar.source import connection

SHARE: Final = 0.1


def server_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the server's is a tenth of ours, so that it is the one that is met."""
    assert SHARE < connection._SERVER_SHARE < 1
    monkeypatch.setattr(connection, "_SERVER_SHARE", SHARE)
