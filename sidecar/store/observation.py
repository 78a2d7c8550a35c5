"""The observation of this store, kept over restarts.

Two texts in `meta`: when a comparator was first started over the store, and the microseconds it
was really watching since.  They are written a few seconds late; what a crash forgets was observed
and is not counted, never the other way round.  Source: spec 3.6.
"""

from __future__ import annotations

from typing import Final

from sidecar.core.coverage import Observation
from sidecar.errors import StoreCorrupt
from sidecar.store.chain import ChainStore
from sidecar.store.reader import StoreReader
from sidecar.store.unit import StoreUnit

SINCE: Final = "observed_since"
ELAPSED: Final = "observed_us"
_LOAD: Final = "SELECT key, value FROM meta WHERE key IN (?, ?)"
_SAVE: Final = "REPLACE INTO meta (key, value) VALUES (?, ?)"


async def load(store: StoreReader) -> Observation:
    """What was observed before; nothing in a store that no comparator was started over.

    Raises:
        StoreCorrupt: what stands there is no number.
    """
    found: dict[str, str] = dict(await store.query(_LOAD, (SINCE, ELAPSED)))
    if SINCE not in found:
        return Observation()
    try:
        return Observation(int(found[SINCE]), int(found.get(ELAPSED, "0")))
    except ValueError:
        raise StoreCorrupt(
            "the store's record of its observation is no number",
            hint=f"somebody else wrote into it: delete the key {SINCE} from meta to begin anew",
        ) from None


async def save(store: ChainStore, observation: Observation) -> None:
    """Keep `observation`, which has begun.

    Raises:
        StoreError: what stood there stands.
    """

    async def work(unit: StoreUnit) -> None:
        await unit.rows(_SAVE, (SINCE, str(observation.since)))
        await unit.rows(_SAVE, (ELAPSED, str(observation.elapsed)))

    await store.transact(work)
