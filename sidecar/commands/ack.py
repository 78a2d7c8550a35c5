"""`noetl-chain ack`: a person's word about one finding."""

from __future__ import annotations

import asyncio
import json
import time

from sidecar.commands.console import show_acknowledged
from sidecar.commands.store import existing_store
from sidecar.errors import ConfigError
from sidecar.settings import Settings
from sidecar.store.acknowledge import Acknowledged, acknowledge, reason_of, take_back
from sidecar.store.postgres.acknowledge import change
from sidecar.store.postgres.url import is_postgres


def main_ack(settings: Settings, finding_id: int, *, why: str | None, undo: bool, as_json: bool) -> int:
    """Acknowledge a finding of the store, or take that back; beside a running sidecar too.

    Returns:
        0 when it is done.

    Raises:
        ConfigError: no such finding, nothing to change, or no reason.
        StoreError: the store cannot be written now; nothing was changed.
    """
    if undo and why is not None:
        raise ConfigError("--undo and --why are both given", hint="taking it back needs no reason")
    if not undo and why is None:
        raise ConfigError("an acknowledgement needs a reason", hint="say why: --why 'restored from backup'")
    now = time.time_ns() // 1000
    if is_postgres(settings.store):
        given = None if undo else reason_of(why or "")
        done = asyncio.run(change(settings.store, finding_id, given, None if undo else now))
        return _shown(done, as_json=as_json)
    path = existing_store(settings)
    done = take_back(path, finding_id) if undo else acknowledge(path, finding_id, why or "", now=now)
    return _shown(done, as_json=as_json)


def _shown(done: Acknowledged, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(_document(done)))  # noqa: T201 - machine output
    else:
        show_acknowledged(done)
    return 0


def _document(done: Acknowledged) -> dict[str, object]:
    return {
        "finding_id": str(done.finding_id),
        "execution_id": str(done.execution_id),
        "verdict": done.verdict,
        "kind": done.kind,
        "resolved": done.resolved,
        "acknowledged": done.at is not None,
        "acknowledged_at": done.at,
        "why": done.why,
    }
