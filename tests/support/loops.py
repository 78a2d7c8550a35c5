"""The event loop that the tests run on: the program's, made to end though a test left something open."""

from __future__ import annotations

import warnings

import uvloop


class Loop(uvloop.Loop):
    """uvloop says "unclosed resource" from within a callback and closes the resource afterwards.

    Where a warning is an error it never comes to that, and `close` waits for ever for what is
    open: a test that failed with a connection in its hands would hold up the whole run.
    """

    def close(self) -> None:
        """Close everything.

        Raises:
            ResourceWarning: something was open, and such warnings are errors here; it is closed now.
        """
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", ResourceWarning)
            super().close()
        for one in said:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
