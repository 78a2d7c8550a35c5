"""`noetl-chain status`: the two numbers of a running sidecar, or of a store file beside one."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from sidecar.commands.consolestatus import show_status
from sidecar.core.acceptance import Controls
from sidecar.errors import ConfigError
from sidecar.inspection.drawn import visible
from sidecar.readings import Reading
from sidecar.service.gauges import floors
from sidecar.service.standing import Looker
from sidecar.service.status import document, exit_code, lanes_of
from sidecar.settings import Settings
from sidecar.store import ChainStore
from sidecar.store.clock import wall_us
from sidecar.store.observation import load

TIMEOUT_S: Final = 10.0
ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
TEXT_MAX: Final = 400
PATH: Final = "/api/v1/status"
LOOK: Final = "look at NOETL_CHAIN_API_BIND and at the sidecar's log"


def main_status(settings: Settings, *, api: str | None, as_json: bool) -> int:
    """Show how things stand.

    Args:
        api: Base URL of a running sidecar; None: the store of `settings`, read-only.

    Returns:
        0 accepted, 1 an open finding or a failed control, 3 anything else.

    Raises:
        ConfigError: the URL is none, or what answers there is no sidecar.
        StoreError: the store cannot be read.
    """
    told = _asked(api, settings.token()) if api is not None else asyncio.run(of_store(settings))
    try:
        code = exit_code(told)
        if as_json:
            print(json.dumps(told))  # noqa: T201 - machine output
        else:
            show_status(_printable(told))
    except (AttributeError, LookupError, TypeError, ValueError):
        if api is None:
            raise
        raise ConfigError(
            "what answers at the --api address is no sidecar of this version", hint=LOOK
        ) from None
    return code


async def of_store(settings: Settings) -> dict[str, Any]:
    """The document of a store file; nothing is locked, nothing written."""
    async with ChainStore.open_readonly(settings.store, rejoining=settings.rejoin is Reading.ON) as store:
        now = wall_us()
        looker = Looker(store, floors=floors(settings), settle=settings.windows.settle, began=now)
        standing = await looker.look(now, await load(store), Controls())
        return document(standing, lanes_of(await store.cursors(), now), None, settings.shard)


class _Straight(HTTPRedirectHandler):
    """A token is for the address that was named and for no other."""

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def _asked(api: str, token: str | None) -> dict[str, Any]:
    parts = _checked(api)
    request = Request(parts + PATH, headers={"accept": "application/json"})  # noqa: S310 - `_checked`
    if token is not None:
        request.add_header("authorization", f"Bearer {token}")
    opener = build_opener(ProxyHandler({}), _Straight())
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            told = json.loads(answer.read(ANSWER_MAX_BYTES))
    except urllib.error.HTTPError as refused:
        with refused:
            raise _refused(refused.code, refused.read(ANSWER_MAX_BYTES)) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"no sidecar answers at the --api address ({type(reason).__name__})",
            hint="is `noetl-chain run` up, and does NOETL_CHAIN_API_BIND say this address?",
        ) from None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, Mapping) or "coverage" not in told:
        raise ConfigError("what answers at the --api address is no sidecar", hint=LOOK)
    return dict(told)


def _printable(told: Any) -> Any:
    """The document without what could steer a terminal: whoever answered wrote its texts."""
    if isinstance(told, dict):
        return {_printable(name): _printable(value) for name, value in told.items()}
    if isinstance(told, list):
        return [_printable(each) for each in told]
    return visible(told, most=TEXT_MAX) if isinstance(told, str) else told


def _checked(api: str) -> str:
    try:
        parts = urlsplit(api)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if good and parts.username is not None:
        raise ConfigError(
            "--api names a user, the sidecar asks for a token",
            hint="set NOETL_CHAIN_API_TOKEN or NOETL_CHAIN_API_TOKEN_FILE",
        )
    if not good or parts.query or parts.fragment:
        raise ConfigError("--api is no http:// or https:// address", hint="http://127.0.0.1:9110")
    return api.rstrip("/")


def _refused(status: int, body: bytes) -> ConfigError:
    if status in (401, 403):
        return ConfigError(
            "the sidecar refused the token", hint="set NOETL_CHAIN_API_TOKEN or NOETL_CHAIN_API_TOKEN_FILE"
        )
    return ConfigError(f"the --api address answered {status}", hint=LOOK)
