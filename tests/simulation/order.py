"""In which order rows were truly inserted, and what follows from it for restarted executions.

Known from who wrote what and when, never from an xid or a poll.  A piece is what links make of
rows; pieces stand in a true row if each root was inserted after the tip of the piece before had
become visible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from sidecar.core.event import Event


@dataclass(slots=True)
class Inserted:
    """When the rows of one execution were written and became visible, by event id.

    `number`, `shown`: places in one count of everything that was done, a row's first time.
    `began_at`: when the transaction or savepoint that wrote it took its id; `shown_at`: when it
    committed.  Microseconds by the server's clock.
    """

    number: dict[int, int] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)
    began_at: dict[int, int] = field(default_factory=dict)
    shown_at: dict[int, int] = field(default_factory=dict)
    passed_by: set[int] = field(default_factory=set)
    """Rows with an old clock: no poll of the live lane shows them when they become visible."""

    def follows(self, tip: int, root: int) -> bool:
        """Whether `root` was inserted after `tip` was visible."""
        return tip in self.shown and self.number.get(root, -1) > self.shown[tip]

    def in_row(self, rows: Iterable[Event]) -> tuple[Event, ...] | None:
        """The rows in their true order, if they are several pieces of which each follows the one before."""
        found = self.pieces(rows)
        if found is None or len(found) < 2:
            return None
        if not all(self.follows(one[-1].event_id, two[0].event_id) for one, two in pairwise(found)):
            return None
        return tuple(event for piece in found for event in piece)

    def pieces(self, rows: Iterable[Event]) -> list[list[Event]] | None:
        """By the insertion of their roots; None: a fork, a link that leads nowhere, a circle."""
        rows = list(rows)
        ids = {event.event_id for event in rows}
        named = Counter(event.prev_event_id for event in rows if event.prev_event_id is not None)
        if any(count > 1 for count in named.values()) or not named.keys() <= ids:
            return None
        behind = {event.prev_event_id: event for event in rows if event.prev_event_id is not None}
        found = []
        for root in sorted(
            (event for event in rows if event.prev_event_id is None),
            key=lambda event: self.number.get(event.event_id, -1),
        ):
            piece = [root]
            while piece[-1].event_id in behind:
                piece.append(behind[piece[-1].event_id])
            found.append(piece)
        return found if sum(map(len, found)) == len(rows) else None

    def contradicted(self, rows: Iterable[Event]) -> bool:
        """Whether a row could speak against a join that was right when it was found.

        A row behind a tip that became visible after a root that follows the tip; or a fork.
        """
        rows = list(rows)
        roots = [event.event_id for event in rows if event.prev_event_id is None]
        named = Counter(event.prev_event_id for event in rows if event.prev_event_id is not None)
        if len(roots) > 1 and any(count > 1 for count in named.values()):
            return True
        return any(
            event.prev_event_id is not None
            and self.follows(event.prev_event_id, root)
            and (
                event.event_id in self.passed_by
                or self.shown.get(event.event_id, 0) > self.shown.get(root, 0)
            )
            for event in rows
            for root in roots
        )
