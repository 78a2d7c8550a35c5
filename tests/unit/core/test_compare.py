"""One planted defect per kind, and that nothing else is reported with it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.compare import Comparison, compare, is_identified
from sidecar.core.deepjson import names_event
from sidecar.core.event import Event
from sidecar.core.verdict import Kind
from tests.support.changing import replace
from tests.unit.core.build import chain, ev

LOG = chain(10, 30, 20, 40)
A, B, C, D = LOG


def kinds(served: Sequence[Event], ordered: Sequence[Event] = LOG) -> tuple[Kind, ...]:
    return compare(served, ordered).kinds


def test_equal_sides_hold() -> None:
    assert compare(LOG, LOG) == Comparison((), None, 4, 4)
    assert compare(list(LOG), LOG).holds


def test_two_empty_sides_hold() -> None:
    assert compare((), ()) == Comparison((), None, 0, 0)


def test_missing_execution_is_one_fact() -> None:
    assert compare((), LOG) == Comparison((Kind.MISSING_EXECUTION,), 0, 0, 4)


def test_count_alone_is_a_row_served_twice() -> None:
    assert compare((*LOG, D), LOG) == Comparison((Kind.COUNT,), 4, 5, 4)


def test_missing_event() -> None:
    assert compare(LOG[:3], LOG) == Comparison((Kind.COUNT, Kind.MISSING_EVENT), 3, 3, 4)
    assert compare((A, B, D), LOG) == Comparison((Kind.COUNT, Kind.MISSING_EVENT), 2, 3, 4)


def test_extra_event() -> None:
    extra = ev(50, 40)
    assert compare((*LOG, extra), LOG) == Comparison((Kind.COUNT, Kind.EXTRA_EVENT), 4, 5, 4)
    assert kinds((A,), ()) == (Kind.COUNT, Kind.EXTRA_EVENT)


def test_membership_without_count() -> None:
    other = ev(41, 20)
    assert compare((A, B, C, other), LOG) == Comparison((Kind.MISSING_EVENT, Kind.EXTRA_EVENT), 3, 4, 4)


def test_order_alone() -> None:
    assert compare((A, C, B, D), LOG) == Comparison((Kind.ORDER,), 1, 4, 4)


def test_order_of_the_shared_rows_shows_beside_a_lost_one() -> None:
    assert kinds((A, D, C)) == (Kind.COUNT, Kind.MISSING_EVENT, Kind.ORDER)


@pytest.mark.parametrize("prev", [None, 30])
def test_edge_alone(prev: int | None) -> None:
    log = (A, B, C, replace(D, prev_event_id=20))
    served = (A, B, C, replace(D, prev_event_id=prev))
    assert compare(served, log) == Comparison((Kind.EDGE,), 3, 4, 4)


@pytest.mark.parametrize(("ours", "log"), [(5, None), (None, 5), (5, 6)])
def test_parent_alone_also_when_one_side_has_none(ours: int | None, log: int | None) -> None:
    served = (replace(A, parent_execution_id=ours), B)
    ordered = (replace(A, parent_execution_id=log), B)
    assert compare(served, ordered) == Comparison((Kind.PARENT,), 0, 2, 2)


def test_payload_alone_byte_for_byte() -> None:
    served = (A, B, replace(C, body=C.body.replace(",", ", ")), D)
    assert compare(served, LOG) == Comparison((Kind.PAYLOAD,), 2, 4, 4)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"event_id":null}',
        '{"event_id":true}',
        '{"event_id":1.5}',
        '{"event_id":[1]}',
        '{"event_id":{"event_id":1}}',
        '{"other":{"event_id":1}}',
        '{"event_id":1} x',
        '{"event_id":1,}',
        '{"event_id":1,"x":"\\q"}',
        '{"event_id":1,"x":"\n"}',
        '{"event_id":1,"x":01}',
        '{"event_id":1,"x":"\ud800"}',
    ],
)
def test_unidentified_alone_though_both_sides_agree(body: str) -> None:
    log = (A, replace(B, body=body), C)
    assert compare(log, log) == Comparison((Kind.UNIDENTIFIED,), 1, 3, 3)


@pytest.mark.parametrize("value", ["30", '"30"', "9223372036854775807", '"9223372036854775807"'])
def test_an_event_id_is_a_number_or_a_string(value: str) -> None:
    assert is_identified(f'{{"context":{{"x":[1.10,1e400]}},"event_id":{value},"note":"\\u2028 \U0001f600"}}')


def test_event_type_is_part_of_the_body_and_not_an_axis() -> None:
    assert compare((replace(A, event_type="other"),), (A,)).holds


def started(**workload: object) -> Event:
    """The first event of an execution whose state holds `workload`."""
    body = json.dumps({"event_id": 1, "context": {"workload": workload}}, separators=(",", ":"))
    return replace(ev(1, kind="playbook_started"), body=body)


def test_state_alone_is_a_type_that_folds_otherwise() -> None:
    """The body says the type too, but what is folded is the row's own."""
    log = (A, replace(B, event_type="playbook.completed"))
    assert compare((A, B), log) == Comparison((Kind.STATE,), 1, 2, 2)
    assert compare(log, (A, B)) == Comparison((Kind.STATE,), 1, 2, 2)


def test_state_beside_the_payload_that_changed_it() -> None:
    log, served = (started(x=1), ev(2, 1)), (started(x=2), ev(2, 1))
    assert compare(served, log) == Comparison((Kind.PAYLOAD, Kind.STATE), 0, 2, 2)


def test_a_payload_that_changes_no_state_is_a_payload_alone() -> None:
    event = started(x=1)
    spaced = replace(event, body=event.body.replace(",", ", ", 1))
    assert spaced != event
    assert kinds((spaced,), (event,)) == (Kind.PAYLOAD,)


def test_an_order_that_changes_the_state() -> None:
    done, failed = ev(2, 1, kind="playbook.completed"), ev(3, 2, kind="playbook.failed")
    log = (started(), done, failed)
    assert kinds((log[0], failed, done), log) == (Kind.ORDER, Kind.STATE)


def test_an_unreadable_body_takes_no_part_in_the_state() -> None:
    log = (started(x=1), ev(2, 1))
    assert kinds((replace(log[0], body="{"), log[1]), log) == (Kind.PAYLOAD, Kind.STATE, Kind.UNIDENTIFIED)
    assert kinds((log[0], replace(log[1], body="{")), log) == (Kind.PAYLOAD, Kind.UNIDENTIFIED)


def test_equal_sides_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[object] = []
    monkeypatch.setattr("sidecar.core.compare.fold", folded.append)
    assert compare(list(LOG), LOG).holds
    assert folded == []


def test_each_kind_once_in_the_order_of_the_spec_and_the_first_position() -> None:
    log = (*LOG, ev(60, 40), ev(70, 60))
    served = [
        log[0],
        log[2],
        replace(log[1], prev_event_id=1, parent_execution_id=2, body="x"),
        replace(log[3], prev_event_id=1, parent_execution_id=2, body="x"),
        ev(99),
    ]
    assert compare(served, log) == Comparison(
        (
            Kind.COUNT,
            Kind.MISSING_EVENT,
            Kind.EXTRA_EVENT,
            Kind.ORDER,
            Kind.EDGE,
            Kind.PARENT,
            Kind.PAYLOAD,
            Kind.UNIDENTIFIED,
        ),
        1,
        5,
        6,
    )


def test_kinds_are_those_of_the_spec_in_its_order() -> None:
    assert [kind.value for kind in Kind] == [
        "missing_execution",
        "count",
        "missing_event",
        "extra_event",
        "order",
        "edge",
        "parent",
        "payload",
        "state",
        "unidentified",
        "conflict",
        "second_writer",
    ]


EVENTS = st.lists(
    st.builds(
        ev,
        st.integers(1, 4),
        st.none() | st.integers(1, 4),
        parent=st.none() | st.just(5),
        note=st.sampled_from(["", "x"]),
    ),
    max_size=5,
)


@given(EVENTS, EVENTS)
def test_it_is_total_and_holds_only_for_equal_sides(served: list[Event], ordered: list[Event]) -> None:
    found = compare(served, ordered)
    unique = len({event.event_id for event in ordered}) == len(ordered)
    if unique:
        assert found.holds == (served == ordered)
    assert (found.position is None) == (served == ordered)
    assert list(found.kinds) == [kind for kind in Kind if kind in found.kinds]
    assert (found.served, found.ordered) == (len(served), len(ordered))


# -- bodies nested deeper than a recursive parser goes


def deep(inside: str, levels: int = 5_000) -> str:
    return '{"x":' + '[{"y":' * levels + inside + "}]" * levels + ',"event_id":1}'


def test_a_deep_body_is_readable() -> None:
    assert is_identified(deep("1"))
    assert is_identified(deep('"\\u00e9\\n"'))


@pytest.mark.parametrize("inside", ["", "01", "]", '"', "nul", "1 2", "[1,]", '{"a"}', '{"a":1,}', "{1:2}"])
def test_a_deep_body_that_is_no_json_is_not(inside: str) -> None:
    assert not is_identified(deep(inside))


def test_a_deep_body_without_event_id_at_its_top_is_not() -> None:
    assert not is_identified(deep('{"event_id":1}').replace(',"event_id":1}', "}"))


PLAIN = [
    '{"event_id":1}',
    ' { "event_id" : "a" , "b" : [ ] , "c" : { } } \n',
    '{"a":[1,-2.5e+3,true,false,null,"\\"\\\\"],"event_id":-7}',
    '{"a":{"event_id":1},"event_id":2}',
    '{"event_id":1,"b":{"c":[[],{"d":{}}]}}',
]
CHARACTERS = '{}[],:"\\ 10-+.eEtruefalsn\n\x01u'


@pytest.mark.parametrize("body", PLAIN)
def test_the_walk_accepts_what_json_accepts(body: str) -> None:
    assert names_event(body)
    assert is_identified(body)


def test_the_walk_agrees_with_json_on_mutations_of_every_plain_text() -> None:
    """Characters changed, dropped and added at random places; json is the judge of the grammar."""
    chance = random.Random(20261130)
    accepted = 0
    for _ in range(10_000):
        text = list(chance.choice(PLAIN))
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 1)] = chance.choice(["", chance.choice(CHARACTERS)])
        body = "".join(text)
        expected = _expected(body)
        accepted += expected
        assert names_event(body) is expected, body
    assert accepted > 300


def _expected(body: str) -> bool:
    try:
        value = json.loads(body)
    except ValueError:
        return False
    event_id = value.get("event_id") if isinstance(value, dict) else None
    return isinstance(event_id, str | int) and not isinstance(event_id, bool)
