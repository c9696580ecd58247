"""The layout of nested diagrams: cells in layers, from top to bottom, and boxes around them.

A diagram is laid out from its own cells alone, inner diagrams first. So a part of a program that a
step leaves alone looks the same before and after it. Cells keep the order in which they are given
unless that makes edges cross.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

GAP_X, GAP_Y, MARGIN, HEADER = 14, 18, 12, 20
"""The pixels between cells, between layers, inside a box, and of a box's title."""
LONGEST_ROUTE = 40
"""An edge over more layers is drawn straight: a cell per layer would cost too much."""
SWEEPS = 4


class Row(Enum):
    """The place of a cell in its diagram."""

    TOP = "top"  # on the upper border: an operand of a box
    MIDDLE = "middle"
    LATE = "late"  # just above the cells that need it: an input of the program
    BOTTOM = "bottom"  # on the lower border: a result of a box


@dataclass(frozen=True)
class Cell:
    """A rectangle in a diagram; a box has a diagram of its own, which gives its size."""

    key: str
    width: int
    height: int
    row: Row = Row.MIDDLE
    inner: "Diagram | None" = None


@dataclass(frozen=True)
class Link:
    """An edge from a cell to a later one; at a box it ends at one of the cells on its border."""

    source: str
    target: str
    source_port: str | None = None
    target_port: str | None = None


@dataclass(frozen=True)
class Diagram:
    """Cells in topological order, and the edges between them."""

    cells: Sequence[Cell]
    links: Sequence[Link]


class Rect(NamedTuple):
    """A rectangle, in pixels."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class Placed:
    """A diagram with a rectangle for each cell of it and of its boxes, and the points of edges."""

    width: int
    height: int
    rects: Mapping[str, Rect]
    routes: Mapping[Link, tuple[int, ...]]


def place(diagram: Diagram) -> Placed:
    """The layout of a diagram and of all diagrams in it."""
    made: dict[int, _Layers] = {}
    for inner in reversed(list(_diagrams(diagram))):
        made[id(inner)] = _Layers(inner, made)
    rects: dict[str, Rect] = {}
    routes: dict[Link, tuple[int, ...]] = {}
    todo = [(diagram, 0, 0)]
    while todo:
        current, left, top = todo.pop()
        layers = made[id(current)]
        for cell, rect in zip(current.cells, layers.rects, strict=True):
            moved = Rect(rect.x + left, rect.y + top, rect.width, rect.height)
            rects[cell.key] = moved
            if cell.inner is not None:
                todo.append((cell.inner, moved.x, moved.y))
        for link, points in zip(current.links, layers.routes, strict=True):
            moved_points = (p + (top if at % 2 else left) for at, p in enumerate(points))
            routes[link] = tuple(moved_points)
    whole = made[id(diagram)]
    return Placed(whole.width, whole.height, rects, routes)


def _diagrams(diagram: Diagram) -> Iterator[Diagram]:
    """A diagram and those in it, outer ones first."""
    queue = [diagram]
    for each in queue:
        yield each
        queue.extend(cell.inner for cell in each.cells if cell.inner is not None)


@dataclass
class _Slot:
    """A cell in its layer, or a place that an edge passes."""

    width: float
    layer: int
    x: float = 0.0
    above: list[tuple[int, float, float]] = field(default_factory=list)
    """The slots above that it is connected with: slot, its offset there, and its own offset."""
    below: list[tuple[int, float, float]] = field(default_factory=list)


class _Layers:
    """The layout of one diagram; the sizes of its boxes are known."""

    def __init__(self, diagram: Diagram, made: Mapping[int, "_Layers"]) -> None:
        self.cells, self.links = diagram.cells, diagram.links
        self.made = made
        self.number = {cell.key: at for at, cell in enumerate(self.cells)}
        self.sizes = [self._size(cell) for cell in self.cells]
        self.layer = self._layering()
        self.slots = [
            _Slot(size[0], layer) for size, layer in zip(self.sizes, self.layer, strict=True)
        ]
        self.passed = [self._connect(link) for link in self.links]
        self.rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for at, slot in enumerate(self.slots):
            self.rows[slot.layer].append(at)
        self._order()
        self._straighten()
        self._finish()

    def _size(self, cell: Cell) -> tuple[int, int]:
        if cell.inner is None:
            return cell.width, cell.height
        inner = self.made[id(cell.inner)]
        return max(cell.width, inner.width), inner.height

    def _layering(self) -> list[int]:
        """The layer of each cell: below all that it needs, and no deeper."""
        preds: list[list[int]] = [[] for _ in self.cells]
        succs: list[list[int]] = [[] for _ in self.cells]
        for link in self.links:
            source, target = self.number[link.source], self.number[link.target]
            preds[target].append(source)
            succs[source].append(target)
        has_top = any(cell.row is Row.TOP for cell in self.cells)
        layer = [0] * len(self.cells)
        for at, cell in enumerate(self.cells):
            if cell.row is not Row.TOP:
                first = 1 if has_top else 0
                layer[at] = max([first, *(layer[p] + 1 for p in preds[at])])
        last = max(
            (n for n, c in zip(layer, self.cells, strict=True) if c.row is not Row.BOTTOM),
            default=0,
        )
        for at in reversed(range(len(self.cells))):
            row = self.cells[at].row
            if row is Row.BOTTOM:
                layer[at] = last + 1
            elif row is Row.LATE and succs[at]:
                layer[at] = max(0, min(layer[s] for s in succs[at]) - 1)
        return layer

    def _offset(self, at: int, port: str | None) -> float:
        """The distance of an edge's end from the left side of a cell."""
        inner = self.cells[at].inner
        if inner is None or port is None:
            return self.sizes[at][0] / 2
        layers = self.made[id(inner)]
        rect = layers.rects[layers.number[port]]
        return rect.x + rect.width / 2

    def _connect(self, link: Link) -> list[int]:
        """Connects the slots of an edge; the result has those that it passes between its ends."""
        source, target = self.number[link.source], self.number[link.target]
        first, last = self.layer[source] + 1, self.layer[target]
        between = list(range(first, last)) if last - first <= LONGEST_ROUTE else []
        passed = []
        at, offset = source, self._offset(source, link.source_port)
        for layer in between:
            self.slots.append(_Slot(6, layer))
            passed.append(len(self.slots) - 1)
            self._join(at, offset, passed[-1], 3)
            at, offset = passed[-1], 3
        self._join(at, offset, target, self._offset(target, link.target_port))
        return passed

    def _join(self, upper: int, upper_offset: float, lower: int, lower_offset: float) -> None:
        self.slots[lower].above.append((upper, upper_offset, lower_offset))
        self.slots[upper].below.append((lower, lower_offset, upper_offset))

    def _order(self) -> None:
        """Orders each layer by the mean place of what its cells are connected with."""
        place = [0.0] * len(self.slots)
        for row in self.rows:
            for number, at in enumerate(row):
                place[at] = number
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            for row in self.rows if down else reversed(self.rows):
                row.sort(key=lambda at: self._mean_place(at, place, down))
                for number, at in enumerate(row):
                    place[at] = number

    def _mean_place(self, at: int, place: Sequence[float], down: bool) -> float:
        slot = self.slots[at]
        near = slot.above if down else slot.below
        if not near:
            return place[at]
        # An end further right on a wide box counts as further right.
        return sum(place[i] + offset / (self.slots[i].width + 1) for i, offset, _ in near) / len(
            near
        )

    def _straighten(self) -> None:
        """Moves cells, in their order, so that edges become as upright as they can."""
        for row in self.rows:
            right = 0.0
            for at in row:
                self.slots[at].x = right
                right += self.slots[at].width + GAP_X
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            for row in self.rows if down else reversed(self.rows):
                wanted = [self._wanted(at, down) for at in row]
                widths = [self.slots[at].width + GAP_X for at in row]
                for at, x in zip(row, _in_order(wanted, widths), strict=True):
                    self.slots[at].x = x

    def _wanted(self, at: int, down: bool) -> float:
        slot = self.slots[at]
        near = slot.above if down else slot.below
        if not near:
            return slot.x
        return sum(self.slots[i].x + other - own for i, other, own in near) / len(near)

    def _finish(self) -> None:
        """The rectangles and routes, from the border of the diagram's box."""
        left = min((slot.x for slot in self.slots), default=0.0) - MARGIN
        right = max((slot.x + slot.width for slot in self.slots), default=0.0) + MARGIN
        tops, y = [], 0
        heights = [max((self._height(at) for at in row), default=0) for row in self.rows]
        for number, height in enumerate(heights):
            is_border = bool(self.rows[number]) and self._is_border(number, Row.TOP)
            tops.append(y - height // 2 if is_border else y)
            y += HEADER + GAP_Y // 2 if is_border else height + GAP_Y
        self.width, self.height = round(right - left), max(y, HEADER + GAP_Y)
        if self.rows and self._is_border(len(self.rows) - 1, Row.BOTTOM):
            self.height = tops[-1] + heights[-1] // 2
        self.rects = [
            Rect(
                round(self.slots[at].x - left),
                tops[layer] + (0 if self.cells[at].inner else (heights[layer] - size[1]) // 2),
                *size,
            )
            for at, (layer, size) in enumerate(zip(self.layer, self.sizes, strict=True))
        ]
        self.routes = [
            tuple(self._route(link, passed, tops, heights, left))
            for link, passed in zip(self.links, self.passed, strict=True)
        ]

    def _height(self, at: int) -> int:
        return self.sizes[at][1] if at < len(self.cells) else 0

    def _is_border(self, number: int, row: Row) -> bool:
        own = [self.cells[at].row for at in self.rows[number] if at < len(self.cells)]
        return bool(own) and all(each is row for each in own)

    def _route(
        self,
        link: Link,
        passed: Sequence[int],
        tops: Sequence[int],
        heights: Sequence[int],
        left: float,
    ) -> Iterator[int]:
        """The points of an edge, x and y in turn."""
        source, target = self.number[link.source], self.number[link.target]
        start, end = self.rects[source], self.rects[target]
        yield round(start.x + self._offset(source, link.source_port))
        yield start.y + start.height
        for at in passed:
            slot = self.slots[at]
            x = round(slot.x - left + 3)
            yield from (x, tops[slot.layer], x, tops[slot.layer] + heights[slot.layer])
        yield round(end.x + self._offset(target, link.target_port))
        yield end.y


def _in_order(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Places nearest to the wanted ones, by least squares, that keep the order and the widths."""
    groups: list[tuple[float, int]] = []  # the mean of each run that moves together, and its length
    before, offset = [], 0.0
    for want, width in zip(wanted, widths, strict=True):
        before.append(offset)
        mean, count = want - offset, 1
        while groups and groups[-1][0] > mean:
            other, more = groups.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        groups.append((mean, count))
        offset += width
    means = [mean for mean, count in groups for _ in range(count)]
    return [mean + start for mean, start in zip(means, before, strict=True)]
