"""Plans panels: statements between contractions that run together, a few vectors at a time.

Between two contractions, a kernel computes element by element, and reduces across the lanes. One
statement after the other, whole tiles would go through the caches. A *panel* is a run of such
statements, computed for a few vectors of the lanes. Reductions stay in registers, and statements
between two of them are one loop over the other axis of the tile, a *segment*:

    for each panel of the queries
        segment over the keys       s = scores * scale, and the maximum of s
        numbers of each query       how much the sums so far shrink
        segment over the keys       e = exp(s - maximum), and its sum
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Kernel,
    Load,
    Positions,
    Span,
    Statement,
    Tile,
    read,
    written,
)
from blockbuster_fusion.printers.c.streams import Item, Order, Segment, bodies, is_inside, items_of


@dataclass(frozen=True, eq=False)
class Panel:
    """A run of statements over tiles of two axes, of which one gives the lanes."""

    statements: tuple[Compute | Fold, ...]
    along: Span
    """The axis of the loops."""
    lanes: Span
    items: tuple[Item, ...]
    """The work in order: loops, and numbers of which each lane has one."""


@dataclass
class PanelPlan:
    """The panels of a kernel, and the tiles whose values stay in registers."""

    panels: dict[Statement, Panel] = field(default_factory=dict)
    """By their first statement."""
    fleeting: set[Tile] = field(default_factory=set)

    @property
    def statements(self) -> set[Statement]:
        return {s for panel in self.panels.values() for s in panel.statements}


def gather(kernel: Kernel) -> Kernel:
    """The kernel with computations moved down to their first use, and reductions up.

    They pass loads and contractions: a mask that is computed before the scores, and a sum after
    their contraction, then become part of the panel of the scores.
    """
    return replace(kernel, body=_gathered(kernel.body))


def _gathered(body: Body) -> Body:
    sunk: list[Statement] = []
    for statement in reversed(body):
        match statement:
            case For() | Cascade():
                sunk.insert(0, replace(statement, body=_gathered(statement.body)))
            case Compute():
                sunk.insert(_first_use(statement, sunk), statement)
            case _:
                sunk.insert(0, statement)
    made: list[Statement] = []
    for statement in sunk:
        place = _after_operand(statement, made) if isinstance(statement, Fold) else len(made)
        made.insert(place, statement)
    return tuple(made)


_PASSED = Load | Contract | Fill | Positions | Compute
"""The statements that others may pass."""


def _first_use(compute: Compute, later: Sequence[Statement]) -> int:
    """The place of the first of some later statements that computes with a tile; 0 to stay."""
    fixed = {compute.tile, *compute.operands}
    for place, statement in enumerate(later):
        if compute.tile in read(statement):
            return place if isinstance(statement, Compute | Fold) else 0
        if not isinstance(statement, _PASSED) or written(statement) in fixed:
            return 0
    return 0


def _after_operand(fold: Fold, earlier: Sequence[Statement]) -> int:
    """The place after the earlier statement that computes the operand; the end if it must stay."""
    for place in reversed(range(len(earlier))):
        statement = earlier[place]
        if written(statement) is fold.operand:
            return place + 1 if isinstance(statement, Compute) else len(earlier)
        uses = {written(statement), *read(statement)}
        if not isinstance(statement, _PASSED | Fold) or fold.tile in uses:
            break
    return len(earlier)


def planned_panels(kernel: Kernel, order: Order, lanes: Dim | None) -> PanelPlan:
    """The panels of a kernel with contractions; others have none."""
    plan, everywhere = PanelPlan(), kernel.statements
    if lanes is None:
        return plan
    for body in bodies(kernel.body):
        for panel in _panels(body, order, lanes, everywhere):
            plan.panels[panel.statements[0]] = panel
            plan.fleeting |= _fleeting(panel, everywhere)
    return plan


def _panels(
    body: Body, order: Order, lanes: Dim, everywhere: Sequence[Statement]
) -> Iterator[Panel]:
    """The panels of a body: as long as they can be."""
    at = 0
    while at < len(body):
        frame = _frame(body[at:], order, lanes)
        run: list[Compute | Fold] = []
        for statement in body[at:] if frame else ():
            if not isinstance(statement, Compute | Fold) or not _fits(statement, *frame):
                break
            run.append(statement)
        if any(isinstance(s, Fold) for s in run):
            along, own = frame
            yield Panel(tuple(run), along, own, tuple(items_of(run, along, everywhere)))
        at += max(len(run), 1)


def _frame(body: Sequence[Statement], order: Order, lanes: Dim) -> tuple[Span, ...]:
    """The two axes of the first tile of a run that has two: that of the loops, and the lanes."""
    for statement in body:
        if not isinstance(statement, Compute | Fold):
            break
        for tile in (*read(statement), statement.tile):
            if len(tile.spans) == 2 and order(tile)[-1].dim is lanes:
                return tuple(order(tile))
    return ()


def _fits(statement: Compute | Fold, along: Span, lanes: Span) -> bool:
    """True if a statement is part of a panel over these axes."""
    whole, spans = {along, lanes}, set(statement.tile.spans)
    if isinstance(statement, Fold):
        operand = set(statement.operand.spans)
        return (operand, statement.span, spans) == (whole, along, {lanes})
    return lanes in spans and spans.union(*(t.spans for t in statement.operands)) <= whole


def _fleeting(panel: Panel, everywhere: Sequence[Statement]) -> set[Tile]:
    """The tiles of a panel that need no memory: what no other statement reads.

    A tile of both axes must be used up in the segment that computes it.
    """
    segment_of: dict[Statement, Segment] = {
        s: item for item in panel.items if isinstance(item, Segment) for s in item.statements
    }
    found = set()
    for statement in panel.statements:
        tile = statement.tile
        readers = [s for s in everywhere if tile in read(s)]
        is_short = panel.along not in tile.spans or all(
            segment_of.get(s) is segment_of.get(statement) for s in readers
        )
        if is_short and is_inside(statement, panel.statements, everywhere):
            found.add(tile)
    return found
