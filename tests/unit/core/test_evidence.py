"""What a finding keeps of both sides, for each verdict that leaves one."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest

from sidecar.core import evidence
from sidecar.core.authority import Partition, StoredEvent
from sidecar.core.event import Event
from sidecar.core.evidence import Finding, Rows, Standing, finding, leaves_finding, same_finding
from sidecar.core.links import order_by_links
from sidecar.core.populate import LogRead
from sidecar.core.rejoin import Join
from sidecar.core.verdict import ALARMING, EVIDENCED, PENDING, RETRY, Judgement, Kind, Verdict
from tests.support.changing import replace
from tests.unit.core.build import E, chain, ev, placed

READ = LogRead(100, "epoch-1", 77)
LONG = chain(*range(1, 31))


def found(
    judgement: Judgement, log: Sequence[Event], stored: Sequence[StoredEvent], **changes: Any
) -> Finding:
    made = finding(judgement, log, READ, order_by_links(log), stored, Partition(E), 200)
    return replace(made, **changes)


def ids(made: Finding, side: str) -> list[str]:
    assert made.evidence is not None
    return [row["event_id"] for row in made.evidence[side]["shown"]]


def test_a_payload_is_shown_with_its_neighbours_on_both_sides_and_both_bodies() -> None:
    other = replace(LONG[9], body='{"event_id":10,"note":"other"}')
    log = (*LONG[:9], other, *LONG[10:])
    judged = Judgement(E, Verdict.DIVERGENT, (Kind.PAYLOAD,), 9, 30, 30, "event 10", 10, 10)
    made = found(judged, log, placed(LONG))
    assert ids(made, "log") == ids(made, "store") == ["9", "10", "11", "30"]
    assert (made.kind, made.position, made.log_event_id, made.store_event_id) == ("payload", 9, 10, 10)
    told = made.evidence or {}
    assert (told["log"]["shown"][1]["body"], told["store"]["shown"][1]["body"]) == (other.body, LONG[9].body)
    assert told["store"]["shown"][1]["sha256"] == sha256(LONG[9].body.encode()).hexdigest()
    assert (told["epoch"], told["anchor"], told["log"]["read_at"], told["store"]["read_at"]) == (
        "epoch-1",
        "77",
        100,
        200,
    )
    assert (told["log"]["rows"], told["log"]["order"], told["kinds"]) == (30, "ordered", ["payload"])
    assert told["only_log"] == told["only_store"] == {"count": 0, "first": []}


def test_rows_the_log_lacks_stand_beside_what_the_log_has_in_their_place() -> None:
    foreign = (ev(98, 3), ev(99, 98))
    stored = (
        *placed(chain(1, 2, 3)),
        StoredEvent(4, foreign[0], None, 5),
        StoredEvent(5, foreign[1], "append", 6),
    )
    judged = Judgement(E, Verdict.SECOND_WRITER, (Kind.SECOND_WRITER,), None, 5, 5, "", None, 98)
    made = found(judged, chain(1, 2, 3, 4, 5), stored)
    assert ids(made, "store") == ["3", "98", "99"]
    assert ids(made, "log") == ["4", "5"]
    told = made.evidence or {}
    assert [(row["origin"], row["seen_at"]) for row in told["store"]["shown"]] == [
        ("log", 0),
        (None, 5),
        ("append", 6),
    ]
    assert (told["only_store"], told["only_log"]) == (
        {"count": 2, "first": ["98", "99"]},
        {"count": 2, "first": ["4", "5"]},
    )


@pytest.mark.parametrize(
    ("verdict", "log", "shown"),
    [
        (Verdict.REFUSED_MULTIPLE_ROOTS, (ev(1), ev(2, 1), ev(3), ev(4, 3), ev(5, 4)), ["1", "3", "5"]),
        (Verdict.REFUSED_FORK, (ev(1), ev(2, 1), ev(3, 1), ev(4, 3), ev(5, 4)), ["1", "2", "3", "5"]),
        (Verdict.REFUSED_DANGLING_PREV, (ev(1), ev(2, 1), ev(9, 8), ev(10, 9)), ["9", "10"]),
        (Verdict.REFUSED_NO_ROOT, (ev(1, 2), ev(2, 1)), ["1", "2"]),
        (Verdict.REFUSED_UNREACHABLE, (ev(1), ev(2, 1), ev(3, 4), ev(4, 3), ev(5, 2)), ["3", "4", "5"]),
        (Verdict.REFUSED_DUPLICATE_EVENT, (ev(1), ev(2, 1), ev(2, 1, note="b"), ev(3, 2)), ["2", "2", "3"]),
    ],
)
def test_a_refusal_shows_the_rows_it_is_about(
    verdict: Verdict, log: tuple[Event, ...], shown: list[str]
) -> None:
    made = found(Judgement(E, verdict, log_rows=len(log)), log, ())
    assert ids(made, "log") == shown
    assert all(row["position"] is None for row in (made.evidence or {})["log"]["shown"])


def test_a_gap_of_the_store_shows_the_rows_at_it() -> None:
    stored = tuple(row for row in placed(LONG) if row.exec_seq != 12)
    made = found(Judgement(E, Verdict.REFUSED_STORE_GAP), LONG, stored)
    assert ids(made, "store") == ["11", "13", "14", "30"]


def test_however_many_roots_there_are_the_evidence_is_bounded() -> None:
    roots = tuple(ev(n) for n in range(1, 5001))
    made = found(Judgement(E, Verdict.REFUSED_MULTIPLE_ROOTS), roots, ())
    assert len(ids(made, "log")) <= evidence.SHOWN_MAX
    assert (made.evidence or {})["only_log"] == {"count": 5000, "first": [str(n) for n in range(1, 9)]}


def test_what_is_kept_of_joins_stands_beside_both_sides_and_is_bounded() -> None:
    kept = tuple(Join(E, 10 + n, 100 + n, xid=9, anchor=8, epoch="e", joined_at=7) for n in range(30))
    judged = Judgement(E, Verdict.REJOIN_WITHDRAWN, detail="multiple_roots")
    order = order_by_links(LONG)
    made = finding(judged, LONG, READ, order, placed(LONG), Partition(E), 200, kept)
    told = made.evidence or {}
    assert told["joins"] == [each.document() for each in kept[: evidence.SHOWN_MAX]]
    none = finding(judged, LONG, READ, order, placed(LONG), Partition(E), 200)
    assert "joins" not in (none.evidence or {})


def test_of_many_rows_that_the_log_lacks_the_first_are_shown() -> None:
    judged = Judgement(E, Verdict.SECOND_WRITER, (Kind.SECOND_WRITER,), None, 1, 30, "", None, 2)
    foreign = placed((LONG[0], *(ev(100 + n, 99 + n) for n in range(12))))
    made = found(judged, LONG, foreign)
    assert ids(made, "store")[:-1] == ["1", *(str(100 + n) for n in range(evidence.NAMED_MAX + 1))]


def test_a_body_above_the_size_is_kept_by_hash_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "BODY_MAX_BYTES", 10)
    rows = Rows()
    short, long = rows.row(replace(ev(1), body="ä" * 5), 0), rows.row(replace(ev(2), body="ä" * 6), 1)
    assert (short["body"], short["bytes"]) == ("ä" * 5, 10)
    assert "body" not in long
    assert (long["bytes"], long["sha256"]) == (12, sha256(("ä" * 6).encode()).hexdigest())


def test_bodies_of_one_finding_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "BODIES_MAX_BYTES", 25)
    rows = Rows()
    told = [rows.row(replace(ev(n), body="b" * 10), n) for n in range(4)]
    assert ["body" in row for row in told] == [True, True, False, False]


def test_what_is_asked_again_or_agrees_leaves_no_finding() -> None:
    assert not [verdict for verdict in RETRY | PENDING if leaves_finding(verdict)]
    quiet = {Verdict.MATCH, Verdict.MATCH_REJOINED, Verdict.EMPTY, Verdict.LOG_PRUNED, Verdict.BEHIND}
    assert not [verdict for verdict in quiet if leaves_finding(verdict)]
    assert set(EVIDENCED) >= ALARMING
    assert {verdict for verdict in Verdict if leaves_finding(verdict)} == set(EVIDENCED)


HERE = Finding(E, "divergent", kind="payload", position=3, log_event_id=4, store_event_id=4)


@pytest.mark.parametrize(
    ("standing", "again"),
    [
        ([], None),
        ([Standing(1, (3, 4, 4), acknowledged=False)], 1),
        ([Standing(1, (3, 4, 4), acknowledged=True)], 1),
        ([Standing(1, (2, 3, 3), acknowledged=False)], 1),
        # What was acknowledged elsewhere says nothing of this place.
        ([Standing(1, (2, 3, 3), acknowledged=True)], None),
        ([Standing(1, (2, 3, 3), acknowledged=True), Standing(2, (9, 9, 9), acknowledged=False)], 2),
        ([Standing(1, (9, 9, 9), acknowledged=False), Standing(2, (3, 4, 4), acknowledged=True)], 2),
    ],
)
def test_a_finding_is_the_same_again_unless_the_acknowledged_one_stood_elsewhere(
    standing: list[Standing], again: int | None
) -> None:
    same = same_finding(HERE, standing)
    assert (None if same is None else same.finding_id) == again


def test_where_each_place_counts_another_place_is_another_finding() -> None:
    assert same_finding(replace(HERE, each_place=True), [Standing(1, (2, 3, 3), acknowledged=False)]) is None


def test_what_is_settled_is_always_one_of_its_own() -> None:
    assert same_finding(replace(HERE, settled=True), [Standing(1, HERE.place, acknowledged=False)]) is None


def _diverged(log: Sequence[Event], first: int) -> Finding:
    """Event `first` differs, and perhaps others behind it."""
    at = first - 1
    judged = Judgement(
        E, Verdict.DIVERGENT, (Kind.PAYLOAD,), at, len(log), 30, f"event {first}", first, first
    )
    return found(judged, log, placed(LONG))


def _with(*changed: int, note: str = "other") -> list[Event]:
    return [
        replace(event, body=f'{{"event_id":{event.event_id},"note":"{note}"}}')
        if event.event_id in changed
        else event
        for event in LONG
    ]


def test_an_acknowledged_divergence_covers_no_other_change_at_its_place_or_behind_it() -> None:
    known = _diverged(_with(10), 10)
    standing = [Standing(1, known.place, acknowledged=True, detail=known.detail)]
    assert same_finding(_diverged(_with(10), 10), standing) == standing[0]
    grown = [*_with(10), ev(31, 30)]
    assert same_finding(_diverged(grown, 10), standing) == standing[0], "the execution only went on"
    assert same_finding(_diverged(_with(10, note="third"), 10), standing) is None
    assert same_finding(_diverged(_with(10, 20), 10), standing) is None


def _refused(verdict: Verdict, label: str, *more: Event) -> Finding:
    return found(Judgement(E, verdict, detail=label), (*chain(1, 2, 3), *more), placed(chain(1, 2, 3)))


def test_an_acknowledged_refusal_covers_no_further_root_and_no_further_branch() -> None:
    roots = Verdict.REFUSED_MULTIPLE_ROOTS, "multiple_roots"
    known = _refused(*roots, ev(7, None))
    standing = [Standing(1, known.place, acknowledged=True, detail=known.detail)]
    assert same_finding(_refused(*roots, ev(7, None), ev(8, 7)), standing) == standing[0]
    assert same_finding(_refused(*roots, ev(7, None), ev(9, None)), standing) is None
    fork = Verdict.REFUSED_FORK, "fork"
    known = _refused(*fork, ev(7, 2))
    standing = [Standing(1, known.place, acknowledged=True, detail=known.detail)]
    assert same_finding(_refused(*fork, ev(7, 2), ev(8, 7)), standing) == standing[0]
    assert same_finding(_refused(*fork, ev(7, 2), ev(9, 2)), standing) is None


# -- every field of what is kept


def test_a_row_is_told_by_its_columns_and_its_place() -> None:
    log = (ev(1), ev(2, 1, parent=6, kind="playbook.failed"), ev(3, 2))
    other = (log[0], replace(log[1], body='{"event_id":2,"note":"other"}'), log[2])
    judged = Judgement(E, Verdict.DIVERGENT, (Kind.PAYLOAD,), 1, 3, 3, "event 2", 2, 2)
    made = found(judged, log, placed(other))
    told = made.evidence or {}
    for side in ("log", "store"):
        assert [row["position"] for row in told[side]["shown"]] == [0, 1, 2]
        row = told[side]["shown"][1]
        assert (row["event_id"], row["prev_event_id"], row["parent_execution_id"], row["event_type"]) == (
            "2",
            "1",
            "6",
            "playbook.failed",
        )
        assert told[side]["shown"][0]["prev_event_id"] is None
        assert told[side]["rows"] == 3
    assert (made.execution_id, made.verdict, made.partition) == (E, "divergent", Partition(E))


def test_a_log_that_is_no_chain_has_no_places() -> None:
    log = (ev(1), ev(2, 1), ev(9))
    judged = Judgement(E, Verdict.REFUSED_MULTIPLE_ROOTS, (), None, 3, 2, "")
    told = found(judged, log, placed(chain(1, 2))).evidence or {}
    assert {row["position"] for row in told["log"]["shown"]} == {None}


def test_as_many_as_are_named_are_named_and_the_others_counted() -> None:
    ids = tuple(range(1, evidence.NAMED_MAX + 3))
    named = ", ".join(map(str, ids[: evidence.NAMED_MAX]))
    assert evidence._listed(ids[: evidence.NAMED_MAX]) == named
    assert evidence._listed(ids[:-1]) == f"{named} and 1 more"
    assert evidence._listed(ids) == f"{named} and 2 more"
