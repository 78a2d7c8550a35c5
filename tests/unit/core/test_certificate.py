"""The certificate: golden vectors, the nine decisions, reconciling, bounds.  Source: spec 4.3-4.10."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

import pytest

from sidecar.core.body import canonical_body
from sidecar.core.certificate import (
    CHUNK,
    FOLD_AGE_MAX,
    MAX_CONSECUTIVE_SKIPS,
    TAG,
    TRACKED_MAX,
    Certificate,
    Certificates,
    Decision,
    Reconciled,
    Roller,
)
from sidecar.core.misses import WATCHED_MAX, Watched, WatchList
from tests.unit.core.build import E

GOLDEN = {
    1: "f7bf8ca58bbcb97b24ee2b012effeda6723b4e76f4f92bee20fd0c230fe3f32c",
    3: "62a60990abbedf4cf0650389bec503fe44ed6debc3d0cfcc5ec1ce646be9cd47",
    7: "886270378d9f5b01b5734644ff4603299327a5cf1cc362fa39172bd6d42f420c",
    8: "bfef9085924daeedce83ee9b855e58c2655d725ff30aefb9db2be9c6fc1b1793",
    9: "0579a3838822f554f4b32ed3358a5a896134fbac8e0cabd8996796d44b076ddf",
    16: "3ecfd412372c0ad410cac14d73a0ced9ab5f5f8db8108234dc867c84fa066351",
    17: "edf23b676895f25a7849e5fc1f7a95f76dbc76343df1a6d74f646533f233f5e4",
    24: "c7d3e1fff420f51f0458bcf4f3fe5a3cbefe65aa6879d036197352d8b70a1f44",
}


def bodies(count: int, first: int = 0) -> list[str]:
    return [f"ehdb-cert-vector-{number:04}" for number in range(first, first + count)]


def certified(texts: list[str]) -> Certificate:
    certificate = Roller(texts).certificate
    assert certificate is not None
    return certificate


@dataclass
class Reference:
    """The rule that certifies only whole chunks: what ours is better than."""

    n: int = 0
    digest: str = ""

    @classmethod
    def of(cls, texts: list[str]) -> Reference:
        whole = len(texts) // CHUNK * CHUNK
        sealed = b""
        for at in range(0, whole, CHUNK):
            sealed = hashlib.sha256(TAG + sealed + "".join(texts[at : at + CHUNK]).encode()).digest()
        return cls(whole, sealed.hex())


def armed(count: int = 16) -> Certificates[str]:
    """An execution of `count` events that was folded, reconciled and recorded at time 0."""
    here = Certificates[str]()
    here.observe(E, 1, bodies(count))
    assert here.reconcile(E, Roller(bodies(count))) is Reconciled.OK
    here.record(E, certified(bodies(count)), "state", now=0)
    here.take()
    return here


# -- the roller


@pytest.mark.parametrize(("n", "digest"), GOLDEN.items())
def test_r01_golden_vectors(n: int, digest: str) -> None:
    assert certified(bodies(n)) == Certificate(n, digest)


def test_r01_the_vectors_bite_at_every_part_of_the_definition() -> None:
    flat = hashlib.sha256(TAG + "".join(bodies(9)).encode()).hexdigest()
    untagged = hashlib.sha256("".join(bodies(8)).encode()).hexdigest()
    assert flat != GOLDEN[9]
    assert untagged != GOLDEN[8]


def test_asking_for_a_certificate_leaves_the_roller_where_it_was() -> None:
    roller = Roller()
    for number, body in enumerate(bodies(24), start=1):
        roller.absorb(body)
        assert roller.certificate == roller.certificate == certified(bodies(number))
        assert roller.after(bodies(3, number)) == certified(bodies(number + 3))


def test_r06_fewer_than_eight_events_certify_and_none_do_not() -> None:
    assert Roller().certificate is None
    assert len({certified(bodies(n)).digest for n in range(1, 8)}) == 7


def test_r08_an_early_change_alters_every_later_certificate() -> None:
    for n in range(1, 40):
        changed = ["other", *bodies(n)[1:]]
        assert certified(changed).digest != certified(bodies(n)).digest


def test_r24_how_the_events_were_grouped_does_not_matter() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        here, at = Certificates[str](), 0
        while at < 30:
            size = min(chance.randint(1, 9), 30 - at)
            here.observe(E, at + 1, bodies(size, at))
            at += size
        assert here.certificate(E) == certified(bodies(30))


def row(created_at: str, meta: str) -> str:
    """The canonical body of one event; `meta` as jsonb prints it."""
    return canonical_body({"event_id": 1, "created_at": created_at, "meta": meta})


def test_r23_what_is_hashed_is_the_canonical_body() -> None:
    here = certified([row("2026-09-08T12:00:00.123456", '{"a": {"b": 1}}')])
    assert here == certified([row("2026-09-08T12:00:00.123456789", '{"a": {"b": 1}}')])
    assert here != certified([row("2026-09-08T12:00:00.123457", '{"a": {"b": 1}}')])
    assert here != certified([row("2026-09-08T12:00:00.123456", '{"a": {"b": 2}}')])


def test_r23_the_order_of_the_columns_does_not_matter() -> None:
    columns = {"event_id": 1, "status": "ok", "node_name": "a"}
    other = dict(reversed(columns.items()))
    assert certified([canonical_body(columns)]) == certified([canonical_body(other)])


# -- deciding


def test_r02_a_skip_fires_after_reconcile_and_record_and_everything_is_counted() -> None:
    here = Certificates[str]()
    here.observe(E, 1, bodies(16))
    assert here.decide(E, now=0) is Decision.UNCALIBRATED
    assert here.reconcile(E, Roller(bodies(16))) is Reconciled.OK
    assert here.decide(E, now=0) is Decision.NO_CACHED_STATE
    here.record(E, certified(bodies(16)), "state", now=0)
    assert here.decide(E, now=0) is Decision.SKIPPED
    assert here.state(E) == "state"
    tally = here.take()
    assert (tally.observed, tally.decisions.total(), tally.decisions[Decision.SKIPPED]) == (16, 3, 1)
    assert here.take().decisions.total() == 0


def test_r03_eight_more_events_and_the_chain_has_advanced() -> None:
    here = armed()
    here.observe(E, 17, bodies(8, 16))
    assert here.decide(E, now=0) is Decision.CHAIN_ADVANCED
    assert Reference.of(bodies(16)) != Reference.of(bodies(24))


def test_r04_one_more_event_is_enough_and_the_reference_rule_would_skip() -> None:
    here = armed()
    here.observe(E, 17, bodies(1, 16))
    assert here.decide(E, now=0) is Decision.CHAIN_ADVANCED
    assert Reference.of(bodies(16)) == Reference.of(bodies(17))


def test_i35_one_to_seven_events_after_a_cached_state_are_seen_each_time() -> None:
    for more in range(1, 8):
        here = armed()
        for number in range(more):
            here.observe(E, 17 + number, bodies(1, 16 + number))
            assert here.decide(E, now=0) is Decision.CHAIN_ADVANCED
            # The reference rule says "unchanged" and would serve a state without them.
            assert Reference.of(bodies(16)) == Reference.of(bodies(17 + number))


def test_r05_every_pair_of_cached_and_current() -> None:
    expected = {-1: Decision.CACHED_AHEAD, 0: Decision.SKIPPED, 1: Decision.CHAIN_ADVANCED}
    for cached in range(1, 26):
        for current in range(26):
            here = Certificates[str]()
            here.observe(E, 1, bodies(current))
            if current:
                here.reconcile(E, Roller(bodies(current)))
            else:
                here.reconcile(E, Roller())
            here.record(E, certified(bodies(cached)), "state", now=0)
            sign = (current > cached) - (current < cached)
            wanted = expected[sign] if current else Decision.NO_CERTIFICATE
            assert here.decide(E, now=0) is wanted


def test_r09_executions_do_not_touch_each_other() -> None:
    here = armed()
    for number in range(40):
        here.observe(E + 1, number + 1, [f"other-{number}"])
    assert here.decide(E, now=0) is Decision.SKIPPED
    assert here.certificate(E + 1) == certified([f"other-{number}" for number in range(40)])


def test_r10_forgetting_drops_both_halves() -> None:
    here = armed()
    here.forget(E)
    assert (len(here), here.state(E), here.certificate(E)) == (0, None, None)
    assert here.decide(E, now=0) is Decision.UNCALIBRATED


def test_r12_the_same_length_over_other_events_is_a_mismatch() -> None:
    here = armed()
    here.record(E, certified(["other", *bodies(16)[1:]]), "state", now=0)
    assert here.decide(E, now=0) is Decision.DIGEST_MISMATCH


def test_a_dropped_roller_has_no_certificate() -> None:
    here = armed()
    here.observe(E, 19, bodies(1, 18))  # 17 and 18 were never seen
    assert here.decide(E, now=0) is Decision.NO_CERTIFICATE
    here.observe(E, 17, bodies(3, 16))  # too late: only a fold knows
    assert here.decide(E, now=0) is Decision.NO_CERTIFICATE
    assert here.reconcile(E, Roller(bodies(19))) is Reconciled.REBUILT
    assert here.decide(E, now=0) is Decision.CHAIN_ADVANCED


def test_positions_seen_before_are_not_absorbed_twice() -> None:
    here = armed()
    here.observe(E, 9, bodies(8, 8))
    assert here.decide(E, now=0) is Decision.SKIPPED
    here.observe(E, 15, bodies(4, 14))
    assert here.certificate(E) == certified(bodies(18))


def test_what_the_transaction_has_staged_counts() -> None:
    here = armed()
    assert here.decide(E, now=0, staged=bodies(1, 16)) is Decision.CHAIN_ADVANCED
    assert here.decide(E, now=0) is Decision.SKIPPED


def test_held_back_rows_come_before_everything() -> None:
    here = armed()
    here.diverge(E + 1)
    assert here.decide(E, now=0, held_back=True) is Decision.NO_CERTIFICATE
    assert here.decide(E, now=0) is Decision.DIVERGENCE_DETECTED


def test_r15_sixteen_skips_then_a_fold_which_starts_the_count_again() -> None:
    here = armed()
    for _ in range(2):
        assert [here.decide(E, now=0) for _ in range(MAX_CONSECUTIVE_SKIPS)] == [Decision.SKIPPED] * 16
        assert here.decide(E, now=0) is Decision.REVALIDATION_DUE
        assert here.decide(E, now=0) is Decision.REVALIDATION_DUE
        assert here.reconcile(E, Roller(bodies(16))) is Reconciled.OK
        here.record(E, certified(bodies(16)), "state", now=0)


def test_a_fold_older_than_the_bound_is_due_however_few_the_skips() -> None:
    here = armed()
    assert here.decide(E, now=FOLD_AGE_MAX) is Decision.SKIPPED
    assert here.decide(E, now=FOLD_AGE_MAX + 1) is Decision.REVALIDATION_DUE


def test_r16_the_share_of_folds_removed() -> None:
    assert MAX_CONSECUTIVE_SKIPS / (MAX_CONSECUTIVE_SKIPS + 1) >= 0.9
    assert min(k for k in range(1, 99) if 10 * k >= 9 * (k + 1)) == 9
    assert MAX_CONSECUTIVE_SKIPS * 8 == 128


def test_r21_every_label_can_be_produced_and_none_else() -> None:
    assert len(Decision) == 9
    assert {label.value.removeprefix("refold_") for label in Decision} == {
        *("divergence_detected", "uncalibrated", "no_cached_state", "no_certificate", "chain_advanced"),
        *("cached_ahead", "digest_mismatch", "revalidation_due", "skipped"),
    }


def test_r26_a_certificate_shorter_than_the_cached_one_is_never_accepted() -> None:
    here = armed()
    here.record(E, certified(bodies(17)), "state", now=0)
    assert here.decide(E, now=0) is Decision.CACHED_AHEAD


# -- reconciling


def test_r13_events_the_observer_missed_end_all_skipping() -> None:
    here = armed()
    here.observe(E + 1, 1, bodies(3))
    here.reconcile(E + 1, Roller(bodies(3)))
    here.record(E + 1, certified(bodies(3)), "state", now=0)
    assert here.decide(E + 1, now=0) is Decision.SKIPPED
    assert here.reconcile(E, Roller(bodies(24))) is Reconciled.DIVERGED
    assert (here.divergences, here.take().divergences) == (1, 1)
    assert here.state(E) is None
    assert here.decide(E + 1, now=0) is Decision.DIVERGENCE_DETECTED
    assert here.decide(E, now=0) is Decision.DIVERGENCE_DETECTED


def test_the_same_number_of_other_bodies_is_a_divergence_too() -> None:
    here = armed()
    assert here.reconcile(E, Roller(["other", *bodies(16)[1:]])) is Reconciled.DIVERGED


def test_r14_a_complete_roller_reconciles_at_any_length() -> None:
    here = Certificates[str]()
    for n in range(1, 40):
        here.observe(E, n, bodies(1, n - 1))
        assert here.reconcile(E, Roller(bodies(n))) is Reconciled.OK
    assert here.divergences == 0


def test_a_late_start_is_rebuilt_and_no_divergence() -> None:
    here = Certificates[str]()
    here.observe(E, 17, bodies(3, 16))
    assert len(here) == 0
    assert here.reconcile(E, Roller(bodies(19))) is Reconciled.REBUILT
    here.observe(E, 20, bodies(1, 19))
    assert here.certificate(E) == certified(bodies(20))
    assert here.divergences == 0


def test_nothing_is_cached_for_what_was_not_reconciled() -> None:
    here = Certificates[str]()
    here.observe(E, 1, bodies(3))
    here.record(E, certified(bodies(3)), "state", now=0)
    assert here.decide(E, now=0) is Decision.UNCALIBRATED
    assert here.state(E) is None


# -- bounds


def test_r17_at_most_so_many_are_tracked_and_the_first_goes_first() -> None:
    here = Certificates[str]()
    for execution in range(TRACKED_MAX + 1):
        here.observe(execution, 1, bodies(1))
        here.reconcile(execution, Roller(bodies(1)))
        here.record(execution, certified(bodies(1)), "state", now=0)
    assert (len(here), here.take().evicted, here.take().evicted) == (TRACKED_MAX, 1, 0)
    assert here.state(0) is None
    assert here.decide(0, now=0) is Decision.UNCALIBRATED
    assert here.decide(1, now=0) is Decision.SKIPPED


def test_i42_three_thousand_executions_leave_no_state_of_an_evicted_one() -> None:
    here = Certificates[str]()
    for execution in range(3000):
        here.reconcile(execution, Roller(bodies(1)))
        here.record(execution, certified(bodies(1)), "state", now=0)
    assert len(here) == TRACKED_MAX
    assert sum(here.state(execution) is not None for execution in range(3000)) == TRACKED_MAX


def test_r18_a_terminal_event_drops_both_halves_and_what_follows_is_not_absorbed() -> None:
    here = armed()
    here.observe(E, 17, bodies(1, 16), ended=True)
    assert (len(here), here.state(E), here.take().observed) == (0, None, 1)
    here.observe(E, 18, bodies(1, 17), ended=True)
    assert len(here) == 0


# -- misses


def watching(*keys: int, created: int | None = 500, epoch: str | None = "e") -> WatchList:
    here = WatchList()
    for key in keys:
        here.watch((E, key), Watched(1_000, created, epoch))
    return here


def test_a_row_that_the_next_poll_does_not_show_is_missed() -> None:
    here = watching(1, 2)
    here.emitted([(E, 1)])
    assert here.polled(began_at=1_001, floor=0, epoch="e") == [(E, 2)]
    assert here.polled(began_at=2_000, floor=0, epoch="e") == []


def test_a_poll_that_began_before_the_write_proves_nothing() -> None:
    here = watching(1)
    assert here.polled(began_at=1_000, floor=0, epoch="e") == []
    assert len(here) == 1


@pytest.mark.parametrize(("created", "epoch"), [(499, "e"), (None, "e"), (500, "ended"), (500, None)])
def test_what_the_poll_could_not_show_is_no_miss(created: int | None, epoch: str | None) -> None:
    assert watching(1, created=created, epoch=epoch).polled(began_at=1_001, floor=500, epoch="e") == []


def test_the_list_is_bounded() -> None:
    assert len(watching(*range(WATCHED_MAX + 5))) == WATCHED_MAX


# -- what a test of one event at a time does not see


def test_half_a_surrogate_pair_is_hashed_and_not_refused() -> None:
    assert certified(["\ud800"]) != certified(["\ud801"])
    with pytest.raises(UnicodeEncodeError):
        "\ud800".encode()


def test_everything_is_counted_until_it_is_taken() -> None:
    made = Certificates[str](tracked_max=1)
    for execution in (1, 2, 3):
        made.observe(execution, 1, ["a", "b"])
        made.decide(execution, now=0)
    made.diverge(3)
    made.diverge(3)
    tally = made.take()
    assert (tally.observed, tally.evicted, tally.divergences, made.divergences) == (6, 2, 2, 2)
    assert tally.decisions[Decision.UNCALIBRATED] == 3
    assert made.take().observed == 0


@pytest.mark.parametrize(("first", "known"), [(1, 3), (2, 4), (3, 5), (4, None)])
def test_what_overlaps_is_absorbed_once_and_a_hole_drops_the_roller(first: int, known: int | None) -> None:
    made = Certificates[str]()
    made.observe(E, 1, bodies(2))
    made.observe(E, first, bodies(3, first - 1))
    expected = None if known is None else certified(bodies(known))
    assert made.certificate(E) == expected


def test_an_old_fold_is_made_again_by_its_age_and_not_by_the_clock() -> None:
    made, now = Certificates[str](), 10 * FOLD_AGE_MAX
    made.observe(E, 1, bodies(2))
    made.reconcile(E, Roller(bodies(2)))
    made.record(E, certified(bodies(2)), "state", now=now)
    assert made.decide(E, now=now + FOLD_AGE_MAX) is Decision.SKIPPED
    assert made.decide(E, now=now + FOLD_AGE_MAX + 1) is Decision.REVALIDATION_DUE


def test_a_row_written_at_the_edge_of_a_poll_s_range_is_awaited() -> None:
    for created, missed in ((50, [(E, 1)]), (49, [])):
        watched = WatchList()
        watched.watch((E, 1), Watched(10, created, "epoch-1"))
        watched.emitted([(E, 2)])  # one that is not awaited
        assert watched.polled(began_at=11, floor=50, epoch="epoch-1") == missed
