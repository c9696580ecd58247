"""Pictures of block programs: complete, stable, escaped, and laid out without overlaps."""

from collections.abc import Callable, Iterator
from itertools import combinations
from xml.etree import ElementTree

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Input, Iota, Map, Misc, Rename
from blockbuster_fusion.pictures import draw, draw_side_by_side, draw_step
from blockbuster_fusion.pictures.draw import changed_nodes
from blockbuster_fusion.pictures.layout import Layout, Placed, layout
from blockbuster_fusion.pictures.scene import Scene, scene
from blockbuster_fusion.tools.examples import EXAMPLES

Golden = Callable[[str], None]


def programs(name: str) -> Iterator[Graph]:
    """An example before fusion, its snapshots, and these made safe."""
    fusion = bb.fuse(EXAMPLES[name]())
    yield fusion.initial
    yield from fusion.fused
    yield from fusion.snapshots


def text_of(found: Scene) -> str:
    """A scene as text, for golden files."""
    lines = []
    for number, row in enumerate(found.rows):
        boxes = " ".join(box.label for box in found.boxes if box.first <= number <= box.last)
        arrays = "".join(f" <-{name}" for name in row.loads) + "".join(
            f" ->{name}" for name in row.stores
        )
        lines.append(f"{number} [{boxes}] {row.text}{arrays}")
    for line in found.lines:
        targets = ",".join(map(str, line.targets))
        lines.append(f"{line.source} -> {targets}{f': {line.name}' if line.name else ''}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["attention", "layernorm-matmul", "rmsnorm-swiglu"])
def test_scenes_of_the_papers_programs(name: str, golden: Golden) -> None:
    fusion = bb.fuse(EXAMPLES[name](), rules="paper")
    graphs = [fusion.initial, *fusion.fused, fusion.snapshots[-1]]
    golden("\n\n".join(text_of(scene(graph)) for graph in graphs))


def test_a_picture(golden: Golden) -> None:
    fusion = bb.fuse(bb.trace(lambda X: {"Y": bb.ops.softmax(X)}, X="M N"), rules="paper")
    golden(draw(fusion.fused[-1], title="softmax"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_operator_has_a_row_and_every_list_a_line(name: str) -> None:
    for graph in programs(name):
        found = scene(graph)
        operators = [
            i
            for _, inner in graph.walk()
            for i, node in inner.nodes.items()
            if not isinstance(node.op, Map | Input | Iota)
        ]
        assert {row.node for row in found.rows} >= set(operators)
        edges = {
            (edge.path, edge.value)
            for edge in bb.buffered(graph)
            if not isinstance(graph.at(edge.path).op(edge.value.node), Rename | Misc)
        }
        assert len([line for line in found.lines if line.in_memory]) >= len(edges)
        if not edges and not any(isinstance(graph.op(i), Rename | Misc) for i in graph.nodes):
            assert not any(line.in_memory for line in found.lines)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows_are_in_their_boxes_and_nothing_overlaps(name: str) -> None:
    for graph in programs(name):
        placed = layout(scene(graph))
        for row, at in placed.rows:
            around = [
                place
                for box, place in placed.boxes
                if (*box.path, box.node) == row.path[: box.depth + 1]
            ]
            assert len(around) == len(row.path)
            assert all(holds(place, at) for place in around)
        assert not any(overlap(a, b) for (_, a), (_, b) in combinations(placed.rows, 2))
        for (one, a), (other, b) in combinations(placed.boxes, 2):
            nested = (*one.path, one.node) == other.path[: one.depth + 1]
            assert holds(a, b) if nested else not overlap(a, b)
        assert_lanes_are_free(placed)


def assert_lanes_are_free(placed: Layout) -> None:
    """Two lines at one x share no piece of it."""
    spans = [(w.x, min(w.start, *w.ends), max(w.start, *w.ends)) for w in placed.wires]
    for (x, low, high), (other, bottom, top) in combinations(spans, 2):
        assert x != other or high <= bottom or top <= low
    assert all(w.x < placed.width for w in placed.wires)


def holds(outer: Placed, inner: Placed) -> bool:
    return (
        outer.x < inner.x
        and outer.y < inner.y
        and inner.right < outer.right
        and inner.y + inner.height < outer.y + outer.height
    )


def overlap(a: Placed, b: Placed) -> bool:
    beside = a.right <= b.x or b.right <= a.x
    return not beside and a.y < b.y + b.height and b.y < a.y + a.height


def test_operators_that_a_step_leaves_alone_keep_their_order() -> None:
    for step in bb.fuse(bb.examples.attention(), rules="paper").trace:
        before, after = ([row.node for row in scene(g).rows] for g in (step.before, step.after))
        kept = [node for node in before if node in after]
        if step.index not in (7, 17):  # these move an operator behind, or before, others
            assert kept == [node for node in after if node in before]


def test_a_step_marks_what_the_rule_has_made() -> None:
    trace = bb.fuse(bb.examples.attention(), rules="paper").trace
    first = trace[0]
    (made,) = changed_nodes(first)
    assert isinstance(first.after.op(made), Map)
    assert 'class="box changed"' in draw_step(first)
    assert "step 1: rule 1, fuse_consecutive_maps [M]: 10 buffered edges" in draw_step(first)
    assert ": 1 buffered edge<" in draw_step(trace[15])


def test_names_are_escaped() -> None:
    hostile = '</title><script>alert("1")</script>'
    program = bb.trace(lambda X: {hostile: X + 1}, X="M N")
    picture = draw(bb.lower(program), title=hostile)
    tree = ElementTree.fromstring(picture)
    assert not [element for element in tree.iter() if element.tag.endswith("script")]
    assert tree[0].text == hostile


@pytest.mark.parametrize("name", EXAMPLES)
def test_pictures_are_svg_without_references(name: str) -> None:
    picture = draw(bb.lower(EXAMPLES[name]()))
    ElementTree.fromstring(picture)
    assert picture == draw(bb.lower(EXAMPLES[name]()))
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_two_programs_stand_beside_each_other() -> None:
    graph = bb.lower(bb.examples.softmax())
    alone, both = (
        ElementTree.fromstring(picture)
        for picture in (
            draw(graph, title="one"),
            draw_side_by_side([("one", graph), ("two", graph)], title="both"),
        )
    )
    assert float(both.attrib["width"]) > 2 * float(alone.attrib["width"])
    assert both.attrib["height"] == alone.attrib["height"]


def test_only_block_programs_are_drawn() -> None:
    with pytest.raises(bb.BlockbusterError, match="a block program"):
        draw(bb.examples.attention())  # type: ignore[arg-type]
