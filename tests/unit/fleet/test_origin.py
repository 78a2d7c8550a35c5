"""Who answers for what gossip says.  Source: spec 7 ("GossipOrigin")."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise

import pytest

from sidecar.core.membership import Identity, Op, OpKind, Unauthorised, registered
from sidecar.fleet import origin
from sidecar.fleet.origin import CLAIMS_MAX, CONTRACTS_MAX, Claims, GossipOrigin, OwnAnd, RejectUnsigned

NODE = Identity("10.0.0.5:7946", 1, "node-b")
REGISTER = registered(NODE.instance, NODE.contract)


def test_without_a_key_everything_is_refused_by_name() -> None:
    for kind in OpKind:
        refused = RejectUnsigned().authorize(Op("node-b", kind, 1, ""))
        assert "node-b" in refused.why
        assert "no signing key is configured" in refused.why


def test_the_verifier_decides_and_a_refusal_names_the_worker() -> None:
    asked: list[Op] = []

    def verifier(op: Op) -> bool:
        asked.append(op)
        return op.heartbeat == 1

    gossip = GossipOrigin(verifier)
    assert gossip.authorize(REGISTER) is None
    second = Op("node-b", OpKind.HEARTBEAT, 2, "")
    assert gossip.authorize(second) == Unauthorised("an operation of node-b is not signed")
    assert asked == [REGISTER, second]


def test_there_is_one_way_to_make_it_and_none_that_is_permissive() -> None:
    with pytest.raises(TypeError):
        GossipOrigin()  # type: ignore[call-arg]
    ((name, parameter),) = inspect.signature(GossipOrigin).parameters.items()
    assert name == "verifier"
    assert parameter.default is inspect.Parameter.empty
    tree = ast.parse(inspect.getsource(GossipOrigin))
    methods = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert methods == ["__init__", "authorize"]
    made = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(origin)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "GossipOrigin"
    ]
    assert made == []


def test_this_process_answers_for_itself_alone() -> None:
    mine = OwnAnd("node-a", RejectUnsigned())
    assert mine.authorize(registered("node-a", "c")) is None
    assert mine.authorize(REGISTER) is not None


def test_a_claim_that_was_signed_passes_and_no_other() -> None:
    key = b"k" * 32
    claims = Claims(key)
    assert not claims(REGISTER)
    signature = Claims(key).sign(NODE.instance, NODE.contract)
    assert claims.heard(NODE.instance, NODE.contract, signature)
    assert claims(REGISTER)
    assert claims(Op("node-b", OpKind.HEARTBEAT, 7, NODE.contract))
    assert claims(Op("node-b", OpKind.DEREGISTER, 7, ""))
    assert not claims(registered("node-b", "shard=0;addr=elsewhere:1"))
    assert not claims(registered("node-c", NODE.contract))
    assert not claims(Op("node-c", OpKind.DEREGISTER, 7, ""))


def test_a_forgery_is_not_heard_and_unseats_nobody() -> None:
    claims = Claims(b"k" * 32)
    claims.heard(NODE.instance, NODE.contract, claims.sign(NODE.instance, NODE.contract))
    other = "shard=0;addr=elsewhere:1"
    for forged in (
        "",
        "ö",
        Claims(b"x" * 32).sign(NODE.instance, other),
        claims.sign("node-c", other),
        claims.sign(NODE.instance, NODE.contract),
        claims.sign(NODE.instance + other[0], other[1:]),
    ):
        assert not claims.heard(NODE.instance, other, forged)
    assert claims(REGISTER)
    assert not claims(registered("node-b", other))


def test_of_two_lives_that_signed_each_may_say_what_it_signed() -> None:
    """An older life's claim comes in after the newer one's: it does not unseat it."""
    claims = Claims(b"k" * 32)
    lives = ["shard=1;addr=10.0.0.9:7946", NODE.contract]
    for contract in lives:
        assert claims.heard(NODE.instance, contract, claims.sign(NODE.instance, contract))
    for contract in lives:
        assert claims(registered("node-b", contract))
        assert claims(Op("node-b", OpKind.HEARTBEAT, 7, contract))
    assert not claims(registered("node-b", "shard=1;addr=10.0.0.7:7946"))


def test_the_first_key_signs_and_every_key_is_heard() -> None:
    """A key is changed in three steps; in each of them everybody hears everybody."""
    old, new = b"o" * 32, b"n" * 32
    steps = [(old,), (old, new), (new, old), (new,)]
    for one, other in pairwise(steps):
        for signing, hearing in ((one, other), (other, one)):
            signature = Claims(*signing).sign("node-b", "c")
            assert Claims(*hearing).heard("node-b", "c", signature)
    assert not Claims(new).heard("node-b", "c", Claims(old).sign("node-b", "c"))
    assert Claims(new, old).sign("node-b", "c") == Claims(new).sign("node-b", "c")


def test_what_is_kept_of_claims_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLAIMS_MAX > 8192, "as many members as a cluster has"
    monkeypatch.setattr(origin, "CLAIMS_MAX", 2)
    claims = Claims(b"k")
    for name in ("a", "b", "a", "c"):
        assert claims.heard(name, "c", claims.sign(name, "c"))
    assert [name for name in "abc" if claims(registered(name, "c"))] == ["a", "c"]
    for number in range(CONTRACTS_MAX + 1):
        assert claims.heard("a", f"c{number}", claims.sign("a", f"c{number}"))
    kept = [number for number in range(CONTRACTS_MAX + 1) if claims(registered("a", f"c{number}"))]
    assert kept == list(range(1, CONTRACTS_MAX + 1))
