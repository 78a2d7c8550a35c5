"""Messages of committed transactions -> what became of each row, in the order of the commits.

A key stands once, with its last version: a row that was inserted and changed before anybody
looked is seen as it is, like in a poll.  Its commit then proves nothing about its insertion.
No statement is run here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from sidecar.core.ports import Key
from sidecar.errors import SourceContractError
from sidecar.source.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Malformed,
    Message,
    Other,
    Relation,
    Truncate,
    Update,
    Value,
    Values,
    leading,
    parse,
)

ColumnType = tuple[int, int]
"""The oid of the type and its modifier."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row that stands after a commit.

    `texts`: its columns, in the decoder's order; None: the message does not hold them all, so
    the row has to be read by its key.  `xid`: of the top transaction, raw.  `first_lsn`: of the
    first record that it wrote, as far as decoding knows, and never behind the row's own.
    `inserted`: the transaction inserted it and nothing changed it since.
    """

    key: Key
    texts: tuple[str | None, ...] | None
    xid: int
    commit_lsn: int
    first_lsn: int
    inserted: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """What some messages came to.

    `gone`: keys that were deleted.  `truncated`: the whole table was emptied in between.
    `unreadable`: rows that were too large, and whose key was not found.
    """

    rows: tuple[Change, ...] = ()
    gone: frozenset[Key] = frozenset()
    truncated: bool = False
    unreadable: int = 0

    @property
    def xids(self) -> frozenset[int]:
        return frozenset(change.xid for change in self.rows)


@dataclass(slots=True)
class _Taken:
    rows: dict[Key, Change] = field(default_factory=dict)
    gone: set[Key] = field(default_factory=set)
    xids: dict[int, int] = field(default_factory=dict)
    """The top transactions, each with the end of the commit before it."""
    truncated: bool = False
    unreadable: int = 0
    weight: int = 0


class Decoder:
    """Takes the messages of one peek, in their order.

    Args:
        relid: The event table; other tables of the publication are of no interest.
        columns: Whose texts a change needs, each with its type and modifier now.  A change from before
            a column had that type is read by its key.

    `end_lsn`: right behind the last commit, 0 before one.  `open`: inside a transaction.
    """

    def __init__(self, relid: int, columns: Mapping[str, ColumnType]) -> None:
        self.end_lsn = 0
        self._relid = relid
        self._columns = columns
        self._places: Mapping[str, int] | None = None
        self._as_now = True
        self._begin: Begin | None = None
        self._first_lsn = 0
        self._at = 0
        self._taken = _Taken()

    @property
    def open(self) -> bool:
        return self._begin is not None

    @property
    def rows(self) -> int:
        return len(self._taken.rows) + len(self._taken.gone)

    @property
    def weight(self) -> int:
        """Bytes of the messages since the last cut."""
        return self._taken.weight

    @property
    def xids(self) -> frozenset[int]:
        """The top transactions of what was taken since the last cut, raw."""
        return frozenset(self._taken.xids)

    def end_before(self, xids: Collection[int]) -> int:
        """Right behind the last commit before those of some transactions since the last cut."""
        return min(end for xid, end in self._taken.xids.items() if xid in xids)

    def cut(self) -> Changes:
        """Hand over what was taken since the last cut."""
        taken, self._taken = self._taken, _Taken()
        return Changes(tuple(taken.rows.values()), frozenset(taken.gone), taken.truncated, taken.unreadable)

    def take(self, data: bytes, size: int, lsn: int) -> None:
        """Take a message.

        Args:
            size: Bytes of the whole message; `data` may be its beginning only.
            lsn: Of the record behind it: of a Begin, the transaction's first one.

        Raises:
            SourceContractError: it cannot be read.
        """
        self._taken.weight += len(data)
        self._at = lsn
        try:
            if size > len(data):
                self._row(leading(data), whole=False)
            else:
                self._message(parse(data))
        except Malformed:
            raise SourceContractError(
                "a change in the replication stream cannot be read",
                hint="keep the log in a database of encoding UTF8, or follow it with NOETL_CHAIN_TAIL=poll",
            ) from None

    def _message(self, message: Message) -> None:
        match message:
            case Begin():
                self._begin, self._first_lsn = message, self._at
            case Commit():
                self._begin, self.end_lsn = None, message.end_lsn
            case Relation():
                if message.oid == self._relid:
                    self._places = {name: place for place, name in enumerate(message.columns)}
                    kinds = dict(zip(message.columns, message.types, strict=True))
                    self._as_now = all(kinds.get(name, now) == now for name, now in self._columns.items())
            case Insert() | Update() | Delete():
                self._row(message, whole=True)
            case Truncate():
                if self._relid in message.oids:
                    self._emptied()
            case Other():
                pass
            case _:
                assert_never(message)

    def _row(self, row: Insert | Update | Delete, *, whole: bool) -> None:
        if row.oid != self._relid:
            return
        begin = self._within()
        match row:
            case Delete():
                self._gone(self._key(row.old))
            case Insert():
                self._stands(self._key(row.new), row.new, begin, whole=whole, inserted=True)
            case Update():
                key = self._key(row.new)
                if row.old is not None and (before := self._key(row.old)) != key:
                    self._gone(before)
                self._stands(key, row.new, begin, whole=whole, inserted=False)
            case _:
                assert_never(row)

    def _stands(self, key: Key | None, new: Values, begin: Begin, *, whole: bool, inserted: bool) -> None:
        if key is None:
            self._taken.unreadable += 1
            return
        again = key in self._taken.gone or self._taken.rows.pop(key, None) is not None
        self._taken.gone.discard(key)
        texts = self._texts(new) if whole and self._as_now else None
        first = min(self._first_lsn, self._at)
        self._taken.rows[key] = Change(key, texts, begin.xid, begin.commit_lsn, first, inserted and not again)

    def _gone(self, key: Key | None) -> None:
        if key is None:
            self._taken.unreadable += 1
            return
        self._taken.rows.pop(key, None)
        self._taken.gone.add(key)

    def _emptied(self) -> None:
        self._within()
        self._taken.rows.clear()
        self._taken.truncated = True

    def _within(self) -> Begin:
        if self._begin is None:
            raise Malformed
        self._taken.xids.setdefault(self._begin.xid, self.end_lsn)
        return self._begin

    def _key(self, values: Values) -> Key | None:
        execution_id, event_id = self._value(values, "execution_id"), self._value(values, "event_id")
        if not isinstance(execution_id, str) or not isinstance(event_id, str):
            return None
        try:
            return int(execution_id), int(event_id)
        except ValueError:
            raise Malformed from None

    def _texts(self, values: Values) -> tuple[str | None, ...] | None:
        found = [self._value(values, column) for column in self._columns]
        texts = tuple(value for value in found if value is None or isinstance(value, str))
        return texts if len(texts) == len(found) else None

    def _value(self, values: Values, column: str) -> Value:
        """UNCHANGED also for a column that the message lacks: it was added since, or cut away."""
        if self._places is None:
            raise Malformed
        place = self._places.get(column)
        return UNCHANGED if place is None or place >= len(values) else values[place]
