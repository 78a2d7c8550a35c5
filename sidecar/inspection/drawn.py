"""A picture as text for a terminal, as Mermaid, as DOT.

Names come from other people's workflows: what could steer a terminal, or end a quoted label, is
written out, never passed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sidecar.core.picture import AtCircle, AtFork, AtGap, AtJoin, AtRoot, Fold, Node, Picture, Run, folded

RUNS_SHOWN: Final = 40
TEXT_MAX: Final = 80
"""Characters of a type or a name."""

Shown = Sequence[tuple[Run, list[Node | Fold]]]


def visible(text: str, *, most: int = TEXT_MAX) -> str:
    """`text` with everything that is no printable character written out as its number."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut)


def text(drawing: Picture, *, everything: bool = False) -> Iterator[str]:
    """Lines of a tree: one an event, the branches of a fork indented.

    Args:
        everything: Fold nothing and leave nothing out.
    """
    shown, more = _shown(drawing, everything)
    gap: int | None = None
    for number, (run, entries) in enumerate(shown):
        if isinstance(run.entry, AtGap) and run.entry.missing != gap:
            gap = run.entry.missing
            yield f"✗ {gap} is missing"
        outer, inner = _rails(run)
        behind = shown[number + 1][0].entry if number + 1 < len(shown) else None
        branches = behind == AtFork(run.nodes[-1].event_id)
        for place, entry in enumerate(entries):
            first, last = place == 0, place == len(entries) - 1
            sign = _SIGNS[type(run.entry)] if first else "└" if last and not branches else "│"
            if first and isinstance(run.entry, AtJoin):
                yield f"{outer}┆ no event names it; proven to come after {run.entry.tip_event_id}"
            back = (
                f"  [follows {run.entry.previous}: a circle]"
                if first and isinstance(run.entry, AtCircle)
                else ""
            )
            yield f"{outer if first else inner}{sign} {_line(entry)}{back}"
    if more:
        yield f"… {more:,} more roots and branches: --all shows them"


_SIGNS: Final = {AtRoot: "●", AtGap: "●", AtFork: "●", AtCircle: "↻", AtJoin: "●"}


def _rails(run: Run) -> tuple[str, str]:
    """What stands before the first event of a run, and before the others."""
    if not run.rails:
        return "", ""
    outside = "".join("│ " if more else "  " for more in run.rails[:-1])
    more = run.rails[-1]
    return outside + ("├─" if more else "└─"), outside + ("│ " if more else "  ")


def _line(entry: Node | Fold) -> str:
    marks = "".join(f"  [{mark}]" for mark in entry.marks)
    if isinstance(entry, Fold):
        first, last = entry.nodes[0].event_id, entry.nodes[-1].event_id
        return f"… {len(entry.nodes):,} more, linear, {first} to {last}{marks}"
    return f"{_label(entry)}{marks}"


def _label(node: Node) -> str:
    name = f" {visible(node.name)}" if node.name else ""
    return f"{node.event_id} {visible(node.event_type)}{name}"


def mermaid(drawing: Picture, *, everything: bool = False) -> Iterator[str]:
    """A Mermaid flowchart; labels are quoted and every other character is an entity."""
    yield "flowchart TD"
    for kind, source, target, label in _parts(drawing, everything):
        if kind == "node":
            yield f'  {target}["{_entities(label)}"]'
        elif kind == "gap":
            yield f'  {target}{{{{"{_entities(label)}"}}}}'
        elif kind == "missing":
            yield f"  {source} -.-> {target}"
        elif kind == "join":
            yield f'  {source} -. "{_entities(label)}" .-> {target}'
        else:
            yield f"  {source} --> {target}"


def dot(drawing: Picture, *, everything: bool = False) -> Iterator[str]:
    """A Graphviz digraph."""
    yield "digraph execution {"
    yield "  node [shape=box];"
    for kind, source, target, label in _parts(drawing, everything):
        if kind == "node":
            yield f'  {target} [label="{_quoted(label)}"];'
        elif kind == "gap":
            yield f'  {target} [label="{_quoted(label)}", shape=octagon, style=dashed];'
        elif kind == "missing":
            yield f"  {source} -> {target} [style=dashed];"
        elif kind == "join":
            yield f'  {source} -> {target} [style=dotted, label="{_quoted(label)}"];'
        else:
            yield f"  {source} -> {target};"
    yield "}"


def _entities(label: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in " ._-,:") else f"#{ord(c)};" for c in label)


def _quoted(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"')


def _parts(drawing: Picture, everything: bool) -> Iterator[tuple[str, str, str, str]]:
    """(kind, source, target, label): nodes and gaps by name, then what leads where."""
    shown, more = _shown(drawing, everything)
    names: dict[int, str] = {}
    gaps: dict[int, str] = {}
    back: list[tuple[int, str]] = []
    count = 0
    for run, entries in shown:
        before, kind = "", "link"
        match run.entry:
            case AtGap(missing):
                if missing not in gaps:
                    gaps[missing] = f"g{len(gaps)}"
                    yield "gap", "", gaps[missing], f"{missing} is missing"
                before, kind = gaps[missing], "missing"
            case AtFork(event_id):
                before = names[event_id]
            case AtJoin(tip):
                before, kind = names[tip], "join"
            case AtRoot() | AtCircle():
                pass
        if isinstance(run.entry, AtCircle):
            back.append((run.entry.previous, f"n{count}"))
        for entry in entries:
            name = f"n{count}"
            count += 1
            yield "node", "", name, _line(entry)
            if before:
                yield kind, before, name, "joined by proof" if kind == "join" else ""
            before, kind = name, "link"
            nodes = entry.nodes if isinstance(entry, Fold) else (entry,)
            names |= {node.event_id: name for node in nodes}
    for previous, first in back:
        if previous in names:
            yield "link", names[previous], first, ""
    if more:
        yield "node", "", "more", f"{more} more roots and branches"


def _shown(drawing: Picture, everything: bool) -> tuple[Shown, int]:
    """The runs to draw with their events, and how many are left out."""
    if everything:
        return [(run, list[Node | Fold](run.nodes)) for run in drawing.runs], 0
    runs = drawing.runs[:RUNS_SHOWN]
    return [(run, folded(run.nodes)) for run in runs], len(drawing.runs) - len(runs)
