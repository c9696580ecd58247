"""The rules of loop nests, which every pass keeps and every printer relies on."""

from collections.abc import Iterable
from itertools import combinations

from blockbuster_fusion.errors import InvalidNest
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.independence import meet
from blockbuster_fusion.nest.listing import statement_text
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Body,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Grids,
    Index,
    Kernel,
    Last,
    Load,
    Lookup,
    Nest,
    Positions,
    RunningFold,
    Space,
    Span,
    Statement,
    Store,
    Tile,
    accesses,
    read,
    written,
)


def verify_nest(nest: Nest | Kernel) -> None:
    """Raises InvalidNest, with the kernel and the statement, if a kernel breaks a rule."""
    for kernel in nest.kernels:
        _Kernel(kernel).body(kernel.body, set(), set(kernel.grid))
    for step in nest.launches if isinstance(nest, Nest) else ():
        if isinstance(step, Grids):
            _verify_grids(step)


def _verify_grids(grids: Grids) -> None:
    """Checks that kernels of one launch may run at the same time, in any order."""
    for first, second in combinations(grids.kernels, 2):
        if meet(first, second):
            problem = f"{first.name} and {second.name} write what the other one reads or writes"
            raise InvalidNest(kernel=grids.name, statement="grids", problem=problem)
    for kernel in grids.kernels:
        if kernel.programs:
            problem = f"the programs of {kernel.name} take turns, which fills a launch"
            raise InvalidNest(kernel=grids.name, statement="grids", problem=problem)


class _Kernel:
    """The check of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        loops = [s.index for s in kernel.statements if isinstance(s, For)]
        self.indices = {*kernel.grid, *loops}
        self.parts = {
            s.index: s.share.index
            for s in kernel.statements
            if isinstance(s, For) and s.share is not None
        }

    def fail(self, statement: Statement, problem: str) -> None:
        text = statement_text(statement)
        raise InvalidNest(kernel=self.kernel.name, statement=text, problem=problem)

    def body(self, body: Body, known: set[Tile], indices: set[Index]) -> None:
        """Checks the statements of a body, given the tiles written before and the loops around."""
        for statement in body:
            for tile in read(statement):
                if tile not in known:
                    self.fail(statement, f"{tile} is read before it is written")
            around = self.indices if _is_by_place(statement) else indices
            for span in _spans(statement):
                if isinstance(span.at, Index) and span.at not in around:
                    self.fail(statement, f"no loop around it has the variable {span.at.name}")
            self.statement(statement, known, indices)
            made = written(statement)
            if made is not None:
                known.add(made)

    def statement(self, statement: Statement, known: set[Tile], indices: set[Index]) -> None:
        match statement:
            case Load():
                self.same(statement, statement.tile.spans, _kept(statement.source))
            case Lookup():
                self.at_places(statement, statement.source, statement.places)
            case Store(places=Tile() as places):
                self.at_places(statement, statement.target, places)
            case Store():
                self.same(statement, statement.tile.spans, _kept(statement.target))
                self.races(statement)
            case Compute():
                own = {*statement.tile.spans, statement.groups}
                for operand in statement.operands:
                    if not own.issuperset(operand.spans):
                        self.fail(statement, f"{operand} has axes that {statement.tile} lacks")
            case Fold(groups=Span() as groups):
                self.contained(statement, statement.span, statement.operand)
                kept = [groups if s == statement.span else s for s in statement.operand.spans]
                self.same(statement, statement.tile.spans, kept)
            case Fold() | Last():
                left = [s for s in statement.operand.spans if s != statement.span]
                self.contained(statement, statement.span, statement.operand)
                self.same(statement, statement.tile.spans, left)
            case RunningFold():
                self.contained(statement, statement.span, statement.operand)
                self.same(statement, statement.tile.spans, statement.operand.spans)
            case Contract():
                sides = (statement.left, statement.right)
                for side in sides:
                    for span in statement.summed:
                        self.contained(statement, span, side)
                left = [s for side in sides for s in side.spans if s not in statement.summed]
                self.same(statement, statement.tile.spans, dict.fromkeys(left))
            case For():
                if statement.index in indices:
                    self.fail(statement, f"{statement.index.name} is the variable of a loop around")
                for _, carry in statement.carried:
                    if carry not in known:
                        self.fail(statement, f"{carry} is carried before it is written")
                self.body(statement.body, set(known), {*indices, statement.index})
                known |= {t for t in _accumulated(statement.body) if t in known}
            case Cascade():
                if statement.inside and statement.index not in indices:
                    self.fail(statement, f"no loop around it has the variable {statement.index}")
                self.body(statement.body, known, indices)
            case Fill() | Positions():
                pass

    def same(self, statement: Statement, found: Iterable[Span], wanted: Iterable[Span]) -> None:
        if set(found) != set(wanted):
            has, needs = (", ".join(s.dim.label for s in spans) for spans in (found, wanted))
            self.fail(statement, f"the tile has the axes ({has}), and they would be ({needs})")

    def at_places(self, statement: Lookup | Store, access: Access, places: Tile) -> None:
        """Checks a lookup or a scatter; where a scatter goes is data, so races are not seen."""
        along = access.spans[statement.axis]
        if not along.dim.unit:
            self.fail(statement, f"{access.buffer} is not whole along {along.dim.label}")
        if places.dtype not in (DType.int64, DType.int32):
            self.fail(statement, f"the places {places} are {places.dtype}, not whole numbers")
        kept = [span for span in _kept(access) if span != along]
        self.same(statement, statement.tile.spans, dict.fromkeys((*places.spans, *kept)))

    def contained(self, statement: Statement, span: Span, tile: Tile) -> None:
        if span not in tile.spans:
            self.fail(statement, f"{tile} has no axis {span.dim.label}")

    def races(self, statement: Store) -> None:
        """Checks that two programs write the same block only by atomic additions."""
        if statement.atomic or statement.target.buffer.space is not Space.GLOBAL:
            return
        named = {span.at for span in statement.target.spans}
        named |= {part for loop, part in self.parts.items() if loop in named}
        for index in self.kernel.grid:
            if index not in named:
                problem = f"programs that differ in {index.name} alone write the same block"
                self.fail(statement, problem)


def _is_by_place(statement: Statement) -> bool:
    """True if a statement may be about the places in blocks of a loop that is not around it.

    An accumulator may have such an axis (passes/fold_after_loops.py). Masks depend on the block.
    """
    match statement:
        case Fold():
            return not statement.tail_masked
        case Fill() | Compute():
            return True
    return False


def _accumulated(body: Body) -> set[Tile]:
    return {tile for s in body if (tile := written(s)) is not None}


def _kept(access: Access) -> list[Span]:
    """The spans along which a block of a buffer has an axis."""
    pairs = zip(access.buffer.axes, access.spans, strict=True)
    return [span for axis, span in pairs if axis.along is not Along.BLOCKS and span.dim.packed]


def _spans(statement: Statement) -> list[Span]:
    spans = [span for access in accesses(statement) for span in access.spans]
    made = written(statement)
    spans += [] if made is None else list(made.spans)
    if isinstance(statement, Positions | Fold | RunningFold | Last):
        spans.append(statement.span)
    if isinstance(statement, Contract):
        spans += statement.summed
    return spans
