"""A comparator that cannot see a planted defect says so: each guard broken, the control that notices.

Source: spec 3.7; I33.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.comparator.controls import CONTROL_NAMES, Controls
from sidecar.comparator.rehearsal import CONTROLS
from sidecar.comparator.report import ControlReport
from sidecar.core.compare import Comparison
from sidecar.core.populate import InSync
from sidecar.core.resolve import Explained
from sidecar.core.verdict import Judgement, Kind, Verdict
from sidecar.errors import StoreBusy, StoreFull
from sidecar.store import ChainStore
from sidecar.store.scratch import scratch
from sidecar.store.unit import StoreUnit
from tests.support.changing import replace


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ChainStore]:
    async with scratch(tmp_path / "controls") as opened:
        yield opened


async def unexpected(store: ChainStore) -> set[str]:
    return set((await Controls(store).run()).unexpected)


def test_there_is_one_control_for_each_kind_and_for_each_name_of_the_spec() -> None:
    kinds = {kind.value for kind in Kind}
    others = {
        "identical", "stale_resolves", "multiple_roots", "dangling_then_heals", "pending_publishes_nothing",
    }  # fmt: skip
    assert set(CONTROL_NAMES) == kinds | others
    assert len(CONTROL_NAMES) == len(set(CONTROL_NAMES)) == len(CONTROLS)
    by_name = {control.name: control for control in CONTROLS}
    for kind in kinds:
        asked = {str(k) for case in by_name[kind].cases for each in case.rounds for k in each.kinds}
        assert kind in asked, "the defect is planted and its kind is asked for"


async def test_a_sound_comparator_passes_all_again_and_again_and_leaves_nothing(store: ChainStore) -> None:
    controls = Controls(store)
    for _ in range(3):
        report = await controls.run()
        assert report == ControlReport(dict.fromkeys(CONTROL_NAMES))
        assert report.unexpected == {}
    for table in ("partition", "event", "due", "server_epoch", "d3_projection", "finding"):
        assert await store.query(f"SELECT count(*) FROM {table}") == [(0,)]


# -- each guard broken

AXES = {"missing_execution", "count", "missing_event", "extra_event", "order", "state", "unidentified"}
TWICE = {"edge", "parent", "payload"}
"""Planted in the store, where populate meets them, and in what is read back, where compare does."""


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    def patch(target: str, value: Any) -> None:
        monkeypatch.setattr(f"sidecar.{target}", value)

    return patch


async def test_i33_a_comparator_that_always_answers_match(store: ChainStore, broken: Any) -> None:
    def always(served: Any, ordered: Any) -> Comparison:
        return Comparison((), None, len(served), len(ordered))

    broken("comparator.hold.compare", always)
    assert await unexpected(store) == AXES | TWICE | {"pending_publishes_nothing"}


@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        (Kind.MISSING_EXECUTION, {"missing_execution"}),
        (Kind.COUNT, {"count", "extra_event", "pending_publishes_nothing"}),
        (Kind.MISSING_EVENT, {"missing_event"}),
        (Kind.EXTRA_EVENT, {"extra_event"}),
        (Kind.ORDER, {"order"}),
        (Kind.EDGE, {"edge"}),
        (Kind.PARENT, {"parent"}),
        (Kind.PAYLOAD, {"payload", "state", "unidentified"}),
        (Kind.STATE, {"state"}),
        (Kind.UNIDENTIFIED, {"unidentified"}),
    ],
)
async def test_i33_a_comparison_that_is_blind_to_one_kind(
    store: ChainStore, broken: Any, kind: Kind, noticed: set[str]
) -> None:
    from sidecar.core.compare import _kinds

    broken("core.compare._kinds", lambda *sides: (found for found in _kinds(*sides) if found is not kind))
    assert await unexpected(store) >= noticed - {"pending_publishes_nothing"}
    assert await unexpected(store) <= noticed


async def test_i33_a_populate_that_agrees_with_everything(store: ChainStore, broken: Any) -> None:
    def agrees(stored: Any, ordered: Any, **_: Any) -> InSync:
        total = len(getattr(ordered, "events", ()))
        return InSync(total, max(0, total - len(stored)))

    broken("store.populate.plan", agrees)
    noticed = await unexpected(store)
    assert noticed >= {"conflict", "multiple_roots", "dangling_then_heals"}
    assert "identical" not in noticed


async def test_i33_a_populate_that_compares_ids_only(store: ChainStore, broken: Any) -> None:
    """What the reference did: a changed body is in sync, and only the axes would still see it."""
    broken(
        "core.populate.difference", lambda ours, log: None if ours.event_id == log.event_id else "conflict"
    )
    assert await unexpected(store) == TWICE


async def test_i33_a_populate_that_sees_no_difference(store: ChainStore, broken: Any) -> None:
    broken("core.populate.difference", lambda ours, log: None)
    assert await unexpected(store) == TWICE | {"conflict"}


async def test_i33_a_resolution_that_explains_everything(store: ChainStore, broken: Any) -> None:
    broken("comparator.hold.resolve", lambda *_, **__: Explained())
    assert await unexpected(store) == {"second_writer"}


async def test_i33_a_re_read_that_is_left_out(store: ChainStore, broken: Any) -> None:
    async def nothing(*_: Any) -> None:
        return

    broken("comparator.loop.Comparator._ask_again", nothing)
    assert await unexpected(store) >= {"second_writer", "stale_resolves"}


async def test_i33_a_link_order_that_takes_every_set(store: ChainStore, broken: Any) -> None:
    from sidecar.core.links import Ordered

    broken("core.rejoin.order_by_links", lambda events: Ordered(tuple(events)))
    assert await unexpected(store) >= {"multiple_roots", "dangling_then_heals", "pending_publishes_nothing"}


async def test_i33_a_link_order_that_sorts_by_id(store: ChainStore, broken: Any) -> None:
    from sidecar.core.links import Ordered

    broken(
        "core.rejoin.order_by_links",
        lambda events: Ordered(tuple(sorted(events, key=lambda event: event.event_id))),
    )
    assert "identical" in await unexpected(store)


async def test_i33_pending_that_publishes(store: ChainStore, broken: Any) -> None:
    """The defect of server 9961662: pending, and the kinds are counted all the same."""
    from sidecar.comparator.record import COUNTED
    from sidecar.core.judge import judge

    def loud(hold: Any, windows: Any) -> Any:
        ruling = judge(hold, windows)
        if ruling.judgement.verdict is not Verdict.PENDING_SETTLE:
            return ruling
        return replace(ruling, judgement=replace(ruling.judgement, kinds=(Kind.COUNT,)))

    broken("comparator.hold.judge", loud)
    assert await unexpected(store) == {"pending_publishes_nothing"}
    broken("comparator.record.COUNTED", COUNTED | {Verdict.PENDING_SETTLE})
    assert await unexpected(store) == {"pending_publishes_nothing"}


async def test_i33_a_divergence_that_keeps_its_authority(store: ChainStore, broken: Any) -> None:
    broken("comparator.record.REVOKING", frozenset[Verdict]())
    noticed = await unexpected(store)
    assert noticed >= AXES | {"second_writer", "multiple_roots"}
    assert "identical" not in noticed


async def test_i33_kinds_that_are_never_counted(store: ChainStore, broken: Any) -> None:
    broken("comparator.record.COUNTED", frozenset[Verdict]())
    assert await unexpected(store) == {kind.value for kind in Kind}


async def test_i33_a_judge_that_says_match_of_whatever_it_hears(store: ChainStore, broken: Any) -> None:
    from sidecar.core.judge import Ruling

    broken(
        "comparator.hold.judge",
        lambda hold, windows: Ruling(Judgement(hold.populated.partition.execution_id, Verdict.MATCH)),
    )
    assert await unexpected(store) == set(CONTROL_NAMES) - {"identical", "stale_resolves", "second_writer"}


async def test_a_control_that_raises_is_unexpected_and_the_others_are_not(
    store: ChainStore, broken: Any
) -> None:
    """Also an exception that is nobody's: whatever it is, the comparator did not judge."""
    from sidecar.core.resolve import resolve

    def raises(absent: Any, fresh: Any, **more: Any) -> Any:
        if any(row.origin is None for row in absent):
            raise ZeroDivisionError
        return resolve(absent, fresh, **more)

    broken("comparator.hold.resolve", raises)
    report = await Controls(store).run()
    assert report.unexpected == {"second_writer": "raised ZeroDivisionError"}
    assert set(report.results) == set(CONTROL_NAMES)


@pytest.mark.parametrize("failure", [StoreFull("full"), StoreBusy("busy")])
async def test_a_full_disk_under_the_scratch_store_is_no_failed_control(
    store: ChainStore, monkeypatch: pytest.MonkeyPatch, failure: StoreFull | StoreBusy
) -> None:
    async def fails(self: StoreUnit, logs: Any) -> Any:
        raise failure

    monkeypatch.setattr(StoreUnit, "populate", fails)
    with pytest.raises(type(failure)):
        await Controls(store).run()


async def test_the_controls_go_through_one_transaction_that_never_commits(
    store: ChainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cheap enough for every tick: nothing reaches the disk, and the cases share their statements."""
    from sidecar.store.connection import Connection

    statements: list[str] = []
    rows = Connection.rows

    async def noted(self: Connection, sql: str, parameters: Any = ()) -> Any:
        statements.append(sql)
        return await rows(self, sql, parameters)

    monkeypatch.setattr(Connection, "rows", noted)
    await Controls(store).run()
    assert len([sql for sql in statements if sql.startswith("BEGIN")]) == 1
    assert "COMMIT" not in statements
    assert len(statements) < 10 * sum(len(control.cases) for control in CONTROLS)
