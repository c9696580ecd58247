"""The layout: nothing overlaps, edges run downwards, and what does not change looks the same."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockbuster_fusion.explorer.layout import Cell, Diagram, Link, Placed, Rect, Row, place


def chain(count: int, prefix: str = "c") -> Diagram:
    cells = [Cell(f"{prefix}{i}", 40 + 7 * i, 24) for i in range(count)]
    return Diagram(cells, [Link(f"{prefix}{i}", f"{prefix}{i + 1}") for i in range(count - 1)])


def boxed(inner: str) -> Diagram:
    """Two cells, and a box between them with an operand, a result and a cell inside."""
    inside = Diagram(
        [
            Cell(f"{inner}i", 8, 8, Row.TOP),
            Cell(inner, 70, 24),
            Cell(f"{inner}o", 8, 8, Row.BOTTOM),
        ],
        [Link(f"{inner}i", inner), Link(inner, f"{inner}o")],
    )
    cells = [Cell("a", 30, 24), Cell("box", 50, 0, inner=inside), Cell("z", 30, 24)]
    links = [
        Link("a", "box", None, f"{inner}i"),
        Link("box", "z", f"{inner}o"),
    ]
    return Diagram(cells, links)


def overlap(one: Rect, other: Rect) -> bool:
    apart_x = one.x + one.width <= other.x or other.x + other.width <= one.x
    apart_y = one.y + one.height <= other.y or other.y + other.height <= one.y
    return not (apart_x or apart_y)


def text(placed: Placed) -> str:
    lines = [f"{placed.width} x {placed.height}"]
    lines += [
        f"{key}: {rect.x},{rect.y} {rect.width}x{rect.height}" for key, rect in placed.rects.items()
    ]
    lines += [f"{link.source} -> {link.target}: {points}" for link, points in placed.routes.items()]
    return "\n".join(lines)


def test_a_box(golden) -> None:
    golden(text(place(boxed("x"))))


def test_a_long_edge_goes_around(golden) -> None:
    diagram = chain(4)
    golden(text(place(Diagram(diagram.cells, [*diagram.links, Link("c0", "c3")]))))


def test_a_box_holds_its_cells() -> None:
    rects = place(boxed("x")).rects
    box, cell = rects["box"], rects["x"]
    assert box.x < cell.x
    assert cell.x + cell.width < box.x + box.width
    assert box.y < cell.y
    assert cell.y + cell.height < box.y + box.height


def test_an_input_stands_just_above_its_reader() -> None:
    cells = [Cell("late", 20, 24, Row.LATE), *chain(5).cells]
    placed = place(Diagram(cells, [*chain(5).links, Link("late", "c4")]))
    assert placed.rects["late"].y == placed.rects["c3"].y


def test_what_does_not_change_looks_the_same() -> None:
    """The inside of a box depends on nothing outside of it."""
    inside = boxed("x").cells[1].inner
    wide = Diagram(
        [Cell("w", 300, 24), Cell("box", 50, 0, inner=inside)], [Link("w", "box", None, "xi")]
    )
    one, other = place(boxed("x")).rects, place(wide).rects
    assert one["box"][2:] == other["box"][2:]
    assert one["x"].x - one["box"].x == other["x"].x - other["box"].x


def test_nothing() -> None:
    assert place(Diagram([], [])).rects == {}


def test_an_edge_over_many_layers_is_straight() -> None:
    diagram = chain(60)
    link = Link("c0", "c59")
    placed = place(Diagram(diagram.cells, [*diagram.links, link]))
    assert len(placed.routes[link]) == 4


@st.composite
def diagrams(draw: st.DrawFn) -> Diagram:
    count = draw(st.integers(1, 12))
    rows = st.sampled_from([Row.MIDDLE, Row.MIDDLE, Row.LATE])
    cells = [
        Cell(str(i), draw(st.integers(8, 120)), draw(st.integers(8, 60)), draw(rows))
        for i in range(count)
    ]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    return Diagram(cells, [Link(str(i), str(j)) for i, j in chosen])


@settings(max_examples=200, deadline=None)
@given(diagrams())
def test_cells_do_not_overlap_and_edges_run_downwards(diagram: Diagram) -> None:
    placed = place(diagram)
    for one, other in combinations(placed.rects.values(), 2):
        assert not overlap(one, other)
    for link, points in placed.routes.items():
        ys = points[1::2]
        assert list(ys) == sorted(ys), link
    for rect in placed.rects.values():
        assert rect.x >= 0
        assert rect.x + rect.width <= placed.width
        assert rect.y >= 0
        assert rect.y + rect.height <= placed.height


@pytest.mark.parametrize("count", [5000])
def test_many_cells(count: int) -> None:
    placed = place(chain(count))
    assert len(placed.rects) == count
