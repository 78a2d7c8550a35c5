"""One execution's chain as SVG: a row an event, its shape says what it is, its text says it again.

Plain values in, one string of markup out.  Every text that comes from somebody's workflow is
escaped, written out where it does not print, and kept to its own direction.  No style stands in
the markup: classes and presentation attributes only, so that a page may forbid inline style.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from sidecar.core.picture import AtCircle, AtFork, AtGap, AtJoin, AtRoot, Fold, Node, Picture, Run, folded
from sidecar.inspection.drawn import visible
from sidecar.inspection.joins import sentence

ROWS_MAX: Final = 2_000
"""Rows of one drawing, however many events it has."""
RUNS_MAX: Final = 60
LANES_MAX: Final = 24
"""Branches inside of branches stand beside one another up to here."""

ROW, LANE, LEFT, RADIUS = 26, 22, 26, 6
CHARACTER: Final = 7.6
"""Width of one character of the labels; generous, so that nothing is cut."""

ISOLATE, END = "\u2068", "\u2069"
"""First strong isolate: a name that is written from right to left moves nothing beside it."""

LEGEND: Final = (
    ("root", "root"),
    ("event", "event"),
    ("fork", "fork: several successors"),
    ("end", "terminal event"),
    ("gap", "missing event"),
    ("circle", "on a circle"),
    ("alone", "on one side only, or different"),
    ("fold", "linear run, left out"),
    ("join", "joined by proof; no event names the other"),
)


@dataclass(frozen=True, slots=True)
class Mark:
    """One row of the drawing: a shape in a lane, and what is said of it."""

    shape: str
    lane: int
    label: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """From a row to a later one; `missing`: across an event that nobody has; `back`: a circle closes;
    `joined`: proven, named by no event.
    """

    source: int
    target: int
    missing: bool = False
    back: bool = False
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is to be drawn.  `more`: rows that are left out at the end."""

    marks: tuple[Mark, ...]
    edges: tuple[Edge, ...]
    more: int


def svg(drawing: Picture, title: str, *, everything: bool = False) -> Markup:
    """The chain as one SVG element; a picture without events is an empty text.

    Args:
        title: Says of what it is a picture, for those who do not see it.
        everything: Fold no linear runs.
    """
    drawn = laid_out(drawing, everything=everything)
    if not drawn.marks:
        return Markup("")
    height = ROW * (len(drawn.marks) + bool(drawn.more)) + 12
    width = round(max(_right(mark) for mark in drawn.marks))
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg class="chain" role="img" {box} xmlns="http://www.w3.org/2000/svg">'
    parts = [f"{head}<title>{escape(title)}</title>"]
    parts += [_edge(edge, drawn.marks) for edge in drawn.edges]
    parts += [_mark(mark, row) for row, mark in enumerate(drawn.marks)]
    if drawn.more:
        parts.append(f'<text class="more" x="{LEFT}" y="{height - 14}">and {drawn.more:,} more events</text>')
    return Markup("".join(parts) + "</svg>")  # noqa: S704 - every text in it is escaped where it is put in


def laid_out(drawing: Picture, *, everything: bool = False) -> Drawn:
    """Rows and edges, without any markup."""
    layout = _Layout({at: len(each) for at, each in drawing.forks})
    left_out = 0
    for run in drawing.runs:
        if len(layout.marks) >= ROWS_MAX or (not everything and layout.runs >= RUNS_MAX):
            left_out += len(run.nodes)
            continue
        entries: Sequence[Node | Fold] = run.nodes if everything else folded(run.nodes)
        left_out += layout.run(run, entries[: ROWS_MAX - len(layout.marks)])
    return Drawn(tuple(layout.marks), tuple(layout.edges), left_out)


class _Layout:
    def __init__(self, forks: dict[int, int]) -> None:
        self.marks: list[Mark] = []
        self.edges: list[Edge] = []
        self.runs = 0
        self._forks = forks
        self._rows: dict[int, int] = {}
        self._gaps: dict[int, int] = {}

    def run(self, run: Run, entries: Sequence[Node | Fold]) -> int:
        """Put one run below what stands there; how many of its events did not fit."""
        self.runs += 1
        before = self._entered(run)
        missing, joined = isinstance(run.entry, AtGap), isinstance(run.entry, AtJoin)
        shown = 0
        for place, entry in enumerate(entries):
            row = len(self.marks)
            self.marks.append(self._row(run, entry, first=place == 0))
            if before is not None:
                enters = place == 0
                self.edges.append(Edge(before, row, missing=missing and enters, joined=joined and enters))
            before = row
            nodes = entry.nodes if isinstance(entry, Fold) else (entry,)
            shown += len(nodes)
            self._rows |= {node.event_id: row for node in nodes}
        if isinstance(run.entry, AtCircle) and run.nodes and run.entry.previous in self._rows:
            first = self._rows[run.nodes[0].event_id]
            self.edges.append(Edge(first, self._rows[run.entry.previous], back=True))
        return len(run.nodes) - shown

    def _entered(self, run: Run) -> int | None:
        """The row that the run hangs on."""
        match run.entry:
            case AtGap(missing):
                if missing not in self._gaps:
                    self._gaps[missing] = len(self.marks)
                    self.marks.append(Mark("gap", 0, f"{missing} is missing", ("gap",)))
                return self._gaps[missing]
            case AtFork(event_id) | AtJoin(event_id):
                return self._rows.get(event_id)
            case AtRoot() | AtCircle():
                return None

    def _row(self, run: Run, entry: Node | Fold, *, first: bool) -> Mark:
        lane = min(len(run.rails), LANES_MAX)
        if isinstance(entry, Fold):
            ends = f"{entry.nodes[0].event_id} to {entry.nodes[-1].event_id}"
            return Mark("fold", lane, f"{len(entry.nodes):,} more, linear, {ends}", entry.marks)
        said = list(entry.marks)
        shape = "alone" if said else "end" if entry.terminal else "event"
        if branches := self._forks.get(entry.event_id):
            shape = "fork"
            said.insert(0, f"fork: {branches} successors")
        if first and isinstance(run.entry, AtRoot):
            shape = "root" if shape in {"event", "end"} else shape
            said.insert(0, "root")
        if first and isinstance(run.entry, AtJoin):
            shape = "root" if shape in {"event", "end"} else shape
            said.insert(0, f"root, proven to come after {run.entry.tip_event_id}")
        if first and isinstance(run.entry, AtCircle):
            shape = "circle"
            said.insert(0, f"circle: follows {run.entry.previous}")
        return Mark(shape, lane, _label(entry), tuple(said))


def _label(node: Node) -> str:
    name = f" {ISOLATE}{visible(node.name)}{END}" if node.name else ""
    return f"{node.event_id} {ISOLATE}{visible(node.event_type)}{END}{name}"


def _x(mark: Mark) -> int:
    return LEFT + mark.lane * LANE


def _y(row: int) -> int:
    return ROW // 2 + 6 + row * ROW


def _right(mark: Mark) -> float:
    return _x(mark) + 18 + CHARACTER * (len(mark.label) + sum(len(each) + 3 for each in mark.marks)) + 8


def _mark(mark: Mark, row: int) -> str:
    x, y = _x(mark), _y(row)
    said = "".join(f'<tspan class="said"> [{escape(each)}]</tspan>' for each in mark.marks)
    label = f'<text class="label" x="{x + 18}" y="{y + 4}">{escape(mark.label)}{said}</text>'
    return f'<g class="{mark.shape}">{shape(mark.shape, x, y)}{label}</g>'


def shape(name: str, x: int, y: int) -> str:
    """The sign of one row; each has a form of its own."""
    match name:
        case "root":
            outer = f'<circle class="ring" cx="{x}" cy="{y}" r="{RADIUS + 2}"/>'
            return f'{outer}<circle class="dot" cx="{x}" cy="{y}" r="3"/>'
        case "fork":
            return f'<path class="dot" d="M{x} {y + RADIUS}L{x - RADIUS} {y - RADIUS}H{x + RADIUS}Z"/>'
        case "end":
            corner, side = (
                f'x="{x - 5.5}" y="{y - 5.5}"',
                f'width="{2 * RADIUS - 1}" height="{2 * RADIUS - 1}"',
            )
            return f'<rect class="dot" {corner} {side}/>'
        case "gap":
            reach = RADIUS + 2
            return (
                f'<path class="hole" d="M{x} {y - reach}L{x + reach} {y}L{x} {y + reach}L{x - reach} {y}Z"/>'
            )
        case "circle":
            cross = f"M{x - 3} {y - 3}L{x + 3} {y + 3}M{x - 3} {y + 3}L{x + 3} {y - 3}"
            return f'<circle class="ring" cx="{x}" cy="{y}" r="{RADIUS}"/><path class="ring" d="{cross}"/>'
        case "alone":
            return f'<circle class="hole" cx="{x}" cy="{y}" r="{RADIUS}"/>'
        case "join":
            return f'<path class="edge joined" d="M{x} {y - 11}V{y + 11}"/>'
        case "fold":
            return "".join(f'<circle class="dot" cx="{x}" cy="{y + at}" r="1.6"/>' for at in (-6, 0, 6))
        case _:
            return f'<circle class="dot" cx="{x}" cy="{y}" r="4"/>'


def _edge(edge: Edge, marks: Sequence[Mark]) -> str:
    x, y = _x(marks[edge.source]), _y(edge.source)
    to_x, to_y = _x(marks[edge.target]), _y(edge.target)
    if edge.back:
        left = x - 16
        return f'<path class="edge back" d="M{to_x - RADIUS} {to_y}H{left}V{y}H{x - RADIUS - 2}"/>'
    kind = "edge missing" if edge.missing else "edge joined" if edge.joined else "edge"
    if x == to_x:
        return f'<path class="{kind}" d="M{x} {y}V{to_y}"/>'
    return f'<path class="{kind}" d="M{x} {y}V{to_y - 10}Q{x} {to_y} {min(x + 10, to_x)} {to_y}H{to_x}"/>'


def legend() -> Iterator[tuple[Markup, str]]:
    """Each sign and what it says."""
    for name, words in LEGEND:
        sign = (
            f'<svg class="chain sign" aria-hidden="true" width="22" height="22">{shape(name, 11, 11)}</svg>'
        )
        yield Markup(sign), words  # noqa: S704 - from constants


def irregular(drawing: Picture) -> Iterator[str]:
    """What is not one path, in sentences."""
    if len(drawing.roots) > 1:
        yield f"{len(drawing.roots)} roots: {_few(drawing.roots)}."
    for missing, named_by in drawing.gaps[:8]:
        yield f"Event {missing} is missing; {_few(named_by)} names it as predecessor."
    for at, successors in drawing.forks[:8]:
        yield f"Fork: {len(successors)} events follow {at}: {_few(successors)}."
    if drawing.duplicates:
        yield f"More than once in the log: {_few(drawing.duplicates)}."
    if drawing.circles:
        yield f"The links run in a circle at {_few(drawing.circles)}."
    for join in drawing.joins:
        yield sentence(join)


def _few(ids: tuple[int, ...]) -> str:
    more = f" and {len(ids) - 8:,} more" if len(ids) > 8 else ""
    return ", ".join(map(str, ids[:8])) + more
