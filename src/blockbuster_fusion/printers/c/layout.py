"""The memory layout of a C kernel: names, lengths, strides and addresses of tiles and buffers."""

from collections.abc import Iterator, Mapping

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.tiling import DEFAULT_TILE
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.naming import word
from blockbuster_fusion.nest.analysis.few_rows import products_with_few_rows, weights_in_place
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Buffer,
    BufferAxis,
    Compute,
    Contract,
    Fold,
    Index,
    Kernel,
    Load,
    Positions,
    Space,
    Span,
    Store,
    Tile,
    read,
)
from blockbuster_fusion.nest.nest import (
    tiles as tiles_of,
)
from blockbuster_fusion.printers.c.dots import (
    DotPlan,
    DotRules,
    Pairs,
    contractions_in_bfloat16,
    planned_dots,
)
from blockbuster_fusion.printers.c.lanes import ContractionPlan, lanes_of, planned_contraction
from blockbuster_fusion.printers.c.lengths import Lengths
from blockbuster_fusion.printers.c.panels import gather, planned_panels
from blockbuster_fusion.printers.c.prelude_dots import PAIR
from blockbuster_fusion.printers.c.streams import StreamPlan, planned
from blockbuster_fusion.printers.c.tile_facts import (
    factor,
    pairs_of,
    short_positions,
    tiles_for_runs,
)
from blockbuster_fusion.printers.c.tile_sharing import TileKind
from blockbuster_fusion.printers.operators import C_STORED, C_TYPES

PART = 32
"""The number of rows of a partial sum across the vectors."""
LINE = 256
"""The elements of a result that are written past the caches at a time."""
LONG = 128
"""The least length of a row that is read in place."""


class Layout(Lengths):
    """The names, lengths and addresses of one kernel; padded rows get their names on first use."""

    def __init__(
        self, kernel: Kernel, tiles: Mapping[Dim, int], dots: DotRules | None = None
    ) -> None:
        """`dots` are the rules for products of bfloat16, if a unit multiplies these."""
        super().__init__(kernel, tiles)
        self.few_rows = products_with_few_rows(kernel.statements, self.longest)
        self.lanes = None if self.few_rows else lanes_of(kernel)
        self.kernel = kernel = kernel if self.lanes is None else gather(kernel)
        self.statements = kernel.statements
        self.stored_to = {s.target.buffer for s in self.statements if isinstance(s, Store)}
        self.counted = short_positions(kernel)
        self.padded: dict[tuple[Dim, str], str] = {}
        self.runs: dict[Dim, str] = {}
        self.for_runs = tiles_for_runs(kernel)
        self.plan = StreamPlan()
        self.plan = planned(kernel, self.order, self.longest, {s for s, fold in self.along()})
        self.panels = planned_panels(kernel, self.order, self.lanes)
        self.dots = DotPlan()
        if dots is not None and self.few_rows:
            self.dots.few_rows = {*contractions_in_bfloat16(kernel, dots)}
        elif dots is not None:
            self.dots = planned_dots(kernel, dots, self.contraction)
        self.passing = {s.tile for s, fold in self.along() if self.passes(s, fold)}
        self.borrowed: dict[Tile, Access] = {}
        self.borrowed = weights_in_place(self.statements, self.few_rows)
        self.borrowed |= {
            s.tile: s.source
            for s in self.statements
            if isinstance(s, Load) and not self.few_rows and self.is_borrowed(s.tile, s.source)
        }

    def spans(self) -> Iterator[Span]:
        for statement in self.statements:
            for tile in tiles_of(statement):
                yield from tile.spans
            if isinstance(statement, Positions):
                yield statement.span

    def held(self, tile: Tile) -> str:
        """The C type of a tile's elements; operands of dots may be as they are stored."""
        if tile in self.dots.loaded:
            return PAIR
        return "bfloat16" if tile in self.dots.narrow else self.computed(tile)

    def computed(self, tile: Tile) -> str:
        """The C type in which a tile is computed with; positions have 32 bits."""
        return "int32_t" if tile in self.counted else C_TYPES[tile.dtype]

    def operand_dtypes(self, statement: Compute) -> list[DType]:
        """The dtypes in which the operands of a computation are held."""
        return [DType.int32 if t in self.counted else t.dtype for t in statement.operands]

    def is_borrowed(self, tile: Tile, source: Access) -> bool:
        """True if a block is read in place, without a copy: only contractions broadcast it.

        Its rows have to be long; short rows would each be in another page of memory.
        """
        if self.held(tile) != C_STORED[source.buffer.dtype] or not tile.spans:
            return False
        last = source.spans[-1].dim
        if not last.unit and self.tiles.get(last, DEFAULT_TILE) < LONG:
            return False
        if source.buffer.space is not Space.GLOBAL:
            return False
        if source.buffer in self.stored_to:
            return False
        users = [s for s in self.statements if tile in read(s)]
        plans = [self.contraction(s) if isinstance(s, Contract) else None for s in users]
        return all(
            plan is not None and plan.broadcast is tile is not plan.vectors for plan in plans
        )

    def is_view(self, tile: Tile) -> bool:
        """True if a block is read where it lies, or from a copy if its rows are not contiguous."""
        return tile in self.plan.views

    def copy_name(self, thing: Tile | Store) -> str:
        """The variable of a copy of a block whose rows are not contiguous."""
        name = self.name(thing.target.buffer if isinstance(thing, Store) else thing)
        return self.id(("copy", thing), f"{name}_copy")

    def line_name(self, store: Store) -> str:
        """The variable of results that will be written past the caches."""
        return self.id(("line", store), f"{self.name(store.target.buffer)}_line")

    def past_name(self, store: Store) -> str:
        """The variable that says whether results are written past the caches."""
        return self.id(("past", store), f"{self.name(store.target.buffer)}_past")

    def copied(self, thing: Tile | Store) -> str:
        """The memory of such a copy, in elements: none if rows are always contiguous."""
        tile = thing.tile if isinstance(thing, Store) else thing
        access = thing.target if isinstance(thing, Store) else self.plan.views[thing]
        stride = self.row_step(access, tile)
        if stride == "1":
            return ""
        stored = C_STORED[access.buffer.dtype]
        return f"({stride} == 1 ? 0 : {self.room(tile, held=stored)})"

    def order(self, tile: Tile) -> list[Span]:
        """The spans of a tile in the order of memory: the lanes last.

        Without lanes a row of an array stays a row, unless a stream runs along its columns.
        """
        if tile in self.plan.turned:
            return [*self.plan.turned[tile]]
        return sorted(tile.spans, key=lambda span: span.dim is self.lanes)

    def room(self, tile: Tile, after: int = 0, held: str = "") -> str:
        """The number of elements of the axes from number `after` on; the last is padded."""
        held = held or self.held(tile)
        order = self.order(tile)[after:]
        if not order:
            return "1"
        sizes = [self.block(span.dim) for span in order[:-1]]
        return " * ".join([*sizes, self.row(order[-1].dim, held)])

    def row(self, dim: Dim, held: str) -> str:
        """The variable with the padded length of a row of a tile along a dim."""
        if (dim, held) not in self.padded:
            name = self.blocks.get(dim, word(dim.name)).lower()
            if held != "float":
                name = f"{name}_{held.removesuffix('_t')}"
            self.padded[dim, held] = self.id(("row", dim, held), f"{name}_row")
        return self.padded[dim, held]

    def step(self, tile: Tile, span: Span) -> str:
        """The stride of a tile along an axis."""
        if tile in self.borrowed:
            return self.buffer_step(self.borrowed[tile], span)
        at = self.order(tile).index(span)
        if self.is_view(tile) and at < len(tile.spans) - 1:
            return self.id(("step", tile, span), f"{self.name(tile)}_{word(span.dim.name)}")
        return "1" if at == len(tile.spans) - 1 else self.room(tile, at + 1)

    def at(self, tile: Tile, variables: Mapping[Span, str]) -> str:
        """An element of a tile."""
        terms = []
        kept = self.plan.rows.get(tile)
        if kept is not None and kept.together > 1:
            terms.append(f"row * {self.row(kept.last.dim, self.held(tile))}")
        for span in self.order(tile):
            if kept is not None and span != kept.last:
                continue
            step = self.step(tile, span)
            terms.append(variables[span] if step == "1" else f"{variables[span]} * {factor(step)}")
        text = f"{self.name(tile)}[{' + '.join(terms) or '0'}]"
        stored = self.plan.views[tile].buffer.dtype if self.is_view(tile) else None
        if stored is DType.bfloat16:
            return f"widened_bfloat16({text})"
        return f"((float){text})" if stored is DType.float16 else text

    def moved(self, tile: Tile, variables: Mapping[Span, str]) -> str:
        """The first element of a tile at some positions."""
        terms = [
            f"{v} * {factor(self.step(tile, s))}" for s, v in variables.items() if s in tile.spans
        ]
        return " + ".join([self.name(tile), *terms])

    def kind(self, tile: Tile) -> TileKind | None:
        """The kind of a tile, as `memory.share` takes it; None if it needs no memory."""
        if tile in self.borrowed or tile in self.passing or self.is_view(tile):
            return None
        if tile in self.plan.fleeting | self.panels.fleeting or tile in self.plan.rows:
            return None
        return self.held(tile), self.reserved(tile)

    def reserved(self, tile: Tile) -> str:
        """The memory of a tile, in elements; the totals of a short loop need none."""
        if tile in self.dots.loaded:
            return self.pairs_room(self.dots.loaded[tile])
        room = self.room(tile)
        dim = self.for_runs.get(tile)
        return room if dim is None else f"({self.run(dim)} ? {room} : 0)"

    def run(self, dim: Dim) -> str:
        """The number of blocks of a partial sum along a dim; 0 if all go into one."""
        if dim not in self.runs:
            name = self.blocks.get(dim, word(dim.name)).lower()
            self.runs[dim] = self.id(("run", dim), f"{name}_run")
        return self.runs[dim]

    def part_name(self, statement: Fold | Contract) -> str | None:
        """The variable of a partial sum across the vectors; None if the sum is short."""
        if statement in self.panels.statements or not self.is_long(statement.span.dim):
            return None
        if self.held(statement.tile) not in ("float", "double"):
            return None
        if isinstance(statement, Fold) and (
            statement.combiner is not ADD or not self.is_across(statement)
        ):
            return None
        if isinstance(statement, Contract) and (
            not statement.tile.spans or self.is_called(statement)
        ):
            return None
        tile = statement.tile
        return self.id(("part", tile), f"{self.name(tile)}_part")

    def is_long(self, dim: Dim) -> bool:
        """True if a sum over a block of a dim is made of partial sums."""
        length = dim.axis.extent if dim.unit else self.tiles.get(dim, DEFAULT_TILE)
        return not isinstance(length, int) or length > 2 * PART

    def buffer_room(self, buffer: Buffer) -> str:
        return " * ".join(self.axis_length(axis) for axis in buffer.axes) or "1"

    def axis_length(self, axis: BufferAxis) -> str:
        match axis.along:
            case Along.AXIS:
                return self.extent(axis.dim.axis)
            case Along.BLOCKS:
                return self.count(axis.dim)
            case Along.BLOCK:
                return self.block(axis.dim)
            case Along.PADDED:
                return f"{self.count(axis.dim)} * {self.block(axis.dim)}"

    def stride(self, buffer: Buffer, axis: BufferAxis) -> str:
        """The stride of a buffer along an axis."""
        if buffer.space is Space.SCRATCH:
            order = self.scratch_order(buffer)
            later = order[order.index(axis) + 1 :]
            return factor(" * ".join(self.axis_length(a) for a in later) or "1")
        wanted = f"{self.name(buffer)}_{word(axis.dim.name)}"
        return self.id((buffer, axis), wanted)

    def scratch_order(self, buffer: Buffer) -> list[BufferAxis]:
        """The axes of a thread's own buffer as its memory has them: as the tile that is stored."""
        store = next(
            s for s in self.statements if isinstance(s, Store) and s.target.buffer is buffer
        )
        order = self.order(store.tile)
        places = {
            axis: order.index(span) if span in order else -1
            for axis, span in zip(buffer.axes, store.target.spans, strict=True)
        }
        return sorted(buffer.axes, key=lambda axis: places[axis])

    def address(self, access: Access) -> str:
        """The first element of a block of a buffer."""
        terms = [self.name(access.buffer)]
        for axis, span in zip(access.buffer.axes, access.spans, strict=True):
            start = self.start(span)
            if axis.along is Along.BLOCKS:
                start = self.name(span.at) if isinstance(span.at, Index) else str(span.at)
            if axis.along is not Along.BLOCK and start != "0":
                terms.append(f"{start} * {self.stride(access.buffer, axis)}")
        return " + ".join(terms)

    def buffer_step(self, access: Access, span: Span) -> str:
        pairs = zip(access.buffer.axes, access.spans, strict=True)
        return next(
            self.stride(access.buffer, axis)
            for axis, own in pairs
            if own == span and axis.along is not Along.BLOCKS
        )

    def along(self) -> list[tuple[Compute, Fold]]:
        """Computations with a reduction across the vectors that runs in the same loop."""
        found = pairs_of(self.kernel.body)
        return [(s, f) for s, f in found if f.operand is s.tile and self.is_across(f)]

    def row_step(self, access: Access, tile: Tile) -> str:
        """The stride of a buffer along the rows of a tile."""
        return self.buffer_step(access, self.order(tile)[-1])

    def passes(self, compute: Compute, fold: Fold) -> bool:
        """True if a tile is only used by a reduction that runs along: it needs no memory."""
        readers = [s for s in self.statements if compute.tile in read(s)]
        return readers == [fold] and self.is_across(fold)

    def is_across(self, fold: Fold) -> bool:
        """True if a reduction runs across the vectors, row upon row, not along them."""
        return self.order(fold.operand)[-1] != fold.span

    def is_called(self, contract: Contract) -> bool:
        """True if a function of the prelude computes a contraction."""
        return contract in self.few_rows or self.contraction(contract) is not None

    def is_one_call(self, contract: Contract) -> bool:
        plan = self.few_rows.get(contract) or self.contraction(contract)
        if plan is None:
            return False
        spans = {*contract.left.spans, *contract.right.spans}
        return spans == {contract.span, plan.columns, *([plan.rows] if plan.rows else [])}

    def contraction(self, statement: Contract) -> ContractionPlan | None:
        """The roles of operands and axes; None where no micro-kernel serves."""
        return planned_contraction(statement, self.order, self.computed)

    def pairs_name(self, pairs: Pairs) -> str:
        """The variable of an operand in pairs: the tile itself, or a copy of it."""
        name = self.name(pairs.tile)
        return name if pairs.tile in self.dots.loaded else self.id(pairs, f"{name}_pairs")

    def pairs_room(self, pairs: Pairs, after: int = 0) -> str:
        """The number of pairs of the outer axes from number `after` on."""
        sizes = [self.block(span.dim) for span in pairs.outer[after:]]
        deep = f"PAIRS({self.block(pairs.span.dim)})"
        return " * ".join([*sizes, deep, self.row(pairs.columns.dim, PAIR)])

    def pairs_at(self, pairs: Pairs, variables: Mapping[Span, str]) -> str:
        """The first pair of an operand at some positions."""
        steps = ((s, self.pairs_room(pairs, at)) for at, s in enumerate(pairs.outer, 1))
        return " + ".join([self.pairs_name(pairs), *(f"{variables[s]} * {n}" for s, n in steps)])

    def turned_name(self, statement: Contract) -> str | None:
        """The variable of a transposed operand; None if its columns are innermost already."""
        own = statement in self.few_rows or statement in self.dots.operands
        plan = None if own else self.contraction(statement)
        if plan is None or self.step(plan.vectors, plan.columns) == "1":
            return None
        return self.id(("turned", plan.vectors), f"{self.name(plan.vectors)}_turned")
