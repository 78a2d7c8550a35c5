"""When an execution is judged next.

A durable entry stands for every execution with something new.  Flags are only added; a final
verdict whose log read began after the last row removes the entry, a retry verdict keeps it
with a growing pause.  Times are microseconds of the store's clock.  Source: spec 2.12, 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sidecar.core.verdict import PENDING, RETRY, Verdict

SECOND: Final = 1_000_000
RETRY_PAUSE_MAX: Final = 300 * SECOND


@dataclass(frozen=True, slots=True)
class Windows:
    """The pauses of spec 3.5 in microseconds, and one count."""

    tick: int = 5 * SECOND
    settle: int = 120 * SECOND
    dangling: int = 120 * SECOND
    lookback: int = 3600 * SECOND
    stale_max_ticks: int = 3


@dataclass(frozen=True, slots=True)
class Due:
    """One entry of the work list.

    `reread`, `changed`, `labelled` and `terminal_seen` hold the time they were set, None
    when they are not; each makes the entry due at once until a verdict whose log read began
    later.  `pending_key` names the open question of a pending verdict, `pending_since` when it
    was first seen: failed reads in between leave both.  `tries` counts retry verdicts in a row.
    """

    execution_id: int
    due_at: int
    reread: int | None = None
    changed: int | None = None
    labelled: int | None = None
    first_seen_at: int | None = None
    last_row_at: int | None = None
    terminal_seen: int | None = None
    pending_key: str | None = None
    pending_since: int | None = None
    tries: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """What one batch or one log read brought for one execution.

    `question`: only a verdict can say what it came to.  `listed`: nothing is new, and yet an
    entry has to stand.
    """

    rows: int = 0
    terminal: bool = False
    reread: bool = False
    changed: bool = False
    labelled: bool = False
    question: bool = False
    listed: bool = False

    @property
    def at_once(self) -> bool:
        """Whether the next tick must judge it."""
        return self.reread or self.changed or self.labelled or self.terminal or self.question


@dataclass(frozen=True, slots=True)
class Asked:
    """The log read behind a step: when it began, and whether rows 2 or 6-8 of spec 2.8 were written.

    `cleared_bar`: that populate cleared a label or a revocation.
    """

    began_at: int
    synced: bool = False
    cleared_bar: bool = False


@dataclass(frozen=True, slots=True)
class Ruled:
    """A verdict, and the open question behind a pending one with the time it was first seen."""

    verdict: Verdict
    pending_key: str | None = None
    pending_since: int | None = None


def updated(
    due: Due | None,
    execution_id: int,
    news: News,
    *,
    now: int,
    verdict_at: int | None,
    windows: Windows,
    asked: Asked | None = None,
    ruled: Ruled | None = None,
) -> Due | None:
    """The entry after everything that one transaction brought; None: there is none.

    In this order: what the log read has answered, the verdict on it, what is new besides.  So
    what came while the log was read outlives the verdict.

    Args:
        due: The entry as it stands, None for none.
        asked: The log read of this transaction that was populated from.
        ruled: The verdict of this transaction; `asked` is the read behind it.
        verdict_at: When the execution was last judged, this verdict included; None for never.

    Source: spec 2.12.
    """
    if due is not None and asked is not None and asked.synced:
        due = populated(due, read_began_at=asked.began_at, cleared_bar=asked.cleared_bar, now=now)
    if asked is not None and ruled is not None and (due is not None or ruled.verdict in RETRY):
        due = judged(
            # What is to be asked again needs an entry, whoever asked the first time.
            due or Due(execution_id, due_at=now, first_seen_at=now),
            ruled.verdict,
            read_began_at=asked.began_at,
            now=now,
            windows=windows,
            pending_key=ruled.pending_key,
            pending_since=ruled.pending_since,
        )
    if news == News():
        return due
    return noted(due, execution_id, news, now=now, verdict_at=verdict_at, windows=windows)


def noted(
    due: Due | None,
    execution_id: int,
    news: News,
    *,
    now: int,
    verdict_at: int | None,
    windows: Windows,
) -> Due:
    """The entry after `news`; flags are only added.

    Args:
        due: The entry as it stands, None for none.
        verdict_at: When the execution was last judged, None for never.
    """
    if due is None:
        first = now if verdict_at is None else max(now, verdict_at + windows.settle)
        due = Due(execution_id, due_at=first, first_seen_at=now)
    elif due.tries and news.rows:
        due = replace(due, tries=0, due_at=min(due.due_at, now))
    noted = replace(
        due,
        reread=_set(due.reread, news.reread, now),
        # A later change must outlive a verdict on an earlier one, so the time moves.
        changed=now if news.changed else due.changed,
        labelled=now if news.labelled else due.labelled,
        terminal_seen=now if news.terminal else due.terminal_seen,
        last_row_at=now if news.rows else due.last_row_at,
    )
    return replace(noted, due_at=min(noted.due_at, now)) if news.at_once else noted


def _set(mark: int | None, wanted: bool, now: int) -> int | None:
    return now if wanted else mark


def judged(
    due: Due,
    verdict: Verdict,
    *,
    read_began_at: int,
    now: int,
    windows: Windows,
    pending_key: str | None = None,
    pending_since: int | None = None,
) -> Due | None:
    """The entry after a verdict; None: it is done.

    Args:
        read_began_at: When the log read behind the verdict began.
        pending_key: The open question behind a pending verdict.
        pending_since: When that question was first seen.

    Source: spec 2.12 ("Flags", "final", "retry").
    """
    marked = any(mark is not None and mark > read_began_at for mark in _marks(due))
    # These two ask for one verdict, of whatever kind, on a read that began after them.
    due = replace(
        due,
        labelled=_later(due.labelled, read_began_at),
        terminal_seen=_later(due.terminal_seen, read_began_at),
    )
    if verdict in RETRY:
        if verdict in PENDING:
            due = replace(due, pending_key=pending_key, pending_since=pending_since)
        at = now if marked else _next_try(due, verdict, now, windows)
        return replace(due, tries=due.tries + 1, due_at=at)
    rows_came = due.last_row_at is not None and due.last_row_at > read_began_at
    if not marked and not rows_came:
        # A read that was cut says nothing of what a flag asks; it stays, and waits.
        flagged = due.reread is not None or due.changed is not None
        if verdict is Verdict.LOG_TRUNCATED and flagged:
            return replace(due, tries=0, due_at=now + windows.settle)
        return None
    return replace(
        due,
        changed=_later(due.changed, read_began_at),
        tries=0,
        pending_key=None,
        pending_since=None,
        due_at=now if marked else now + windows.settle,
    )


def _marks(due: Due) -> tuple[int | None, ...]:
    return due.reread, due.changed, due.labelled, due.terminal_seen


def _next_try(due: Due, verdict: Verdict, now: int, windows: Windows) -> int:
    at = now + min(windows.tick << min(due.tries, 30), RETRY_PAUSE_MAX)
    if verdict is Verdict.PENDING_VISIBILITY and due.pending_since is not None:
        return min(at, max(now, due.pending_since + windows.dangling))
    return at


def _later(mark: int | None, than: int) -> int | None:
    return mark if mark is not None and mark > than else None


def populated(due: Due, *, read_began_at: int, cleared_bar: bool, now: int) -> Due:
    """The entry after rows 2 or 6-8 of spec 2.8 were written.

    Args:
        cleared_bar: The populate cleared a label or a revocation; rows that came after the
            read began were then not pooled, so the log has to be read again.
    """
    due = replace(due, reread=_later(due.reread, read_began_at))
    missed = due.last_row_at is not None and due.last_row_at > read_began_at
    if cleared_bar and missed:
        return replace(due, reread=now, due_at=min(due.due_at, now))
    return due
