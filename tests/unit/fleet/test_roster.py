"""From a view of a cluster to the seven notifications.  Source: spec 7."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.membership import Identity
from sidecar.fleet.notification import (
    Active,
    Defunct,
    Idle,
    MemberDown,
    MemberUp,
    Notification,
    Rejoin,
    Rename,
)
from sidecar.fleet.roster import Roster

OWN = Identity("h:1", 0, "own", 10)
A = Identity("h:2", 0, "a", 10)
B = Identity("h:3", 1, "b", 10)


def roster(**alive: Identity) -> Roster:
    made = Roster(OWN)
    made.seen(alive)
    made.changes()
    return made


def joined(view: Roster, name: str, node: Identity) -> list[Notification]:
    view.joined(name, node)
    return view.changes()


def gone(view: Roster, name: str) -> list[Notification]:
    view.gone(name)
    return view.changes()


def test_the_first_peer_makes_this_node_active_and_the_last_one_idle() -> None:
    view = Roster(OWN)
    assert joined(view, "1", A) == [Active(), MemberUp(A)]
    assert joined(view, "2", B) == [MemberUp(B)]
    assert gone(view, "1") == [MemberDown(A)]
    assert gone(view, "2") == [MemberDown(B), Idle()]


def test_what_is_known_is_not_told_again_and_this_node_is_no_peer() -> None:
    view = roster(x=A)
    assert joined(view, "x", A) == []
    assert joined(view, "y", Identity("h:9", 0, "own", 99)) == []
    assert joined(view, "z", Identity(OWN.addr, 0, "c", 99)) == []
    assert gone(view, "nobody") == []


def test_a_peer_that_says_something_else_of_itself_comes_up_with_it() -> None:
    view, moved = roster(x=A), Identity("h:4", 2, "a", 10)
    assert joined(view, "x", moved) == [MemberUp(moved)]


def test_a_newer_life_at_the_same_address_is_a_rename() -> None:
    view, new = roster(x=A), Identity(A.addr, 0, "a2", 11)
    assert joined(view, "y", new) == [Rename(A, new), MemberUp(new)]
    assert gone(view, "x") == []  # the old one's death, when it is noticed
    assert gone(view, "y") == [MemberDown(new), Idle()]


def test_an_older_or_equal_life_does_not_take_an_address() -> None:
    for incarnation in (9, 10):
        view, rumour = roster(x=A), Identity(A.addr, 0, "old", incarnation)
        assert joined(view, "y", rumour) == []
        assert gone(view, "y") == []
        assert gone(view, "x") == [MemberDown(A), Idle()]


def test_who_waited_for_an_address_comes_up_when_it_is_free() -> None:
    view, waiting = roster(x=A, y=B), Identity(A.addr, 0, "late", 10)
    assert joined(view, "z", waiting) == []
    assert gone(view, "x") == [Rename(A, waiting), MemberUp(waiting)]


def test_a_peer_comes_back_elsewhere_before_its_old_life_is_noticed_dead() -> None:
    """A pod that gets another address: its old life is found dead later, and that is no news of it."""
    view, again = roster(x=A), Identity("h:8", 0, "a", 11)
    assert joined(view, "y", again) == [MemberUp(again)]
    assert gone(view, "x") == []
    assert gone(view, "y") == [MemberDown(again), Idle()]


def test_of_two_that_claim_one_instance_the_newer_has_it_and_the_other_one_next() -> None:
    older = Identity("h:8", 0, "a", 9)
    view = roster(x=A)
    assert joined(view, "y", older) == []
    assert gone(view, "x") == [MemberUp(older)]


def test_a_life_whose_clock_was_an_hour_ahead_gives_way_when_it_is_found_dead() -> None:
    """It is killed and comes back on a host whose clock is right: its new life looks older for that long."""
    ahead = Identity("h:8", 0, "a", 3_600_000)
    again = Identity("h:9", 0, "a", 1_000)
    view = roster(x=ahead)
    assert joined(view, "y", again) == []
    assert gone(view, "x") == [MemberUp(again)]
    assert gone(view, "y") == [MemberDown(again), Idle()]


def test_this_node_renews_itself() -> None:
    view = Roster(OWN)
    assert view.renewed() == [Rejoin(OWN.renewed())]
    assert view.renewed() == [Rejoin(OWN.renewed().renewed())]


def test_the_whole_view_tells_the_difference() -> None:
    view, c = roster(x=A, y=B), Identity("h:5", 0, "c", 1)
    view.seen({"y": B, "z": c})
    assert view.changes() == [MemberUp(c), MemberDown(A)]
    view.seen({"y": B, "z": c})
    assert view.changes() == []
    view.seen({})
    assert view.changes() == [MemberDown(B), MemberDown(c), Idle()]


def test_who_has_lost_its_instance_elsewhere_keeps_no_address() -> None:
    """Of two equal lives at an address the one that has it has a newer life at another one."""
    moved, equal = Identity("h:5", 1, "c", 2), Identity("h:5", 0, "d", 2)
    view = roster(z=moved)
    newer = Identity("h:6", 0, "c", 3)
    view.seen({"w": equal, "x": moved, "y": newer})
    assert MemberUp(equal) in view.changes()
    assert view.changes() == []


ADDRESSES = st.sampled_from(["h:1", "h:2", "h:3"])
NODES = st.builds(
    Identity, ADDRESSES, st.integers(0, 1), st.sampled_from(["a", "b", "own"]), st.integers(0, 3)
)
VIEWS = st.dictionaries(st.sampled_from("12345"), NODES)


def applied(up: dict[str, Identity], told: list[Notification]) -> None:
    """What a reader of the notifications knows; each one must fit what went before."""
    renamed: Identity | None = None
    for each in told:
        match each:
            case MemberUp(node):
                assert up.get(node.instance) != node or renamed == node
                up[node.instance] = node
            case MemberDown(node):
                assert up.pop(node.instance) == node
            case Rename(old, new):
                assert old.addr == new.addr
                assert up.pop(old.instance) == old
                up[new.instance] = renamed = new
            case Rejoin() | Active() | Idle() | Defunct():
                pass


@given(st.lists(VIEWS, max_size=5))
def test_who_follows_the_notifications_knows_who_stands(views: list[dict[str, Identity]]) -> None:
    """Whatever is seen in whatever order: one node an address, one an instance, never this one's."""
    one, up = Roster(OWN), dict[str, Identity]()
    for view in views:
        one.seen(view)
        before = bool(up)
        told = one.changes()
        applied(up, told)
        assert (Active() in told) == (bool(up) and not before)
        assert (Idle() in told) == (before and not up)
        assert one.changes() == []
        peers = [node for node in view.values() if node.addr != OWN.addr and node.instance != OWN.instance]
        assert set(up.values()) <= set(peers)
        addresses = [node.addr for node in up.values()]
        assert len(set(addresses)) == len(addresses)
        for node in peers:
            # Whoever does not stand has lost its address or its instance to one that is not older.
            rivals = [each for each in peers if each.addr == node.addr or each.instance == node.instance]
            assert node in up.values() or any(not node.wins(each) for each in rivals if each != node)
        assert bool(up) == bool(peers)
