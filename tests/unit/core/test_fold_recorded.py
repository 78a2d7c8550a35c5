"""The folds over logs that a real engine wrote."""

from __future__ import annotations

import pytest

from sidecar.core.digest import canonical_json, digest, restored
from sidecar.core.event import Event
from sidecar.core.replay import Replay
from sidecar.core.state import RunState
from sidecar.core.workflow import Fold
from tests.support.chains import ordered_chains, rows_by_execution
from tests.support.recorded import CLEAN, LONG, PUBLISHED, RESTARTS, UNLINKED_SMALL, recorded_set

ENDS = {
    "playbook.completed": RunState.COMPLETED,
    "playbook_completed": RunState.COMPLETED,
    "playbook.failed": RunState.FAILED,
    "playbook_failed": RunState.FAILED,
    "playbook.cancelled": RunState.CANCELLED,
    "playbook_cancelled": RunState.CANCELLED,
}


def _expected(chain: tuple[Event, ...]) -> RunState:
    """What the last event that ends or starts a run makes of it."""
    for event in reversed(chain):
        if event.event_type in ENDS:
            return ENDS[event.event_type]
        if event.event_type == "playbook_started":
            return RunState.IN_PROGRESS
    return RunState.INITIAL


@pytest.mark.parametrize(
    ("name", "chains", "ended"),
    [
        (CLEAN, 231, 230),
        pytest.param(PUBLISHED, 212, 204, marks=pytest.mark.torture),
        (RESTARTS, 64, 56),
        pytest.param(LONG, 1313, None, marks=pytest.mark.torture),
    ],
)
def test_every_clean_execution_reaches_the_state_of_its_last_terminal(
    name: str, chains: int, ended: int | None
) -> None:
    recorded = recorded_set(name)
    folded = {execution: (chain, Fold(chain)) for execution, chain in ordered_chains(recorded).items()}
    assert len(folded) == chains
    terminal = 0
    for chain, result in folded.values():
        assert result.state is not None
        assert result.unreadable == ()
        assert result.state.state is _expected(chain)
        assert (result.state.completed_at is not None) == result.state.state.is_terminal
        terminal += result.state.state.is_terminal
    assert ended is None or terminal == ended


@pytest.mark.parametrize("name", [CLEAN, pytest.param(PUBLISHED, marks=pytest.mark.torture)])
def test_a_recorded_state_grows_comes_back_and_replays(name: str) -> None:
    for execution, chain in list(ordered_chains(recorded_set(name)).items())[:60]:
        whole, growing = Fold(chain), Fold(chain[: len(chain) // 2])
        growing.absorb(chain[len(chain) // 2 :])
        assert whole.state is not None
        assert growing.state is not None
        assert digest(growing.state) == digest(whole.state), execution
        assert restored(canonical_json(whole.state)) == whole.state
        replay = Replay(chain)
        assert replay.event_count == len(chain)
        assert (replay.execution.status in ("COMPLETED", "CANCELLED")) == whole.state.state.is_terminal


def test_rows_without_links_fold_in_any_order_without_a_fault() -> None:
    """Nobody may fold these for an answer; the other engine's vocabulary must not hurt either."""
    states = set()
    for rows in rows_by_execution(recorded_set(UNLINKED_SMALL)).values():
        folded, backwards = Fold(rows), Fold(reversed(rows))
        assert folded.state is not None
        assert folded.unreadable == backwards.unreadable == ()
        assert restored(canonical_json(folded.state)) == folded.state
        assert Replay(rows).event_count == len(rows)
        states.add(folded.state.state)
    assert {RunState.COMPLETED, RunState.FAILED} <= states
