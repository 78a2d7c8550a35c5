"""An execution of two pieces and the join between them, for the tests of a store."""

from __future__ import annotations

from typing import Protocol

from sidecar.core.event import Event
from sidecar.core.populate import InSync
from sidecar.core.rejoin import Join
from sidecar.store import ChainStore
from sidecar.store.opening import Opening
from tests.contract.events import E, chain


class Located(Protocol):
    """Whatever has the address of a store."""

    @property
    def url(self) -> str: ...


LOG: tuple[Event, ...] = (*chain(1, 2), *chain(9, 4))
JOIN = Join(E, 2, 9, xid=7, anchor=7, epoch="e", joined_at=5)
BY_POSITIONS = Join(E, 2, 9, 7, None, "e", 5, tip_lsn=2**63 + 7, root_lsn=2**63 + 8)


def opened(place: Located, *, rejoining: bool = True) -> Opening[ChainStore]:
    return ChainStore.open(place.url, rejoining=rejoining)


async def keep(store: ChainStore, *joins: Join) -> None:
    await store.transact(lambda unit: unit.keep_joins(joins))


async def withdraw(store: ChainStore, now: int, *joins: Join) -> None:
    await store.transact(lambda unit: unit.withdraw_joins(joins, now))


async def joined(store: ChainStore) -> None:
    await keep(store, JOIN)
    assert await store.populate_from_log(E, LOG) == InSync(4, 4)
