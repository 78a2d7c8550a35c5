"""The certificate: what observing costs beside a bare sha256, and what a skip saves."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.result import Result, median, versus
from sidecar.certified import Certified
from sidecar.core.certificate import Certificate, Certificates, Decision, Roller
from sidecar.core.event import Event
from sidecar.store import ChainStore

BODY_BYTES: Final = 1_400
OBSERVED: Final = 20_000
ASKED: Final = 20_000
EVENTS: Final = 1_000
SHORT, LONG = 36, 10_000
E: Final = 1
KINDS: Final = (
    "step.enter",
    "command.issued",
    "command.claimed",
    "command.started",
    "call.done",
    "step.exit",
)


def observed(turns: int) -> Result:
    """Bodies a second through `observe`, one at a time; the limit hashes the same bytes once."""
    bodies = [event.body for event in _events(OBSERVED)]
    ours, bare = [], []
    for _ in range(turns):
        bare.append(_rate(lambda: _hashed(bodies)))
        ours.append(_rate(lambda: _observed(bodies)))
    return Result(
        "certificate: observe, 1.4 kB",
        median(ours),
        "events/s",
        limit=median(bare),
        ratio=versus(ours, bare),
        goal=1 / 1.3,
        note="limit: bare sha256 of the same bytes",
        turns={"ours": ours, "limit": bare},
    )


def decided(turns: int) -> Result:
    """Nanoseconds of a decision at 10,000 events; the limit is one at 36."""
    short, long = [], []
    for _ in range(turns):
        short.append(_deciding(SHORT))
        long.append(_deciding(LONG))
    return Result(
        f"certificate: decide at {LONG:,} events",
        median(long),
        "ns",
        limit=median(short),
        ratio=versus(short, long),
        goal=0.9,
        note=f"limit: decide at {SHORT} events",
        turns={"ours": long, "limit": short},
    )


async def skipped(turns: int) -> Result:
    """Milliseconds of a skipped state of 1,000 events; the limit is the same answer folded."""
    with TemporaryDirectory(prefix="noetl-chain-bench-") as folder:
        async with ChainStore.open(str(Path(folder) / "chain.db")) as store:
            await store.populate_from_log(E, _events(EVENTS))
            on, off = Certified(store.clock, on=True), Certified(store.clock, on=False)
            await on.state(store, E)
            folds, skips = [], []
            for _ in range(max(turns, 15)):
                folds.append(await _asked(lambda: off.state(store, E)))
                skips.append(await _asked(lambda: on.state(store, E)))
                if on.take().decisions[Decision.REVALIDATION_DUE]:
                    skips.pop()
    return Result(
        f"state of {EVENTS:,} events, skipped",
        median(skips),
        "ms",
        limit=median(folds),
        ratio=versus(folds, skips),
        note="limit: read and folded; the ratio is how often faster",
        turns={"ours": skips, "limit": folds},
    )


def _events(count: int) -> list[Event]:
    return list(_made(count))


def _made(count: int) -> Iterator[Event]:
    prev: int | None = None
    for number in range(1, count + 1):
        kind = KINDS[number % len(KINDS)]
        fields = {
            "context": {"values": {f"v{number % 50}": number}},
            "event_id": number,
            "event_type": kind,
            "execution_id": E,
            "meta": {"command_id": str(number // len(KINDS))},
            "node_name": f"step{number // len(KINDS) % 40}",
            "result": {"context": {"data": {"text": "x"}}, "status": "ok"},
        }
        spare = BODY_BYTES - len(json.dumps(fields))
        fields["result"] = {"context": {"data": {"text": "x" * spare}}, "status": "ok"}
        yield Event(E, number, prev, None, kind, json.dumps(fields))
        prev = number


def _hashed(bodies: list[str]) -> None:
    for body in bodies:
        hashlib.sha256(body.encode()).digest()


def _observed(bodies: list[str]) -> None:
    certificates = Certificates[str]()
    for position, body in enumerate(bodies, start=1):
        certificates.observe(E, position, (body,))


def _rate(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return OBSERVED / (time.perf_counter() - began)


def _deciding(events: int) -> float:
    """Nanoseconds of one skip, asked over and over with the count set back as a fold does."""
    certificates = Certificates[str]()
    bodies = [event.body for event in _events(events)]
    certificates.observe(E, 1, bodies)
    certificates.reconcile(E, Roller(bodies))
    made = certificates.certificate(E) or Certificate(0, "")
    taken = 0
    for _ in range(ASKED // 16):
        certificates.record(E, made, "state", now=0)
        began = time.perf_counter_ns()
        for _ in range(16):
            certificates.decide(E, now=0)
        taken += time.perf_counter_ns() - began
    return taken / ASKED


async def _asked(ask: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await ask()
    return (time.perf_counter() - began) * 1000
