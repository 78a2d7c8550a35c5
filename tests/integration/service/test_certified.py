"""The certificate on the live path: a skip saves a fold, and nothing unseen is skipped over.

Feed, comparator and store are the real ones; the log and the lanes are the test's.
Source: spec 4.4-4.10, incidents I35-I42.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

import sidecar.certified
from sidecar.certified import Answer, Certified, created_at
from sidecar.core.certificate import MAX_CONSECUTIVE_SKIPS, Decision, Roller, Tally
from sidecar.core.digest import canonical_json, digest
from sidecar.core.due import SECOND
from sidecar.core.event import Event
from sidecar.core.jsonvalue import rendered
from sidecar.core.ports import Unit
from sidecar.core.workflow import Fold, fold
from sidecar.service.board import Board
from sidecar.settings import Bind, Settings
from sidecar.store import ChainStore
from sidecar.telemetry.health import Health
from sidecar.web.api import application
from sidecar.web.data import Sources
from tests.support.certified import Line, ask, cached, decided, fresh, lines, step, steps
from tests.support.meddling import add_foreign_row, writing
from tests.support.scripted import LONG, SERVER_NOW, Scripted
from tests.unit.core.build import E, ev


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    async with lines(tmp_path) as start:
        yield start


@dataclass
class Folds:
    """How many folds the live path has made."""

    count: int = 0


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> Folds:
    counted = Folds()

    def counting(events: Iterable[Event]) -> Fold:
        counted.count += 1
        return Fold(events)

    monkeypatch.setattr(sidecar.certified, "Fold", counting)
    return counted


# -- skipping


async def test_r11_r19_r22_the_second_call_does_not_fold_and_new_events_do(line: Line, folds: Folds) -> None:
    here = await line()
    await here.write(*steps(10, 30, 20))
    first = await ask(here)
    second = await ask(here)
    assert (first.decision, second.decision, folds.count) == (Decision.UNCALIBRATED, Decision.SKIPPED, 1)
    assert second.state is first.state
    assert second.certificate == first.certificate == Roller(e.body for e in steps(10, 30, 20)).certificate
    assert second.state is not None
    assert digest(second.state) == await fresh(here)
    await here.write(*steps(40, after=20))
    third = await ask(here)
    assert (third.decision, folds.count) == (Decision.CHAIN_ADVANCED, 2)
    assert third.state is not None
    assert third.state.ctx["e40"] == 40


async def test_i35_one_to_seven_events_after_a_cached_state(line: Line) -> None:
    here = await line()
    await cached(here, *steps(*range(1, 17)))
    for event_id in range(17, 24):
        await here.write(*steps(event_id, after=event_id - 1))
        answer = await ask(here)
        assert answer.decision is Decision.CHAIN_ADVANCED
        assert answer.state is not None
        assert digest(answer.state) == await fresh(here)
        assert await decided(here) is Decision.SKIPPED


async def test_r15_a_fold_runs_after_sixteen_skips(line: Line, folds: Folds) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    answers = [await decided(here) for _ in range(MAX_CONSECUTIVE_SKIPS)]
    assert answers == [Decision.SKIPPED] * 15 + [Decision.REVALIDATION_DUE]
    assert folds.count == 2
    assert await decided(here) is Decision.SKIPPED


async def test_the_comparator_takes_the_cached_state_for_its_projection(line: Line, folds: Folds) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    (judged,) = (await here.tick()).judged
    assert (judged.judgement.verdict, folds.count) == ("match", 1)
    tally = here.certified.take()
    assert tally.decisions[Decision.SKIPPED] == 2
    projected = await here.store.query("SELECT data FROM d3_projection WHERE execution_id = ?", (E,))
    assert projected[0][0] == rendered_state(steps(1, 2))


def rendered_state(events: Iterable[Event]) -> str:
    state = fold(events)
    assert state is not None
    return canonical_json(state)


async def test_the_axis_state_holds_the_kept_state_against_a_fold_of_the_log(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2, 3))
    kept = (await ask(here)).state
    assert kept is not None
    kept.ctx["e1"] = "something else"  # a skip that lies
    (judged,) = (await here.tick()).judged
    assert (judged.judgement.verdict, judged.judgement.kinds) == ("divergent", ("state",))
    assert (await ask(here)).state is None, "a divergence withdraws trust, in the same hold"


async def test_the_axis_state_is_asked_at_every_terminal_event(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await line()
    monkeypatch.setattr("sidecar.comparator.hold.fold", lambda _events: None)
    await here.write(*steps(1), step(2, 1, "playbook.completed"))
    (judged,) = (await here.tick()).judged
    assert judged.judgement.kinds == ("state",)


async def test_the_comparator_s_own_populate_is_staged_for_its_decision(line: Line, folds: Folds) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await here.tick()
    here.certified.take()
    here.commit(*steps(3, after=2))
    await here.judge(E)
    assert here.certified.take().decisions == {Decision.CHAIN_ADVANCED: 1}
    answer = await ask(here)
    assert (answer.decision, folds.count) == (Decision.SKIPPED, 2)
    assert answer.state is not None
    assert answer.state.ctx["e3"] == 3


async def test_a_skip_costs_the_same_whatever_the_length(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    here = await line()
    await cached(here, *steps(1, 2, 3))
    read: list[int] = []
    whole = sidecar.store.unit.StoreUnit.chain

    async def counting(unit: Any, execution_id: int) -> Any:
        read.append(execution_id)
        return await whole(unit, execution_id)

    monkeypatch.setattr(sidecar.store.unit.StoreUnit, "chain", counting)
    assert await decided(here) is Decision.SKIPPED
    assert read == []


async def test_the_answer_names_decision_and_certificate_with_ids_as_text(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    answer = await ask(here)
    shown = answer.document()
    made = Roller(event.body for event in steps(1, 2)).certificate
    assert made is not None
    assert shown["certificate"] == {"n": 2, "digest": made.digest}
    assert (shown["execution_id"], shown["decision"], shown["reason"]) == (str(E), "skipped", None)
    assert b'"execution_id":"7"' in rendered(shown["state"])


async def test_the_route_asks_for_the_token_and_shows_state_decision_and_certificate(line: Line) -> None:
    here = await line()
    await here.write(*steps(1, 2))
    board = Board(Settings.given(), Health())
    served = application(board.endpoints(), Bind("127.0.0.1", 9110), "a token")
    transport = httpx2.ASGITransport(app=served)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:9110") as client:

        async def get(execution: object, **headers: str) -> httpx2.Response:
            return await client.get(f"/api/v1/executions/{execution}/state", headers=headers)

        token = {"authorization": "Bearer a token"}
        assert (await get(E)).json()["reason"] == "token_required"
        assert (await get(E, **token)).status_code == 503
        board.state = partial(here.certified.state, here.store)
        board.data.sources = Sources(here.store, here, LONG, lambda verdict: None)
        assert (await get(E)).status_code == 403
        first, second = (await get(E, **token)).json(), (await get(E, **token)).json()
        assert (first["decision"], second["decision"]) == ("refold_uncalibrated", "skipped")
        assert (
            first["certificate"]
            == second["certificate"]
            == {"n": 2, "digest": first["certificate"]["digest"]}
        )
        assert second["state"]["execution_id"] == second["execution_id"] == str(E)
        unknown = await get(E + 1, **token)
        assert (unknown.status_code, unknown.json()["reason"]) == (404, "never_seen")
        await here.write(step(9, None))
        refused = await get(E, **token)
        assert (refused.status_code, refused.json()["reason"]) == (409, "rows_held_back")
        for none in ("x", "1.0", str(2**63), "٣"):
            assert (await get(none, **token)).json()["reason"] == "bad_parameter"


# -- what may not be skipped


async def test_r20_i36_an_event_that_lands_during_the_fold_is_not_skipped_over(line: Line) -> None:
    here = await line()
    await here.write(*steps(1, 2))
    # A build with two holds: the chain is read, an event lands, then the state is recorded with
    # the certificate that stands *now*.  The next decision skips over the event.
    naive = here.certified._certificates
    events = (await here.guarded(E)).events or ()
    await here.write(*steps(3, after=2))
    now_standing = naive.certificate(E)
    assert now_standing is not None
    naive.reconcile(E, Roller(event.body for event in steps(1, 2, 3)))
    state = fold(events)
    assert state is not None
    naive.record(E, now_standing, state, now=here.store.clock.now())
    wrong = await ask(here)
    assert wrong.decision is Decision.SKIPPED
    assert wrong.state is not None
    assert digest(wrong.state) != await fresh(here)
    # Ours reads, folds and records in one hold, whatever lands meanwhile.
    naive.forget(E)
    for event_id in range(4, 40):
        answers = await asyncio.gather(ask(here), here.write(*steps(event_id, after=event_id - 1)), ask(here))
        last = answers[2]
        assert isinstance(last, Answer)
        after = await ask(here)
        assert after.state is not None
        assert digest(after.state) == await fresh(here)
    assert here.certified.take().divergences == 0


async def test_r26_a_second_root_after_a_restart_is_never_skipped_over(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await here.write(step(9, None))
    answer = await ask(here)
    assert answer.decision is Decision.NO_CERTIFICATE
    assert answer.state is None
    assert answer.reason is not None
    assert here.certified.tracked == 0
    assert here.certified.take().divergences == 0


async def test_a_row_behind_a_gap_stops_skipping_until_it_is_stored(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await here.write(*steps(4, after=3))
    answer = await ask(here)
    assert (answer.decision, answer.state) == (Decision.NO_CERTIFICATE, None)
    await here.write(*steps(3, after=2))
    answer = await ask(here)
    assert answer.state is not None
    assert "e4" in answer.state.ctx


async def test_a_changed_body_stops_skipping(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await here.write(step(1, None, at="2023-11-14T22:13:21"))
    assert here.certified.tracked == 1
    await here.tick()
    assert here.certified.tracked == 0, "the divergence forgets it, nobody has to ask"
    assert await decided(here) is Decision.NO_CERTIFICATE


async def test_a_label_forgets_the_execution_before_anybody_asks(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await here.write(step(9, None))
    assert here.certified.tracked == 0


async def test_a_partition_that_was_dropped_begins_anew(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2, 3))
    with writing(here.path) as conn:
        for table in ("event", "partition", "due"):
            conn.execute(f"DELETE FROM {table}")
    here.log.clear()
    await here.write(*steps(11, 12))
    assert (
        here.certified._certificates.certificate(E)
        == Roller(event.body for event in steps(11, 12)).certificate
    )
    assert (await ask(here)).state is not None
    assert here.certified.take().divergences == 0


async def test_a_second_writer_s_verdict_stops_skipping(line: Line) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    await add_foreign_row(here.path, E, 3, move_head=True)
    await here.judge(E)
    assert (await ask(here)).state is None
    assert here.certified.take().divergences == 0


async def test_an_event_that_cannot_be_read_makes_the_execution_uncertifiable(line: Line) -> None:
    here = await line()
    broken = Event(E, 2, 1, None, "ctx.updated", "no JSON")
    await here.write(*steps(1), broken)
    for _ in range(3):
        answer = await ask(here)
        assert (answer.certificate, answer.unreadable) == (None, (2,))
        assert answer.decision is Decision.UNCALIBRATED
    assert answer.document()["unreadable"] == ["2"]
    assert here.certified.take().divergences == 0


async def test_never_seen_and_empty_have_no_state(line: Line) -> None:
    here = await line()
    answer = await ask(here)
    assert (answer.state, answer.reason, answer.certificate) == (None, "not_populated", None)
    await here.judge(E)
    assert (await ask(here)).state is None


# -- misses and wiring faults


async def test_r19_i38_a_site_that_does_not_observe_is_found_within_seventeen_calls(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await line()
    await cached(here, *steps(1, 2))
    monkeypatch.setattr(Certified, "_observe", lambda *_args, **_more: None)
    await here.write(*steps(3, after=2))
    calls = 0
    while (await ask(here)).decision is not Decision.DIVERGENCE_DETECTED:
        calls += 1
        assert calls <= MAX_CONSECUTIVE_SKIPS + 1
    assert here.certified.take().divergences == 1


# -- restarts


async def test_r25_a_roller_is_rebuilt_in_link_order(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    here = await line()
    events = steps(10, 90, 20, 70)
    await cached(here, *events)
    await here.restart()
    assert await decided(here) is Decision.UNCALIBRATED
    assert await decided(here) is Decision.SKIPPED
    await here.write(*steps(15, after=70))
    answer = await ask(here)
    by_links = Roller(event.body for event in (*events, *steps(15, after=70))).certificate
    assert answer.certificate == by_links
    # A rebuild that sorts by id contradicts the roller that saw the events come.
    unsorted = Roller

    def sorting(bodies: Iterable[str] = ()) -> Roller:
        return unsorted(sorted(bodies, key=lambda body: int(body.split('"event_id":')[1].split(",")[0])))

    monkeypatch.setattr(sidecar.certified, "Roller", sorting)
    await here.write(*steps(16, after=15))
    await ask(here)
    assert here.certified.take().divergences == 1


# -- bounds


async def test_r18_i41_five_executions_run_to_their_terminal_and_nothing_is_tracked(line: Line) -> None:
    here = await line()
    for execution in range(E, E + 5):
        events = [
            ev(1, execution_id=execution),
            ev(2, 1, execution_id=execution),
            ev(3, 2, kind="playbook.completed", execution_id=execution),
        ]
        await here.write(*events[:2])
        await here.certified.state(here.store, execution)
        assert here.certified.tracked == 1
        await here.write(events[2])
        assert here.certified.tracked == 0
        answer = await here.certified.state(here.store, execution)
        assert answer.state is not None
        assert answer.certificate is None
        await here.write(ev(4, 3, execution_id=execution))
        await here.certified.state(here.store, execution)
    assert here.certified.tracked == 0
    assert here.certified.take().divergences == 0


# -- the gate


async def test_i37_observing_and_never_asked_is_inert_and_shows(line: Line) -> None:
    here = await line()
    await here.write(*steps(1, 2))
    tally = here.certified.take()
    assert (tally.observed, tally.decisions.total(), here.certified.tracked) == (2, 0, 1)


async def test_r07_with_the_gate_off_nothing_is_observed_counted_or_changed(
    line: Line, tmp_path: Path, folds: Folds
) -> None:
    here = await line(cert=False)
    await here.write(*steps(1, 2, 3))
    answers = [await ask(here) for _ in range(3)]
    assert [answer.decision for answer in answers] == [None] * 3
    assert folds.count == 3
    assert (here.certified.take(), here.certified.tracked) == (Tally(), 0)
    (tmp_path / "on").mkdir()
    other = await Scripted.open(tmp_path / "on", cert=True)
    await other.write(*steps(1, 2, 3))
    await ask(other)
    assert await rows(other.store) == await rows(here.store)
    await other.store.close()


async def rows(store: ChainStore) -> list[tuple[Any, ...]]:
    return list(await store.query("SELECT exec_seq, event_id, prev_event_id, body FROM event ORDER BY 1"))


def test_created_at_is_told_where_it_can_be() -> None:
    assert created_at(step(1, None).body) == SERVER_NOW
    assert created_at(step(1, None, at="2023-11-14T22:13:20.000001").body) == SERVER_NOW + 1
    assert created_at(step(1, None, at="infinity").body) is None
    assert created_at("no JSON") is None
    assert created_at("[" * 30_000) is None
    assert SECOND == 1_000_000


# -- whatever happens


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_lands_at_whatever_await_a_skipped_state_is_the_fold(line: Line, seed: int) -> None:
    """Writers, lanes, comparator, restarts and askers at once; each answer checked in its own hold."""
    chance = random.Random(seed)
    here = await line()
    ids = list(range(1, 61))
    chance.shuffle(ids)
    story = steps(*ids)
    skipped = 0

    async def checked(unit: Unit) -> Answer:
        answer = await here.certified.rebuild_or_skip(unit, E)
        guarded = await unit.guarded_read(E)
        expected = None if guarded.events is None else fold(guarded.events)
        assert (answer.state is None) is (expected is None)
        if answer.state is not None and expected is not None:
            assert digest(answer.state) == digest(expected)
        return answer

    at = 0
    for number in range(50):
        todo: list[Awaitable[Any]] = []
        if at < len(story) and chance.random() < 0.5:
            size = chance.randint(1, 3)
            new = here.commit(*story[at : at + size])
            at += size
            shown = list(new)
            chance.shuffle(shown)
            if chance.random() < 0.3:
                todo.append(here.judge(E))  # the comparator may be first
            todo += [here.deliver(row) for row in shown]
        todo += [here.store.transact(checked) for _ in range(chance.randint(1, 3))]
        chance.shuffle(todo)
        for answer in await asyncio.gather(*todo):
            skipped += isinstance(answer, Answer) and answer.decision is Decision.SKIPPED
        await here.deliver()
        if number == 25:
            await here.restart()
    assert skipped > 0
    assert here.certified.take().divergences == 0
    # A planted miss ends it all.
    here.commit(*steps(1000, after=ids[-1]) if at >= len(story) else story[at : at + 1])
    await here.judge(E)
    await here.deliver()
    answer = await here.store.transact(checked)
    assert answer.decision is Decision.DIVERGENCE_DETECTED
    assert here.certified.take().divergences == 1
