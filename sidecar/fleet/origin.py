"""Who answers for what gossip says.

Without a key nobody does, and every operation is refused.  With one, a node signs what it says of
itself, its worker id and its contract; an operation is recorded only of a worker whose own
signature was heard: registering and beating with exactly a contract that it signed, leaving
because this node sees it gone, which no signature of its own can say.
Source: spec 7 ("GossipOrigin").
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Final

from sidecar.core.membership import Op, OpKind, OpOrigin, Unauthorised

Verifier = Callable[[Op], bool]
"""Whether an operation is signed, by whatever a deployment takes for a signature."""

CLAIMS_MAX: Final = 16_384
"""Workers whose claims are kept."""
CONTRACTS_MAX: Final = 8
"""Contracts that are kept of one worker: of lives that are told of at a time."""
_PURPOSE: Final = b"noetl-chain fleet claim 1"


class RejectUnsigned:
    """Nothing is signed while there is no key: everything is refused."""

    def authorize(self, op: Op) -> Unauthorised:
        return Unauthorised(f"an operation of {op.worker_id}: no signing key is configured")


class GossipOrigin:
    """Passes what `verifier` takes for signed.  There is no other way to make one."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def authorize(self, op: Op) -> Unauthorised | None:
        if self._verifier(op):
            return None
        return Unauthorised(f"an operation of {op.worker_id} is not signed")


class OwnAnd:
    """This process answers for its own operations; `others` for everybody else's."""

    def __init__(self, own: str, others: OpOrigin) -> None:
        self._own = own
        self._others = others

    def authorize(self, op: Op) -> Unauthorised | None:
        return None if op.worker_id == self._own else self._others.authorize(op)


class Claims:
    """What nodes have signed of themselves, by the keys that the fleet shares.  A `Verifier`.

    Args:
        keys: The first one signs; what is signed with any of them is heard.
    """

    def __init__(self, *keys: bytes) -> None:
        # The frames of the protocol are sealed by the key itself; a signature is another use of it.
        self._keys = [hmac.digest(key, _PURPOSE, hashlib.sha256) for key in keys]
        self._heard: dict[str, dict[str, None]] = {}

    def sign(self, worker_id: str, contract: str) -> str:
        """The signature of a node over what it says of itself."""
        return _signature(self._keys[0], worker_id, contract)

    def heard(self, worker_id: str, contract: str, signature: str) -> bool:
        """Keep what was heard if its signature is right, beside what the worker signed before.

        Two lives of one worker are told of in any order; which of them stands is not decided here.

        Returns:
            Whether it is.  What is not changes nothing: nobody unseats another by a forgery.
        """
        if not any(
            hmac.compare_digest(_signature(key, worker_id, contract).encode(), signature.encode())
            for key in self._keys
        ):
            return False
        contracts = self._heard.pop(worker_id, {})
        contracts.pop(contract, None)
        contracts[contract] = None
        self._heard[worker_id] = contracts
        _forget_oldest(contracts, CONTRACTS_MAX)
        _forget_oldest(self._heard, CLAIMS_MAX)
        return True

    def __call__(self, op: Op) -> bool:
        contracts = self._heard.get(op.worker_id, {})
        return op.contract in contracts or (op.kind is OpKind.DEREGISTER and bool(contracts))


def _signature(key: bytes, worker_id: str, contract: str) -> str:
    said = b"".join(len(part).to_bytes(4, "big") + part for part in map(str.encode, (worker_id, contract)))
    return hmac.new(key, said, hashlib.sha256).hexdigest()


def _forget_oldest(kept: dict[str, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]
