"""What the controls play: small chains with one planted defect each, and what must come of them.

Ids do not rise along the chain, so whoever sorts is seen.  The second half of a chain folds to
nothing, so that a row more or less there changes no state and each defect shows alone.
Source: spec 3.7; the kinds 3.2, the other names 3.3, 3.4, 3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sidecar.core.authority import StoredEvent
from sidecar.core.event import Event
from sidecar.core.verdict import Kind, Verdict

Events = tuple[Event, ...]
Told = Callable[[int], Events]
"""The events of a case, made for the execution that it is played as."""
Changed = Callable[[Events], Events]


@dataclass(frozen=True, slots=True)
class Round:
    """The log's answers, read by read, and the verdict that must stand after the last of them.

    `served`: whether the partition may still be served afterwards.  `met`: the log's event that
    populate itself has to name; whoever leaves the content to the axes would not.
    """

    reads: tuple[Told, ...]
    verdict: Verdict
    kinds: tuple[Kind, ...] = ()
    served: bool = False
    met: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One execution.

    `planted`: what the store holds before; `foreign`: the last row of it was never read from a
    log.  `grows`: rows that somebody stores between the first read and the second.  `serve`:
    what is read back, made of what is stored.  `young`: the tail saw it a moment ago.
    """

    rounds: tuple[Round, ...]
    planted: Told | None = None
    foreign: bool = False
    grows: Told | None = None
    serve: Changed | None = None
    young: bool = False

    def stored(self, execution_id: int, now: int) -> Iterator[StoredEvent]:
        """The rows before the first round."""
        events = () if self.planted is None else self.planted(execution_id)
        for seq, event in enumerate(events, start=1):
            strange = self.foreign and seq == len(events)
            yield StoredEvent(seq, event, None if strange else "log", None if strange else now)

    def grown(self, execution_id: int, now: int) -> Iterator[StoredEvent]:
        """The rows of `grows`, behind those of `planted`."""
        if self.planted is None or self.grows is None:
            return
        start = len(self.planted(execution_id)) + 1
        for seq, event in enumerate(self.grows(execution_id), start=start):
            yield StoredEvent(seq, event, "log", now)


@dataclass(frozen=True, slots=True)
class Control:
    """A name, and the cases that must all come out as they are told."""

    name: str
    cases: tuple[Case, ...]


def _event(
    execution_id: int, event_id: int, prev: int | None, kind: str = "control.step", context: str = "{}"
) -> Event:
    body = f'{{"event_id":{event_id},"event_type":"{kind}","context":{context}}}'
    return Event(execution_id, event_id, prev, None, kind, body)


def _log(execution_id: int) -> Events:
    return (
        _event(execution_id, 40, None, "playbook_started", '{"workload":{"n":1}}'),
        _event(execution_id, 10, 40),
        _event(execution_id, 30, 10),
        _event(execution_id, 20, 30),
    )


def _changed(at: int, **fields: Any) -> Changed:
    """Another event at one place, which differs in `fields` alone."""

    def change(events: Events) -> Events:
        other = msgspec.structs.replace(events[at], **fields)
        return tuple(other if event is events[at] else event for event in events)

    return change


def _placed(*places: int) -> Changed:
    return lambda events: tuple(events[place] for place in places)


def _more(events: Events) -> Events:
    """One event that nobody wrote."""
    return (*events, _event(events[0].execution_id, 50, events[-1].event_id))


def _of_log(change: Changed) -> Told:
    return lambda execution_id: change(_log(execution_id))


_MATCH: Final = Round((_log,), Verdict.MATCH, served=True)
_OTHER_BODY: Final = _changed(1, body='{"event_id":10,"event_type":"control.step","context":{"n":1}}')
_OTHER_STATE: Final = _changed(
    0, body='{"event_id":40,"event_type":"playbook_started","context":{"workload":{"n":2}}}'
)
_UNREADABLE: Final = _changed(2, body="{")
_SHORT: Final = _of_log(_placed(0, 1))
_GAPPED: Final = _of_log(_placed(0, 1, 3))


def _divergent(*kinds: Kind, reads: Sequence[Told] = (_log,), met: int | None = None) -> tuple[Round, ...]:
    return (Round(tuple(reads), Verdict.DIVERGENT, kinds, met=met),)


def _misread(change: Changed, *kinds: Kind) -> Case:
    """Stored as it should be, and read back otherwise."""
    return Case(_divergent(*kinds), serve=change)


def _stored(change: Changed, kind: Kind, met: int) -> Case:
    """Stored otherwise, first where the log has the event `met`."""
    return Case(_divergent(kind, met=met), planted=_of_log(change))


CONTROLS: Final = (
    Control("identical", (Case((_MATCH,)), Case((_MATCH,), planted=_log))),
    Control("missing_execution", (_misread(_placed(), Kind.MISSING_EXECUTION),)),
    Control("count", (_misread(_placed(0, 1, 2, 3, 3), Kind.COUNT),)),
    Control("missing_event", (_misread(_placed(0, 1, 2, 2), Kind.MISSING_EVENT),)),
    Control("extra_event", (_misread(_more, Kind.COUNT, Kind.EXTRA_EVENT),)),
    Control("order", (_misread(_placed(0, 2, 1, 3), Kind.ORDER),)),
    Control(
        "edge",
        (
            _stored(_changed(3, prev_event_id=10), Kind.EDGE, 20),
            _misread(_changed(3, prev_event_id=10), Kind.EDGE),
        ),
    ),
    Control(
        "parent",
        (
            _stored(_changed(1, parent_execution_id=9), Kind.PARENT, 10),
            _misread(_changed(1, parent_execution_id=9), Kind.PARENT),
        ),
    ),
    Control("payload", (_stored(_OTHER_BODY, Kind.PAYLOAD, 10), _misread(_OTHER_BODY, Kind.PAYLOAD))),
    Control(
        "state",
        (
            _misread(_changed(3, event_type="playbook.completed"), Kind.STATE),
            _misread(_OTHER_STATE, Kind.PAYLOAD, Kind.STATE),
        ),
    ),
    Control(
        "unidentified",
        (
            Case(_divergent(Kind.UNIDENTIFIED, reads=(_of_log(_UNREADABLE),))),
            _misread(_UNREADABLE, Kind.PAYLOAD, Kind.UNIDENTIFIED),
        ),
    ),
    Control("conflict", (_stored(_placed(0, 2, 1, 3), Kind.CONFLICT, 10),)),
    Control(
        "second_writer",
        (
            Case(
                (Round((_log, _log), Verdict.SECOND_WRITER, (Kind.SECOND_WRITER,)),),
                planted=_of_log(_more),
                foreign=True,
            ),
        ),
    ),
    Control("stale_resolves", (Case((Round((_SHORT, _log), Verdict.MATCH, served=True),), planted=_log),)),
    Control(
        "multiple_roots",
        (
            Case(
                (
                    Round(
                        (_of_log(_changed(2, prev_event_id=None)),),
                        Verdict.REFUSED_MULTIPLE_ROOTS,
                    ),
                )
            ),
        ),
    ),
    Control("dangling_then_heals", (Case((Round((_GAPPED,), Verdict.PENDING_VISIBILITY), _MATCH)),)),
    Control(
        "pending_publishes_nothing",
        (
            # Short in what is read back, young and in motion.
            Case((Round((_log,), Verdict.PENDING_SETTLE, served=True),), serve=_placed(0, 1, 2), young=True),
            Case((Round((_GAPPED,), Verdict.PENDING_VISIBILITY),), young=True),
            # Stale, and when it is asked again the store has moved once more.
            Case(
                (Round((_SHORT, _log), Verdict.PENDING_STALE, served=True),),
                planted=_log,
                grows=lambda i: (_event(i, 50, 20),),
            ),
        ),
    ),
)
"""Every control, in the order in which it is shown."""
