"""What the dashboards show: a panel is a title, what it tells, and its queries.

Divergences never stand without coverage beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: legend and expression; `$of` stands for the selector of job and instance.

    `alarm`: the value from which a stat turns red.  `floor`: the one below which it does.
    """

    title: str
    tells: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "graph"
    unit: str = "short"
    width: int = 12
    alarm: float | None = None
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _stat(title: str, tells: str, query: str, **options: Any) -> Panel:
    return Panel(title, tells, (("", query),), kind="stat", **{"width": 4, **options})


DIVERGENCES: Final = _stat(
    "Divergences",
    "How often store and log disagreed since the start.  Worth only what stands beside it.",
    "sum(noetl_chain_shadow_divergence_total{$of})",
    alarm=1,
)
COVERAGE: Final = _stat(
    "Coverage 1 h",
    "Share of the eligible executions that matched.  Empty when nothing was eligible.",
    'sum(noetl_chain_shadow_covered_executions{$of, window="1h"})'
    ' / (sum(noetl_chain_shadow_eligible_executions{$of, window="1h"}) > 0)',
    unit="percentunit",
    floor=0.95,
)
COMPARED: Final = _stat(
    "Eligible 1 h",
    "The denominator: executions that could have matched.",
    'sum(noetl_chain_shadow_eligible_executions{$of, window="1h"})',
)
OBSERVED: Final = _stat(
    "Observed",
    "How long executions have been judged.  Volume is not duration.",
    "min(noetl_chain_shadow_observation_seconds{$of})",
    unit="s",
)
ACCEPTANCE: Final = _stat(
    "Accepted",
    "1: every condition of acceptance holds.",
    "min(noetl_chain_acceptance{$of})",
    floor=1,
)
FINDINGS: Final = _stat(
    "Open findings",
    "Not resolved by a match and not acknowledged.",
    "sum(noetl_chain_findings_open{$of})",
    alarm=1,
)
TWO_NUMBERS: Final = Row(
    "How often they disagreed, and how much was compared",
    (DIVERGENCES, COVERAGE, COMPARED, OBSERVED, ACCEPTANCE, FINDINGS),
)


def _quantile(share: float, histogram: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({histogram}_bucket{{$of}}[5m])))"


OVERVIEW: Final = (
    TWO_NUMBERS,
    Row(
        "Coverage",
        (
            Panel(
                "Coverage by window",
                "Covered of eligible executions.",
                (
                    (
                        "{{window}}",
                        (
                            "sum by (window) (noetl_chain_shadow_covered_executions{$of})"
                            " / (sum by (window) (noetl_chain_shadow_eligible_executions{$of}) > 0)"
                        ),
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Uncovered, last hour",
                "Eligible executions that did not match, by verdict.",
                (
                    (
                        "{{verdict}}",
                        'sum by (verdict) (noetl_chain_shadow_uncovered_executions{$of, window="1h"})',
                    ),
                ),
            ),
            Panel(
                "Joined by proof, last hour",
                "Executions that match over proven joins, never part of coverage; and joins withdrawn.",
                (
                    ("joined", 'sum(noetl_chain_shadow_rejoined_executions{$of, window="1h"})'),
                    (
                        "withdrawn",
                        (
                            "sum(increase(noetl_chain_shadow_verdict_total"
                            '{$of, verdict="rejoin_withdrawn"}[1h]))'
                        ),
                    ),
                ),
            ),
            Panel(
                "What blocks acceptance",
                "1 while the condition does not hold.",
                (("{{reason}}", "max by (reason) (noetl_chain_acceptance_blocked{$of})"),),
            ),
            Panel(
                "Roots",
                "Executions of the invariant's window by how many rows have no predecessor.",
                (("{{outcome}}", "sum by (outcome) (noetl_chain_root_invariant{$of})"),),
            ),
        ),
    ),
    Row(
        "The fleet",
        (
            Panel(
                "Seen in the fleet",
                "How many sidecars each one has in its record, itself included.  Without gossip that is 1.",
                (("{{instance}}", "max by (instance) (noetl_chain_fleet_live_workers{$of})"),),
            ),
            Panel(
                "Shards that report",
                "Sidecars by the shard that they follow; one each.",
                (
                    (
                        "{{shard}} of {{shards}}",
                        "count by (shard, shards) (noetl_chain_build_info{$of})",
                    ),
                ),
            ),
            Panel(
                "Gossip",
                "Sidecars that are to take part in gossip, and those that do.",
                (
                    ("configured", "sum(noetl_chain_gossip_configured{$of})"),
                    ("up", "sum(noetl_chain_gossip_up{$of})"),
                ),
            ),
            Panel(
                "What gossip came to, last hour",
                "In the record; frames that were none of ours, and events that were lost.",
                (
                    ("{{result}}", "sum by (result) (increase(noetl_chain_gossip_results_total{$of}[1h]))"),
                    ("foreign frames", "sum(increase(noetl_chain_gossip_frames_refused_total{$of}[1h]))"),
                    ("lost", "sum(increase(noetl_chain_gossip_events_lost_total{$of}[1h]))"),
                ),
            ),
        ),
    ),
    Row(
        "The sidecar itself",
        (
            Panel(
                "Store",
                "Bytes of the store, its write-ahead log, and what is free.",
                (
                    ("store", "sum(noetl_chain_store_bytes{$of})"),
                    ("write-ahead log", "sum(noetl_chain_store_wal_bytes{$of})"),
                    ("free", "min(noetl_chain_store_free_bytes{$of})"),
                ),
                unit="bytes",
            ),
            Panel(
                "Paused, control failed",
                "1 while it holds.",
                (
                    ("paused", "max(noetl_chain_store_paused{$of})"),
                    ("control failed", "max(noetl_chain_control_failed{$of})"),
                ),
            ),
            Panel(
                "Gates",
                "1 at what the environment says of each gate.",
                (("{{gate}} {{reading}}", "max by (gate, reading) (noetl_chain_gate_info{$of}) == 1"),),
            ),
            Panel(
                "Replicas",
                "Events that a replica is not known to have.",
                (("replica {{replica}}", "max by (replica) (noetl_chain_replica_lag_events{$of})"),),
            ),
        ),
    ),
)

TAIL: Final = (
    Row(
        "Freshness",
        (
            Panel(
                "From ingest_time to stored",
                "Postgres's clock on both ends.",
                (
                    ("p50", _quantile(0.5, "noetl_chain_tail_lag_seconds")),
                    ("p99", _quantile(0.99, "noetl_chain_tail_lag_seconds")),
                ),
                unit="s",
            ),
            Panel(
                "Horizon age",
                "Since a lane's horizon last advanced.  A rise names an open transaction.",
                (("{{lane}}", "max by (lane) (noetl_chain_tail_horizon_age_seconds{$of})"),),
                unit="s",
            ),
            Panel(
                "Since the last stored poll",
                "By lane.",
                (
                    (
                        "{{lane}}",
                        "time() - max by (lane) (noetl_chain_tail_last_poll_timestamp_seconds{$of} > 0)",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Rows by who saw them first",
                "The comparator and the sweep should find next to nothing.",
                (("{{lane}}", "sum by (lane) (rate(noetl_chain_tail_rows_total{$of}[5m]))"),),
                unit="rowsps",
            ),
        ),
    ),
    Row(
        "Into the store",
        (
            Panel(
                "How executions were stored",
                "Extended by proof of the link, or populated from a whole log read.",
                (("{{way}}", "sum by (way) (rate(noetl_chain_feed_total{$of}[5m]))"),),
                unit="ops",
            ),
            Panel(
                "Populate by outcome",
                "Refusals have a name each.",
                (("{{outcome}}", "sum by (outcome) (rate(noetl_chain_populate_total{$of}[5m])) > 0"),),
                unit="ops",
            ),
        ),
    ),
)

COMPARATOR: Final = (
    TWO_NUMBERS,
    Row(
        "Judgements",
        (
            Panel(
                "Verdicts",
                "Judgements a second; an execution that keeps changing is judged again.",
                (("{{verdict}}", "sum by (verdict) (rate(noetl_chain_shadow_verdict_total{$of}[5m])) > 0"),),
                unit="ops",
            ),
            Panel(
                "Divergences by kind",
                "Once for a kind of an execution, until a match clears it.",
                (("{{kind}}", "sum by (kind) (increase(noetl_chain_shadow_divergence_total{$of}[1h]))"),),
            ),
            Panel(
                "Waiting for a verdict",
                "By why.",
                (("{{reason}}", "sum by (reason) (noetl_chain_due_executions{$of})"),),
            ),
            Panel(
                "Oldest open question",
                "A stalled queue emits no observations; watch the gauge.",
                (
                    ("pending", "max(noetl_chain_shadow_oldest_pending_seconds{$of})"),
                    ("missing predecessor", "max(noetl_chain_shadow_oldest_dangling_seconds{$of})"),
                ),
                unit="s",
            ),
            Panel(
                "Tick and log read",
                "Time of one.",
                (
                    ("tick p99", _quantile(0.99, "noetl_chain_shadow_tick_seconds")),
                    ("log read p99", _quantile(0.99, "noetl_chain_shadow_log_read_seconds")),
                ),
                unit="s",
            ),
            Panel(
                "Self-controls",
                "Planted defects that were found, and those that were not.",
                (("{{result}}", "sum by (result) (rate(noetl_chain_shadow_control_total{$of}[5m]))"),),
                unit="ops",
            ),
            Panel(
                "Audit",
                "Executions by what the sums said.",
                (("{{result}}", "sum by (result) (rate(noetl_chain_audit_executions_total{$of}[5m]))"),),
                unit="ops",
            ),
            Panel(
                "Audit round",
                "Share of the round that is done.",
                (("progress", "min(noetl_chain_audit_round_progress_ratio{$of})"),),
                unit="percentunit",
            ),
        ),
    ),
)

CERTIFICATE: Final = (
    Row(
        "Observed, skipped, divergences, coverage",
        (
            _stat(
                "Observed",
                "Events handed to store and roller.",
                "sum(noetl_chain_cert_observed_total{$of})",
                width=5,
            ),
            _stat(
                "Skipped",
                "Folds that were saved.",
                'sum(noetl_chain_cert_decisions_total{$of, outcome="skipped"})',
                width=5,
            ),
            _stat(
                "Certificate divergences",
                "One is enough: every fold is taken from then on.",
                "sum(noetl_chain_cert_divergences_total{$of})",
                width=5,
                alarm=1,
            ),
            Panel(
                COVERAGE.title,
                COVERAGE.tells,
                COVERAGE.queries,
                kind="stat",
                unit="percentunit",
                width=5,
                floor=0.95,
            ),
            _stat(
                "Tracked",
                "Executions with a roller.",
                "sum(noetl_chain_cert_tracked_executions{$of})",
                width=4,
            ),
        ),
    ),
    Row(
        "Decisions",
        (
            Panel(
                "Decisions by outcome",
                "Which refusal dominates says why folds are not saved.",
                (("{{outcome}}", "sum by (outcome) (rate(noetl_chain_cert_decisions_total{$of}[5m]))"),),
                unit="ops",
            ),
            Panel(
                "Share of folds removed",
                "At most 16 of 17.",
                (
                    (
                        "skipped",
                        (
                            'sum(rate(noetl_chain_cert_decisions_total{$of, outcome="skipped"}[1h]))'
                            " / (sum(rate(noetl_chain_cert_decisions_total{$of}[1h])) > 0)"
                        ),
                    ),
                ),
                unit="percentunit",
            ),
            Panel(
                "Observed and asked",
                "Observed without being asked is inert wiring.",
                (
                    ("observed", "sum(rate(noetl_chain_cert_observed_total{$of}[5m]))"),
                    ("asked", "sum(rate(noetl_chain_cert_decisions_total{$of}[5m]))"),
                ),
                unit="ops",
            ),
            Panel(
                "Revalidation window",
                "16 times the measured tick.",
                (("window", "max(noetl_chain_cert_revalidation_window_seconds{$of})"),),
                unit="s",
            ),
        ),
    ),
)

DASHBOARDS: Final[tuple[tuple[str, str, Sequence[Row]], ...]] = (
    ("noetl-chain-overview", "NoETL / Chain / Overview", OVERVIEW),
    ("noetl-chain-tail", "NoETL / Chain / Tail", TAIL),
    ("noetl-chain-comparator", "NoETL / Chain / Comparator", COMPARATOR),
    ("noetl-chain-certificate", "NoETL / Chain / Certificate", CERTIFICATE),
)
