"""Play seeds again and show them: `python -m tests.simulation SEED…`, or FIRST-LAST for many."""

from __future__ import annotations

import sys
import time

from tests.simulation.run import Outcome, simulate


def main(words: list[str]) -> int:
    failed = 0
    for word in words:
        first, _, last = word.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            outcome = simulate(seed)
            failed += bool(outcome.wrong)
            if not last or outcome.wrong:
                sys.stdout.write(shown(outcome, whole=not last) + "\n")
    return min(failed, 1)


def shown(outcome: Outcome, *, whole: bool = True) -> str:
    """The run as people read it."""
    lines = [f"seed {outcome.seed}: {', '.join(sorted(outcome.script.faults)) or 'no faults'}"]
    if whole:
        lines += [f"  {at:9.4f}  {text}" for at, text in outcome.trace]
    for e, (wanted, given) in outcome.table.items():
        planted = ", ".join(outcome.script.planted.get(e, ()))
        lines.append(f"  {e}: {given} (expected {' or '.join(sorted(wanted))}) {planted}")
    lines += [f"  WRONG: {text}" for text in outcome.wrong]
    return "\n".join([*lines, f"  replay: {outcome.replay}"])


if __name__ == "__main__":
    began = time.monotonic()
    status = main(sys.argv[1:])
    sys.stderr.write(f"{time.monotonic() - began:.1f} s\n")
    sys.exit(status)
