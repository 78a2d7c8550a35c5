"""The checks of our own side: the store's folder and file, gates, settings that fit together.

Nothing is written and nothing is made; it works beside a running sidecar and without a store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sidecar.core.shards import Shard
from sidecar.doctor.checks import Check, cannot_tell, failed, ok, warning
from sidecar.errors import SidecarError, StoreError
from sidecar.settings import Arming, Settings, unknown, variable
from sidecar.store import ChainStore
from sidecar.store.format import FORMAT_VERSION, Marker, gate
from sidecar.store.handover import filled
from sidecar.store.location import check_folder, check_one_name, file_system, sqlite_path
from sidecar.store.lock import holder
from sidecar.store.postgres.looked import Looked, looked_at
from sidecar.store.postgres.opening import SAME_SERVER
from sidecar.store.postgres.url import is_postgres
from sidecar.store.sizes import sizes
from sidecar.telemetry.wal import WAL_WARN_BYTES

STORE_CHECKS: Final = ("store_folder", "store_space", "store_lock", "store_format", "store_wal")
SHARD_CHECK: Final = "shard"
SPACE_WARN_BYTES: Final = 2**30
SPACE_WARN_SHARE: Final = 0.05
INODES_WARN: Final = 1000
REDELIVERY_S: Final = 30.0
"""A predecessor came so much later on a recorded log: a batch redelivered after a kill (spec 3.5)."""


def store_checks(url: str, log_server: str | None) -> list[Check]:
    """The checks of the store that `url` names; one for each of `STORE_CHECKS`.

    Args:
        log_server: The system identifier of the log's server; None: not known.
    """
    if is_postgres(url):
        return _server_checks(url, log_server)
    try:
        path = sqlite_path(url)
    except SidecarError as error:
        first = failed(STORE_CHECKS[0], str(error), error.hint, exit_code=error.exit_code)
        return [first, *(cannot_tell(name, "the store's file is not known") for name in STORE_CHECKS[1:])]
    looks: dict[str, Callable[[Path], Check]] = dict(
        zip(STORE_CHECKS, (_folder, _space, _lock, _format, _wal), strict=True)
    )
    return [_answered(name, look, path) for name, look in looks.items()]


def _server_checks(url: str, log_server: str | None) -> list[Check]:
    """The same of a store that a server keeps; nothing is made and nobody is fenced."""
    folder, space, lock, form, wal = STORE_CHECKS
    try:
        seen = asyncio.run(looked_at(url))
    except SidecarError as error:
        first = failed(folder, str(error), error.hint, exit_code=error.exit_code)
        return [first, *(cannot_tell(name, "the store's server was not asked") for name in STORE_CHECKS[1:])]
    where = _server(seen, log_server)
    if not seen.made:
        none = "there is no store yet"
        return [
            where,
            *(cannot_tell(name, none) for name in (space, lock)),
            cannot_tell(form, none, "the first `run` or `backfill` makes it"),
            cannot_tell(wal, none),
        ]
    return [
        where,
        cannot_tell(space, "the store's server does not tell what its disk has left", "watch it there"),
        ok(lock, f"taken last by {seen.holder}"),
        ok(form, f"FORMAT_VERSION {FORMAT_VERSION}"),
        ok(wal, f"store {seen.used / 2**20:,.1f} MiB; its write-ahead log is its server's"),
    ]


def _server(seen: Looked, log_server: str | None) -> Check:
    name, where = STORE_CHECKS[0], f"in PostgreSQL, {seen.servers or 'no other'} servers behind it"
    if log_server is None:
        return cannot_tell(
            name, f"{where}; whether it is the log's server is not known", "make the log's server answer"
        )
    if log_server in seen.identities:
        return failed(name, *SAME_SERVER, exit_code=StoreError.exit_code)
    return ok(name, f"{where}; not the log's server")


async def shard_check(url: str, shard: Shard) -> Check:
    """Whether the store was filled as the shard that is to be followed.

    A file hands over what falls to others at the next start.  A store in PostgreSQL refuses.
    """
    try:
        async with ChainStore.open_readonly(url) as store:
            found, handed_over = await filled(store), store.path is not None
    except SidecarError as error:
        return cannot_tell(SHARD_CHECK, f"shard {shard} by the settings; {error}")
    text = f"shard {shard} by the settings"
    if found.moving:
        return warning(
            SHARD_CHECK,
            f"{text}; the store is on its way from one shard to another",
            "start `run` with the count that is meant; it goes on where it was",
        )
    if found.shard == shard or (found.shard is None and shard.count == 1):
        return ok(SHARD_CHECK, f"{text}, and the store was filled as that")
    was = "nobody says as which it was filled" if found.shard is None else f"it was filled as {found.shard}"
    if handed_over:
        return warning(
            SHARD_CHECK,
            f"{text}, and of the store {was}",
            "the next start hands over what falls to others; see docs/scale.md, or set"
            f" {variable('shard_count')} back",
        )
    return failed(
        SHARD_CHECK,
        f"{text}, and of the store {was}",
        f"name another schema in {variable('store')}, or set {variable('shard_count')} back",
        exit_code=StoreError.exit_code,
    )


def _answered(name: str, look: Callable[[Path], Check], path: Path) -> Check:
    try:
        return look(path)
    except SidecarError as error:
        return failed(name, str(error), error.hint, exit_code=error.exit_code)
    except OSError as error:
        return cannot_tell(name, f"it cannot be looked at: {error.strerror}", "look at the folder's rights")


def _folder(path: Path) -> Check:
    check_folder(path)
    check_one_name(path)
    kind = file_system(path.parent)
    if kind is None:
        return cannot_tell(
            "store_folder", "the system does not tell the file system's type", "use a local disk"
        )
    return ok("store_folder", f"{path.parent}, on a local file system ({kind})")


def _space(path: Path) -> Check:
    left = os.statvfs(path.parent)
    free, total = left.f_bavail * left.f_frsize, left.f_blocks * left.f_frsize
    text = f"{free / 2**30:,.1f} GiB free of {total / 2**30:,.1f}"
    if left.f_files and left.f_favail < INODES_WARN:
        return warning("store_space", f"{left.f_favail} inodes left", "remove files: SQLite needs three")
    if free < SPACE_WARN_BYTES or free < total * SPACE_WARN_SHARE:
        return warning("store_space", text, "free space: a full disk pauses the store, nothing is lost")
    return ok("store_space", text)


def _lock(path: Path) -> Check:
    holding = holder(path)
    return ok("store_lock", "nobody has the store" if holding is None else f"held by {holding}")


def _format(path: Path) -> Check:
    if gate(path) is Marker.ABSENT:
        return cannot_tell(
            "store_format", f"there is no store at {path} yet", "the first `run` or `backfill` makes it"
        )
    return ok("store_format", f"FORMAT_VERSION {FORMAT_VERSION}")


def _wal(path: Path) -> Check:
    if not path.is_file():
        return cannot_tell("store_wal", "there is no store yet")
    size = sizes(path)
    text = f"store {size.used / 2**20:,.1f} MiB, write-ahead log {size.wal / 2**20:,.1f} MiB"
    if size.wal > WAL_WARN_BYTES:
        return warning("store_wal", text, "end whoever reads the store without end: a backup, a shell")
    return ok("store_wal", text)


def settings_checks(settings: Settings) -> list[Check]:
    """Gates, and settings that do not fit together."""
    return [_gates(settings), _fit(settings), _useless()]


def _gates(settings: Settings) -> Check:
    on = ", ".join(name for name, reading in settings.gates.items() if reading.value == "on") or "none"
    text = f"{settings.arming.value}; on: {on}"
    if settings.unrecognised:
        return warning("gates", f"{text}; unreadable: {', '.join(settings.unrecognised)}", "write on or off")
    if settings.arming is Arming.ARMED:
        return ok("gates", text)
    return warning(
        "gates", text, f"set {variable('populate')} and {variable('compare')} to on; the others need them"
    )


def _fit(settings: Settings) -> Check:
    wrong = list(misfits(settings))
    if wrong:
        return warning("settings", "; ".join(wrong), "see docs/configuration.md")
    return ok("settings", "they fit together")


def misfits(settings: Settings) -> Iterator[str]:
    """Pairs of settings of which one makes the other useless or wrong."""
    s = settings
    pairs = (
        (s.live_window_s > s.late_window_s, "live_window_s", "late_window_s", "the late lane adds nothing"),
        (s.late_poll_s > s.sweep_round_s, "late_poll_s", "sweep_round_s", "the sweep comes first"),
        (
            s.late_poll_s > s.late_window_s,
            "late_poll_s",
            "late_window_s",
            "it looks back less than its pause",
        ),
        (
            s.dangling_s < s.late_poll_s,
            "dangling_s",
            "late_poll_s",
            "a row that lags is refused before it is read",
        ),
        (s.settle_s < s.tick_s, "settle_s", "tick_s", "it is never shorter than a tick"),
        (s.settle_s > s.late_window_s, "settle_s", "late_window_s", "a late row may come before its verdict"),
        (s.poll_ms / 1000 > s.live_window_s, "poll_ms", "live_window_s", "it looks back less than its pause"),
        (s.held_rows > s.held_rows_total, "held_rows", "held_rows_total", "the total is the bound"),
    )
    for wrong, first, second, why in pairs:
        if wrong:
            yield f"{variable(first)} against {variable(second)}: {why}"
    if s.dangling_s < REDELIVERY_S:
        yield f"{variable('dangling_s')} below {REDELIVERY_S:.0f}: a redelivered batch comes that late"


def _useless() -> Check:
    names = unknown()
    if names:
        return warning("variables", f"without effect: {', '.join(names)}", "check the spelling")
    return ok("variables", "each one with our prefix has an effect")
