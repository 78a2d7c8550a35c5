"""Every series this program exports, all present at 0 from the first scrape.

The engine counts nothing.  `app` turns outcomes into calls on `Metrics`, which owns its
registry, so that two sidecars in one process (the tests, the demo) never share a number.
Label values are closed sets; a value outside its set is our bug and raises.
Source: spec 3.8, 8.1; docs/metrics.md lists every series.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Collection, Mapping
from itertools import product
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from sidecar import __version__
from sidecar.comparator.controls import CONTROL_NAMES
from sidecar.core.advance import DECISIONS as ADVANCE_DECISIONS
from sidecar.core.certificate import Tally
from sidecar.core.coverage import UNCOVERED
from sidecar.core.roots import OUTCOMES as INVARIANT_OUTCOMES
from sidecar.core.shards import Shard
from sidecar.errors import invariant
from sidecar.settings import GATES, Arming, Reading
from sidecar.telemetry.labels import (
    ACCEPTANCE_REASONS,
    AUDIT_RESULTS,
    AUTHORITY_STATES,
    CONTROL_RESULTS,
    DECISIONS,
    DUE_REASONS,
    FINDERS,
    FINDINGS,
    GOSSIP_RESULTS,
    KINDS,
    LANES,
    NOTIFICATIONS,
    POPULATE_OUTCOMES,
    PROBED,
    VERDICTS,
    WAL_GAPS,
    WAYS,
    WINDOWS,
)

_LAG_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_WORK_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

# A `_created` series beside every counter would double their number and say nothing.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped


class Metrics:
    """The registry and one small method for every thing that can happen.

    Args:
        replicas: How many are configured; their label is their index in that list.
        shard: Whose executions are followed; it is told beside the version.
    """

    def __init__(self, *, replicas: int = 0, shard: Shard | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._feed_series()
        self._store_series()
        self._replica_series(tuple(map(str, range(replicas))))
        self._comparator_series()
        self._audit_series()
        self._coverage_series()
        self._certificate_series()
        self._house_series(shard or Shard())

    # The feed

    def tail_rows(self, lane: str, count: int) -> None:
        """`count` rows were first seen by `lane` (or by the comparator's own read)."""
        _child(self._tail_rows, lane, FINDERS).inc(count)

    def polled(self, lane: str, *, at: float, horizon_age: float) -> None:
        """A poll of `lane` was stored.

        Args:
            at: Seconds since 1970 UTC.
            horizon_age: Seconds since this lane's horizon last advanced, Postgres's clock.
        """
        _child(self._last_poll, lane, LANES).set(at)
        self.horizon_age(lane, horizon_age)

    def horizon_age(self, lane: str, seconds: float) -> None:
        _child(self._horizon_age, lane, LANES).set(seconds)

    def wal_retained(self, size: int) -> None:
        """Bytes of WAL that the server keeps for the slot."""
        self._wal_retained.set(size)

    def wal_gap(self, reason: str, count: int) -> None:
        """The WAL source may have passed rows by; the sweep was asked for a round."""
        _child(self._wal_gaps, reason, WAL_GAPS).inc(count)

    def lag(self, seconds: float) -> None:
        """One row: `ingest_time` to stored, Postgres's clock; a clock ahead of itself counts as 0."""
        self._lag.observe(max(0.0, seconds))

    def fed(self, way: str, count: int) -> None:
        """`count` executions of a batch went this way."""
        _child(self._feed, way, WAYS).inc(count)

    def populate(self, outcome: str, count: int = 1) -> None:
        """`count` populate calls ended so."""
        _child(self._populate, outcome, POPULATE_OUTCOMES).inc(count)

    def authority(self, state: str, count: int = 1) -> None:
        """The store was asked for its authority and said so."""
        _child(self._authority, state, AUTHORITY_STATES).inc(count)

    # The store

    def store_size(self, *, used: int, free: int | None, wal: int) -> None:
        """Bytes: the database, what its file system has left, the write-ahead log."""
        self._store_bytes.set(used)
        self._store_free_bytes.set(math.nan if free is None else free)
        self._store_wal_bytes.set(wal)

    def dropped(self, executions: int) -> None:
        """Retention let go of so many partitions."""
        self._store_dropped.inc(executions)

    def paused(self, yes: bool) -> None:
        """Whether the store has stopped taking rows until there is space again."""
        self._paused.set(yes)

    def replica(self, index: int, *, lag: int) -> None:
        """`lag`: events of the store that the replica is not known to have."""
        _child(self._replica_lag, str(index), self._replicas).set(lag)

    def replica_up(self, index: int, up: bool) -> None:
        """Whether the replica takes events."""
        _child(self._replica_up, str(index), self._replicas).set(up)

    def replica_forked(self, index: int, events: int) -> None:
        """`events` stand differently in the replica, by its own record."""
        _child(self._replica_forked, str(index), self._replicas).set(events)

    # The comparator

    def verdict(self, label: str) -> None:
        """One judgement."""
        _child(self._verdict, label, VERDICTS).inc()

    def divergence(self, kind: str) -> None:
        """One kind of one execution, counted once until a match clears it."""
        _child(self._divergence, kind, KINDS).inc()

    def controls(self, results: Mapping[str, str | None]) -> None:
        """Every control of one tick ran: by name, None for the expected result."""
        for name in results:
            invariant(name in CONTROL_NAMES, f"{name!r} is no control")
            self._control.labels(name, "expected" if results[name] is None else "unexpected").inc()
        self._control_failed.set(any(why is not None for why in results.values()))

    def advance(self, decision: str, count: int = 1) -> None:
        """`count` served chains led to this decision."""
        _child(self._advance, decision, ADVANCE_DECISIONS).inc(count)

    def events_compared(self, count: int) -> None:
        self._compared.inc(count)

    def probed(self, label: str) -> None:
        """Somebody asked for a comparison; nothing else moves by it."""
        _child(self._probes, label, PROBED).inc()

    def evidence_dropped(self, count: int) -> None:
        """So many pieces of evidence had to go for newer ones."""
        self._evidence_dropped.inc(count)

    def findings_open(self, counts: Mapping[str, int]) -> None:
        """Findings that no match has resolved and nobody has acknowledged; not named means none."""
        for verdict in FINDINGS:
            self._findings_open.labels(verdict).set(counts.get(verdict, 0))

    def tick(self, seconds: float, *, at: float) -> None:
        """A tick ended.

        Args:
            seconds: How long it took.
            at: Seconds since 1970 UTC.
        """
        self._tick.observe(seconds)
        self._last_tick.set(at)

    def log_read(self, seconds: float) -> None:
        """One log read of the comparator."""
        self._log_read.observe(seconds)

    def due(self, counts: Mapping[str, int]) -> None:
        """Entries of the work list by reason; a reason that is not named has none."""
        for reason in _known(counts, DUE_REASONS):
            self._due.labels(reason).set(counts.get(reason, 0))

    def oldest(self, *, pending_seconds: float, dangling_seconds: float) -> None:
        """Age of the oldest open question; 0: none."""
        self._oldest_pending.set(pending_seconds)
        self._oldest_dangling.set(dangling_seconds)

    def coverage(
        self,
        window: str,
        *,
        covered_executions: int,
        eligible_executions: int,
        covered_events: int,
        eligible_events: int,
        rejoined_executions: int,
        rejoined_events: int,
        uncovered: Mapping[str, int],
    ) -> None:
        """What was compared in `window`, beside what could have been.

        Args:
            rejoined_executions, rejoined_events: Of those that match over proven joins.
            uncovered: Eligible and not covered executions by verdict; not named means none.
        """
        _child(self._covered_executions, window, WINDOWS).set(covered_executions)
        self._eligible_executions.labels(window).set(eligible_executions)
        self._covered_events.labels(window).set(covered_events)
        self._eligible_events.labels(window).set(eligible_events)
        self._rejoined_executions.labels(window).set(rejoined_executions)
        self._rejoined_events.labels(window).set(rejoined_events)
        for verdict in _known(uncovered, UNCOVERED):
            self._uncovered.labels(window, verdict).set(uncovered.get(verdict, 0))

    def observed(self, seconds: float) -> None:
        """How long a comparator was really judging."""
        self._observation.set(seconds)

    def acceptance(self, accepted: bool, blocked: Collection[str]) -> None:
        """Whether the run may be accepted, and what stands against it."""
        self._acceptance.set(accepted)
        for reason in _known(dict.fromkeys(blocked), ACCEPTANCE_REASONS):
            self._blocked.labels(reason).set(reason in blocked)

    def root_invariant(self, counts: Mapping[str, int], *, at: float) -> None:
        """One sample of the log.

        Args:
            counts: Executions by outcome; not named means none.
            at: Seconds since 1970 UTC.
        """
        for outcome in _known(counts, INVARIANT_OUTCOMES):
            self._invariant.labels(outcome).set(counts.get(outcome, 0))
        self._sampled_at.set(at)

    # The certificates

    def certified(self, tally: Tally, *, tracked: int) -> None:
        """What the certificates did since the last call, and how many executions they track now."""
        self._cert_observed.inc(tally.observed)
        self._cert_divergences.inc(tally.divergences)
        for decision, count in tally.decisions.items():
            _child(self._cert_decisions, decision.value, DECISIONS).inc(count)
        self._cert_tracked.set(tracked)

    def revalidation_window(self, seconds: float) -> None:
        """How long an execution that is asked for once a tick goes without a real fold."""
        self._cert_window.set(seconds)

    def excluded(self, executions: int) -> None:
        """So many executions were left out, each counted once."""
        self._excluded.inc(executions)

    def audited(self, *, equal: int, different: int, read: int, progress: float) -> None:
        """A step of the audit: executions compared by sums, and those handed on to be read.

        Args:
            progress: The part of the round that is done, 0 to 1.
        """
        for result, count in zip(AUDIT_RESULTS, (equal, different, read), strict=True):
            self._audit.labels(result).inc(count)
        self._audit_progress.set(progress)

    def audit_finished(self, *, at: float) -> None:
        """When a round of the audit was last finished, seconds since 1970 UTC."""
        self._audit_last_round.set(at)

    # The house

    def gates(self, readings: Mapping[str, Reading], arming: Arming) -> None:
        """What the environment said, and what it comes to."""
        for gate in _known(readings, GATES):
            for reading in Reading:
                self._gate.labels(gate, reading).set(readings[gate] is reading)
        for state in Arming:
            self._arming.labels(state).set(state is arming)

    def fleet(self, live: int) -> None:
        """So many workers are registered in the record of the fleet."""
        self._live_workers.set(live)

    def gossip_configured(self, configured: bool) -> None:
        """Whether this node is to take part in gossip at all."""
        self._gossip_on.set(configured)

    def gossip_up(self, up: bool) -> None:
        """Whether this node takes part in gossip."""
        self._gossip_up.set(up)

    def gossiped(self, notification: str, result: str) -> None:
        """One notification, and what it came to."""
        _child(self._gossip_told, notification, NOTIFICATIONS).inc()
        _child(self._gossip_results, result, GOSSIP_RESULTS).inc()

    def gossip_lost(self, events: int) -> None:
        """So many events were told faster than they could be recorded."""
        self._gossip_lost.inc(events)

    def gossip_frames_refused(self, frames: int) -> None:
        """So many frames were not sealed with our key, or were played back."""
        self._gossip_refused.inc(frames)

    # The series

    def _feed_series(self) -> None:
        self._tail_rows = self._counter("tail_rows", "Rows by the lane that first saw them", lane=FINDERS)
        self._last_poll = self._gauge(
            "tail_last_poll_timestamp_seconds", "When a poll was last stored; 0 = never", lane=LANES
        )
        self._horizon_age = self._gauge(
            "tail_horizon_age_seconds", "Time since the lane's horizon last advanced", lane=LANES
        )
        self._wal_retained = self._gauge("tail_wal_retained_bytes", "WAL that the server keeps for the slot")
        self._wal_gaps = self._counter(
            "tail_wal_gaps", "Gaps of the WAL source, each repaired by a round of the sweep", reason=WAL_GAPS
        )
        self._lag = self._histogram("tail_lag_seconds", "ingest_time to stored", _LAG_BUCKETS)
        self._feed = self._counter("feed", "Executions of batches by how they were stored", way=WAYS)
        self._populate = self._counter("populate", "Populate calls by outcome", outcome=POPULATE_OUTCOMES)
        self._authority = self._counter("authority", "Authority answers", state=AUTHORITY_STATES)

    def _store_series(self) -> None:
        self._store_bytes = self._gauge("store_bytes", "Size of the chain store")
        self._store_free_bytes = self._gauge("store_free_bytes", "Space left on its file system")
        self._store_wal_bytes = self._gauge("store_wal_bytes", "Size of its write-ahead log")
        self._store_dropped = self._counter("store_dropped_executions", "Partitions that retention let go of")
        self._paused = self._gauge("store_paused", "1 while the store takes no rows")

    def _replica_series(self, replicas: tuple[str, ...]) -> None:
        self._replicas = replicas
        self._replica_lag = self._gauge(
            "replica_lag_events",
            "Events of the store that the replica is not known to have",
            replica=replicas,
        )
        self._replica_up = self._gauge("replica_up", "1 while the replica takes events", replica=replicas)
        self._replica_forked = self._gauge(
            "replica_forked_events", "Events that the replica holds differently", replica=replicas
        )

    def _comparator_series(self) -> None:
        self._verdict = self._counter("shadow_verdict", "Judgements by verdict", verdict=VERDICTS)
        self._divergence = self._counter("shadow_divergence", "Divergences by kind", kind=KINDS)
        self._control = self._counter(
            "shadow_control", "Self-controls", control=CONTROL_NAMES, result=CONTROL_RESULTS
        )
        self._control_failed = self._gauge(
            "control_failed", "1 while the last self-controls were not as expected: no verdicts"
        )
        self._advance = self._counter(
            "advance", "Served chains by what would be done next", decision=ADVANCE_DECISIONS
        )
        self._compared = self._counter("shadow_events_compared", "Events compared")
        self._probes = self._counter("shadow_probe", "Comparisons that somebody asked for", verdict=PROBED)
        self._findings_open = self._gauge(
            "findings_open", "Findings neither resolved nor acknowledged", verdict=FINDINGS
        )
        self._evidence_dropped = self._counter("evidence_dropped", "Evidence that had to go for newer")
        self._tick = self._histogram("shadow_tick_seconds", "Time of one tick", _WORK_BUCKETS)
        self._log_read = self._histogram("shadow_log_read_seconds", "Time of one log read", _WORK_BUCKETS)
        self._last_tick = self._gauge(
            "shadow_last_tick_timestamp_seconds", "When the last tick ended; 0 = never"
        )
        self._due = self._gauge("due_executions", "Executions that wait for a verdict", reason=DUE_REASONS)
        self._oldest_pending = self._gauge("shadow_oldest_pending_seconds", "Age of the oldest pending one")
        self._oldest_dangling = self._gauge(
            "shadow_oldest_dangling_seconds", "Age of the oldest missing predecessor"
        )

    def _audit_series(self) -> None:
        self._excluded = self._counter("excluded_executions", "Executions that are left out by their path")
        self._audit = self._counter(
            "audit_executions", "Executions of the audit by what was found", result=AUDIT_RESULTS
        )
        self._audit_last_round = self._gauge(
            "audit_last_round_timestamp_seconds", "When a round was last finished; 0 = never"
        )
        self._audit_progress = self._gauge("audit_round_progress_ratio", "The part of the round that is done")

    def _coverage_series(self) -> None:
        gauge, each = self._gauge, WINDOWS
        self._covered_executions = gauge("shadow_covered_executions", "Executions that matched", window=each)
        self._eligible_executions = gauge("shadow_eligible_executions", "Executions that could", window=each)
        self._covered_events = gauge("shadow_covered_events", "Events of those that matched", window=each)
        self._eligible_events = gauge("shadow_eligible_events", "Events of those that could", window=each)
        self._uncovered = gauge(
            "shadow_uncovered_executions",
            "Eligible executions that are not covered, by verdict",
            window=each,
            verdict=UNCOVERED,
        )
        self._rejoined_executions = gauge(
            "shadow_rejoined_executions", "Executions that match over proven joins", window=each
        )
        self._rejoined_events = gauge("shadow_rejoined_events", "Events of those", window=each)
        self._observation = gauge("shadow_observation_seconds", "How long a comparator was really judging")
        self._acceptance = gauge("acceptance", "1 while nothing stands against accepting the run")
        self._blocked = gauge("acceptance_blocked", "1 at what stands against it", reason=ACCEPTANCE_REASONS)
        self._invariant = gauge(
            "root_invariant", "Executions of the log by their roots", outcome=INVARIANT_OUTCOMES
        )
        self._sampled_at = gauge("invariant_sampled_at_seconds", "When they were last counted; 0 = never")

    def _certificate_series(self) -> None:
        self._cert_decisions = self._counter(
            "cert_decisions", "Certificate decisions by outcome", outcome=DECISIONS
        )
        self._cert_observed = self._counter("cert_observed", "Events that the certificates observed")
        self._cert_divergences = self._counter("cert_divergences", "Events or folds that contradicted them")
        self._cert_tracked = self._gauge("cert_tracked_executions", "Executions that are tracked")
        self._cert_window = self._gauge(
            "cert_revalidation_window_seconds", "16 measured ticks; 0 = not measured yet"
        )

    def _house_series(self, shard: Shard) -> None:
        self._live_workers = self._gauge("fleet_live_workers", "Registered in the record of the fleet")
        self._gossip_on = self._gauge("gossip_configured", "1 where gossip has an address and a key")
        self._gossip_up = self._gauge("gossip_up", "1 while this node takes part in gossip")
        self._gossip_told = self._counter(
            "gossip_notifications", "What gossip told of", notification=NOTIFICATIONS
        )
        self._gossip_results = self._counter(
            "gossip_results", "What it came to in the record of the fleet", result=GOSSIP_RESULTS
        )
        self._gossip_lost = self._counter("gossip_events_lost", "Told too fast; the whole view was read")
        self._gossip_refused = self._counter("gossip_frames_refused", "No frame of ours, or one replayed")
        self._gate = self._gauge(
            "gate_info", "1 at what the environment says of a gate", gate=GATES, reading=tuple(Reading)
        )
        self._arming = self._gauge("arming", "1 at what the gates come to", state=tuple(Arming))
        told = (__version__, platform.python_version(), str(shard.index), str(shard.count))
        names = ("version", "python", "shard", "shards")
        build = self._gauge(
            "build_info", "1", **{name: (value,) for name, value in zip(names, told, strict=True)}
        )
        build.labels(*told).set(1)
        self._gauge("shard_peers", "Shards beside this one").set(shard.count - 1)

    def _counter(self, name: str, text: str, **labels: Collection[str]) -> Counter:
        counter = Counter(f"noetl_chain_{name}", text, tuple(labels), registry=self.registry)
        _pin(counter, labels)
        return counter

    def _gauge(self, name: str, text: str, **labels: Collection[str]) -> Gauge:
        gauge = Gauge(f"noetl_chain_{name}", text, tuple(labels), registry=self.registry)
        _pin(gauge, labels)
        return gauge

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"noetl_chain_{name}", text, buckets=buckets, registry=self.registry)


Labelled = TypeVar("Labelled", Counter, Gauge)


def _child(metric: Labelled, value: str, allowed: Collection[str]) -> Labelled:
    invariant(value in allowed, f"{value!r} is not one of a closed set of label values")
    return metric.labels(value)


def _known(values: Mapping[str, object], allowed: Collection[str]) -> Collection[str]:
    """All of `allowed`; a key outside it is our bug."""
    invariant(values.keys() <= set(allowed), "a count under a label outside its closed set")
    return allowed


def _pin(metric: Counter | Gauge, labels: Mapping[str, Collection[str]]) -> None:
    """Create every child, so that 0 and "never wired" do not look alike."""
    if labels:
        for values in product(*labels.values()):
            metric.labels(*values)
