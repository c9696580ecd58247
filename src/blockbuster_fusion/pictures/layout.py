"""Positions of a picture: rows below each other, nested boxes around them, lines beside them.

Values in local memory stay inside the boxes. Lists in global memory leave the boxes on the right
and come in again. A line has a lane; lines whose rows overlap have different lanes.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blockbuster_fusion.pictures.scene import Box, Line, Row, Scene

CHARACTER = 7.2
"""The width of a character in the fixed-width font of rows, in pixels."""
LONGEST = 40
"""The most characters of a row; the tooltip has them all."""
ROW = 26
GUTTER = 14
"""The room for the label of a map, left of what is in it, beside the characters."""
PAD = 6
PILL = 9
"""The padding of the name of an array."""
LOCAL_LANE, MEMORY_LANE = 9, 34


@dataclass(frozen=True, slots=True)
class Placed:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Wire:
    """A line in its lane: from `start` to the `ends`, each the y of a row's port."""

    line: Line
    x: float
    from_x: float
    start: float
    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of all parts of a scene."""

    width: float
    height: float
    rows: tuple[tuple[Row, Placed], ...]
    boxes: tuple[tuple[Box, Placed], ...]
    tops: tuple[float, ...]
    """The upper edge of each row."""
    wires: tuple[Wire, ...]


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def pill_width(name: str) -> float:
    return len(name) * CHARACTER + PILL


def row_width(row: Row) -> float:
    names = (*row.loads, *row.stores)
    return len(shortened(row.text)) * CHARACTER + 16 + sum(pill_width(n) + 4 for n in names)


def layout(scene: Scene) -> Layout:
    """The positions of a scene; the same scene always has the same."""
    tops = _tops(scene)
    depth = max((box.depth + 1 for box in scene.boxes), default=0)
    gutter = GUTTER + CHARACTER * max((len(box.label) for box in scene.boxes), default=0)
    left = 8 + depth * gutter
    right = left + max(map(row_width, scene.rows), default=0)
    local = [line for line in scene.lines if not line.in_memory]
    stored = [line for line in scene.lines if line.in_memory]
    lanes = _lanes(local)
    border = right + (max(lanes, default=-1) + 1) * LOCAL_LANE + PAD
    outer = border + depth * PAD
    rows = [
        (row, _placed(row, top, right, gutter)) for row, top in zip(scene.rows, tops, strict=True)
    ]
    boxes = [(box, _around(box, scene.boxes, tops, border, gutter)) for box in scene.boxes]
    wires: list[Wire] = []
    ports = _Ports([placed for _, placed in rows])
    for line, lane in zip(local, lanes, strict=True):
        x = right + PAD + lane * LOCAL_LANE
        wires.append(ports.wire(line, x, right))
    memory_lanes = _lanes(stored)
    for line, lane in zip(stored, memory_lanes, strict=True):
        x = outer + MEMORY_LANE * (lane + 0.6)
        wires.append(ports.wire(line, x, right))
    width = outer + MEMORY_LANE * (max(memory_lanes, default=-1) + 1) + 8
    bottom = max((p.y + p.height for _, p in (*rows, *boxes)), default=0)
    return Layout(width, bottom + PAD, tuple(rows), tuple(boxes), tuple(tops), tuple(wires))


def _tops(scene: Scene) -> list[float]:
    """The upper edge of each row, with room for the boxes that begin or end beside it."""
    begun: dict[int, int] = defaultdict(int)
    ended: dict[int, int] = defaultdict(int)
    for box in scene.boxes:
        begun[box.first] += 1
        ended[box.last] += 1
    tops: list[float] = []
    y = float(PAD)
    for number in range(len(scene.rows)):
        y += PAD * begun[number]
        tops.append(y)
        y += ROW + PAD + PAD * ended[number]
    return tops


def _placed(row: Row, top: float, right: float, gutter: float) -> Placed:
    """A row begins right of the gutters of its own maps."""
    x = 8 + len(row.path) * gutter
    return Placed(x, top, right - x, ROW)


def _around(
    box: Box, boxes: Sequence[Box], tops: Sequence[float], border: float, gutter: float
) -> Placed:
    """A box is as far from its rows as there are boxes between them and it."""
    inside = [b for b in boxes if b.depth >= box.depth and box.first <= b.first <= box.last]
    above = sum(b.first == box.first for b in inside)
    below = sum(b.last == box.last for b in inside)
    beside = max(b.depth for b in inside) - box.depth
    x, top = 8 + box.depth * gutter, tops[box.first] - PAD * above
    bottom = tops[box.last] + ROW + PAD * below
    return Placed(x, top, border + PAD * beside - x, bottom - top)


def _lanes(lines: Iterable[Line]) -> list[int]:
    """A lane for each line: short lines get the inner ones."""
    spans = [(min(line.source, *line.targets), max(line.source, *line.targets)) for line in lines]
    order = sorted(range(len(spans)), key=lambda i: (spans[i][1] - spans[i][0], spans[i]))
    taken: list[list[tuple[int, int]]] = []
    lanes = [0] * len(spans)
    for i in order:
        low, high = spans[i]
        free = (all(high <= a or b <= low for a, b in others) for others in taken)
        lane = next((lane for lane, is_free in enumerate(free) if is_free), len(taken))
        if lane == len(taken):
            taken.append([])
        taken[lane].append(spans[i])
        lanes[i] = lane
    return lanes


class _Ports:
    """The places on the right edges of rows: what comes in is above what goes out."""

    def __init__(self, rows: Sequence[Placed]) -> None:
        self.rows = rows
        self.used: dict[tuple[int, bool], int] = defaultdict(int)

    def wire(self, line: Line, x: float, from_x: float) -> Wire:
        start = self.port(line.source, into=False)
        ends = tuple(self.port(row, into=True) for row in line.targets)
        return Wire(line, x, from_x, start, ends)

    def port(self, row: int, *, into: bool) -> float:
        number = self.used[row, into]
        self.used[row, into] += 1
        step = 4 * min(number, 2)
        return self.rows[row].middle + (-3 - step if into else 3 + step)
