"""`noetl-chain ack`: a person's word about one finding."""

from __future__ import annotations

import json
import time

from sidecar.console import show_acknowledged
from sidecar.errors import ConfigError
from sidecar.settings import Settings
from sidecar.store.acknowledge import Acknowledged, acknowledge, take_back
from sidecar.storecommands import existing_store


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
    path = existing_store(settings)
    if undo:
        done = take_back(path, finding_id)
    else:
        done = acknowledge(path, finding_id, why or "", now=time.time_ns() // 1000)
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
