"""Messages of pgoutput as a server writes them."""

from __future__ import annotations

import struct

from sidecar.source.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Other,
    Relation,
    Truncate,
    Update,
    Value,
    Values,
)


def name(text: str) -> bytes:
    return text.encode() + b"\0"


def value(of: Value) -> bytes:
    if of is None:
        return b"n"
    if of is UNCHANGED:
        return b"u"
    data = str(of).encode()
    return b"t" + struct.pack(">I", len(data)) + data


def tuple_of(values: Values) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(map(value, values))


def written(message: Message) -> bytes:
    """The message as bytes."""
    match message:
        case Begin(commit_lsn, xid):
            return b"B" + struct.pack(">qqI", commit_lsn, 5, xid)
        case Commit(commit_lsn, end_lsn):
            return b"C" + struct.pack(">Bqqq", 0, commit_lsn, end_lsn, 5)
        case Relation(oid, namespace, relation, columns, types):
            head = b"R" + struct.pack(">I", oid) + name(namespace) + name(relation)
            cells = b"".join(
                b"\1" + name(column) + struct.pack(">Ii", *kind)
                for column, kind in zip(columns, types, strict=True)
            )
            return head + struct.pack(">BH", ord("d"), len(columns)) + cells
        case Insert(oid, new):
            return b"I" + struct.pack(">I", oid) + b"N" + tuple_of(new)
        case Update(oid, old, new):
            key = b"" if old is None else b"K" + tuple_of(old)
            return b"U" + struct.pack(">I", oid) + key + b"N" + tuple_of(new)
        case Delete(oid, old):
            return b"D" + struct.pack(">I", oid) + b"O" + tuple_of(old)
        case Truncate(oids):
            return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 1, *oids)
        case Other("O"):
            return b"O" + struct.pack(">q", 7) + name("elsewhere")
        case _:
            return b"Y" + struct.pack(">I", 9) + name("noetl") + name("kind")
