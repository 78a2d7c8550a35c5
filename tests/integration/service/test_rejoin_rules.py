"""Feed and comparator over joins, every order of events written down: no lanes, no Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.comparator.probe import probe
from sidecar.comparator.verify import against_store
from sidecar.core.authority import Reason
from sidecar.core.digest import digest
from sidecar.core.event import Event
from sidecar.core.settle import Limits
from sidecar.core.verdict import Verdict
from sidecar.core.workflow import fold
from sidecar.store import ChainStore
from sidecar.store.check import check
from sidecar.store.replication import Follower
from tests.support.scripted import LONG, Scripted
from tests.unit.core.build import E, chain, ev


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Scripted]:
    """1 and 2 stored, judged and seen by a poll."""
    here = await Scripted.open(tmp_path, rejoining=True, cert=True)
    await here.write(*chain(1, 2))
    await here.tick()
    assert (await here.guarded(E)).events is not None
    yield here
    await here.store.close()


async def verdict(here: Scripted) -> str | None:
    await here.judge(E)
    return (await here.partition(E)).verdict


async def joined(here: Scripted) -> None:
    await here.write(*chain(9, 4))
    assert await here.stored(E) == [1, 2, 9, 4]
    assert await verdict(here) == "match_rejoined"


async def served(here: Scripted) -> list[int] | Reason | None:
    read = await here.guarded(E)
    return read.reason if read.events is None else [event.event_id for event in read.events]


async def test_a_root_is_served_from_the_batch_that_brings_it(line: Scripted) -> None:
    report = await line.write(*chain(9, 4))
    assert await served(line) == [1, 2, 9, 4]
    assert report.ways["extend"] == 1
    assert (await line.partition(E)).label is None
    assert await verdict(line) == "match_rejoined"
    await line.write(ev(5, 4))
    await line.write(*chain(3))
    assert await served(line) == [1, 2, 9, 4, 5, 3]
    assert len(await line.store.joins(E)) == 2


async def test_a_log_read_that_meets_the_root_first_only_delays_the_join(line: Scripted) -> None:
    """It refuses what it cannot order yet; the tail brings the proof, and the comparator asks again."""
    root = line.commit(*chain(9, 4))
    assert await verdict(line) == "refused_multiple_roots"
    assert await line.store.joins(E) == ()
    await line.deliver(*root)
    assert await served(line) is Reason.ROWS_HELD_BACK
    assert (await line.partition(E)).label == "multiple_roots"
    assert await verdict(line) == "match_rejoined"
    assert await served(line) == [1, 2, 9, 4]
    assert not [each for each in await line.store.findings(E) if each.resolved_at is None]


async def test_a_log_read_that_meets_a_tip_and_the_root_behind_it_first_proves_nothing(
    line: Scripted,
) -> None:
    """Both come in the tail's next poll together."""
    rows = line.commit(ev(3, 2), *chain(9, 4))
    assert await verdict(line) == "refused_multiple_roots"
    await line.deliver(*rows)
    assert await verdict(line) == "refused_multiple_roots"
    assert await line.store.joins(E) == ()


async def test_a_tip_that_a_log_read_found_is_bounded_by_the_anchor_after_that_read(line: Scripted) -> None:
    """The poll before it had an anchor, and the root's xid lies above that one."""
    tip = line.commit(ev(3, 2))
    assert await verdict(line) == "match"
    late = line.commit(*chain(9, 4))
    known = await line.partition(E)
    assert known.head_event_id == 3
    assert known.head_anchor is not None
    await line.deliver(*tip)
    rows = line.batch(*late).rows
    early = replace(line.batch(*late), rows=tuple(replace(each, xid=known.head_anchor - 1) for each in rows))
    await line.feed.take(early)
    assert (await line.partition(E)).label == "multiple_roots"


async def test_a_read_that_is_older_than_the_join_is_asked_again(line: Scripted) -> None:
    async def meanwhile() -> None:
        await line.write(*chain(9, 4))

    line.after_read = meanwhile
    assert await verdict(line) == "match_rejoined"
    assert await served(line) == [1, 2, 9, 4]


@pytest.mark.parametrize(
    "rows", [[ev(5, 2)], [ev(5, 1)], [ev(5, 9)], [ev(5, 4), ev(6, 4)], [ev(5, 77), ev(6, 77)]]
)
@pytest.mark.parametrize("by", ["tail", "log read", "read while it came"])
async def test_a_contradiction_withdraws_whoever_brings_it(
    line: Scripted, rows: list[Event], by: str
) -> None:
    await joined(line)
    before = await line.store.stored_chain(E)
    later = line.commit(*rows) if by != "read while it came" else tuple(rows)
    if by == "tail":
        await line.deliver(*later)
        assert await served(line) is Reason.ROWS_HELD_BACK
        assert (await line.partition(E)).coverage is None
    if by == "read while it came":

        async def meanwhile() -> None:
            await line.write(*later)

        line.after_read = meanwhile
    assert await verdict(line) == "rejoin_withdrawn"
    partition = await line.partition(E)
    assert (partition.label, partition.revoked_reason) == ("multiple_roots", "rejoin_withdrawn")
    (join,) = await line.store.joins(E)
    assert not join.stands
    assert await line.store.stored_chain(E) == before
    (finding,) = [each for each in await line.store.findings(E) if each.resolved_at is None]
    assert finding.verdict == Verdict.REJOIN_WITHDRAWN
    assert finding.evidence is not None
    assert finding.evidence["joins"] == [join.document()]
    await line.restart()
    assert await verdict(line) == "rejoin_withdrawn"
    await line.write(ev(30, 4))
    assert await verdict(line) == "rejoin_withdrawn", "no row takes it back"
    await line.store.close()
    assert check(line.path).findings == []


async def test_a_withdrawn_join_is_counted_once(line: Scripted) -> None:
    await joined(line)
    await line.write(ev(5, 2))
    await line.restart()
    ticks = [await line.tick() for _ in range(3)]
    await line.restart()
    ticks += [await line.tick() for _ in range(2)]
    verdicts = [each.judgement.verdict for tick in ticks for each in tick.judged]
    assert verdicts == [Verdict.REJOIN_WITHDRAWN]


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("tail", [ev(5, 2)]),
        ("tail", [ev(5, 1)]),
        ("tail, then a restart", [ev(5, 2)]),
        ("log read", [ev(5, 9)]),
        ("log read", [ev(5, 4), ev(6, 4)]),
        ("log read", [ev(5, 2), ev(6, 77)]),
    ],
)
async def test_a_contradicted_proof_that_joined_nothing_is_silent_and_useless_ever_after(
    line: Scripted, rows: list[Event], by: str
) -> None:
    root = line.commit(*chain(9, 4))
    assert await verdict(line) == "refused_multiple_roots"
    await line.deliver(*root)
    (proof,) = await line.store.joins(E)
    assert proof.stands
    assert await line.stored(E) == [1, 2], "nothing was ever served over it"
    later = line.commit(*rows)
    if by.startswith("tail"):
        await line.deliver(*later)
    if by == "tail, then a restart":
        await line.restart()
    assert (await verdict(line) or "").startswith(("refused_", "pending_visibility"))
    assert (await line.partition(E)).revoked_reason != "rejoin_withdrawn"
    assert not (await line.store.joins(E))[0].stands
    for event in rows:
        line.log[E].pop(event.event_id, None)
    await line.restart()
    assert await verdict(line) == "refused_multiple_roots", "the log looks again as it did"
    assert await served(line) is Reason.ROWS_HELD_BACK
    said = {each.verdict for each in await line.store.findings(E)}
    assert Verdict.REJOIN_WITHDRAWN not in said
    counted: list[Verdict] = []
    await probe(E, line.store, line, LONG, counted.append)
    assert counted == [Verdict.REFUSED_MULTIPLE_ROOTS]


async def test_a_read_that_is_older_than_the_end_of_a_proof_does_not_join_over_it(line: Scripted) -> None:
    root = line.commit(*chain(9, 4))
    assert await verdict(line) == "refused_multiple_roots"
    await line.deliver(*root)

    async def meanwhile() -> None:
        await line.write(ev(5, 2))

    line.after_read = meanwhile
    assert await verdict(line) == "refused_multiple_roots"
    assert await verdict(line) == "refused_multiple_roots"
    assert await line.stored(E) == [1, 2]


async def test_a_row_behind_an_unused_tip_ends_the_proof_though_no_read_sees_it(line: Scripted) -> None:
    """A crash takes it along: the tail alone has seen that the old piece went on."""
    root = line.commit(*chain(9, 4))
    assert await verdict(line) == "refused_multiple_roots"
    await line.deliver(*root)
    await line.write(ev(5, 2))
    del line.log[E][5]
    line.epoch = "epoch-2"
    await line.restart()
    assert await verdict(line) == "refused_multiple_roots"
    assert not (await line.store.joins(E))[0].stands


async def test_a_root_without_a_proof_refuses_all_and_withdraws_nothing(line: Scripted) -> None:
    await joined(line)
    await line.write(ev(5, 4), ev(6))
    assert await verdict(line) == "refused_multiple_roots"
    (join,) = await line.store.joins(E)
    assert join.stands


async def test_a_proof_outlives_the_sidecar_and_a_lost_pool(line: Scripted) -> None:
    """What waits is lost with the process: the log is read again, in the order that was proven."""
    await line.deliver()
    rows = line.commit(*chain(9, 4))
    part = replace(line.batch(*rows), cursor=None)
    await line.feed.take(part)  # a piece of a poll: read again before anything of it is served
    await line.restart()
    await line.tick()
    assert (await line.partition(E)).verdict == "match_rejoined"
    assert await served(line) == [1, 2, 9, 4]


async def test_a_restarted_server_proves_nothing_about_what_was_seen_before(line: Scripted) -> None:
    line.epoch = "epoch-2"
    await line.write(*chain(9, 4))
    assert await verdict(line) == "refused_multiple_roots"
    assert await line.store.joins(E) == ()


async def test_a_head_that_was_confirmed_in_the_new_epoch_proves_again(line: Scripted) -> None:
    line.epoch = "epoch-2"
    await line.deliver(*chain(1, 2))
    await line.write(*chain(9, 4))
    assert await verdict(line) == "match_rejoined"


async def test_a_later_version_of_a_root_brings_no_xid_of_its_own(line: Scripted) -> None:
    """9 has its xid before the poll that saw 3, and no proof; then somebody updates it."""
    (root,) = line.commit(ev(9))
    await line.write(ev(3, 2))
    await line.deliver(root)
    assert (await line.partition(E)).label == "multiple_roots"
    await line.deliver(*line.commit(ev(9, note="updated")))
    assert await line.store.joins(E) == ()
    assert await verdict(line) == "refused_multiple_roots"


@pytest.mark.parametrize("judged", [True, False])
async def test_an_update_is_no_insert_after_a_restart_though_the_chain_was_revoked(
    line: Scripted, judged: bool
) -> None:
    """A revoked execution has no pool: that 9 came, and without a proof, has to stand in the store."""
    (root,) = line.commit(ev(9))
    await line.write(ev(3, 2))
    await line.store.revoke(E, "divergent")
    await line.deliver(root)
    assert (await line.partition(E)).label == "multiple_roots"
    await line.restart()
    if judged:
        assert await verdict(line) == "refused_multiple_roots"
    await line.deliver(*line.commit(ev(9, note="updated")))
    assert await line.store.joins(E) == ()
    assert await verdict(line) == "refused_multiple_roots"


async def test_first_sight_of_several_pieces_proves_nothing(line: Scripted) -> None:
    other = [replace_execution(event) for event in (*chain(1, 2), *chain(9, 4))]
    await line.write(*other)
    await line.judge(E + 1)
    assert (await line.partition(E + 1)).verdict == "refused_multiple_roots"
    assert await line.store.joins(E + 1) == ()


async def test_the_gate_off_joins_nothing_and_on_again_what_was_proven(line: Scripted) -> None:
    await joined(line)
    await line.restart(rejoining=False)
    assert await served(line) is Reason.CHAIN_GAP
    await line.write(ev(5, 4))
    assert await verdict(line) == "refused_multiple_roots"
    assert (await line.store.joins(E))[0].stands
    await line.restart(rejoining=True)
    await line.write(ev(6, 5))
    assert await verdict(line) == "match_rejoined"
    assert await served(line) == [1, 2, 9, 4, 5, 6]


async def test_without_a_comparator_the_feed_joins_by_itself(tmp_path: Path) -> None:
    here = await Scripted.open(tmp_path, rejoining=True, comparing=False)
    await here.write(*chain(1, 2))
    await here.write(*chain(9, 4))
    assert await served(here) == [1, 2, 9, 4]
    assert await here.due(E) is None
    await here.store.close()


async def test_a_joined_chain_grows_to_the_read_limit_and_not_beyond(tmp_path: Path) -> None:
    here = await Scripted.open(tmp_path, rejoining=True, limits=Limits(read=5))
    await here.write(*chain(1, 2))
    await here.write(*chain(9, 4, 5))
    assert await here.stored(E) == [1, 2, 9, 4]
    assert (await here.partition(E)).label is None
    assert await verdict(here) == "log_truncated"
    await here.store.close()


async def test_a_probe_judges_as_the_comparator_does(line: Scripted) -> None:
    await joined(line)
    counted: list[Verdict] = []
    await probe(E, line.store, line, LONG, counted.append)
    line.commit(ev(5, 2))
    await probe(E, line.store, line, LONG, counted.append)
    assert counted == [Verdict.MATCH_REJOINED, Verdict.REJOIN_WITHDRAWN]
    assert (await line.store.joins(E))[0].stands, "a probe writes nothing"


@pytest.mark.parametrize("used", [True, False])
async def test_a_replica_is_judged_as_its_primary_is(line: Scripted, tmp_path: Path, used: bool) -> None:
    url = str(tmp_path / "replica.db")
    if used:
        await joined(line)
    else:
        line.commit(*chain(9, 4))
        await line.judge(E)
        await line.deliver(*line.log[E].values())
    await Follower(line.store, url).catch_up()
    await line.write(ev(5, 2))
    await Follower(line.store, url).catch_up()
    expected = Verdict.REJOIN_WITHDRAWN if used else Verdict.REFUSED_MULTIPLE_ROOTS
    for gone in (False, True):
        if gone:
            del line.log[E][5]
        for store_url in (str(line.path), url):
            async with ChainStore.open_readonly(store_url, rejoining=True) as reader:
                (found,) = await against_store(reader, line)([line.whole(E)])
                assert found.verdict is expected, (gone, store_url)


async def test_a_roller_goes_on_over_the_join_and_a_withdrawn_one_is_not_skipped_over(line: Scripted) -> None:
    await line.certified.state(line.store, E)
    await joined(line)
    answer = await line.certified.state(line.store, E)
    assert answer.certificate is not None
    assert answer.certificate.n == 4
    whole = (await line.guarded(E)).events
    assert whole is not None
    folded = fold(whole)
    assert answer.state is not None
    assert folded is not None
    assert digest(answer.state) == digest(folded)
    await line.write(ev(5, 2))
    refused = await line.certified.state(line.store, E)
    assert (refused.state, refused.certificate) == (None, None)
    assert line.certified.take().divergences == 0


async def test_the_next_verdict_of_an_earlier_refusal_clears_what_was_counted(line: Scripted) -> None:
    await joined(line)
    assert (await line.partition(E)).counted_kinds == frozenset()
    ((_, status, data),) = await line.store.query(
        "SELECT execution_id, status, data FROM d3_projection ORDER BY proj_seq DESC LIMIT 1"
    )
    assert (status, data != "") == ("match_rejoined", True)


def replace_execution(event: Event) -> Event:
    return Event(E + 1, event.event_id, event.prev_event_id, None, event.event_type, event.body)
