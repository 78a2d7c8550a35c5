"""Which executions an operator has left out, by the path of their playbook.

The path stands in the event that starts an execution: a root of one of the start types, whose
node_name it is.  A pattern is the whole path, `*` stands for any text and `?` for one character.
What does not show such an event is never left out: nothing is silent because it cannot be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sidecar.core.event import Event
from sidecar.core.jsonvalue import parsed, text_at

START_EVENT_TYPES: Final = frozenset({"playbook_started", "playbook.started", "playbook.initialized"})
"""The spellings whose node_name is the playbook's path.  Source: spec 1.1, 1.4."""


EXCLUDED: Final = "excluded"
"""What stands in the place of a verdict: nobody judged, and nobody is to."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The patterns of NOETL_CHAIN_EXCLUDE; without one nothing is left out."""

    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def covers(self, events: Iterable[Event] | None, verdict: str | None = None) -> bool:
        """Whether an execution is left out.

        Args:
            events: Of its log or its chain, the start among them; None: they could not be read.
            verdict: What stands in its record; it decides where nothing could be read.
        """
        if not self.patterns:
            return False
        if events is None:
            return verdict == EXCLUDED
        paths = list(_paths(events))
        return bool(paths) and all(any(_matches(each, path) for each in self.patterns) for path in paths)


NOBODY: Final = Exclusion()


def _paths(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        if event.prev_event_id is None and event.event_type in START_EVENT_TYPES:
            path = text_at(parsed(event.body) or {}, "node_name")
            if path is not None:
                yield path.lstrip("/")


def _matches(pattern: str, path: str) -> bool:
    return _expression(pattern).fullmatch(path) is not None


@lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(c) or re.escape(c) for c in pattern.lstrip("/")), re.DOTALL)
