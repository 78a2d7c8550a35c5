"""A further store follows the one that is fed: retries, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sidecar.errors import Forked, StoreError
from sidecar.service.told import Instruments, Progress

RETRY_PAUSE_MIN_S: Final = 0.2
RETRY_PAUSE_MAX_S: Final = 10.0


class ReplicaStep(Protocol):
    """Where a replica stands after one of its transactions."""

    @property
    def lag(self) -> int: ...

    @property
    def clashes(self) -> Sequence[ReplicaClash]: ...

    @property
    def forks(self) -> int:
        """Events that it holds differently, all in all."""
        ...

    @property
    def initialised(self) -> bool:
        """It was new when it was opened."""
        ...

    @property
    def applied(self) -> bool:
        """A transaction went through; False: it was only opened."""
        ...


class ReplicaClash(Protocol):
    """An event that met another one in a replica."""

    @property
    def error(self) -> Forked: ...


class Replica(Protocol):
    """A further store that follows the one that is fed."""

    @property
    def lag(self) -> int:
        """Events that it is not known to have."""
        ...

    async def follow(self, tell: Callable[[ReplicaStep], None]) -> None:
        """Follow without end; `tell` is called when it is open and after every transaction.

        Raises:
            StoreError: it cannot be used now.
        """
        ...


async def replicate(index: int, replica: Replica, instruments: Instruments, progress: Progress) -> None:
    """Keep one replica following; whatever happens to it is its own and stops nothing else."""
    pause, said = RETRY_PAUSE_MIN_S, ""
    metrics, log = instruments.metrics, instruments.log

    def tell(step: ReplicaStep) -> None:
        nonlocal pause, said
        if step.initialised:
            log.info("replica_new", replica=index, lag=step.lag)
        if step.applied:
            if said:
                log.info("replica_resumed", replica=index, lag=step.lag)
            pause, said = RETRY_PAUSE_MIN_S, ""
        for clash in step.clashes:
            log.warning("replica_forked", replica=index, reason=str(clash.error))
        metrics.replica_up(index, True)
        metrics.replica_forked(index, step.forks)
        metrics.replica(index, lag=step.lag)
        progress.move()

    while True:
        metrics.replica(index, lag=replica.lag)
        try:
            await replica.follow(tell)
        except StoreError as error:
            if said != str(error):
                log.warning("replica_away", replica=index, reason=str(error), hint=error.hint)
            said = str(error)
        metrics.replica_up(index, False)
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_PAUSE_MAX_S)
