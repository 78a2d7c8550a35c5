"""Rows that only the sweep finds: each counts once, also when it reads everything anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.conftest import StartServer
from tests.support.databases import Database
from tests.support.rows import event_row
from tests.support.service import Service, service

E = 7850


def _found(sidecar: Service) -> float:
    return sidecar.value("tail_rows_total", lane="sweep")


async def _sweeps(sidecar: Service, *, but: set[str] | None = None) -> set[str]:
    """The epochs that the sweep's horizons belong to, once there are some and others than `but`."""
    epochs = set[str]()

    async def swept() -> bool:
        cursors = await sidecar.store.cursors()
        epochs.clear()
        epochs.update(each.epoch for lane, each in cursors.items() if lane.startswith("sweep"))
        return bool(epochs) and epochs.isdisjoint(but or ())

    await sidecar.until(swept)
    return epochs


async def test_old_rows_of_a_refused_execution_count_once_though_the_server_was_restarted(
    pg_server: StartServer, tmp_path: Path
) -> None:
    """They are not in the store, so a lane without a horizon reads them as if nobody had."""
    server = await pg_server()
    pg = Database(server.dsn(), "postgres")
    old = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=3)
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        before = await _sweeps(sidecar)
        await pg.insert([event_row(E, 1, created_at=old), event_row(E, 2, created_at=old)])
        await sidecar.verdict(E, "refused_multiple_roots")
        assert _found(sidecar) == 2

        server.restart()
        await _sweeps(sidecar, but=before)
        await sidecar.idle()
        assert _found(sidecar) == 2, "nothing was new"

        await pg.insert([event_row(E, 3, prev=2, created_at=old), event_row(E + 1, 1, created_at=old)])
        await sidecar.verdict(E + 1, "match")
        await sidecar.seen(E, 3)
        assert _found(sidecar) == 4
    await pg.close()


async def test_a_late_row_that_comes_while_nobody_looks_counts_in_the_round_that_reads_everything_anew(
    pg_server: StartServer, tmp_path: Path
) -> None:
    """The sidecar is down and the server restarts: neither memory nor a horizon says what was seen before."""
    server = await pg_server()
    pg = Database(server.dsn(), "postgres")
    old = datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=3)
    for execution in E, E + 1:
        await pg.insert([event_row(execution, 1, created_at=old), event_row(execution, 2, created_at=old)])
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        before = await _sweeps(sidecar)
        await sidecar.verdict(E, "refused_multiple_roots")
        await sidecar.verdict(E + 1, "refused_multiple_roots")
        await sidecar.idle()
        assert _found(sidecar) == 4

    server.restart()
    await pg.insert([event_row(E, 3, prev=2, created_at=old)])
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await _sweeps(sidecar, but=before)
        assert _found(sidecar) == 1, "the late row, and none of the refused ones"
    await pg.close()
