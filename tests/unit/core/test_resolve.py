"""Why stored rows are absent from a log read: spec 3.4 step 3, b before a before c."""

from __future__ import annotations

import pytest

from sidecar.core.authority import StoredEvent
from sidecar.core.due import SECOND
from sidecar.core.ports import EpochSpan
from sidecar.core.resolve import Explained, LogLost, LogPruned, Resolution, SecondWriter, resolve
from tests.unit.core.build import chain, placed

MINUTE = 60 * SECOND
LAST = 1_000 * SECOND
ENDED = EpochSpan("one", 0, LAST)
RUNNING = EpochSpan("two", LAST + 5 * SECOND, LAST + 100 * SECOND)
EPOCHS = (ENDED, RUNNING)


def rows(*ids: int, at: int | None = LAST, origin: str | None = "log") -> tuple[StoredEvent, ...]:
    return placed(chain(*ids), at=at, origin=origin)


def ask(
    absent: tuple[StoredEvent, ...],
    fresh: set[int],
    *,
    root: int = 1,
    epochs: tuple[EpochSpan, ...] = EPOCHS,
    read_epoch: str | None = RUNNING.epoch,
) -> Resolution:
    return resolve(absent, fresh, root=root, epochs=epochs, read_epoch=read_epoch)


def test_every_row_in_the_fresh_read_explains_it() -> None:
    assert ask(rows(2, 3), {1, 2, 3}) == Explained()


def test_one_row_still_absent_is_enough() -> None:
    assert ask(rows(2, 3, at=None), {1, 2}) == SecondWriter((3,), ("log",), 1)


def test_rows_seen_just_before_an_epoch_ended_are_lost_with_it() -> None:
    assert ask(rows(2, 3), {1}) == LogLost((2, 3))


@pytest.mark.parametrize(
    ("age", "lost"), [(0, True), (MINUTE - 1, True), (MINUTE, False), (2 * MINUTE, False)]
)
def test_only_the_last_minute_of_an_epoch_is_lost_with_it(age: int, lost: bool) -> None:
    assert isinstance(ask(rows(2, at=LAST - age), {1}), LogLost) is lost


def test_the_read_may_be_the_first_to_meet_the_new_epoch() -> None:
    assert isinstance(ask(rows(2), {1}, epochs=(ENDED,), read_epoch="two"), LogLost)
    assert isinstance(ask(rows(2, at=LAST - MINUTE), {1}, epochs=(ENDED,), read_epoch="two"), SecondWriter)
    assert isinstance(ask(rows(2), {1}, epochs=(ENDED,), read_epoch="one"), SecondWriter)
    assert isinstance(ask(rows(2), {1}, epochs=(ENDED,), read_epoch=None), SecondWriter)
    assert isinstance(ask(rows(2), {1}, epochs=(), read_epoch="two"), SecondWriter)
    slow = EpochSpan("two", LAST - 5 * SECOND, LAST - 5 * SECOND)  # noted by when its read began
    assert isinstance(ask(rows(2, at=LAST - 8 * SECOND), {1}, epochs=(ENDED, slow)), LogLost)


def test_a_row_read_after_the_last_poll_belongs_to_the_epoch_that_had_begun() -> None:
    assert isinstance(ask(rows(2, at=LAST + SECOND), {1}), LogLost)


def test_a_row_of_the_running_epoch_is_never_lost() -> None:
    assert isinstance(ask(rows(2, at=RUNNING.first_seen_at), {1}), SecondWriter)


def test_nothing_is_lost_while_no_epoch_has_ended() -> None:
    assert isinstance(ask(rows(2), {1}, epochs=(ENDED,), read_epoch=ENDED.epoch), SecondWriter)


def test_nothing_is_lost_by_an_epoch_that_was_never_seen() -> None:
    assert isinstance(ask(rows(2), {1}, epochs=()), SecondWriter)
    assert isinstance(ask(rows(2, at=-1), {1}), SecondWriter)


def test_a_row_of_unknown_time_is_never_lost() -> None:
    assert isinstance(ask(rows(2, at=None), {1}), SecondWriter)


def test_all_of_them_must_have_been_seen_late() -> None:
    early = StoredEvent(9, chain(9)[0], "log", LAST - 2 * MINUTE)
    assert isinstance(ask((*rows(2), early), {1}), SecondWriter)
    assert isinstance(ask((*rows(2), early), {1, 9}), LogLost)


def test_each_row_is_held_against_its_own_epoch() -> None:
    third = EpochSpan("three", LAST + 200 * SECOND, LAST + 300 * SECOND)
    late = StoredEvent(9, chain(9)[0], "log", RUNNING.last_seen_at - SECOND)
    assert ask((*rows(2), late), {1}, epochs=(*EPOCHS, third), read_epoch="three") == LogLost((2, 9))
    assert ask((*rows(2), late), {1}, epochs=(third, RUNNING, ENDED), read_epoch="three") == LogLost((2, 9))
    assert isinstance(ask((*rows(2), late), {1}), SecondWriter)


def test_i25_a_log_without_its_root_is_pruned() -> None:
    assert ask(rows(1, 2, at=None), {3}) == LogPruned()
    assert ask(rows(1, 2, at=None), set()) == LogPruned()


@pytest.mark.parametrize("origin", [None, "append"])
def test_a_root_that_no_log_ever_gave_is_a_second_writer_not_a_pruned_log(origin: str | None) -> None:
    assert ask(rows(1, 2, at=None, origin=origin), set()) == SecondWriter((1, 2), (origin, origin), 2)


def test_the_first_row_that_is_gone_says_whose_the_rest_was() -> None:
    """Not the second one, and one row is enough.  Source: ADR 8."""
    (ours,), (other,) = rows(1, at=None), rows(2, at=None, origin=None)
    assert ask((ours, other), set()) == LogPruned()
    (root,), (later,) = rows(1, at=None, origin=None), rows(2, at=None)
    assert ask((root, later), set()) == SecondWriter((1, 2), (None, "log"), 2)
    assert ask((ours,), set()) == LogPruned()


def test_a_replica_of_a_pruned_log_is_pruned() -> None:
    assert ask(rows(1, 2, at=None, origin="replicated"), set()) == LogPruned()


def test_lost_is_asked_before_pruned() -> None:
    assert ask(rows(1, 2), set()) == LogLost((1, 2))


def test_i17_everything_else_is_a_second_writer_with_the_origins() -> None:
    mixed = (*rows(2, origin="log", at=None), *rows(3, origin=None, at=None), *rows(4, origin="api", at=None))
    found = ask(mixed, {1})
    assert found == SecondWriter((2, 3, 4), ("log", None, "api"), 3)
    assert isinstance(found, SecondWriter)
    assert not found.truncated


@pytest.mark.parametrize(("count", "truncated"), [(8, False), (9, True), (20, True)])
def test_at_most_eight_ids_are_named(count: int, truncated: bool) -> None:
    found = ask(rows(*range(2, 2 + count), at=None), {1})
    assert isinstance(found, SecondWriter)
    assert found.event_ids == tuple(range(2, 10))
    assert len(found.origins) == 8
    assert (found.absent, found.truncated) == (count, truncated)
