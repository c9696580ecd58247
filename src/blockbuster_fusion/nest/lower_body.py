"""Lowering of the nodes of a graph to the loads, loops, stores and arithmetic of a kernel."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, arg, arguments, call, cast, size, substitute
from blockbuster_fusion.ir.expr_dtypes import result_dtype
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Pick,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.split_expr import split_expression
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.nest.lower_combiner import Accumulation, combine
from blockbuster_fusion.nest.names import NestNames
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Buffer,
    BufferAxis,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Index,
    Last,
    Load,
    Lookup,
    Positions,
    RunningFold,
    Space,
    Span,
    Statement,
    Store,
    Tile,
)


@dataclass(frozen=True, slots=True)
class InMemory:
    """A list or an item in memory: along each axis of its buffer one block, or all of them.

    With `places`, it is stored at positions that are data along the axis `along` of the buffer.
    """

    buffer: Buffer
    slots: tuple[Span | Dim, ...]
    places: "InMemory | None" = None
    along: Axis | None = None

    def at(self, dim: Dim, at: Index | int) -> "InMemory":
        """The element of the list that a loop over `dim` is at."""
        found, places = self.open_for(dim), self.places
        if places is not None and places.open_for(dim):
            places = places.at(dim, at)
        elif not found:
            raise LookupError(f"no axis of {self.buffer} is iterated over {dim}")
        slots = [Span(dim, at) if i in found[:1] else s for i, s in enumerate(self.slots)]
        return replace(self, slots=tuple(slots), places=places)

    def open_for(self, dim: Dim) -> list[int]:
        """The axes that a loop over `dim` may iterate."""
        return [i for i, s in enumerate(self.slots) if isinstance(s, Dim) and dim.iterates(s)]

    def renamed(self, old: Axis, new: Axis) -> "InMemory":
        def rename(slot: Span | Dim) -> Span | Dim:
            if isinstance(slot, Dim):
                return Dim(new if slot.axis is old else slot.axis, None, slot.packed)
            return slot

        return replace(self, slots=tuple(rename(s) for s in self.slots))

    @property
    def access(self) -> Access:
        """The block of an item, whose list dims all have an index; a whole axis is one block."""
        spans = tuple(s if isinstance(s, Span) else Span(s.as_unit, 0) for s in self.slots)
        return Access(self.buffer, spans)


@dataclass(frozen=True, slots=True)
class Counted:
    """Positions along an axis, which are computed where they are used."""

    span: Span | None


Placement = Tile | InMemory | Counted


def in_memory(placements: Mapping[Value, Placement], value: Value) -> InMemory:
    """The placement of a value that is known to lie in memory."""
    found = placements[value]
    assert isinstance(found, InMemory), f"{value} does not lie in memory"
    return found


def buffer_axes(kind: Type) -> tuple[BufferAxis, ...]:
    """The axes of the buffer that holds a list; those that the items lack have an entry per block.

    An axis of the items that the list does not iterate has one block: that of a loop around, or
    one that was picked.
    """

    def along(dim: Dim) -> Along:
        if dim not in kind.items:
            return Along.BLOCKS
        return Along.AXIS if dim in kind.lists or dim.unit else Along.BLOCK

    return tuple(BufferAxis(dim, along(dim)) for dim in kind.dims)


def open_slots(buffer: Buffer, current: Mapping[Dim, Index]) -> tuple[Span | Dim, ...]:
    """The slots of a new buffer: its dims, or the block of the loop around where it holds one."""
    return tuple(
        Span(axis.dim, current.get(axis.dim, 0)) if axis.along is Along.BLOCK else axis.dim
        for axis in buffer.axes
    )


class BodyBuilder:
    """Builds the statements of a graph: those of a kernel, or of the body of a loop."""

    def __init__(
        self,
        graph: Graph,
        names: NestNames,
        places: dict[Value, Placement],
        *,
        grid: str | None = None,
        around: "BodyBuilder | None" = None,
        loop: Index | None = None,
    ) -> None:
        self.graph, self.names, self.places = graph, names, places
        self.grid, self.around = grid, around
        self.block: list[Statement] = []
        self.grid_indices: list[Index] = []
        self.carried: list[tuple[Combiner, Last]] = []
        """The totals that scans carry from block to block, taken at the end of the loop's body."""
        self.homes: dict[Value, InMemory] = {}
        self.stores: dict[Value, list[InMemory]] = {}
        self.loaded: dict[Access | tuple[Access, Tile], Tile] = {}
        self.current: dict[Dim, Index] = {} if around is None else dict(around.current)
        if loop is not None:
            self.current[loop.dim] = loop
        self.loops = tuple(index.name for index in self.current.values())

    # ------------------------------------------------------------------ placements

    def send(self, value: Value, target: InMemory) -> None:
        """Has a value of this graph stored in memory as soon as it is computed."""
        node = self.graph[value.node]
        makes = isinstance(node.op, Map | Join) and node.types[value.port].is_list
        if makes and value not in self.homes:
            self.homes[value] = target
            if isinstance(node.op, Join):
                self.send(node.inputs[1], target)
        else:
            self.stores.setdefault(value, []).append(target)

    def home(self, value: Value) -> InMemory:
        """The memory in which a list of this graph is built: as requested, or scratch memory."""
        if value not in self.homes:
            kind = self.graph.type(value)
            name = self.names.of("I", value)
            buffer = Buffer(name, buffer_axes(kind), kind.dtype, Space.SCRATCH)
            self.homes[value] = InMemory(buffer, open_slots(buffer, self.current))
        return self.homes[value]

    def tile(self, value: Value) -> Tile:
        """The tile of a value, which is loaded just before its first use if it lies in memory."""
        place = self.places[value]
        if isinstance(place, Tile):
            return place
        kind = self.graph.type(value)
        if isinstance(place, Counted):
            assert place.span is not None
            spans = (place.span,) if place.span.dim.packed else ()
            tile = self.new_tile(spans, kind.dtype, value)
            self.block.append(Positions(tile, place.span))
        else:
            tile = self.load(place, kind, value)
        self.places[value] = tile
        return tile

    def load(self, place: InMemory, kind: Type, value: Value | None = None) -> Tile:
        access = place.access
        known = self.known(access)
        if known is not None:
            return known
        spans = {span.dim: span for span in access.spans}
        own = [spans[_walked(d, spans)] for d in kind.items]
        tile = self.new_tile(own, kind.dtype, value)
        self.block.append(Load(tile, access))
        self.loaded[access] = tile
        return tile

    def known(self, source: Access | tuple[Access, Tile]) -> Tile | None:
        """The tile into which a block was loaded, or a lookup made, here or in a loop around."""
        frame = self
        while source not in frame.loaded and frame.around is not None:
            frame = frame.around
        return frame.loaded.get(source)

    def new_tile(self, spans: Iterable[Span], dtype: DType, value: Value | None = None) -> Tile:
        """A tile for a value of the program, if it is one, by the name that the listing has."""
        return Tile(self.names.of("t", value), tuple(spans), dtype)

    # ------------------------------------------------------------------------ nodes

    def lower(self) -> None:
        for i, node in self.graph.nodes.items():
            self.node(i, node)

    def node(self, i: int, node: Node) -> None:
        value = Value(i)
        match node.op:
            case Input():
                pass
            case Elementwise() as op:
                self.places[value] = self.compute(op.expr, node, value)
            case BlockReduce() as op:
                self.places[value] = self.block_reduce(node, op, value)
            case Scan() as op:
                self.places[value] = self.scan(node, op, value)
            case Dot() as op:
                self.places[value] = self.dot(node, op, value)
            case Take() as op:
                self.places[value] = self.take(node, op, value)
            case Map() as op:
                self.map(i, node, op)
            case Reduce() as op:
                self.reduce(i, node, op)
            case Pick() as op:
                self.places[value] = self.walked(node.inputs[0], op.dim, op.index)
            case Rename() as op:
                table = in_memory(self.places, node.inputs[0])
                self.places[value] = table.renamed(op.old, op.new)
            case Join() as op:
                home = self.places[value] = self.home(value)
                rest = in_memory(self.places, node.inputs[1])
                if rest != home:
                    self.copy(rest, home, node.types[0])
                self.put(node.inputs[0], home.at(op.dim, 0))
            case Iota():
                self.places[value] = Counted(None)
            case Misc() as op:
                inside = f"{op.namespace}.{op.name} stands inside a loop"
                raise NoKernel(what=inside, remedy='run it with target="interpret"')
        for port in range(len(node.types)):
            for target in self.stores.get(Value(i, port), ()):
                self.put(Value(i, port), target)

    def compute(self, expr: Expr, node: Node, value: Value) -> Tile:
        """Computes an expression of the operands, and a large one in parts."""
        operands = [self.tile(v) for v in node.inputs]
        spans = _ordered(node.types[0], operands)
        parts, rest = split_expression(expr)
        for part in parts:
            used = sorted(arguments(part))
            dtype = result_dtype(part, [t.dtype for t in operands])
            there = {span for i in used for span in operands[i].spans}
            tile = self.new_tile((s for s in spans if s in there), dtype)
            self.block.append(_compute(tile, part, operands))
            operands.append(tile)
        tile = self.new_tile(spans, node.types[0].dtype, value)
        self.block.append(
            _compute(tile, rest, operands) if parts else Compute(tile, expr, tuple(operands))
        )
        return tile

    def block_reduce(self, node: Node, op: BlockReduce, value: Value) -> Tile:
        (operand,), (kind,) = [self.tile(v) for v in node.inputs], node.types
        tile = self.new_tile(_ordered(kind, [operand]), kind.dtype, value)
        self.block.append(Fold(tile, operand, _span_over(op.dim, operand), op.combiner))
        return tile

    def scan(self, node: Node, op: Scan, value: Value) -> Tile:
        """Scans a block, and combines it with what the blocks before it give together."""
        (operand,), (kind,) = [self.tile(v) for v in node.inputs], node.types
        combine, span = op.combiner.combine[0], _span_over(op.dim, operand)
        if operand.dtype is not kind.dtype:
            counted = self.new_tile(operand.spans, kind.dtype)
            self.block.append(Compute(counted, cast(arg(0), kind.dtype), (operand,)))
            operand = counted
        tile = self.new_tile(operand.spans, kind.dtype, value if op.dim.unit else None)
        self.block.append(RunningFold(tile, operand, span, op.combiner))
        if op.dim.unit:
            return tile
        rest = [other for other in operand.spans if other != span]
        carry, made = self.new_tile(rest, kind.dtype), self.new_tile(tile.spans, kind.dtype, value)
        self.block.append(Compute(made, combine, (carry, tile)))
        self.carried.append((op.combiner, Last(carry, made, span)))
        return made

    def dot(self, node: Node, op: Dot, value: Value) -> Tile:
        (left, right), (kind,) = [self.tile(v) for v in node.inputs], node.types
        tile = self.new_tile(_ordered(kind, [left, right]), kind.dtype, value)
        span = _span_over(op.dim, left)
        self.block += [Fill(tile, 0.0), Contract(tile, left, right, span, rounds_to=op.rounds_to)]
        return tile

    def take(self, node: Node, op: Take, value: Value) -> Tile:
        """Looks up elements of a table."""
        table, places = in_memory(self.places, node.inputs[0]), self.tile(node.inputs[1])
        along = [isinstance(slot, Dim) and slot.axis is op.axis for slot in table.slots].index(True)
        source, kind = table.access, node.types[0]
        known = self.known((source, places))
        if known is not None:
            return known
        spans = {span.dim: span for span in (*places.spans, *source.spans)}
        own = [spans[_walked(dim, spans)] for dim in kind.items]
        tile = self.new_tile(own, kind.dtype, value)
        self.block.append(Lookup(tile, source, places, along))
        self.loaded[source, places] = tile
        return tile

    def put(self, value: Value, target: InMemory) -> None:
        """Stores a value in memory."""
        kind = self.graph.type(value)
        if kind.is_list:
            self.copy(in_memory(self.places, value), target, kind)
        else:
            self.store(target, self.tile(value))

    def store(self, target: InMemory, tile: Tile) -> None:
        """Stores a tile in memory, at the places that are given for it if there are any."""
        if target.places is None:
            self.block.append(Store(target.access, tile))
            return
        assert target.along is not None
        axis = [a.dim.axis for a in target.buffer.axes].index(target.along)
        given = self.load_item(target.places.access, target.places.buffer.dtype)
        places = self.new_tile(given.spans, DType.int64)
        i, length = cast(arg(0), DType.int64), cast(size(target.along), DType.int64)
        self.block.append(Compute(places, call("where", i < 0, i + length, i), (given,)))
        self.block.append(Store(target.access, tile, places=places, axis=axis))

    def load_item(self, access: Access, dtype: DType) -> Tile:
        """The block of a buffer in a tile with its axes in order."""
        known = self.known(access)
        if known is not None:
            return known
        pairs = zip(access.buffer.axes, access.spans, strict=True)
        tile = self.new_tile([s for a, s in pairs if a.along is not Along.BLOCKS], dtype)
        self.block.append(Load(tile, access))
        self.loaded[access] = tile
        return tile

    def copy(self, source: InMemory, target: InMemory, kind: Type) -> None:
        """Copies a list block by block, in loops over its dims."""
        if not kind.is_list:
            self.store(target, self.load(source, kind))
            return
        dim = kind.lists[0]
        walked = Dim(dim.axis, 0, dim.packed) if dim.is_free else dim
        index = Index(self.names.variable(walked, self.loops), walked)
        inner = BodyBuilder(self.graph, self.names, {}, around=self, loop=index)
        inner.copy(source.at(walked, index), target.at(walked, index), kind.iterate(walked))
        self.block.append(For(index, tuple(inner.block)))

    def walked(self, value: Value, dim: Dim, at: Index | int) -> Placement:
        """The element of a list that a loop over `dim` is at."""
        if isinstance(self.places[value], Counted):
            return Counted(Span(dim, at))
        return in_memory(self.places, value).at(dim, at)

    # ------------------------------------------------------------------------ loops

    def map(self, i: int, node: Node, op: Map) -> None:
        in_grid = self.grid is not None and not op.reduces and not op.scans and op.first == 0
        in_grid = in_grid and self.yields_only(i) and not self.computes_anew(i, op)
        # the variable of a grid holds in the whole kernel: no loop before has its name
        around = self.names.variables.get(op.dim, ()) if in_grid else self.loops
        index = Index(self.names.variable(op.dim, (*self.loops, *around)), op.dim)
        inner_grid = self.grid if in_grid and not (self.grid == "outer" and op.dim.packed) else None
        places: dict[Value, Placement] = {}
        for port, value in enumerate(node.inputs):
            target = Value(op.body.inputs[port])
            if op.iterated[port]:
                places[target] = self.walked(value, op.dim, index)
            elif not self.graph.type(value).is_list and not in_grid:
                places[target] = self.tile(value)  # before the loop, not in it
            else:
                places[target] = self.places[value]
        inner = BodyBuilder(op.body, self.names, places, grid=inner_grid, around=self, loop=index)
        coming: list[tuple[Value, Value, Combiner]] = []
        for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
            if mode is None:
                home = self.places[Value(i, port)] = self.home(Value(i, port))
                inner.send(out.value, home.at(op.dim, index))
            else:
                coming.append((out.value, Value(i, port), mode.combiner))
        inner.lower()
        if in_grid:
            self.grid_indices += [index, *inner.grid_indices]
            self.block += inner.block
            return
        accumulators = inner.accumulate(index, coming)
        self.block += [fill for group in accumulators for fill in group.fills]
        carried = tuple((combiner, last.tile) for combiner, last in inner.carried)
        self.block += [Fill(carry, combiner.identity[0]) for combiner, carry in carried]
        inner.block += [last for _, last in inner.carried]
        gathered = tuple((group.combiner, group.tiles) for group in accumulators)
        loop = For(index, tuple(inner.block), op.first, gathered=gathered)
        self.block.append(replace(loop, carried=carried))
        tiles = iter([tile for group in accumulators for tile in group.tiles])
        for port, mode in enumerate(op.modes):
            if mode is not None:
                self.places[Value(i, port)] = next(tiles)

    def accumulate(
        self, index: Index, coming: Sequence[tuple[Value, Value, Combiner]]
    ) -> list[Accumulation]:
        """Adds the values of one iteration to the loop's accumulators, at the end of its body.

        `coming` has each value, the result of the loop that it is gathered in, and the combiner.
        """
        groups: list[Accumulation] = []
        at = 0
        while at < len(coming):
            combiner = coming[at][2]
            values, results, _ = zip(*coming[at : at + combiner.arity], strict=True)
            at += combiner.arity
            groups.append(self.fold(index, combiner, [self.tile(v) for v in values], results))
        return groups

    def fold(
        self, index: Index, combiner: Combiner, tiles: Sequence[Tile], results: Sequence[Value]
    ) -> Accumulation:
        """Adds tiles to the accumulators that are the results of a loop."""
        for tile in tiles:
            if any(span.at is index for span in tile.spans):
                what = (
                    f"blocks of {index.dim.label}, which differ in length, are put on one another"
                )
                raise NoKernel(what=what, remedy='run it with target="interpret"')
        into = (self.new_tile(t.spans, t.dtype, v) for t, v in zip(tiles, results, strict=True))
        parts = self.names.parts.get(results[0], {})
        made = combine(combiner, tiles, self.names, tuple(into), parts)
        self.block = made.rewritten(self.block)
        return made

    def reduce(self, i: int, node: Node, op: Reduce) -> None:
        index = Index(self.names.variable(op.dim, self.loops), op.dim)
        makers = [self.graph.op(v.node) for v in node.inputs]
        first = max([m.first for m in makers if isinstance(m, Map) and m.dim is op.dim], default=0)
        inner = BodyBuilder(self.graph, self.names, {}, around=self, loop=index)
        tiles = []
        for value in node.inputs:
            block = in_memory(self.places, value).at(op.dim, index)
            tiles.append(inner.load(block, self.graph.type(value).iterate(op.dim)))
        results = [Value(i, port) for port in range(len(tiles))]
        made = inner.fold(index, op.combiner, tiles, results)
        self.block += made.fills
        gathered = ((op.combiner, made.tiles),)
        self.block.append(For(index, tuple(inner.block), first, gathered=gathered))
        for port, tile in enumerate(made.tiles):
            self.places[Value(i, port)] = tile

    def yields_only(self, i: int) -> bool:
        """True if a map's lists are all that leaves this graph, and no other node reads them."""
        if self.around is None:
            return True
        others = (j for j in self.graph.nodes if j != i and j not in self.graph.inputs)
        private = any(t.is_buffered for j in others for t in self.graph[j].types)
        alone = all(out.value.node == i for out in self.graph.outputs)
        return alone and not self.graph.users[i] and not private

    def computes_anew(self, i: int, op: Map) -> bool:
        """True if programs for blocks of a map would each run the other loops beside it.

        That is to be avoided in an outer grid, unless it has no other loops.
        """
        if self.around is None or self.grid != "outer" or not op.dim.packed:
            return False
        return any(isinstance(self.graph.op(j), Map) for j in self.graph.nodes if j != i)


def _compute(tile: Tile, expr: Expr, operands: Sequence[Tile]) -> Compute:
    """The statement with only the operands that the expression uses."""
    used = sorted(arguments(expr))
    numbered = substitute(expr, {old: arg(new) for new, old in enumerate(used)})
    return Compute(tile, numbered, tuple(operands[i] for i in used))


def _span_over(dim: Dim, tile: Tile) -> Span:
    """The span of a tile over a dim."""
    return next(span for span in tile.spans if span.dim is dim)


def _walked(dim: Dim, spans: Mapping[Dim, Span]) -> Dim:
    """The dim of an item's axis in an access, which is a unit dim for a whole axis."""
    return dim if dim in spans else dim.as_unit


def _ordered(kind: Type, operands: Sequence[Tile]) -> list[Span]:
    """The spans of a result, in the order of its type."""
    spans = {span.dim: span for tile in operands for span in tile.spans}
    return [spans[_walked(dim, spans)] for dim in kind.items]
