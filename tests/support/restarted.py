"""What a recorded log says of its restarted executions, apart from anything that a tail could see.

The pieces are made by links alone and put in the order in which their roots were written; they are
in sequence if each root's transaction began after the commit of the tip before.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from sidecar.demo.recording import Recording, Transaction, only
from tests.support.databases import Database

INSTANTS = """
create table inserted (event_id bigint primary key, at timestamptz not null);
create function note() returns trigger language plpgsql as
  $$ begin insert into inserted values (new.event_id, clock_timestamp()); return null; end $$;
create trigger note after insert on noetl.event for each row execute function note();
"""
"""Notes the instant at which each row was really inserted in a table beside."""


async def instants(pg: Database) -> dict[int, float]:
    """Seconds since 1970 by event id, where INSTANTS was run before the rows came."""
    rows = await pg.fetch("select event_id, extract(epoch from at)::float8 from inserted")
    return {row[0]: row[1] for row in rows}


@dataclass(frozen=True, slots=True)
class Restarted:
    """The executions with several roots, and when each event's transaction began and committed.

    `sequential`: one piece after the other.  `apart`: forked or interleaved.  Times are microseconds.
    """

    sequential: frozenset[int]
    apart: frozenset[int]
    opened_at: Mapping[int, int]
    committed_at: Mapping[int, int]


def restarted(recording: Recording) -> Restarted:
    opened: dict[int, int] = {}
    committed: dict[int, int] = {}
    links: defaultdict[int, dict[int, int | None]] = defaultdict(dict)
    for transaction in recording.transactions:
        for row in transaction.rows:
            prev = json.loads(row.text)["prev_event_id"]
            links[row.execution_id][row.event_id] = None if prev is None else int(prev)
            opened[row.event_id], committed[row.event_id] = transaction.opened_at, transaction.committed_at
    several = {e for e, prevs in links.items() if list(prevs.values()).count(None) > 1}
    sequential = {e for e in several if _in_sequence(links[e], opened, committed)}
    return Restarted(frozenset(sequential), frozenset(several - sequential), opened, committed)


def _in_sequence(
    prevs: Mapping[int, int | None], opened: Mapping[int, int], committed: Mapping[int, int]
) -> bool:
    behind = {prev: event_id for event_id, prev in prevs.items() if prev is not None}
    pieces = []
    for root in sorted(
        (event_id for event_id, prev in prevs.items() if prev is None), key=opened.__getitem__
    ):
        piece = [root]
        while piece[-1] in behind:
            piece.append(behind[piece[-1]])
        pieces.append(piece)
    whole = sum(map(len, pieces)) == len(prevs)  # neither a fork nor a link that leads nowhere
    return whole and all(opened[two[0]] > committed[one[-1]] for one, two in pairwise(pieces))


def spans_s(recording: Recording) -> dict[int, float]:
    """Seconds from the first row of each execution to its last commit."""
    began, ended = _ends(recording)
    return {e: (ended[e] - began[e]) / 1e6 for e in began}


def folded(recording: Recording, executions: Collection[int], width_s: float) -> Recording:
    """Some executions, each in its own pacing, begun within the first `width_s` seconds.

    An execution is moved by whole multiples of the width, so what ran together may do so no more, and
    a transaction with rows of several may come apart.
    """
    kept = only(recording, executions)
    began, _ = _ends(kept)
    width = round(width_s * 1e6)
    moved = {e: (at - kept.began_at) // width * width for e, at in began.items()}
    shifted = [
        _earlier(each, by, moved)
        for each in kept.transactions
        for by in sorted({moved[row.execution_id] for row in each.rows})
    ]
    shifted.sort(key=lambda each: each.committed_at)
    return replace(kept, transactions=tuple(replace(each, position=n) for n, each in enumerate(shifted)))


def _earlier(transaction: Transaction, by: int, moved: Mapping[int, int]) -> Transaction:
    """Those rows of it whose executions are moved by so much."""
    return replace(
        transaction,
        opened_at=transaction.opened_at - by,
        committed_at=transaction.committed_at - by,
        rows=tuple(row for row in transaction.rows if moved[row.execution_id] == by),
    )


def _ends(recording: Recording) -> tuple[dict[int, int], dict[int, int]]:
    began: dict[int, int] = {}
    ended: dict[int, int] = {}
    for each in recording.transactions:
        for row in each.rows:
            began[row.execution_id] = min(each.opened_at, began.get(row.execution_id, each.opened_at))
            ended[row.execution_id] = max(each.committed_at, ended.get(row.execution_id, 0))
    return began, ended
