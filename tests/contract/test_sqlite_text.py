"""Bytes survive, and a person with the sqlite3 shell reads the reference's keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.core.event import ID_MAX, ID_MIN, Event
from sidecar.errors import PartitionUnreadable
from sidecar.sql import scripts
from sidecar.store.unit import StoreUnit
from tests.contract.backends import SqliteBackend
from tests.contract.events import E, chain
from tests.support.changing import replace

BODIES = (
    '{"a":"line\u2028para\u2029end"}',
    '{"a":"\U0001f9ea\U0001f468\u200d\U0001f469"}',
    '{"a":"\\u0000\\u001f\\ud83d"}',
    '{"a":"tab\there","b":"nl\n"}',
    '{"n":12345678901234567890123,"f":1.10,"e":1e400,"z":0.1234567890123456789}',
    '{"a":"\x7f\x80\xa0\ufeff\uffff"}',
    "{}",
    '{"a":"' + "x" * 300_000 + '"}',
    '{"a":"it\'s \\"quoted\\""}',
)


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
async def test_bodies_come_back_byte_for_byte(sqlite: SqliteBackend, body: str) -> None:
    event = replace(chain(1)[0], body=body)
    async with sqlite.open() as store:
        await store.populate_from_log(E, (event,))
    async with sqlite.open() as store:
        assert await store.chain(E) == (event,)
        assert (await store.populate_from_log(E, (event,))).label == "in_sync"
    ((value,),) = sqlite.run("SELECT value FROM chain_keys WHERE key LIKE '%/ev/%'")
    assert json.loads(value)["payload"] == body


async def test_ids_at_the_ends_of_64_bits_come_back(sqlite: SqliteBackend) -> None:
    events = (
        Event(ID_MIN, ID_MAX, None, ID_MIN, "a", "{}"),
        Event(ID_MIN, ID_MIN, ID_MAX, ID_MIN, "b", "{}"),
        Event(ID_MIN, 2**53 + 1, ID_MIN, ID_MIN, "c", "{}"),
    )
    async with sqlite.open() as store:
        await store.populate_from_log(ID_MIN, events)
        answer = await store.chain_if_authoritative(ID_MIN)
        partition = await store.partition(ID_MIN)
    assert answer.events == events
    assert partition is not None
    assert (partition.parent_execution_id, partition.head_event_id) == (ID_MIN, 2**53 + 1)


async def test_chain_keys_renders_the_key_layout(sqlite: SqliteBackend) -> None:
    async with sqlite.open() as store:
        await store.populate_from_log(7, chain(90, 2**62, execution_id=7, parent=5))
        await store.populate_from_log(8, ())
        await store.append(chain(4, execution_id=9)[0])
    sqlite.run("INSERT INTO apply_cursor VALUES (3, 44)")
    keys = dict(sqlite.run("SELECT key, value FROM chain_keys"))
    big = str(2**62)
    assert keys == {
        "FORMAT_VERSION": "1",
        "chain/7/ev/90": '{"exec_seq":1,"event_id":"90","execution_id":"7","parent_execution_id":"5",'
        '"payload":"{\\"event_id\\":90}"}',
        f"chain/7/ev/{big}": f'{{"exec_seq":2,"event_id":"{big}","prev_event_id":"90","execution_id":"7",'
        f'"parent_execution_id":"5","payload":"{{\\"event_id\\":{big}}}"}}',
        "chain/7/seq/00000000000000000001": "90",
        "chain/7/seq/00000000000000000002": big,
        "chain/7/head": f"2:{big}",
        "chain/7/wm": "1:2",
        "chain/7/cov": "90:2",
        "chain/8/wm": "0:0",
        "chain/8/cov": ":0",
        "chain/9/ev/4": '{"exec_seq":1,"event_id":"4","execution_id":"9","payload":"{\\"event_id\\":4}"}',
        "chain/9/seq/00000000000000000001": "4",
        "chain/9/head": "1:4",
        "CURSOR/shard-3": "44",
    }


def test_the_layout_is_found_in_a_checkout() -> None:
    assert [script.name for script in scripts("store")] == ["0001_layout.sql"]


def test_the_wheel_carries_the_layout() -> None:
    config = Path(__file__).parents[2] / "pyproject.toml"
    assert 'migrations = "sidecar/migrations"' in config.read_text()


async def test_a_text_that_cannot_be_read_leaves_no_read_open_however_long_it_is_looked_at(
    sqlite: SqliteBackend,
) -> None:
    """A cursor in mid-read keeps its connection at an old snapshot, from which nobody can write."""
    async with sqlite.open() as store:
        await store.populate_from_log(E, chain(1, 2, 3))
        sqlite.run("UPDATE event SET body = CAST(x'ff' AS TEXT) WHERE event_id = 2")
        seen = []
        for read in (lambda: store.transact(_chain), lambda: store.chain_if_authoritative(E)):
            with pytest.raises(PartitionUnreadable, match="UTF-8") as caught:
                await read()
            seen.append(caught)
            sqlite.run("INSERT OR REPLACE INTO meta (key, value) VALUES ('somebody', 'else')")
            assert await store.append(chain(1, execution_id=100 + len(seen))[0]) == 1
        assert len(seen) == 2


async def _chain(unit: StoreUnit) -> None:
    await unit.chain(E)
