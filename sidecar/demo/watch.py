"""What the sidecar shows from outside: its /metrics and, read-only, its store.

Two numbers belong together and are read together: divergences, and how much was compared.
Nothing is derived here that the sidecar does not say itself, except the lag: the demo knows
when it committed each row, so it measures commit to seen with its own clock, execution by
execution.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from sidecar.core.verdict import NOT_ELIGIBLE, Verdict

LOOK_S: Final = 0.25
GIVE_UP_S: Final = 15.0
TIMEOUT_S: Final = 2.0
LANES: Final = ("live", "late", "sweep", "comparator")


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the sidecar.  Counts are since its start.

    `verdicts`: the latest of every execution it knows, None before the first.  `lanes`: rows
    by the lane that first saw them.  `ages`: seconds since each lane's horizon last advanced.
    `due`: executions waiting for a verdict.  `behind`: committed rows that are neither stored
    nor held back, refused executions left out (nothing more of them is stored); `lag_s`: how
    long the oldest of those has been committed.
    """

    verdicts: Mapping[int, str | None] = field(default_factory=dict)
    due: int = 0
    behind: int = 0
    lag_s: float = 0.0
    lanes: Mapping[str, int] = field(default_factory=dict)
    ages: Mapping[str, float] = field(default_factory=dict)
    divergences: Mapping[str, int] = field(default_factory=dict)
    covered_executions: int = 0
    eligible_executions: int = 0
    covered_events: int = 0
    eligible_events: int = 0
    compared: int = 0

    @property
    def numbers_hold(self) -> bool:
        """Whether the exported coverage is what the latest verdicts come to."""
        matched = sum(verdict == Verdict.MATCH for verdict in self.verdicts.values())
        eligible = sum(verdict not in NOT_ELIGIBLE for verdict in self.verdicts.values())
        return (self.covered_executions, self.eligible_executions) == (matched, eligible)

    @property
    def diverged(self) -> int:
        return sum(self.divergences.values())


class Writes:
    """Which rows were committed when; what the lag is measured against."""

    def __init__(self) -> None:
        self.rows = 0
        self._committed: defaultdict[int, list[float]] = defaultdict(list)

    def add(self, executions: Iterable[int]) -> None:
        """One more row of each of these executions (an execution may stand there often)."""
        now = time.monotonic()
        for execution in executions:
            self.rows += 1
            self._committed[execution].append(now)

    def unseen(self, known: Mapping[int, int | None]) -> tuple[int, float]:
        """How many rows are not seen, and for how many seconds the oldest has been committed.

        Args:
            known: Rows of each execution that the sidecar has; None: nobody waits for them.
        """
        now = time.monotonic()
        missing, oldest = 0, now
        for execution, times in self._committed.items():
            have = known.get(execution, 0)
            if have is not None and have < len(times):
                missing += len(times) - have
                oldest = min(oldest, times[have])
        return missing, now - oldest


class Observer:
    """Looks again and again; everybody else waits for the next look."""

    def __init__(self, store: Path, metrics: tuple[str, int], writes: Writes) -> None:
        self._store = store
        self._metrics = metrics
        self._writes = writes
        self._looked = asyncio.Event()
        self.look = Look()
        self.looks = 0

    async def run(self) -> None:
        """Look until cancelled.  A look that fails (the sidecar starts or ends) is skipped."""
        while True:
            await self.once()
            await asyncio.sleep(LOOK_S)

    async def once(self) -> bool:
        """Look now; False: it could not be done."""
        try:
            rows, samples = await asyncio.gather(
                asyncio.to_thread(_store, self._store), asyncio.to_thread(_scrape, self._metrics)
            )
        except (OSError, HTTPException, ValueError, sqlite3.Error):
            return False
        self.look = self._look(rows, samples)
        self.looks += 1
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()
        return True

    async def next(self, within_s: float | None = None) -> Look:
        """The next look, or the last one again when none succeeds within `within_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._looked.wait()
        return self.look

    async def until_verdict(self, execution_id: int, verdict: str) -> bool:
        """Until the execution's latest verdict is this one; False after `GIVE_UP_S`."""
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while self.look.verdicts.get(execution_id) != verdict:
                    await self.next()
        except TimeoutError:
            return False
        return True

    def _look(self, rows: _Rows, samples: _Samples) -> Look:
        behind, lag_s = self._writes.unseen(rows.known)
        return Look(
            verdicts=rows.verdicts,
            due=rows.due,
            behind=behind,
            lag_s=lag_s,
            lanes={lane: samples.count("tail_rows_total", lane=lane) for lane in LANES},
            ages={lane: samples.horizon_age_s(lane) for lane in LANES[:3]},
            divergences=samples.by_label("shadow_divergence_total", "kind"),
            covered_executions=samples.count("shadow_covered_executions", window="start"),
            eligible_executions=samples.count("shadow_eligible_executions", window="start"),
            covered_events=samples.count("shadow_covered_events", window="start"),
            eligible_events=samples.count("shadow_eligible_events", window="start"),
            compared=samples.count("shadow_events_compared_total"),
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    verdicts: dict[int, str | None]
    known: dict[int, int | None]
    due: int


def _store(path: Path) -> _Rows:
    """One read transaction on the store's file.

    Raises:
        sqlite3.Error: the file or its tables are not there (yet).
    """
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=TIMEOUT_S)) as store:
        store.execute("BEGIN")
        verdicts = dict(store.execute("SELECT execution_id, verdict FROM partition"))
        known = dict(
            store.execute("SELECT execution_id, iif(label IS NULL, head_seq + held, NULL) FROM partition")
        )
        (due,) = store.execute("SELECT count(*) FROM due").fetchone()
    return _Rows(verdicts, known, due)


class _Samples:
    """A scrape, by series."""

    def __init__(self, text: str) -> None:
        self._values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self._values.get((f"noetl_chain_{name}", tuple(sorted(labels.items()))), 0.0)

    def count(self, name: str, **labels: str) -> int:
        return int(self.value(name, **labels))

    def horizon_age_s(self, lane: str) -> float:
        """The age now: the exported one is that of the lane's last poll."""
        last_poll = self.value("tail_last_poll_timestamp_seconds", lane=lane)
        since = max(0.0, time.time() - last_poll) if last_poll else 0.0
        return self.value("tail_horizon_age_seconds", lane=lane) + since

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """The series of one metric with one label, those at 0 left out."""
        return dict(self._nonzero(f"noetl_chain_{name}", label))

    def _nonzero(self, name: str, label: str) -> Iterator[tuple[str, int]]:
        for (sample, labels), value in self._values.items():
            if sample == name and value:
                yield dict(labels)[label], int(value)


def _scrape(address: tuple[str, int]) -> _Samples:
    """One GET of /metrics.

    Raises:
        OSError, HTTPException, ValueError: nobody answers, or not with metrics.
    """
    with closing(HTTPConnection(*address, timeout=TIMEOUT_S)) as connection:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode("utf-8")
        if answer.status != HTTPStatus.OK:
            raise HTTPException(f"/metrics answered {answer.status}")
    return _Samples(text)
