"""Keeping findings, statement by statement: what is asked, what is written, and when room is made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sidecar.core.evidence import Finding
from sidecar.store import findings
from sidecar.store.connection import Row
from tests.unit.core.build import E
from tests.unit.store.statements import Statements

NOW = 77
KEY = (findings._BYTES_KEY,)
TOLD = Finding(E, "divergent", {"a": "é"}, kind="payload", position=3, detail="d", log_event_id=4)
TEXT = '{"a":"é","lanes":[]}'
SIZE = len(TEXT.encode())
BARE = Finding(E, "log_lost", settled=True)


def store(
    *,
    counted: int | None = 0,
    found: int = 1,
    standing: Sequence[Row] = (),
    to_go: Sequence[Row] = (),
    by_age: Sequence[Row] = (),
    lanes: Sequence[Row] = (),
    summed: int = 0,
) -> Statements:
    return Statements(
        {
            findings._BYTES: [] if counted is None else [(str(counted),)],
            findings._SUM: [(summed,)],
            findings._COUNT: [(found,)],
            findings.STANDING: standing,
            findings._SIZE_OF: [(5,)],
            findings._TO_GO: to_go,
            findings._BY_AGE: by_age,
            findings._LANES: lanes,
        }
    )


async def note(rows: Statements, *found: Finding, matched: Sequence[int] = (), most: int = 1000) -> int:
    return await findings.note(rows, found, matched, NOW, most)


async def test_where_nothing_is_found_only_what_matched_is_resolved() -> None:
    rows = store()
    assert await note(rows, matched=(1, 2)) == 0
    assert rows.said == [(findings.RESOLVE, (NOW, "[1, 2]"))]
    rows = store()
    assert (await note(rows), rows.said) == (0, [])


async def test_a_new_finding_is_written_with_its_place_and_its_bytes_are_counted() -> None:
    rows = store(counted=10)
    assert await note(rows, TOLD) == 0
    assert rows.said == [
        (findings.INDEX, ()),
        (findings._LANES, (findings.LANES_MAX,)),
        (findings._BYTES, KEY),
        (findings.STANDING, (E, "divergent", "payload")),
        (findings._INSERT, (E, "divergent", "payload", 3, "d", "4", None, TEXT, NOW, None)),
        (findings._COUNT, ()),
        (findings._PUT_BYTES, (*KEY, str(10 + SIZE))),
    ]


async def test_a_finding_without_evidence_has_no_bytes_and_a_settled_one_is_no_question() -> None:
    rows = store(counted=10)
    await note(rows, BARE)
    assert (findings._INSERT, (E, "log_lost", None, None, "", None, None, None, NOW, NOW)) in rows.said
    assert rows.said[-1] == (findings._PUT_BYTES, (*KEY, "10"))


async def test_a_finding_that_stands_is_brought_up_to_date_and_its_old_bytes_go() -> None:
    rows = store(counted=10, standing=[(8, 3, "4", None, 0, "before")])
    await note(rows, TOLD)
    assert (findings._SIZE_OF, (8,)) in rows.said
    assert (findings._UPDATE, (8, 3, "d", "4", None, TEXT)) in rows.said
    assert rows.said[-1] == (findings._PUT_BYTES, (*KEY, str(10 + SIZE - 5)))


async def test_bytes_that_nobody_has_counted_are_counted_once() -> None:
    rows = store(counted=None, summed=40)
    await note(rows, BARE)
    assert (findings._SUM, ()) in rows.said
    assert rows.said[-1] == (findings._PUT_BYTES, (*KEY, "40"))
    rows = store(counted=0)
    await note(rows, BARE)
    assert findings._SUM not in [sql for sql, _ in rows.said]


async def test_lanes_are_told_with_ids_as_texts_and_what_is_unknown_as_null() -> None:
    rows = store(lanes=[("live", 2**60, "e", 5), ("wal", None, None, None)])
    await note(rows, TOLD)
    (text,) = [said[7] for sql, said in rows.said if sql == findings._INSERT]
    assert text == (
        '{"a":"é","lanes":[{"lane":"live","horizon":"1152921504606846976","epoch":"e","polled_at":5},'
        '{"lane":"wal","horizon":null,"epoch":null,"polled_at":null}]}'
    )


async def test_findings_above_their_number_go_down_to_seven_eighths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "FINDINGS_MAX", 10)
    rows = store(counted=100, found=10)
    assert await note(rows, BARE) == 0
    assert findings._TO_GO not in [sql for sql, _ in rows.said], "as many as may be"
    rows = store(counted=100, found=11, to_go=[(1, 0), (2, 1), (3, 50)])
    assert await note(rows, BARE) == 2, "one of them had no evidence"
    assert (findings._TO_GO, (11 - 8,)) in rows.said
    assert (findings._DELETE, ("[1, 2, 3]",)) in rows.said
    assert rows.said[-1] == (findings._PUT_BYTES, (*KEY, str(100 - 51)))


async def test_evidence_above_its_bytes_goes_down_to_seven_eighths(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = store(counted=80)
    assert await note(rows, BARE, most=80) == 0
    assert findings._BY_AGE not in [sql for sql, _ in rows.said], "as many as may be"
    rows = store(counted=90, by_age=[(1, 10), (2, 10), (3, 10)])
    assert await note(rows, BARE, most=80) == 2, "70 are seven eighths"
    assert (findings._BY_AGE, ()) in rows.said
    assert (findings._BARE, ("[1, 2]",)) in rows.said
    assert rows.said[-1] == (findings._PUT_BYTES, (*KEY, "70"))
    monkeypatch.setattr(findings, "FINDINGS_MAX", 10)
    rows = store(counted=100, found=11, to_go=[(1, 5)], by_age=[(2, 40)])
    assert await note(rows, BARE, most=80) == 2, "both bounds at once"
