"""Operations of the fleet's record and identities of its nodes.  Source: spec 6.4, 7."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.event import ID_MAX
from sidecar.core.membership import (
    INCARNATIONS,
    Identity,
    Op,
    OpFault,
    OpKind,
    Place,
    beaten,
    deregistered,
    fold,
    is_live,
    live,
    place_of,
    registered,
    validate_op,
)

BROKEN = (
    # Each breaks its own rule and every later one that it can: the first is named.
    (Op("", OpKind.REGISTER, 0, "c" * 4097), OpFault.NO_ID),
    (Op("." * 257, OpKind.REGISTER, 0, "c" * 4097), OpFault.LONG_ID),
    (Op("ö" * 129, OpKind.REGISTER, 0, ""), OpFault.LONG_ID),
    (Op("..", OpKind.REGISTER, 0, "c" * 4097), OpFault.DOTS),
    (Op(".", OpKind.DEREGISTER, 0, ""), OpFault.DOTS),
    (Op("...", OpKind.HEARTBEAT, 0, ""), OpFault.DOTS),
    (Op("a b", OpKind.REGISTER, 0, "c" * 4097), OpFault.ALPHABET),
    (Op("../..", OpKind.REGISTER, 1, ""), OpFault.ALPHABET),
    (Op("a\n", OpKind.REGISTER, 1, ""), OpFault.ALPHABET),
    (Op("\u0661", OpKind.REGISTER, 1, ""), OpFault.ALPHABET),
    (Op("a", OpKind.REGISTER, 0, "ö" * 2049), OpFault.LONG_CONTRACT),
    (Op("a", OpKind.REGISTER, 0, ""), OpFault.HEARTBEAT),
    (Op("a", OpKind.HEARTBEAT, 0, ""), OpFault.HEARTBEAT),
    (Op("a", OpKind.HEARTBEAT, ID_MAX + 1, ""), OpFault.HEARTBEAT),
    (Op("a", OpKind.DEREGISTER, -1, ""), OpFault.HEARTBEAT),
)


@pytest.mark.parametrize(("op", "fault"), BROKEN, ids=lambda each: getattr(each, "name", None))
def test_the_rules_are_asked_in_their_order(op: Op, fault: OpFault) -> None:
    assert validate_op(op) is fault


@pytest.mark.parametrize("worker_id", ["node-a", "shard.3", "a:b", "A_1-2.3", ".a", "a..b", "n" * 256])
def test_what_keeps_the_rules_is_valid(worker_id: str) -> None:
    assert validate_op(registered(worker_id, "ö" * 2048)) is None
    assert validate_op(Op(worker_id, OpKind.DEREGISTER, 0, "")) is None
    assert validate_op(Op(worker_id, OpKind.HEARTBEAT, ID_MAX, "")) is None


def test_nobody_is_beaten_who_is_not_there() -> None:
    op = registered("a", "c")
    left = deregistered(op)
    assert left == Op("a", OpKind.DEREGISTER, 1, "")
    for nobody in (None, left):
        assert not is_live(nobody)
        assert beaten(nobody) is None
        assert deregistered(nobody) is None
    assert beaten(op) == Op("a", OpKind.HEARTBEAT, 2, "c")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(OpKind), st.integers(1, 9))), st.integers(0, 9)
)
def test_a_fold_in_two_parts_is_a_fold(steps: list[tuple[str, OpKind, int]], cut: int) -> None:
    ops = [Op(worker_id, kind, beats, "c") for worker_id, kind, beats in steps]
    first = fold(ops[:cut])
    assert fold([*first.values(), *ops[cut:]]) == fold(ops)
    assert [w.worker_id for w in live(fold(ops).values())] == sorted(
        {op.worker_id for op in ops if is_live(fold(ops)[op.worker_id])}
    )


def test_a_node_has_a_contract_that_can_be_read_back() -> None:
    node = Identity("10.0.0.5:7946", 3, "noetl-chain-3")
    assert node.contract == "shard=3;addr=10.0.0.5:7946"
    assert place_of(node.contract) == Place(3, "10.0.0.5:7946")
    assert place_of(Identity("", 0, "a").contract) == Place(0, None)
    for text in (
        "",
        "shard=3",
        "shard=;addr=",
        "shard=03;addr=",
        "shard=4294967296;addr=",
        "shard=1;addr=a;b",
    ):
        assert place_of(text) is None


def test_a_life_follows_the_other_and_only_the_newer_one_wins() -> None:
    node = Identity("a:1", 0, "a")
    again = node.renewed()
    assert again == Identity("a:1", 0, "a", 1)
    assert again.wins(node)
    assert not node.wins(again)
    assert not node.wins(Identity("a:1", 0, "b"))
    assert Identity("a:1", 0, "a", INCARNATIONS - 1).renewed().incarnation == 0
