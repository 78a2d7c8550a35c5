"""The durable work list: which executions of a step are judged next, and when.

The cursor may pass a row only when it is stored or its execution stands here, written in the
same transaction.  What an entry comes to is decided in `core.due`.  Source: spec 1.8, 2.12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sidecar.core.due import Due, News, Windows, noted, updated
from sidecar.core.populate import Diverged, InSync, StaleLog, Unreadable
from sidecar.core.ports import Populated, Unit, save_due
from sidecar.core.settle import Settled
from sidecar.feed.step import Step


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one step.

    `comparing`: a comparator works them off; without one only what is not stored has an entry.
    """

    step: Step
    windows: Windows
    comparing: bool

    async def note(
        self, unit: Unit, settled: Mapping[int, Settled], populated: Mapping[int, Populated]
    ) -> None:
        """Write the entries of every execution with something new or not stored."""
        gone = set(self.step.batch.gone) if self.step.last else set()
        await self._ask_for(unit, self.step.unreadable)
        executions = tuple(dict.fromkeys((*settled, *gone, *self.step.left)))
        dues = await unit.due(executions)
        for i in executions:
            result, done = settled.get(i), populated.get(i)
            after = updated(
                dues.get(i),
                i,
                self._news(i, result, done, gone=i in gone),
                now=self.step.now,
                verdict_at=None if result is None else result.partition.verdict_at,
                windows=self.windows,
                asked=None if done is None else done.asked(self.step.logs[i].read),
            )
            if after is not None and not self.comparing:
                after = self._without_comparator(i, after, result)
            save_due(unit, i, dues.get(i), after)

    async def _ask_for(self, unit: Unit, executions: Sequence[int]) -> None:
        """Their rows are stored nowhere: their logs have to be read again."""
        dues = await unit.due(executions) if executions else {}
        news, windows = News(rows=1, reread=True), self.windows
        for i in executions:
            unit.put_due(noted(dues.get(i), i, news, now=self.step.now, verdict_at=None, windows=windows))

    def _news(
        self, execution_id: int, result: Settled | None, populated: Populated | None, *, gone: bool
    ) -> News:
        """What an older verdict must not take away: rows shown, questions open.

        A chain that grew by a piece of a poll is asked for again: a later piece of the snapshot may
        hold a second root or a changed body, and what is served between them the log never was.
        Rows that a log read has shown are delivered like rows of a lane.  Other bytes and a
        read that was cut are flags; a log that has fewer rows counts as one.
        """
        news = News() if result is None else result.news
        news = replace(
            news,
            rows=news.rows + (0 if result is None else result.shown),
            question=gone or self._open_question(execution_id, populated),
            listed=self._catch_up_needs_entry(execution_id, populated),
        )
        if result is not None and result.run and execution_id in self.step.rows and self.step.batch.more:
            news = replace(news, reread=True)
        if populated is not None and isinstance(populated.outcome, Diverged):
            return replace(news, changed=True)
        if execution_id in self.step.left or (populated is None and execution_id in self.step.logs):
            return replace(news, reread=True)
        stale = populated is not None and isinstance(populated.outcome, StaleLog)
        return replace(news, rows=max(1, news.rows)) if gone or stale else news

    def _without_comparator(self, execution_id: int, due: Due, result: Settled | None) -> Due | None:
        """The entry if something is not stored; behind the others once its log was read."""
        if not _unstored(due, result):
            return None
        asked = execution_id in self.step.logs or execution_id in self.step.left
        return replace(due, due_at=self.step.now + self.windows.settle) if asked else due

    def _open_question(self, execution_id: int, populated: Populated | None) -> bool:
        """Whether only the comparator can say what this populate came to."""
        if populated is not None:
            return isinstance(populated.outcome, Diverged | StaleLog | Unreadable)
        return execution_id in self.step.logs  # truncated

    def _catch_up_needs_entry(self, execution_id: int, populated: Populated | None) -> bool:
        """A lane's log read: what was stored and is older than lookback is the audit's."""
        log = self.step.logs.get(execution_id)
        if log is None:
            return False
        if populated is None or not populated.synced:
            return True
        young = log.newest_at is None or log.newest_at >= self.step.batch.server_now - self.windows.lookback
        return young and isinstance(populated.outcome, InSync) and populated.outcome.appended > 0


def _unstored(due: Due, result: Settled | None) -> bool:
    held = result is not None and result.partition.held > 0
    return held or due.reread is not None or due.changed is not None
