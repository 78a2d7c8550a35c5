"""Metrics: a closed set, all at 0 from the first scrape by the ordinary start-up path.  Spec 3.8, 8.1."""

from __future__ import annotations

import io
import re
from collections import Counter

import pytest
from prometheus_client import generate_latest

from sidecar.core import links, populate
from sidecar.core.authority import Authoritative, NotPopulated
from sidecar.core.certificate import Decision, Tally
from sidecar.core.coverage import UNCOVERED
from sidecar.core.roots import OUTCOMES as INVARIANT_OUTCOMES
from sidecar.core.verdict import Kind, Verdict
from sidecar.errors import InvariantError
from sidecar.settings import Arming, Reading, Settings
from sidecar.telemetry import logs
from sidecar.telemetry.labels import (
    ACCEPTANCE_REASONS,
    DECISIONS,
    DUE_REASONS,
    FINDERS,
    KINDS,
    LANES,
    POPULATE_OUTCOMES,
    VERDICTS,
    WAYS,
    WINDOWS,
)
from sidecar.telemetry.metrics import Metrics
from sidecar.telemetry.startup import announce


def scrape(metrics: Metrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def started(**gates: str) -> Metrics:
    metrics = Metrics()
    logs.configure(form="json", stream=io.StringIO())
    announce(Settings.given(**gates), logs.get("test"), metrics)
    return metrics


def test_i55_every_series_stands_at_zero_after_the_start() -> None:
    now = scrape(started())
    information = re.compile(r"noetl_chain_(gate_info|arming|build_info)")
    counted = {name: value for name, value in now.items() if not information.match(name)}
    assert len(counted) > 200
    assert set(counted.values()) == {0.0}


def test_i55_the_start_shows_each_gate_s_reading_once() -> None:
    now = scrape(started(populate="on", serve="maybe"))
    assert now['noetl_chain_gate_info{gate="populate",reading="on"}'] == 1
    assert now['noetl_chain_gate_info{gate="serve",reading="unrecognised"}'] == 1
    assert sum(value for name, value in now.items() if "gate_info" in name) == 6
    assert now['noetl_chain_arming{state="partial"}'] == 1
    assert sum(value for name, value in now.items() if "_arming" in name) == 1


def test_no_series_appears_or_vanishes_whatever_happens() -> None:
    metrics = started()
    before = scrape(metrics).keys()
    _everything(metrics)
    after = scrape(metrics)
    assert after.keys() == before
    moved = {name for name, value in after.items() if value}
    assert len(moved) > len(after) / 2


def _everything(metrics: Metrics) -> None:
    for lane in FINDERS:
        metrics.tail_rows(lane, 3)
    for lane in LANES:
        metrics.polled(lane, at=1.0, horizon_age=2.0)
    for way in WAYS:
        metrics.fed(way, 1)
    for outcome in POPULATE_OUTCOMES:
        metrics.populate(outcome)
    for verdict in VERDICTS:
        metrics.verdict(verdict)
    for kind in KINDS:
        metrics.divergence(kind)
    for window in WINDOWS:
        metrics.coverage(
            window,
            covered_executions=1,
            eligible_executions=2,
            covered_events=3,
            eligible_events=4,
            rejoined_executions=5,
            rejoined_events=6,
            uncovered=dict.fromkeys(UNCOVERED, 1),
        )
    metrics.due(dict.fromkeys(DUE_REASONS, 1))
    metrics.authority("authoritative")
    metrics.lag(0.2)
    metrics.tick(0.1, at=2.0)
    metrics.log_read(0.1)
    metrics.events_compared(7)
    metrics.oldest(pending_seconds=1, dangling_seconds=2)
    metrics.observed(5)
    metrics.acceptance(True, ACCEPTANCE_REASONS)
    metrics.root_invariant(dict.fromkeys(INVARIANT_OUTCOMES, 1), at=2.0)
    metrics.store_size(used=1, free=2, wal=3)
    metrics.paused(True)
    decisions = Counter(dict.fromkeys(Decision, 1))
    metrics.certified(Tally(observed=3, decisions=decisions, divergences=1), tracked=2)
    metrics.revalidation_window(80)
    metrics.gates(dict.fromkeys(Settings.given().gates, Reading.ON), Arming.ARMED)


def test_every_value_the_code_can_produce_is_pinned() -> None:
    kinds = (kind for kind in (*vars(links).values(), *vars(populate).values()) if isinstance(kind, type))
    labels = {getattr(kind, "label", None) for kind in kinds}
    outcomes = {label for label in labels if isinstance(label, str)}
    assert {"fork", "diverged", "stale_log"} <= outcomes
    assert outcomes - {"ordered"} <= set(POPULATE_OUTCOMES)
    assert {"in_sync", "extended"} <= set(POPULATE_OUTCOMES)
    assert set(VERDICTS) == {verdict.value for verdict in Verdict} - {"behind"}
    assert set(KINDS) == {kind.value for kind in Kind}
    assert set(DECISIONS) == {decision.value for decision in Decision}
    metrics = Metrics()
    for authority in (NotPopulated(), Authoritative(0, 0)):
        metrics.authority(authority.label)


def test_a_reason_that_is_not_named_falls_back_to_zero() -> None:
    metrics = Metrics()
    metrics.due({"rows": 3})
    metrics.due({"retry": 1})
    assert scrape(metrics)['noetl_chain_due_executions{reason="rows"}'] == 0


def test_a_label_outside_its_set_is_our_bug() -> None:
    metrics = Metrics()
    before = scrape(metrics)
    with pytest.raises(InvariantError):
        metrics.verdict("behind")
    with pytest.raises(InvariantError):
        metrics.due({"615000000000000000": 1})
    assert scrape(metrics) == before


def test_two_sidecars_in_one_process_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.events_compared(5)
    assert scrape(other)["noetl_chain_shadow_events_compared_total"] == 0


def test_names_follow_the_conventions() -> None:
    for family in Metrics().registry.collect():
        assert family.name.startswith("noetl_chain_")
        assert all(not sample.name.endswith("_created") for sample in family.samples)
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


def test_a_lag_is_never_negative() -> None:
    metrics = Metrics()
    metrics.lag(-3)
    assert scrape(metrics)["noetl_chain_tail_lag_seconds_sum"] == 0
