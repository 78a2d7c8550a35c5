"""A join in one sentence that a person can check, and as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sidecar.core.event import Event
from sidecar.core.lsn import lsn_text
from sidecar.core.rejoin import Join, Joined, Joins, chain_order
from sidecar.inspection.documents import time


def sentence(join: Join) -> str:
    """What was proven, by which numbers, and whether it still stands."""
    proof = (
        f"Root {join.root_event_id} comes after tip {join.tip_event_id}: {_by(join)}"
        f" (epoch {join.epoch}; joined {time(join.joined_at) or join.joined_at})."
    )
    if join.withdrawn_at is not None:
        at = time(join.withdrawn_at) or join.withdrawn_at
        return f"{proof} Not usable since {at}: a later row spoke against it."
    if not join.stands:
        return f"{proof} That is no proof: the transaction is older than that."
    return proof


def _by(join: Join) -> str:
    if join.anchor is not None:
        return (
            f"transaction {join.xid} inserted it,"
            f" and when the tip had been seen the next one to begin was {join.anchor}"
        )
    return (
        f"its commit stands at {_position(join.tip_lsn)} of the write-ahead log, and transaction {join.xid},"
        f" which inserted the root, began to write behind it, at {_position(join.root_lsn)}"
    )


def _position(lsn: int | None) -> str:
    return "no position" if lsn is None else lsn_text(lsn)


def in_pieces(events: Sequence[Event], usable: Joins) -> str:
    """Into how many pieces the rows fall that joins in use put in a row; "" where they put none."""
    order = chain_order(events, usable)
    return f", joined from {len(order.joins) + 1} pieces" if isinstance(order, Joined) else ""


def document(join: Join) -> dict[str, Any]:
    """The proof as JSON values: ids and transaction ids as decimal strings, times as ISO 8601 in UTC."""
    return {
        **join.document(),
        "joined_at": time(join.joined_at),
        "withdrawn_at": time(join.withdrawn_at),
        "stands": join.stands,
    }
