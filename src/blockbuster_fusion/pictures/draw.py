"""Drawing: a program, two programs beside each other, a step of a trace."""

from collections.abc import Collection, Sequence

from blockbuster_fusion.fusion.trace import Step
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph, check_graph
from blockbuster_fusion.pictures import svg
from blockbuster_fusion.pictures.layout import (
    CHARACTER,
    Layout,
    Placed,
    Wire,
    layout,
    pill_width,
    shortened,
)
from blockbuster_fusion.pictures.scene import Row, scene

TITLE = 24
"""The height of a title."""
BETWEEN = 28
"""The room between two programs."""


def draw(graph: Graph, *, title: str = "", changed: Collection[int] = ()) -> str:
    """A picture of a block program, as SVG.

    Boxes are maps: `∀ m` for blocks in any order, `Σ n` for blocks that are added up. Coloured
    lines are lists in global memory. Nodes in `changed` have a coloured border.
    """
    check_graph("draw", graph)
    return draw_side_by_side([(title, graph)], title=title or "a block program", changed=changed)


def draw_side_by_side(
    programs: Sequence[tuple[str, Graph]], *, title: str, changed: Collection[int] = ()
) -> str:
    """Several block programs beside each other, each with its own title."""
    parts: list[str] = []
    x, height = 0.0, 0.0
    top = TITLE if any(name for name, _ in programs) else 0
    for name, graph in programs:
        placed = layout(scene(graph))
        drawn = [svg.text(8, 16, name, "title")] if name else []
        drawn.append(svg.group(_parts(placed, changed), y=top))
        parts.append(svg.group(drawn, x=x))
        width = max(placed.width, len(name) * CHARACTER * 1.1 + 16)
        x, height = x + width + BETWEEN, max(height, placed.height)
    return svg.svg(x - BETWEEN, height + top, title, parts)


def draw_step(step: Step) -> str:
    """The program after a step; what the rule has made has a coloured border."""
    edges = len(buffered(step.after))
    title = f"{step}: {edges} buffered {'edge' if edges == 1 else 'edges'}"
    return draw(step.after, title=title, changed=changed_nodes(step))


def changed_nodes(step: Step) -> frozenset[int]:
    """The nodes that a rule has made or changed, in the graph in which it fired."""
    before, after = (program.at(step.path) for program in (step.before, step.after))
    return frozenset(
        i
        for i, node in after.nodes.items()
        if i not in before.nodes or before.nodes[i].op is not node.op
    )


def _parts(placed: Layout, changed: Collection[int]) -> list[str]:
    parts: list[str] = []
    for box, at in placed.boxes:
        kind = "box changed" if box.node in changed else "box"
        parts.append(svg.rect(at.x, at.y, at.width, at.height, kind))
        parts.append(svg.text(at.x + 7, placed.tops[box.first] + 17, box.label, "small"))
    for wire in sorted(placed.wires, key=lambda wire: wire.line.in_memory):
        parts += _wire(wire)
    for row, at in placed.rows:
        parts.append(_row(row, at, row.node in changed))
    return parts


def _row(row: Row, at: Placed, is_changed: bool) -> str:
    parts = [svg.rect(at.x, at.y, at.width, at.height, "row changed" if is_changed else "row")]
    parts.append(svg.text(at.x + 8, at.middle + 4, shortened(row.text)))
    x = at.right - 4
    names = [*((n, "input") for n in row.loads), *((n, "output") for n in row.stores)]
    for name, kind in reversed(names):
        width = pill_width(name)
        x -= width
        parts.append(svg.rect(x, at.y + 5, width, at.height - 10, f"fill-{kind}", 8))
        parts.append(svg.text(x + width / 2, at.middle + 4, name, "small on", "middle"))
        x -= 4
    return svg.group(parts, title=row.text if len(row.text) > len(shortened(row.text)) else "")


def _wire(wire: Wire) -> list[str]:
    kind = "memory" if wire.line.in_memory else "local"
    left, x = svg.number(wire.from_x), svg.number(wire.x)
    ys = [wire.start, *wire.ends]
    stubs = "".join(f"M{left} {svg.number(y)}H{x}" for y in ys)
    parts = [svg.path(f"{stubs}M{x} {svg.number(min(ys))}V{svg.number(max(ys))}", kind)]
    size = 4 if wire.line.in_memory else 3
    for y in wire.ends:
        tip = f"M{left} {svg.number(y)}l{2 * size} {-size}v{2 * size}z"
        parts.append(svg.path(tip, f"fill-{kind}"))
    if wire.line.in_memory:
        middle, width = (min(ys) + max(ys)) / 2, pill_width(wire.line.name)
        place = (wire.x - width / 2, middle - 8, width, 16)
        parts.append(svg.rect(*place, "fill-memory", 8))
        parts.append(svg.text(wire.x, middle + 4, wire.line.name, "small on", "middle"))
    return parts
