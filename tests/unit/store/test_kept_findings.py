"""What the store itself puts into a finding, field by field; and a projection's record as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.core.evidence import Standing
from sidecar.errors import Invalid
from sidecar.store import findings
from sidecar.store.events import Clash
from sidecar.store.projection import Record
from sidecar.store.replication import _forked, _replaced
from tests.support.changing import replace
from tests.unit.core.build import E, chain, ev, placed

WIDE = 9_007_199_254_740_993


def test_a_fork_is_kept_with_both_rows_in_their_places() -> None:
    (came,) = placed((ev(7, 6, note="came"),))
    (stands,) = placed((ev(8, 6, note="stands"),))
    clash = Clash(replace(came, exec_seq=3), replace(stands, exec_seq=3))
    found = _forked(clash, 99)
    assert (found.execution_id, found.position, found.each_place) == (E, 2, True)
    assert (found.log_event_id, found.store_event_id, found.detail) == (7, 8, str(clash.error))
    assert found.evidence is not None
    assert found.evidence.keys() == {"kinds", "log", "store"}
    assert found.evidence["kinds"] == []
    for side, event_id in (("log", "7"), ("store", "8")):
        told = found.evidence[side]
        assert (told["rows"], told["read_at"]) == (1, 99)
        assert [(row["event_id"], row["position"]) for row in told["shown"]] == [(event_id, 2)]


def test_what_a_rebuild_replaces_is_kept_with_its_bodies() -> None:
    stored = placed(chain(1, 2))
    found = _replaced(E, stored, 99)
    assert (found.execution_id, found.settled) == (E, True)
    assert found.detail == "rebuilt in the store that this one follows"
    assert found.evidence is not None
    assert found.evidence.keys() == {"kinds", "log", "store"}
    assert found.evidence["log"] == {"rows": 0, "read_at": 99, "order": None, "shown": []}
    assert (found.evidence["store"]["rows"], found.evidence["store"]["read_at"]) == (2, 99)
    assert [row["body"] for row in found.evidence["store"]["shown"]] == [row.event.body for row in stored]


def test_the_ids_of_a_record_are_decimal_texts_and_nothing_else_is() -> None:
    columns: dict[str, Any] = {"execution_id": WIDE, "cov_root": WIDE, "head_seq": 3, "head_event_id": None}
    assert findings.record(columns) == {
        "execution_id": str(WIDE),
        "cov_root": str(WIDE),
        "head_seq": 3,
        "head_event_id": None,
    }


def test_a_finding_that_stands_is_read_back_with_its_place_and_words() -> None:
    assert findings._standing((4, 2, str(WIDE), None, 1, "said")) == Standing(
        4, (2, WIDE, None), True, "said"
    )
    assert findings._standing((4, None, None, None, 0, None)) == Standing(4, (None, None, None), False, "")


def test_a_projection_comes_back_from_its_text() -> None:
    record = Record(1, WIDE, "é", "{}")
    text = record.to_json()
    assert text == f'{{"proj_seq":1,"execution_id":"{WIDE}","status":"é","data":"{{}}"}}'
    assert Record.from_json(text) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"execution_id": WIDE}, "execution_id is no decimal 64-bit integer"),
        ({"more": 1}, "a projection record has exactly proj_seq, execution_id, status and data"),
        ({"proj_seq": 0}, "proj_seq"),
        ({"status": 1}, "status"),
        ({"data": None}, "data"),
    ],
)
def test_what_is_no_projection_is_refused_by_the_field_that_is_wrong(
    change: dict[str, Any], message: str
) -> None:
    fields = json.loads(Record(1, WIDE, "s", "d").to_json()) | change
    with pytest.raises(Invalid, match=rf"(^|\b){message}(\b|$)"):
        Record.from_json(json.dumps(fields))


def test_a_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(Invalid, match=r"^a projection record is no JSON$"):
        Record.from_json("{")
