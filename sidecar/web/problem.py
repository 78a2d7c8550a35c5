"""Refusals as problem documents (RFC 9457), each with a `reason` of a closed set."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec
from starlette.responses import Response

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""On every answer; a page names a policy of its own."""


class Refusal(StrEnum):
    """Why a request is refused: the `reason` of the problem document.

    A guarded read that does not answer has the reasons of spec 2.6 instead.
    """

    BAD_HOST = "bad_host"
    BAD_PARAMETER = "bad_parameter"
    BUSY = "busy"
    CROSS_ORIGIN = "cross_origin"
    INTERNAL = "internal"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NEVER_SEEN = "never_seen"
    NOT_FOUND = "not_found"
    OTHER_SHARD = "other_shard"
    RATE_LIMITED = "rate_limited"
    SERVE_OFF = "serve_off"
    TOKEN_REQUIRED = "token_required"  # noqa: S105 - a reason, no secret
    TOO_LARGE = "too_large"
    UNAVAILABLE = "unavailable"
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - as above


class Problem(Exception):
    """A refusal on its way to the client.  An endpoint may raise it."""

    def __init__(
        self, status: int, reason: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


def problem(status: int, reason: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """One problem document."""
    body = {"type": "about:blank", "title": _title(reason), "status": status, "reason": reason}
    text = msgspec.json.encode({**body, "detail": detail})
    return Response(text, status, {**HEADERS, **(headers or {})}, "application/problem+json")


def _title(reason: str) -> str:
    return reason.replace("_", " ").capitalize()
