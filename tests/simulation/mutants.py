"""Guards taken out of the program one at a time: what the simulation has to see.

    python -m tests.simulation.mutants [SEEDS [NAME…]]     the first seed that shows each

Each is a change of a few words that somebody could make by mistake, done here by replacing one
function while the seeds are played.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import sidecar.comparator.hold
import sidecar.comparator.record
import sidecar.core.due
import sidecar.core.horizon
import sidecar.core.intake
import sidecar.core.resolve
import sidecar.core.settle
import sidecar.feed.write
import sidecar.source.sweep
import sidecar.source.tail
import sidecar.store.populate
import tests.simulation.store
from sidecar.core.authority import Partition
from sidecar.core.horizon import Cursor, Facts, TailRow
from sidecar.core.resolve import Explained
from sidecar.source.partitions import Listing
from sidecar.source.partitions import list_parts as list_parts_of
from tests.simulation.rejoin_mutants import REJOIN_MUTANTS
from tests.simulation.run import simulate
from tests.simulation.script import script
from tests.simulation.server import Server, Snapshot
from tests.simulation.store import SimulatedStore

Broken = Callable[[], AbstractContextManager[object]]


@contextmanager
def _replaced(*places: tuple[object, str, object]) -> Iterator[None]:
    kept = [(where, name, getattr(where, name)) for where, name, _ in places]
    try:
        for where, name, instead in places:
            setattr(where, name, instead)
        yield
    finally:
        for where, name, before in kept:
            setattr(where, name, before)


def _without_epoch() -> AbstractContextManager[object]:
    real = sidecar.core.intake.advance

    def advance(partition: Partition, pool: Mapping[int, TailRow], stored: Any, **more: Any) -> Any:
        epoch = more["epoch"] or "any"
        rows = {key: replace(row, epoch=epoch) for key, row in pool.items()}
        return real(replace(partition, head_epoch=epoch), rows, stored, **(more | {"epoch": epoch}))

    return patch.object(sidecar.core.settle, "advance", advance)


def _without_label() -> AbstractContextManager[object]:
    return patch.object(sidecar.core.intake, "_label", lambda *_: None)


def _cleared_by_an_older_read() -> AbstractContextManager[object]:
    real = sidecar.core.due.judged

    def judged(due: Any, verdict: Any, **more: Any) -> Any:
        return real(due, verdict, **(more | {"read_began_at": more["now"]}))

    return patch.object(sidecar.core.due, "judged", judged)


def _resolved_by_length() -> AbstractContextManager[object]:
    real = sidecar.core.resolve.resolve

    def resolve(absent: Sequence[Any], fresh: Any, **more: Any) -> Any:
        return (
            Explained() if len(fresh) >= max(row.exec_seq for row in absent) else real(absent, fresh, **more)
        )

    return patch.object(sidecar.comparator.hold, "resolve", resolve)


def _running_forgotten() -> AbstractContextManager[object]:
    real = Server.snapshot

    def snapshot(self: Server) -> Snapshot:
        seen = real(self)
        return Snapshot(seen.xmax, seen.xmax)

    return patch.object(Server, "snapshot", snapshot)


def _tree_ignored() -> AbstractContextManager[object]:
    real = sidecar.core.horizon.left_behind

    def left_behind(cursor: Cursor | None, facts: Facts, **more: Any) -> Cursor:
        return real(cursor and replace(cursor, tree=facts.tree), facts, **more)

    return patch.object(sidecar.source.tail, "left_behind", left_behind)


@contextmanager
def _attaching_ignored() -> Iterator[None]:
    real = list_parts_of

    async def list_parts(*given: Any) -> Listing:
        listing = await real(*given)
        parts = (replace(part, lane=part.lane.rpartition(":")[0], tree="") for part in listing.parts)
        return replace(listing, parts=tuple(parts))

    with _tree_ignored(), _replaced((sidecar.source.sweep, "list_parts", list_parts)):
        yield


def _epoch_of_the_horizon_ignored() -> AbstractContextManager[object]:
    def keeps(cursor: Cursor | None, facts: Facts, scope: str) -> bool:
        return cursor is not None and cursor.horizon is not None and cursor.scope == scope

    real = sidecar.core.horizon.left_behind

    def left_behind(cursor: Cursor | None, facts: Facts, **more: Any) -> Cursor:
        return real(cursor and replace(cursor, epoch=facts.epoch), facts, **more)

    # Each of the two alone only puts the read without predicate off by one poll.
    return _replaced(
        (sidecar.source.tail, "keeps_horizon", keeps),
        (sidecar.source.sweep, "keeps_horizon", keeps),
        (sidecar.source.tail, "left_behind", left_behind),
    )


def _held_rows_ignored() -> AbstractContextManager[object]:
    return patch.object(tests.simulation.store, "held_back", lambda *_: False)


def _never_revoked() -> AbstractContextManager[object]:
    return patch.object(sidecar.comparator.record, "revoked", lambda partition, *_: partition)


def _written_by_an_old_read() -> AbstractContextManager[object]:
    return patch.object(sidecar.store.populate, "may_write", lambda *_: True)


def _pool_forgotten_at_a_start() -> AbstractContextManager[object]:
    async def flag_held(self: SimulatedStore) -> None:
        return None

    return patch.object(SimulatedStore, "flag_held", flag_held)


def _delivered_forgotten() -> AbstractContextManager[object]:
    async def first_seen(self: Any, unit: Any) -> None:
        return None

    return patch.object(sidecar.feed.write.Write, "_first_seen", first_seen)


MUTANTS: Mapping[str, tuple[str, Broken]] = {
    "extends without the epoch": ("2.12 step 4", _without_epoch),
    "no label at once": ("2.12 step 3", _without_label),
    "due cleared by an older read": ("2.12, the list", _cleared_by_an_older_read),
    "absent rows resolved by length": ("3.4 step 3", _resolved_by_length),
    "H passes running transactions": ("1.8", _running_forgotten),
    "H survives a change of the tree": ("1.8", _tree_ignored),
    "H and the sweep's keys survive a change of the tree": ("1.8", _attaching_ignored),
    "H survives a change of the epoch": ("1.8", _epoch_of_the_horizon_ignored),
    "served while rows are held": ("2.12 step 2", _held_rows_ignored),
    "verdicts do not revoke": ("2.9", _never_revoked),
    "a read older than a revocation writes": ("2.9", _written_by_an_old_read),
    "a start forgets the pool": ("2.12 step 2", _pool_forgotten_at_a_start),
    "pruned before the first read is empty": ("2.8 row 2b", _delivered_forgotten),
    **REJOIN_MUTANTS,
}
"""Name -> where the spec asks for the guard, and how it is taken out."""


NEEDS: Mapping[str, frozenset[str]] = {
    "extends without the epoch": frozenset({"crash"}),
    "H survives a change of the epoch": frozenset({"crash"}),
    "H survives a change of the tree": frozenset({"detach"}),
    "H and the sweep's keys survive a change of the tree": frozenset({"detach"}),
    "a start forgets the pool": frozenset({"kill"}),
    "a read older than a revocation writes": frozenset({"slow_read"}),
    "rejoin: the snapshot's xmax for the anchor": frozenset({"old_server"}),
    "rejoin: the anchor read before the poll": frozenset({"old_server"}),
    "rejoin: a poll's anchor for a log read": frozenset({"old_server"}),
    "rejoin: forks do not matter": frozenset({"fork"}),
    "rejoin: an updated row's xid": frozenset({"touched_root", "old_server", "restart_at"}),
    "rejoin: a join is never withdrawn": frozenset({"straggler"}),
}
"""Faults without which a mutant does nothing: seeds without them are not played."""


def first_seed(name: str, most: int) -> tuple[int, str] | None:
    """The first seed below `most` that shows a mutant, and what it shows."""
    needs = NEEDS.get(name, frozenset())
    with MUTANTS[name][1]():
        for seed in range(most):
            played = script(seed)
            if not needs <= played.faults or (name in REJOIN_MUTANTS and not played.rejoin):
                continue
            if wrong := simulate(seed).wrong:
                return seed, wrong[0]
    return None


def main(most: int, names: Sequence[str]) -> None:
    for name in names or MUTANTS:
        place = MUTANTS[name][0]
        found = first_seed(name, most)
        said = f"none of {most}" if found is None else f"{found[0]} | {found[1]}"
        sys.stdout.write(f"| {name} | {place} | {said} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, sys.argv[2:])
