"""The chain store: an execution's events, in order, and what may be claimed of them."""

from sidecar.errors import Invalid, NotHead
from sidecar.store.chain import ChainStore
from sidecar.store.reader import StoreReader

__all__ = ["ChainStore", "Invalid", "NotHead", "StoreReader"]
