"""pgoutput, protocol 1: the bytes of one message, as a value.

Every message is read whole or refused: one that is torn, too long or of no known shape raises
`Malformed`, and nothing is guessed from it.  Of a message that was cut on purpose, because it is
too large to be carried, `leading` reads the values that stand whole before the cut.
Texts are UTF-8: Postgres has converted them to the client's encoding.
Source: PostgreSQL, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Malformed(Exception):
    """The bytes are no message of this protocol.  A signal to the caller, who knows what to do."""


class Unchanged(Enum):
    """A TOASTed value that an UPDATE left alone: it is not in the message."""

    UNCHANGED = "u"


UNCHANGED: Final = Unchanged.UNCHANGED

Value = str | None | Unchanged
"""A column as text; None is NULL."""

Values = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """`commit_lsn`: the position of the commit that ends it.  `xid`: the top transaction's, raw."""

    commit_lsn: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn`: the position right behind it."""

    commit_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Relation:
    """Names the columns of the tuples that follow for `oid`.  `types`: of each its type and modifier."""

    oid: int
    namespace: str
    name: str
    columns: tuple[str, ...]
    types: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Insert:
    oid: int
    new: Values


@dataclass(frozen=True, slots=True)
class Update:
    """`old`: the key (or the row) before, only where the key changed or the replica identity is full."""

    oid: int
    old: Values | None
    new: Values


@dataclass(frozen=True, slots=True)
class Delete:
    oid: int
    old: Values


@dataclass(frozen=True, slots=True)
class Truncate:
    oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """Origin, Type: of no interest here."""

    kind: str


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Other

Row = Insert | Update | Delete


def parse(data: bytes) -> Message:
    """Read one message to its last byte.

    Raises:
        Malformed: it is none, or something is left over.
    """
    reader = _Reader(data)
    message = _message(reader)
    if not reader.ended:
        raise Malformed
    return message


def leading(data: bytes) -> Row:
    """Of an insert, update or delete that was cut: the message with the values before the cut.

    The new values of an update may be cut away altogether.

    Raises:
        Malformed: it is no such message, or the cut lies before the first tuple.
    """
    reader = _Reader(data)
    kind, oid = reader.kind(), reader.uint32()
    match kind:
        case "I":
            reader.expect("N")
            return Insert(oid, reader.cut_values())
        case "D":
            reader.one_of("KO")
            return Delete(oid, reader.cut_values())
        case "U":
            old = None
            if reader.one_of("KON") != "N":
                old = reader.values()
                reader.expect("N")
            return Update(oid, old, reader.cut_values())
        case _:
            raise Malformed


def _message(reader: _Reader) -> Message:
    match reader.kind():
        case "B":
            commit_lsn, _time, xid = reader.unpack(">qqI")
            return Begin(commit_lsn, xid)
        case "C":
            _flags, commit_lsn, end_lsn, _time = reader.unpack(">Bqqq")
            return Commit(commit_lsn, end_lsn)
        case "R":
            return _relation(reader)
        case "I":
            oid = reader.uint32()
            reader.expect("N")
            return Insert(oid, reader.values())
        case "U":
            return _update(reader)
        case "D":
            oid = reader.uint32()
            reader.one_of("KO")
            return Delete(oid, reader.values())
        case "T":
            count, _options = reader.unpack(">IB")
            return Truncate(reader.oids(count))
        case "O":
            reader.unpack(">q")
            reader.name()
            return Other("O")
        case "Y":
            reader.uint32()
            reader.name()
            reader.name()
            return Other("Y")
        case _:
            raise Malformed


def _relation(reader: _Reader) -> Relation:
    oid, namespace, name = reader.uint32(), reader.name(), reader.name()
    _identity, count = reader.unpack(">BH")
    columns, types = [], []
    for _ in range(count):
        reader.unpack(">B")
        columns.append(reader.name())
        type_oid, modifier = reader.unpack(">Ii")
        types.append((type_oid, modifier))
    return Relation(oid, namespace, name, tuple(columns), tuple(types))


def _update(reader: _Reader) -> Update:
    oid, old = reader.uint32(), None
    if reader.one_of("KON") != "N":
        old = reader.values()
        reader.expect("N")
    return Update(oid, old, reader.values())


class _Reader:
    """Takes what it is asked for, or raises Malformed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._exhausted = False

    @property
    def ended(self) -> bool:
        return self._at == len(self._data)

    def kind(self) -> str:
        return chr(self._bytes(1)[0])

    def uint32(self) -> int:
        number: int = self.unpack(">I")[0]
        return number

    def unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))

    def name(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise Malformed
        return self._text(self._bytes(end - self._at + 1)[:-1])

    def one_of(self, marks: str) -> str:
        mark = self.kind()
        if mark not in marks:
            raise Malformed
        return mark

    def expect(self, mark: str) -> None:
        self.one_of(mark)

    def oids(self, count: int) -> tuple[int, ...]:
        # Checked first: a count that is no count must not reserve memory.
        if count * 4 > len(self._data) - self._at:
            raise Malformed
        return self.unpack(f">{count}I")

    def values(self) -> Values:
        return tuple(self._value() for _ in range(self._count()))

    def cut_values(self) -> Values:
        """The values that stand whole before the end."""
        found: list[Value] = []
        try:
            count = self._count()
            while len(found) < count:
                found.append(self._value())
        except Malformed:
            if not self._exhausted:
                raise
        return tuple(found)

    def _count(self) -> int:
        count: int = self.unpack(">H")[0]
        return count

    def _value(self) -> Value:
        match self.kind():
            case "n":
                return None
            case "u":
                return UNCHANGED
            case "t":
                return self._text(self._bytes(self.uint32()))
            case _:
                raise Malformed

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            self._exhausted = True
            raise Malformed
        found = self._data[self._at : end]
        self._at = end
        return found

    def _text(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed from None
