"""Who may see payload: the bearer token, and the sessions that a browser opened with it.

A session is an opaque random value in a cookie that no script reads and no other site sends.  It
lives in this process alone: after a restart one logs in again.  Comparisons are of hashes of one
length, in constant time, so that their duration says nothing.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

COOKIE: Final = "noetl_chain_session"
SESSIONS_MAX: Final = 64
SESSION_S: Final = 12 * 3600


class Keys:
    """The token, None for none, and the open sessions.

    Args:
        clock: Seconds that only move forward.
    """

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = None if token is None else _hashed(token)
        self._clock = clock
        self._sessions: dict[bytes, float] = {}

    @property
    def configured(self) -> bool:
        """Whether there is a token at all."""
        return self._token is not None

    def fits(self, given: str) -> bool:
        """Whether this is the token."""
        return self._token is not None and hmac.compare_digest(_hashed(given), self._token)

    def presented(self, request: Request) -> bool | None:
        """Whether what was sent is right; None: nothing was sent, or nothing is configured.

        A session that has ended is like none: its owner did nothing wrong.
        """
        if self._token is None:
            return None
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, given = header.partition(" ")
            return self.fits(given.strip()) and scheme.lower() == "bearer"
        cookie = request.cookies.get(COOKIE)
        return True if cookie is not None and self._holds(cookie) else None

    def open(self, response: Response, *, secure: bool) -> None:
        """Open a session and put its cookie on `response`; the oldest one goes when there are many."""
        value = secrets.token_urlsafe(32)
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_hashed(value)] = self._clock() + SESSION_S
        response.set_cookie(
            COOKIE, value, max_age=SESSION_S, path="/", secure=secure, httponly=True, samesite="strict"
        )

    def close(self, request: Request, response: Response) -> None:
        """End the session that `request` came with."""
        cookie = request.cookies.get(COOKIE)
        if cookie is not None:
            self._sessions.pop(_hashed(cookie), None)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")

    def _holds(self, value: str) -> bool:
        given, now = _hashed(value), self._clock()
        self._sessions = {each: end for each, end in self._sessions.items() if end > now}
        # Each one is looked at: which one it was takes no longer than none.
        return sum(hmac.compare_digest(given, each) for each in self._sessions) > 0


def _hashed(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()
