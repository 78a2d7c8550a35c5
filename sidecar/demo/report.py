"""How the demo ended: verdicts against the ledger, for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sidecar.demo.ledger import UNJUDGED, Entry, Found
from sidecar.demo.scene import Outcome
from sidecar.demo.view import colour, coverage, faults
from sidecar.inspection.tabled import Whole

SHOWN_MAX: Final = 12
"""Disagreements that are named one by one; all of them stand in the JSON."""

NO_ENTRY: Final = "no entry"


def table(outcome: Outcome) -> RenderableType:
    """The last screen: verdicts by ledger, the planted faults, the sentence."""
    return Group(Whole(_matrix(outcome)), faults(outcome.scene), *_disagreements(outcome), _sentence(outcome))


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome for machines; ids are decimal strings."""
    scene, look, agreement = outcome.scene, outcome.scene.look, outcome.agreement
    return {
        "agrees": outcome.agrees,
        "settled": outcome.settled,
        "seconds": round(outcome.seconds, 2),
        "speed": scene.speed,
        "windows": {
            "settle_s": scene.windows.settle_s,
            "dangling_s": scene.windows.dangling_s,
            "sweep_round_s": scene.windows.sweep_round_s,
            "tick_s": scene.windows.tick_s,
            "live_window_s": scene.windows.live_window_s,
        },
        "played": [
            {"recording": each.name, "executions": each.executions, "rows": each.written}
            for each in scene.playing
        ],
        "rows_written": scene.written,
        "rows_by_lane": dict(look.lanes),
        "verdicts": dict(scene.verdicts),
        "ledger": dict(Counter(entry.verdict for entry in scene.entries.values())),
        "divergences": dict(look.divergences),
        "coverage": {
            "covered_executions": look.covered_executions,
            "eligible_executions": look.eligible_executions,
            "covered_events": look.covered_events,
            "eligible_events": look.eligible_events,
        },
        "faults": [_planted(outcome, entry) for entry in scene.entries.values() if entry.fault is not None],
        "coverage_holds": look.numbers_hold,
        "missing": [_found(found) for found in agreement.missing],
        "extra": [_found(found) for found in agreement.extra],
        "taken_back": [_found(found) for found in agreement.taken_back],
        "published": outcome.published,
        "miscounted": [
            {"kind": each.kind, "expected": each.expected, "seen": each.seen} for each in agreement.miscounted
        ],
        "lag_max_s": round(outcome.lag_max_s, 3),
        "horizon_age_max_s": round(outcome.horizon_age_max_s, 3),
        "open_transactions_max": outcome.open_max,
        "playback_late_max_s": round(outcome.late_max_s, 3),
    }


def _matrix(outcome: Outcome) -> Table:
    """Rows: what the sidecar says.  Columns: what the ledger says.  Only the diagonal is right."""
    pairs = _pairs(outcome)
    expected = sorted({ledger for ledger, _ in pairs}, key=_order(pairs, 0))
    seen = sorted({verdict for _, verdict in pairs}, key=_order(pairs, 1))
    matrix = Table(box=SIMPLE_HEAD, title="verdicts x ledger (executions)", title_justify="left")
    matrix.add_column("sidecar says ↓   ledger says →", no_wrap=True)
    for label in expected:
        matrix.add_column(label.replace("_", "\n"), justify="right", no_wrap=True)
    for verdict in seen:
        cells = [_cell(pairs[ledger, verdict], right=ledger == verdict) for ledger in expected]
        matrix.add_row(Text(verdict, style=colour(verdict)), *cells)
    return matrix


def _pairs(outcome: Outcome) -> Counter[tuple[str, str]]:
    entries, verdicts = outcome.scene.entries, outcome.scene.look.verdicts
    return Counter(
        (
            entries[execution].verdict if execution in entries else NO_ENTRY,
            verdicts.get(execution) or UNJUDGED,
        )
        for execution in entries.keys() | verdicts.keys()
    )


def _order(pairs: Counter[tuple[str, str]], side: int) -> Callable[[str], tuple[int, str]]:
    totals: Counter[str] = Counter()
    for pair, count in pairs.items():
        totals[pair[side]] += count
    return lambda label: (-totals[label], label)


def _cell(count: int, *, right: bool) -> Text:
    if not count:
        return Text("·", style="bright_black")
    return Text(f"{count:,}", style="bold green" if right else "bold red")


def _disagreements(outcome: Outcome) -> list[Text]:
    agreement = outcome.agreement
    found = [*agreement.missing, *agreement.extra]
    lines = [Text(f"  {each}", style="red") for each in map(_told, found[:SHOWN_MAX])]
    if len(found) > SHOWN_MAX:
        lines.append(Text(f"  and {len(found) - SHOWN_MAX} more", style="red"))
    lines += [
        Text(f"  on the way: {each}", style="red") for each in map(_told, agreement.taken_back[:SHOWN_MAX])
    ]
    lines += [
        Text(f"  divergences of kind {each.kind}: ledger {each.expected}, sidecar {each.seen}", style="red")
        for each in agreement.miscounted
    ]
    return lines


def _told(found: Found) -> str:
    expected = found.expected or NO_ENTRY
    fault = f" ({found.fault})" if found.fault else ""
    return f"execution {found.execution_id}{fault}: ledger {expected}, sidecar {found.seen}"


def _sentence(outcome: Outcome) -> Text:
    scene, look = outcome.scene, outcome.scene.look
    text = Text()
    text.append(f"divergences {look.diverged}", style="bold")
    text.append(f" (planted {sum(entry.kind is not None for entry in scene.entries.values())})")
    text.append(f" at coverage {coverage(scene)}", style="bold")
    text.append(
        f" ({look.covered_executions:,} of {look.eligible_executions:,} executions,"
        f" {look.covered_events:,} of {look.eligible_events:,} events).\n"
        f"{scene.written:,} rows written, {look.behind:,} behind; longest lag {outcome.lag_max_s:.2f} s,"
        f" longest pinned horizon {outcome.horizon_age_max_s:.1f} s; {outcome.seconds:.1f} s.\n"
    )
    if outcome.agrees:
        text.append("agreed", style="bold green")
        text.append(f": all {outcome.agreement.entries:,} entries of the ledger, in both directions.")
    elif not look.numbers_hold:
        text.append("contradicted", style="bold red")
        text.append(": the exported coverage is not what the verdicts come to.")
    elif outcome.agreement.holds:
        text.append("not settled", style="bold red")
        text.append(": every verdict is as announced, but executions still wait for one.")
    else:
        text.append("contradicted", style="bold red")
        text.append(": verdicts and ledger differ.")
    return text


def _planted(outcome: Outcome, entry: Entry) -> dict[str, Any]:
    return {
        "fault": entry.fault,
        "what": entry.why,
        "execution_id": str(entry.execution_id),
        "expected": entry.verdict,
        "kind": entry.kind,
        "seen": outcome.scene.look.verdicts.get(entry.execution_id) or UNJUDGED,
    }


def _found(found: Found) -> dict[str, Any]:
    return {
        "execution_id": str(found.execution_id),
        "expected": found.expected,
        "seen": found.seen,
        "fault": found.fault,
    }
