"""The states that the pages tell apart, each put together from the program's own values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp

from sidecar.core.acceptance import Controls, Floors, Run, accept
from sidecar.core.authority import Coverage as Cover
from sidecar.core.authority import GuardedRead, Partition, Reason, Watermark
from sidecar.core.coverage import Coverage, Observation, Tally, covered
from sidecar.core.due import SECOND
from sidecar.core.event import Event
from sidecar.core.evidence import finding as evidence_of
from sidecar.core.links import order_by_links
from sidecar.core.picture import picture
from sidecar.core.populate import LogRead
from sidecar.core.ports import ExecutionLog, Snapshot
from sidecar.core.shards import Shard
from sidecar.core.verdict import Judgement, Kind, Verdict
from sidecar.inspection import documents
from sidecar.inspection.documents import Document
from sidecar.service.standing import Standing
from sidecar.service.status import LaneNow, Process, document
from sidecar.settings import Arming, Bind, Reading
from sidecar.store.findings import Kept
from sidecar.store.handover import Filled
from sidecar.store.listing import Place
from sidecar.store.sizes import Sizes
from sidecar.web.api import application
from sidecar.web.data import Execution, never_seen
from sidecar.web.faces import Faced
from sidecar.web.pages import Pages
from tests.support.changing import replace
from tests.unit.core.build import chain, ev, placed

TOKEN: Final = "a token that nobody guesses"
LOOPBACK: Final = Bind("127.0.0.1", 9110)
E: Final = 615_000_000_000_000_000
NOW: Final = 1_790_000_000 * SECOND
FLOORS: Final = Floors(0.95, 1000, 24 * 3600.0)
RAN: Final = Controls(expected=17 * 1200)
ON: Final = {"populate": Reading.ON, "compare": Reading.ON, "serve": Reading.ABSENT, "cert": Reading.ON}
OFF: Final = dict.fromkeys(ON, Reading.ABSENT)
LANES: Final = (
    LaneNow("live", 0.21, 0.043, 0.1, True),
    LaneNow("late", 9.5, 3.2, 7.9, True),
    LaneNow("sweep", 412.0, None, 3.4, True),
)
HOSTILE: Final = "<script>window.hacked=1</script>\"'><img src=x onerror=window.hacked=1>\u202e\u05d0\u05d1"


def tallies(**counts: int) -> Coverage:
    return covered(Tally(label, n, 40 * n if label == "match" else 0, 40 * n) for label, n in counts.items())


def standing(
    start: Coverage,
    *,
    findings: dict[str, int] | None = None,
    kinds: dict[str, int] | None = None,
    controls: Controls = RAN,
    hours: float = 30.0,
    pending_s: float = 0.0,
    dangling_s: float = 0.0,
) -> Standing:
    observed = Observation(since=NOW - round(hours * 3600) * SECOND, elapsed=round(hours * 3600) * SECOND)
    return Standing(
        at=NOW,
        coverage={"5m": tallies(match=7), "1h": tallies(match=90), "24h": start, "start": start},
        observation=observed,
        acceptance=accept(Run(sum((findings or {}).values()), start, start, hours * 3600, controls), FLOORS),
        controls=controls,
        floors=FLOORS,
        findings_open=findings or {},
        divergences={kind.value: 0 for kind in Kind} | (kinds or {}),
        due={"rows": 3, "retry": 1} if pending_s else {},
        pending_s=pending_s,
        dangling_s=dangling_s,
        size=Sizes(used=412 * 2**20, free=63 * 2**30, wal=6 * 2**20),
        live_workers=3,
        filled=Filled(Shard()),
    )


def told(
    stands: Standing | None,
    *not_ready: str,
    lanes: Sequence[LaneNow] = LANES,
    gates: dict[str, Reading] | None = None,
    arming: Arming = Arming.ARMED,
    shard: Shard | None = None,
) -> Document:
    return document(stands, lanes, Process(gates or ON, arming, not_ready), shard or Shard())


# Executions


def execution(
    execution_id: int,
    log: Sequence[Event] | None,
    stored: Sequence[Event],
    verdict: Verdict | None,
    *,
    not_read: tuple[str, ...] = (),
) -> Execution:
    rows = placed(tuple(replace(e, execution_id=execution_id) for e in stored))
    theirs = None if log is None else tuple(replace(e, execution_id=execution_id) for e in log)
    served = verdict is Verdict.MATCH
    partition = Partition(
        execution_id,
        head_seq=len(rows),
        head_event_id=rows[-1].event.event_id if rows else None,
        watermark=Watermark(1, len(rows)) if served else None,
        coverage=Cover(rows[0].event.event_id, len(rows)) if served else None,
        verdict=None if verdict is None else verdict.value,
        verdict_at=NOW,
        rows_seen=len(theirs or rows),
        terminal=bool(rows) and rows[-1].event.is_terminal,
        first_seen_at=NOW - 90 * SECOND,
        last_change_at=NOW - 3 * SECOND,
    )
    guarded = (
        GuardedRead(tuple(row.event for row in rows), None)
        if served
        else GuardedRead(None, Reason.NOT_POPULATED)
    )
    held = Snapshot(execution_id, partition, None, rows, (), guarded)
    read = None if theirs is None else ExecutionLog(execution_id, theirs, LogRead(NOW))
    return Execution(held, read, picture(theirs, rows), (), not_read)


def with_finding(found: Execution, judgement: Judgement, finding_id: int) -> Execution:
    """The same with what the comparator keeps of such a judgement."""
    log = (found.log.events if found.log is not None else None) or ()
    kept = evidence_of(
        judgement,
        log,
        LogRead(NOW),
        order_by_links(log),
        found.held.rows,
        found.held.partition or Partition(found.held.execution_id),
        NOW,
    )
    finding = Kept(
        finding_id,
        found.held.execution_id,
        kept.verdict,
        kept.kind,
        kept.position,
        kept.detail,
        None if kept.log_event_id is None else str(kept.log_event_id),
        None if kept.store_event_id is None else str(kept.store_event_id),
        dict(kept.evidence or {}),
        NOW - 60 * SECOND,
        None,
        None,
        None,
    )
    return replace(found, findings=(*found.findings, finding))


def matched(events: int, execution_id: int) -> Execution:
    rows = [
        replace(each, body=f'{{"node_name":"step {each.event_id}"}}') for each in chain(*range(1, events))
    ]
    rows.append(ev(events, events - 1, kind="playbook.completed"))
    return execution(execution_id, rows, rows, Verdict.MATCH)


def divergent(execution_id: int, secret: str = "s3cr3t") -> Execution:
    rows = [
        replace(e, body=f'{{"event_id":{e.event_id},"node_name":"load","said":"{secret}"}}')
        for e in chain(*range(1, 8))
    ]
    ours = [*rows[:3], replace(rows[3], body=rows[3].body.replace(secret, f"{secret} other")), *rows[4:]]
    judgement = Judgement(
        execution_id,
        Verdict.DIVERGENT,
        (Kind.PAYLOAD,),
        position=3,
        log_rows=7,
        stored_rows=7,
        detail="the stored body is another one",
        log_event_id=4,
        stored_event_id=4,
    )
    return with_finding(execution(execution_id, rows, ours, Verdict.DIVERGENT), judgement, 41)


def refused(execution_id: int) -> Execution:
    rows = [*chain(1, 2, 3, 4), ev(5, 3), ev(6, 5), ev(7), ev(8, 7), ev(12, 11), ev(13, 12)]
    judgement = Judgement(
        execution_id, Verdict.REFUSED_MULTIPLE_ROOTS, log_rows=10, detail="roots 1, 7", stored_rows=2
    )
    found = execution(execution_id, rows, chain(1, 2), Verdict.REFUSED_MULTIPLE_ROOTS)
    return with_finding(found, judgement, 42)


def hostile(execution_id: int) -> Execution:
    rows = [
        ev(1),
        replace(ev(2, 1, kind=HOSTILE), body='{"node_name":"</text></svg>","x":"' + "<b>" * 100_000 + '"}'),
        replace(ev(3, 2), body='{"said":"<script>window.hacked=1</script>"}'),
    ]
    ours = [*rows[:2], replace(rows[2], body='{"said":"<img src=x onerror=window.hacked=1>"}')]
    judgement = Judgement(
        execution_id,
        Verdict.DIVERGENT,
        (Kind.PAYLOAD,),
        position=2,
        detail=HOSTILE,
        log_rows=3,
        stored_rows=3,
    )
    return with_finding(execution(execution_id, rows, ours, Verdict.DIVERGENT), judgement, 43)


TWO, LONG, LONGEST, WRONG, ROOTS, EVIL, WAITING, AWAY = (E + n for n in range(1, 9))


def executions() -> tuple[Execution, ...]:
    waiting = execution(WAITING, [ev(1), ev(3, 2)], [], Verdict.PENDING_VISIBILITY)
    away = execution(
        AWAY, None, chain(1, 2), None, not_read=("the log was not read: Postgres does not answer",)
    )
    return (
        matched(2, TWO),
        matched(73, LONG),
        matched(500, LONGEST),
        divergent(WRONG),
        refused(ROOTS),
        hostile(EVIL),
        waiting,
        away,
    )


@dataclass
class Given:
    """What is shown, without a sidecar; `status` may be changed while it is served."""

    status: Callable[[], Document]
    shown: dict[int, Execution] = field(default_factory=dict)
    opened: bool = True

    async def executions(
        self, *, verdict: str | None, after: Place | None, limit: int
    ) -> tuple[list[Document], Place | None]:
        records = [each.held.partition for each in self.shown.values()]
        chosen = [each for each in records if each is not None and verdict in (None, each.verdict)]
        return [documents.summary(each) for each in chosen[:limit]], Place(NOW, E) if chosen[limit:] else None

    async def execution(self, execution_id: int, *, with_log: bool) -> Execution:
        if execution_id not in self.shown:
            raise never_seen(execution_id)
        return self.shown[execution_id]

    async def findings(
        self, *, verdict: str | None = None, only_open: bool = False, limit: int
    ) -> tuple[list[Document], int | None]:
        newest = sorted(self._kept(), key=lambda each: each.finding_id, reverse=True)
        chosen = [each for each in newest if verdict in (None, each.verdict)]
        found = [each for each in chosen if each.is_open or not only_open]
        return [documents.finding(each) for each in found[:limit]], None

    async def finding(self, finding_id: int, *, bodies: bool) -> Document:
        found = next(each for each in self._kept() if each.finding_id == finding_id)
        evidence: Any = found.evidence if bodies else documents.without_bodies(found.evidence)
        return {**documents.finding(found), "bodies": bodies, "evidence": evidence}

    def _kept(self) -> list[Kept]:
        return [finding for each in self.shown.values() for finding in each.findings]

    def app(self, token: str | None = TOKEN, place: Bind = LOOPBACK) -> ASGIApp:
        tokened = token is not None
        pages = Pages(self, self.status, lambda: self.opened, tokened=tokened)
        return Faced(application(pages.endpoints(), place, token), tokened=tokened)


HEALTHY: Final = tallies(match=1480)
STATES: Final[dict[str, Given]] = {
    "empty": Given(lambda: told(standing(Coverage(), hours=0.2))),
    "healthy": Given(
        lambda: told(standing(HEALTHY)),
        dict(zip((TWO, LONG, LONGEST), executions(), strict=False)),
    ),
    "divergent": Given(
        lambda: told(
            standing(
                tallies(match=1430, divergent=2, second_writer=1, pending_settle=4),
                findings={"divergent": 2, "second_writer": 1},
                kinds={"payload": 2, "second_writer": 1},
            )
        ),
        {each.held.execution_id: each for each in executions()},
    ),
    "refused": Given(
        lambda: told(
            standing(tallies(match=900, refused_multiple_roots=40, refused_fork=12), dangling_s=4000)
        ),
        {ROOTS: executions()[4]},
    ),
    "pending": Given(
        lambda: told(standing(tallies(match=3, pending_visibility=9, pending=4), hours=0.1, pending_s=61)),
        {WAITING: executions()[6]},
    ),
    "control failed": Given(
        lambda: told(standing(HEALTHY, controls=Controls(340, 2)), "control failed"),
    ),
    "gates off": Given(lambda: told(None, lanes=(), gates=OFF, arming=Arming.OFF), opened=False),
    "Postgres away": Given(lambda: told(standing(HEALTHY), "source unavailable"), {AWAY: executions()[7]}),
}
HEADLINES: Final = {
    "empty": "Nothing was compared yet.",
    "healthy": "Accepted: nothing stands against this run.",
    "divergent": "3 open findings.",
    "refused": "No divergence is open; not accepted yet.",
    "pending": "No divergence is open; not accepted yet.",
    "control failed": "A self-control failed.",
    "gates off": "Off: nothing is followed.",
    "Postgres away": "Not ready: source unavailable.",
}
