"""Decide whether a folded state is still the state of its chain, without folding again.

A roller hashes every body once, in link order, in chunks of eight that chain: an event that
changes, comes or goes changes every later certificate (n, digest).  The open chunk is hashed
too, so a single new event shows.  A state is cached with the certificate of the chain that was
folded; as long as the roller says the same pair, the fold is skipped.

What it is not: a proof of durability, or against somebody who can write.  It is a change
detector inside one process that sees every event.  Having missed one, the process refuses every
skip until it restarts.  The clock is the caller's; nothing is counted but in `Tally`.

Source: spec 4.3-4.7.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

S = TypeVar("S")

CHUNK: Final = 8
TAG: Final = b"noetl.ehdb.chain-cert.v1"

MAX_CONSECUTIVE_SKIPS: Final = 16
"""After so many skips in a row a real fold runs.  Two numbers rest on it; change both with it.

Share of folds removed: k / (k + 1) = 16 / 17 = 94.1 %; the least k above 90 % is 9.
Blind window: k x T, T the time between two askings: 16 x 8 s = 128 s at the reference's nominal
T.  Where T is longer the window is, so it is exported as measured, and bounded by FOLD_AGE_MAX.
"""

FOLD_AGE_MAX: Final = 120_000_000
"""Microseconds after which a real fold runs, however few skips there were.  Source: spec 4.6."""

TRACKED_MAX: Final = 2048
"""Executions tracked at once; the one that was first tracked goes first."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """`n` events were absorbed and came to `digest` (hex)."""

    n: int
    digest: str


class Roller:
    """Absorbs bodies, one an event, in link order.  Source: spec 4.3."""

    __slots__ = ("_open", "_sealed", "n")

    def __init__(self, bodies: Iterable[str] = ()) -> None:
        self.n = 0
        self._sealed = b""
        self._open: Any = None
        for body in bodies:
            self.absorb(body)

    def absorb(self, body: str) -> None:
        if self._open is None:
            self._open = hashlib.sha256(TAG + self._sealed)
        self._open.update(body.encode("utf-8", "surrogatepass"))
        self.n += 1
        if self.n % CHUNK == 0:
            self._sealed, self._open = self._open.digest(), None

    @property
    def certificate(self) -> Certificate | None:
        """None when nothing was absorbed."""
        if self.n == 0:
            return None
        # hexdigest leaves the hash open: it goes on with the next body.
        digest = self._sealed.hex() if self._open is None else self._open.hexdigest()
        return Certificate(self.n, digest)

    def after(self, bodies: Iterable[str]) -> Certificate | None:
        """The certificate once `bodies` will have been absorbed; the roller stays where it is."""
        ahead = Roller()
        ahead.n, ahead._sealed = self.n, self._sealed
        ahead._open = None if self._open is None else self._open.copy()
        for body in bodies:
            ahead.absorb(body)
        return ahead.certificate


class Decision(StrEnum):
    """The nine answers, in the order in which they are tried.  Source: spec 4.4."""

    DIVERGENCE_DETECTED = "refold_divergence_detected"
    UNCALIBRATED = "refold_uncalibrated"
    NO_CACHED_STATE = "refold_no_cached_state"
    NO_CERTIFICATE = "refold_no_certificate"
    CHAIN_ADVANCED = "refold_chain_advanced"
    CACHED_AHEAD = "refold_cached_ahead"
    DIGEST_MISMATCH = "refold_digest_mismatch"
    REVALIDATION_DUE = "refold_revalidation_due"
    SKIPPED = "skipped"


class Reconciled(StrEnum):
    """What holding a fold against the roller came to.  Source: spec 4.5."""

    OK = "ok"
    REBUILT = "rebuilt"
    DIVERGED = "diverged"


@dataclass(slots=True)
class Tally:
    """What happened since it was last taken."""

    observed: int = 0
    decisions: Counter[Decision] = field(default_factory=Counter)
    divergences: int = 0
    evicted: int = 0


@dataclass(slots=True)
class _Tracked(Generic[S]):
    """One execution.  `roller` None: it was dropped, and the next fold builds another."""

    roller: Roller | None = None
    calibrated: bool = False
    cached: Certificate | None = None
    state: S | None = None
    skips: int = 0
    folded_at: int = 0


class Certificates(Generic[S]):
    """Rollers and cached states of at most `tracked_max` executions, both halves in one map."""

    def __init__(self, *, tracked_max: int = TRACKED_MAX) -> None:
        self._tracked: dict[int, _Tracked[S]] = {}
        self._tracked_max = tracked_max
        self._tally = Tally()
        self.divergences = 0
        """Of this process; one is enough to end all skipping."""

    def __len__(self) -> int:
        return len(self._tracked)

    def take(self) -> Tally:
        """What happened since the last call."""
        taken, self._tally = self._tally, Tally()
        return taken

    def state(self, execution_id: int) -> S | None:
        """The cached state."""
        tracked = self._tracked.get(execution_id)
        return None if tracked is None else tracked.state

    def certificate(self, execution_id: int, staged: Sequence[str] = ()) -> Certificate | None:
        """Of what was observed, and of `staged` behind it; None without a roller or an event."""
        tracked = self._tracked.get(execution_id)
        if tracked is None or tracked.roller is None:
            return None
        return tracked.roller.after(staged) if staged else tracked.roller.certificate

    def observe(self, execution_id: int, first: int, bodies: Sequence[str], *, ended: bool = False) -> None:
        """Bodies were stored at the positions `first`, `first` + 1, … (from 1).

        A position that follows the roller is absorbed, an earlier one is known already, a later
        one drops the roller.  An execution first met behind its beginning is not tracked: its
        first fold will build the roller.

        Args:
            ended: The execution has had a terminal event.  It is forgotten: it may write on, but
                nothing would ever evict it again.
        """
        self._tally.observed += len(bodies)
        if ended:
            self.forget(execution_id)
            return
        tracked = self._tracked.get(execution_id)
        if tracked is None:
            if first != 1 or not bodies:
                return
            tracked = self._track(execution_id)
            tracked.roller = Roller()
        roller = tracked.roller
        if roller is None:
            return
        if first > roller.n + 1:
            tracked.roller = None
            return
        for body in bodies[roller.n + 1 - first :] if first <= roller.n else bodies:
            roller.absorb(body)

    def decide(
        self, execution_id: int, *, now: int, held_back: bool = False, staged: Sequence[str] = ()
    ) -> Decision:
        """Whether the cached state may stand for a fold; every answer is counted.

        Args:
            now: Microseconds, of the clock that `record` is given.
            held_back: A row of it was delivered and is not stored, a changed body awaits
                judgement, or the partition may not answer.  The roller stands still then.
            staged: Bodies that the running transaction has appended; they are observed when it
                commits.
        """
        decision = self._decision(execution_id, now, held_back, staged)
        self._tally.decisions[decision] += 1
        if decision is Decision.SKIPPED:
            self._tracked[execution_id].skips += 1
        return decision

    def _decision(self, execution_id: int, now: int, held_back: bool, staged: Sequence[str]) -> Decision:
        if held_back:
            return Decision.NO_CERTIFICATE
        if self.divergences:
            return Decision.DIVERGENCE_DETECTED
        tracked = self._tracked.get(execution_id)
        if tracked is None or not tracked.calibrated:
            return Decision.UNCALIBRATED
        if tracked.cached is None or tracked.state is None:
            return Decision.NO_CACHED_STATE
        return _compared(tracked, self.certificate(execution_id, staged), now)

    def reconcile(self, execution_id: int, folded: Roller) -> Reconciled:
        """Hold the bodies that were folded against what was observed.

        Args:
            folded: Over the bodies of the fold, in link order; it becomes the roller where there
                was none.

        Without a roller nothing is proved and nothing refuted: it is rebuilt.  Another length or
        another digest is a divergence.
        """
        tracked = self._tracked.get(execution_id) or self._track(execution_id)
        rebuilt = tracked.roller is None
        if tracked.roller is not None and tracked.roller.certificate != folded.certificate:
            self.diverge(execution_id)
            return Reconciled.DIVERGED
        tracked.roller = tracked.roller or folded
        tracked.calibrated = True
        return Reconciled.REBUILT if rebuilt else Reconciled.OK

    def record(self, execution_id: int, certificate: Certificate, state: S, *, now: int) -> None:
        """Cache a fold's state with the certificate of the bodies that were folded."""
        tracked = self._tracked.get(execution_id)
        if tracked is not None and tracked.calibrated:
            tracked.cached, tracked.state = certificate, state
            tracked.skips, tracked.folded_at = 0, now

    def diverge(self, execution_id: int) -> None:
        """The observer missed something: this execution is forgotten, all others refuse."""
        self.divergences += 1
        self._tally.divergences += 1
        self.forget(execution_id)

    def forget(self, execution_id: int) -> None:
        """Drop roller, certificate and state.  Always safe: it costs one fold."""
        self._tracked.pop(execution_id, None)

    def _track(self, execution_id: int) -> _Tracked[S]:
        while len(self._tracked) >= self._tracked_max:
            self._tally.evicted += 1
            self.forget(next(iter(self._tracked)))
        tracked = self._tracked[execution_id] = _Tracked[S]()
        return tracked


def _compared(tracked: _Tracked[Any], current: Certificate | None, now: int) -> Decision:
    """Rows 4 to 9.  `tracked` has a cached certificate."""
    cached = tracked.cached
    if current is None or cached is None:
        return Decision.NO_CERTIFICATE
    if cached.n < current.n:
        return Decision.CHAIN_ADVANCED
    if cached.n > current.n:
        return Decision.CACHED_AHEAD
    if cached.digest != current.digest:
        return Decision.DIGEST_MISMATCH
    if tracked.skips >= MAX_CONSECUTIVE_SKIPS or now - tracked.folded_at > FOLD_AGE_MAX:
        return Decision.REVALIDATION_DUE
    return Decision.SKIPPED
