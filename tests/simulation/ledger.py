"""What the verdict of each execution has to be, and what may be said of it on the way.

Decided from what was done to log and store, never from what the program thinks of it: the
order of links is the contract suite's own.  Source: spec 2.7, 2.8, 3.3, 3.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sidecar.core.authority import StoredEvent
from sidecar.core.event import Event
from tests.contract.model import ordered
from tests.simulation.script import DANGLING_S, READ_LIMIT
from tests.simulation.world import Facts, State

SLACK_US = 1_000
QUIET = frozenset(
    {"pending_visibility", "pending_stale", "pending_settle", "log_read_failed", "populate_failed"}
)
"""Verdicts that say nothing yet."""


def expected(facts: Facts, stored: Sequence[StoredEvent]) -> frozenset[str]:
    """The verdict when all is quiet, from the log as it stands and the rows the store holds."""
    log = {event.event_id: event for event in facts.log}
    ours = {row.event.event_id: row.event for row in stored}
    absent = [event_id for event_id in ours if event_id not in log]
    if len(log) >= READ_LIMIT:
        return frozenset({"log_truncated"})
    if absent:
        answers = {_absent(facts, absent, log, stored)}
        if unsafe(facts):
            answers.add("log_lost")
        if facts.row_at <= facts.meddled_at:
            # Neither a DELETE nor a row put into the store is seen before the next row, or the audit.
            answers |= _once(facts)
        return frozenset(answers)
    if not log:
        # Nothing was stored of it, and nobody told us that it went: what it was before stands.
        return frozenset({"log_pruned", *_once(facts)})
    shape = verdict_of(log.values())
    changed = any(log[event_id] != event for event_id, event in ours.items())
    verdict = "divergent" if changed and shape == "match" else shape
    # What was gone and has come back is asked again with its next row.
    answers = {verdict, *rejoined(facts, facts.log)}
    if facts.row_at < facts.taken_at:
        # None of the rows that left was stored, and nobody looks before the next row.
        answers |= _once(facts)
    if changed and "match_rejoined" in answers:
        answers.add("divergent")
    if verdict != "match" and any({tip, root} <= log.keys() for tip, root in _spoken_against(facts, log)):
        answers = {"rejoin_withdrawn"}
    if facts.left:
        answers.add("log_pruned")
    if facts.left and facts.crashed:
        answers.add("log_lost")
    return frozenset(answers)


def _once(facts: Facts) -> set[str]:
    """What it had to be called in any state that it was in."""
    states = [state for _, state in facts.states]
    return {verdict_of(state) for state in states}.union(*(rejoined(facts, state) for state in states))


def rejoined(facts: Facts, state: State) -> set[str]:
    """What pieces may be called; what was seen of them decides, which is not looked at."""
    may: set[str] = set()
    if facts.rejoin and verdict_of(state).startswith("refused"):
        may |= {"match_rejoined"} if facts.inserted.in_row(state) is not None else set()
        may |= {"rejoin_withdrawn"} if facts.inserted.contradicted(facts.all.values()) else set()
    return may


def _spoken_against(facts: Facts, log: dict[int, Event]) -> set[tuple[int, int]]:
    """Joins that were published, and a row of the log says that they cannot be."""
    named = Counter(event.prev_event_id for event in log.values() if event.prev_event_id is not None)
    forked = any(count > 1 for count in named.values())
    return {(tip, root) for tip, root in facts.published if forked or tip in named}


def _absent(facts: Facts, absent: list[int], log: dict[int, Event], stored: Sequence[StoredEvent]) -> str:
    if facts.lost.issuperset(absent):
        return "log_lost"
    if stored[0].event.event_id not in log and stored[0].event.event_id not in facts.foreign:
        return "log_pruned"
    return "second_writer"


def unsafe(facts: Facts) -> bool:
    """Whether rows were taken away in a way that nobody can tell from a crash's."""
    return facts.crashed and (facts.left or bool(facts.deleted))


def verdict_of(rows: Iterable[Event]) -> str:
    """The verdict that a log of this shape has to get when it stays as it is."""
    rows = list(rows)
    if len(rows) >= READ_LIMIT:
        return "log_truncated"
    label, _ = ordered(rows)
    return "match" if label == "ordered" else f"refused_{label}"


def unplanted(facts: Facts, verdict: str, now: int) -> str | None:
    """Why a verdict may not be given now; None: it may.

    `now` is the server's clock.
    """
    told = {
        "divergent": bool(facts.updated | facts.foreign),
        # A partition left with some of the rows, and others had come into DEFAULT meanwhile.
        "second_writer": bool(facts.deleted | facts.foreign) or (facts.left and bool(facts.log)),
        "log_lost": bool(facts.lost) or unsafe(facts),
        "log_pruned": facts.left or bool(facts.deleted | facts.lost),
    }
    if verdict in told:
        return None if told[verdict] else f"{verdict} and nobody did that"
    if verdict in QUIET:
        return None
    if verdict == "match_rejoined":
        right = facts.rejoin and any(facts.inserted.in_row(state) is not None for _, state in facts.states)
        return None if right else "match_rejoined and its pieces never stood in a row"
    if verdict == "rejoin_withdrawn":
        right = facts.rejoin and any(facts.inserted.contradicted(state) for _, state in facts.states)
        return None if right else "rejoin_withdrawn and no row spoke against a join"
    if verdict == "refused_dangling_prev":
        return _too_early(facts, now)
    if any(verdict_of(state) == verdict or _labelled(state, verdict) for _, state in facts.states):
        return None
    return f"{verdict} and the log never looked like that"


def _labelled(state: Iterable[Event], verdict: str) -> bool:
    """Whether rows show what is labelled at once, whatever else they show."""
    prevs = Counter(event.prev_event_id for event in state)
    roots = prevs.pop(None, 0)
    return (verdict == "refused_multiple_roots" and roots > 1) or (
        verdict == "refused_fork" and any(count > 1 for count in prevs.values())
    )


def _too_early(facts: Facts, now: int) -> str | None:
    """A dangling link is refused only when it has been standing for the window."""
    since: int | None = None
    for at, state in facts.states:
        if facts.left and not state:
            continue  # a partition that was away for a moment; nobody has to have seen it
        # Nobody has to have seen what a crash took along.
        kept = [event for event in state if event.event_id not in facts.lost]
        if "refused_dangling_prev" not in (verdict_of(state), verdict_of(kept)):
            since = None
        else:
            since = min(at if since is None else since, _waiting_since(facts, state, at))
        if since is not None and _until(facts, at, now) - since >= DANGLING_S * 1e6 - SLACK_US:
            return None
    return "a dangling link was refused before its window was over"


def _waiting_since(facts: Facts, state: State, now: int) -> int:
    """When a row was first seen whose predecessor was deleted: its window runs from there (spec 3.5)."""
    ids = {event.event_id for event in state}
    waiting = {event for event in state if event.prev_event_id in facts.deleted - ids}
    return min((at for at, before in facts.states if waiting & before), default=now)


def _until(facts: Facts, at: int, now: int) -> int:
    """When the state that began at `at` could last be read; see `_too_early` for what is empty."""
    followed = (later for later, state in facts.states if later > at and (state or not facts.left))
    return next(followed, now)
