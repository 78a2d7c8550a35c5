"""Controls in the running line: no verdict while one fails, and everybody is told.  Source: spec 3.7."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands.verify import verification
from sidecar.comparator.controls import CONTROL_NAMES
from sidecar.core.compare import Comparison, compare
from sidecar.settings import Settings
from sidecar.telemetry.health import NotReady
from tests.support.captured import captured
from tests.support.databases import Database
from tests.support.fixture_log import load_fixture
from tests.support.rows import chain_rows, event_row
from tests.support.service import Service, service

E = 7700


def _always(served: Any, ordered: Any) -> Comparison:
    return Comparison((), None, len(served), len(ordered))


def _results(sidecar: Service, result: str) -> dict[str, float]:
    return {
        name: sidecar.value("shadow_control_total", control=name, result=result) for name in CONTROL_NAMES
    }


async def _failing(sidecar: Service) -> bool:
    return sidecar.value("control_failed") == 1


async def test_i33_while_a_control_fails_nothing_is_judged_and_a_later_good_tick_clears_it(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, said = captured()
    async with service(pg.dsn, tmp_path / "chain.db", log=log) as sidecar:
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.verdict(E, "match")
        await sidecar.caught_up()
        assert min(_results(sidecar, "expected").values()) >= 1
        assert set(_results(sidecar, "unexpected").values()) == {0}

        monkeypatch.setattr("sidecar.comparator.hold.compare", _always)
        await sidecar.until(lambda: _failing(sidecar))
        assert NotReady.CONTROL_FAILED in sidecar.health.reasons()
        judged = sidecar.verdicts()
        await pg.insert([event_row(E, 3, prev=2)])
        await sidecar.stored(E, 3)
        await sidecar.ticks(2)
        assert sidecar.verdicts() == judged, "no verdict of a comparator that cannot be believed"
        failed = {name for name, count in _results(sidecar, "unexpected").items() if count}
        assert "payload" in failed
        assert "identical" not in failed
        # The comparator may have broken in the middle of a run: a control then fails for another
        # reason in the next one, and that is told.
        told = [(line["control"], line["detail"]) for line in said if line["event"] == "control_failed"]
        assert {control for control, _ in told} == failed
        assert len(told) == len(set(told))

        monkeypatch.setattr("sidecar.comparator.hold.compare", compare)
        await sidecar.idle()
        assert sidecar.value("control_failed") == 0
        assert sidecar.verdicts()["match"] > judged["match"]
        assert "controls_hold_again" in {line["event"] for line in said}


async def test_the_totals_of_the_comparator_are_those_of_the_metrics_and_no_real_counter_moves(
    pg: Database, tmp_path: Path
) -> None:
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await sidecar.caught_up()
        await sidecar.ticks(2)
        assert sidecar.divergences() == {}
        assert sidecar.verdicts() == {}
        assert sidecar.moved("populate_total") == {}
        assert sidecar.value("shadow_events_compared_total") == 0
        comparator = sidecar.line._comparator
        assert comparator is not None
        totals = comparator.control_totals
        assert totals.unexpected == 0
        assert totals.expected == sum(_results(sidecar, "expected").values()) > 0
        await sidecar.ticks(1)
        assert sidecar.value("acceptance_blocked", reason="controls") == 0
        assert (tmp_path / "chain.db.controls").is_dir()
    assert not (tmp_path / "chain.db.controls").exists()


async def test_what_a_killed_process_left_of_its_scratch_store_does_not_matter(
    pg: Database, tmp_path: Path
) -> None:
    left = tmp_path / "chain.db.controls"
    left.mkdir()
    (left / "chain.db").write_text("half a page")
    async with service(pg.dsn, tmp_path / "chain.db") as sidecar:
        await pg.insert(chain_rows(E, [1, 2]))
        await sidecar.verdict(E, "match")
        assert set(_results(sidecar, "unexpected").values()) == {0}


async def test_verify_with_a_failed_control_judges_nothing_and_is_exit_1_with_a_finding(
    pg: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await pg.insert(chain_rows(E, [1, 2]))
    monkeypatch.setattr("sidecar.comparator.hold.compare", _always)
    found = await verification(Settings.given(dsn=pg.dsn))
    assert found.exit_code == 1
    document = found.document(0.1)
    assert (document["executions"], document["verdicts"]["match"]) == (0, 0)
    assert {row["verdict"] for row in document["findings"]} == {"control_failed"}
    payload = next(row for row in document["findings"] if row["detail"].startswith("control payload:"))
    assert payload["execution_id"] is None
    assert json.loads(json.dumps(document)) == document
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("gate", ["on", "off"])
async def test_the_advance_decision_is_counted_for_served_chains_with_its_gate_alone(
    pg: Database, tmp_path: Path, gate: str
) -> None:
    """Five of the fixture's executions are served; a chain that is refused has no decision."""
    conn = await pg.connect()
    await load_fixture(conn, ours=False)
    settings = {"late_window_s": 31_536_000, "live_window_s": 86_400, "dangling_s": 600, "settle_s": 600}
    async with service(pg.dsn, tmp_path / "chain.db", advance=gate, **settings) as sidecar:
        for execution in (1001, 1003, 2002, 2003, 2004):
            await sidecar.verdict(execution, "match")
        await sidecar.verdict(1002, "pending_visibility")
        await sidecar.verdict(2001, "refused_multiple_roots")
        decisions = sidecar.moved("advance_total")
        if gate == "off":
            assert decisions == {}
            return
        assert decisions.keys() == {"advance", "terminal"}
        assert decisions["advance"] >= 3
        assert decisions["terminal"] >= 2
