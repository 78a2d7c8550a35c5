"""How a browser gets in: the token once, by a form, for a session in a cookie."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sidecar.web.keys import Keys
from sidecar.web.limits import Rate
from sidecar.web.problem import Problem, Refusal

TRIES: Final = 5
TRY_EVERY_S: Final = 12.0
FORM: Final = "application/x-www-form-urlencoded"
FIELDS: Final = 1024
"""Of a form, which has at most as many bytes as any body."""
HOME: Final = "/"


def tries() -> Rate:
    """How often one client may be wrong about the token; each way in counts for itself."""
    return Rate(TRIES, TRY_EVERY_S)


class Login:
    """The routes `/login` and `/logout`; both end with a redirect to a page of ours."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._rate = tries()

    async def enter(self, request: Request) -> Response:
        """Open a session for whoever knows the token.

        Raises:
            Problem: no token is configured, too many tries, no such form, or the wrong token.
        """
        if not self._keys.configured:
            raise Problem(
                403, Refusal.TOKEN_REQUIRED, "no token is configured: there is nothing to log in to"
            )
        self._rate.spend(request)
        form = await _form(request)
        if "token" not in form:
            raise Problem(400, Refusal.BAD_PARAMETER, f"token: send it as {FORM}")
        if not self._keys.fits(form["token"]):
            raise Problem(401, Refusal.WRONG_TOKEN, "the token is not the configured one")
        answer = RedirectResponse(_inside(form.get("next", HOME)), 303)
        # TLS ends in front of us; the browser says under which scheme it sees this page.
        self._keys.open(answer, secure=request.headers.get("origin", "").startswith("https://"))
        return answer

    async def leave(self, request: Request) -> Response:
        """End the session, if there is one."""
        answer = RedirectResponse(HOME, 303)
        self._keys.close(request, answer)
        return answer


async def _form(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        return {}
    try:
        fields = parse_qs((await request.body()).decode(), keep_blank_values=True, max_num_fields=FIELDS)
    except ValueError:  # no UTF-8, or more fields
        return {}
    return {name: values[-1] for name, values in fields.items()}


def _inside(target: str) -> str:
    """A path of this listener; whatever else was asked for is the first page."""
    here = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if here and target.isprintable() and target.isascii() else HOME
