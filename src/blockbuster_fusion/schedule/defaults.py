"""Default tiles, unit axes and snapshot of a program.

Local memory decides. Tiles start large and are halved, the largest first, until the items that are
live at one time fit into it. Short axes of known length have one block, so the width of an
attention head is never cut. The best snapshot is estimated from its operations and its traffic.
Tuning does better, and starts from these defaults.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Map,
    Node,
    Output,
    Reduce,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.nest.analysis.few_rows import FEW
from blockbuster_fusion.nest.nest import Nest, written
from blockbuster_fusion.schedule.target_model import TargetModel, model_for

ASSUMED = 512
"""The length that is assumed of an axis of unknown length."""
ASSUMED_BATCH = 4
FEW_ROWS_TILE = 1024
"""The tile of an axis if rows are few: blocks of weights are read in place, row by row."""
FEW_ROWS_COLUMNS = 1 << 14
"""The same of the columns of outputs; longer rows are read faster."""
MOST_TOGETHER = 4096
"""The elements of a block of shares of a split reduction."""
STREAMED = 32 << 10
"""Bytes that a program of a GPU without products has at one time, so that many run together."""
WORTH_IT = 1.02
"""The factor by which a snapshot by other rules must be faster to be chosen."""


def unit_axes(graph: Graph, target: str) -> tuple[str, ...]:
    """The axes that may have one block: short axes of known length, except rows of an output.

    The rows of an output are its first axis that is cut into blocks; they run in parallel. Axes
    that are scanned, or that an input or a lookup has beside these rows, may be longer, the more so
    if rows are few. In a program without products they may be longer too, unless they come before
    the rows: such blocks are turned, or reduced row upon row. On a GPU they may be longer only if
    they are reduced or scanned. There blocks have lengths that are powers of two: beside products,
    an axis of another length is cut. So are columns of products that no other product reads, as
    the width of heads: fewer rows than a GPU has processors need many blocks of columns.
    """
    model, multiplies = model_for(target), _multiplies(graph)
    rows = {axis for axes in _output_axes(graph) for axis in axes[:1]}
    read = [graph.type_of_input(port).axes for port in range(len(graph.inputs))]
    read += [node.types[0].axes for node in _lookups(graph)]
    beside = {axis for axes in read if rows & set(axes) for axis in axes} | _scanned(graph)
    longest = model.row
    if has_few_rows(graph, target):
        # Threads share out columns and sums of products, as there are too few rows for that.
        longest *= model.rows // FEW
        beside &= _reduced_in_blocks(graph)
    if not multiplies:
        longest = model.stream
        beside &= _reduced_in_blocks(graph) if target == "cuda" else beside
        beside -= {a for axes in read for at, a in enumerate(axes) if rows & {*axes[at + 1 :]}}
    found = {
        dim.axis
        for dim in graph.dims
        if dim.packed
        and not dim.is_free
        and _is_short(dim.axis, longest if dim.axis in beside else model.short)
        and not (target == "cuda" and multiplies and _is_padded(dim.axis, model.smallest))
    }
    if target == "cuda" and multiplies and not _has_chain(graph):
        found &= _summed(graph)
    return tuple(sorted(axis.name for axis in found - rows))


def _summed(graph: Graph) -> set[Axis]:
    """The axes that some operator sums, reduces or scans."""
    ops = [node.op for _, inner in graph.walk() for node in inner.nodes.values()]
    return {op.dim.axis for op in ops if isinstance(op, BlockReduce | Scan | Dot)}


def _has_chain(graph: Graph) -> bool:
    """True if a product depends on another one."""
    after: set[int] = set()
    for number, node in graph.nodes.items():
        follows = any(value.node in after for value in node.inputs)
        multiplies = isinstance(node.op, Map) and node.op.body.holds_dot
        if follows and multiplies:
            return True
        after |= {number} if follows or multiplies else set()
    return False


def _reduced_in_blocks(graph: Graph) -> set[Axis]:
    """The axes of scans, and of reductions that are no products, as those of row statistics."""
    ops = [node.op for _, inner in graph.walk() for node in inner.nodes.values()]
    return {op.dim.axis for op in ops if isinstance(op, BlockReduce | Scan)}


def _scanned(graph: Graph) -> set[Axis]:
    """The axes along which a program scans: their blocks come one after the other."""
    ops = [node.op for _, inner in graph.walk() for node in inner.nodes.values()]
    return {op.dim.axis for op in ops if isinstance(op, Scan)}


def _lookups(graph: Graph) -> Iterable[Node]:
    """The nodes that look up rows of a table, which are read as those of an input are."""
    nodes = (node for _, inner in graph.walk() for node in inner.nodes.values())
    return (node for node in nodes if isinstance(node.op, Take))


def _multiplies(graph: Graph) -> bool:
    """True if a program has products of matrices."""
    return any(isinstance(n.op, Dot) for _, inner in graph.walk() for n in inner.nodes.values())


def _is_short(axis: Axis, limit: int) -> bool:
    return isinstance(axis.extent, int) and 0 < axis.extent <= limit


def _is_padded(axis: Axis, smallest: int) -> bool:
    """True unless the length of an axis is that of a block of a dot, a power of two."""
    length = axis.extent
    return not isinstance(length, int) or length < smallest or _power_of_two(length) != length


def _output_axes(graph: Graph) -> Iterable[list[Axis]]:
    """The axes of each output, without those that are scanned or have blocks of one element."""
    scanned = _scanned(graph)
    for out in graph.outputs:
        kind = graph.type(out.value)
        packed = {dim.axis for dim in kind.dims if dim.packed} - scanned
        yield [axis for axis in out.axes or kind.axes if axis in packed]


def default_tiles(
    graph: Graph, target: str, given: Mapping[Dim, int] | None = None
) -> dict[Dim, int]:
    """A tile for every dim that loops cut into blocks, within the target's local memory.

    Given tiles stay as they are. Others are powers of two.
    """
    model, fixed = model_for(target), dict(given or {})
    streams = target == "cuda" and not _multiplies(graph)
    smallest, room = (1, STREAMED) if streams else (model.smallest, model.local)
    loops = sorted((d for d in graph.dims if is_tiled(d)), key=lambda d: d.label)
    if has_few_rows(graph, target):
        return {dim: fixed.get(dim, _tile_with_few_rows(dim.axis, graph)) for dim in loops}
    rows = {axis for axes in _output_axes(graph) for axis in axes[:1]}
    tiles = {
        dim: fixed.get(dim, _first_tile(dim.axis, model, is_rows=dim.axis in rows)) for dim in loops
    }
    sizes = assumed_sizes(graph)
    alone = _measured_alone(graph)
    peaks = [_peak(g, sizes, tiles) for g in alone]
    mentions = {dim: [at for at, g in enumerate(alone) if dim in g.dims] for dim in loops}
    free = [(-tiles[d], at) for at, d in enumerate(loops) if d not in fixed]
    free = [(tile, at) for tile, at in free if -tile > smallest]
    heapify(free)
    while free and max(peaks) > room:
        _, at = heappop(free)
        largest = loops[at]
        tiles[largest] //= 2
        if tiles[largest] > smallest:
            heappush(free, (-tiles[largest], at))
        for number in mentions[largest]:
            peaks[number] = _peak(alone[number], sizes, tiles)
    return tiles


def has_few_rows(graph: Graph, target: str) -> bool:
    """True if a program for a CPU multiplies few rows, of a known number, with inputs alone.

    Kernels read these weights in place, so that local memory does not limit their blocks.
    Attention, which takes maxima, is left out: masks skip more of it with shorter blocks.
    """
    rows = {axis for axes in _output_axes(graph) for axis in axes[:1]}
    is_few = all(isinstance(axis.extent, int) and axis.extent <= FEW for axis in rows)
    if target != "cpu" or not is_few:
        return False
    nodes = [(g, node) for _, g in graph.walk() for node in g.nodes.values()]
    reductions = [n.op for _, n in nodes if isinstance(n.op, BlockReduce | Reduce)]
    if any(op.combiner is not ADD for op in reductions):
        return False
    products = [(g, n) for g, n in nodes if isinstance(n.op, Dot)]
    weights = [(g, v) for g, n in products for v in n.inputs if not rows & {*g.type(v).axes}]
    return bool(products) and all(_is_read(g, v) for g, v in weights)


def _is_read(graph: Graph, value: Value) -> bool:
    """True if a block comes from memory, cast at most."""
    op = graph.nodes[value.node].op
    return isinstance(op, Input) or (isinstance(op, Elementwise) and op.expr.op == "cast")


def _tile_with_few_rows(axis: Axis, graph: Graph) -> int:
    """The tile of an axis in a program with few rows."""
    columns = {axis for axes in _output_axes(graph) for axis in axes}
    most = FEW_ROWS_COLUMNS if axis in columns else FEW_ROWS_TILE
    return min(most, _power_of_two(axis.extent)) if isinstance(axis.extent, int) else most


def _measured_alone(graph: Graph) -> list[Graph]:
    """Programs whose largest need of local memory is that of the whole: its maps, if possible.

    Items at the top are live across maps. Without them, each map has the local memory to itself.
    """
    kinds = [t for node in graph.nodes.values() for t in node.types]
    if not all(t.is_list for t in kinds):
        return [graph]
    made: list[Graph] = []
    for i, node in graph.nodes.items():
        if not isinstance(node.op, Map):
            continue
        operands = {v: j for j, v in enumerate(dict.fromkeys(node.inputs), graph.max_id + 1)}
        inputs = {
            j: Node(Input(f"x{j}", graph.type(v)), (), (graph.type(v),))
            for v, j in operands.items()
        }
        moved = Node(node.op, tuple(Value(operands[v]) for v in node.inputs), node.types)
        outputs = [Output(f"o{port}", Value(i, port)) for port in range(len(node.types))]
        made.append(Graph({**inputs, i: moved}, list(inputs), outputs))
    return made or [graph]


def is_tiled(dim: Dim) -> bool:
    """True if loops over a dim have blocks whose size must be chosen."""
    return dim.packed and not dim.unit and not dim.is_free


def _first_tile(axis: Axis, model: TargetModel, *, is_rows: bool = False) -> int:
    """The initial tile: no longer than an axis of known length needs, with two blocks of rows."""
    usual = model.rows if is_rows else model.tile
    if not isinstance(axis.extent, int):
        return usual
    length = -(-axis.extent // 2) if is_rows and axis.extent > model.tile else axis.extent
    return max(model.smallest, min(usual, _power_of_two(length)))


def _power_of_two(length: int) -> int:
    """The least power of two from a length on."""
    return 1 << max(length - 1, 0).bit_length()


def all_tiles(nest: Nest, tiles: Mapping[Dim, int], target: str) -> dict[Dim, int]:
    """The tiles, and those of dims that only the loop nest has, which follow their axis.

    Shares of a split reduction have an axis of their own. They are loaded in blocks that are small
    together with their other axes.
    """
    made = dict(tiles)
    by_axis = {dim.axis: tile for dim, tile in tiles.items()}
    for kernel in nest.kernels:
        for dim in kernel.dims:
            if is_tiled(dim) and dim not in made:
                made[dim] = by_axis.get(dim.axis) or _tile_beside(dim, nest, made)
    return made


def _tile_beside(dim: Dim, nest: Nest, tiles: Mapping[Dim, int]) -> int:
    """The longest tile of a dim with which no block that has it is large."""

    def length(other: Dim) -> int:
        extent = other.axis.extent if isinstance(other.axis.extent, int) else ASSUMED
        return extent if other.unit else min(extent, tiles.get(other, 1)) if other.packed else 1

    made = (t for k in nest.kernels for s in k.statements if (t := written(s)) is not None)
    blocks = [[span.dim for span in tile.spans] for tile in made]
    beside = (math.prod(length(d) for d in dims if d is not dim) for dims in blocks if dim in dims)
    room = max(1, MOST_TOGETHER // max(beside, default=1))
    whole = _power_of_two(dim.axis.extent) if isinstance(dim.axis.extent, int) else room
    return min(whole, 1 << (room.bit_length() - 1))


def assumed_sizes(graph: Graph) -> dict[str, int]:
    """A length for every symbol of a program."""
    symbols = {d.axis.extent for d in graph.dims if isinstance(d.axis.extent, Symbol)}
    batch = {d.axis.extent for d in graph.dims if not d.packed}
    return {s.name: ASSUMED_BATCH if s in batch else ASSUMED for s in symbols}


def assumed_lengths(graph: Graph, nest: Nest) -> dict[str, int]:
    """The same for every symbol of a program and of its kernels."""
    symbols = (symbol for kernel in nest.kernels for symbol in kernel.symbols)
    return {symbol.name: ASSUMED for symbol in symbols} | assumed_sizes(graph)


def peak_local(graph: Graph, tiles: Mapping[Dim, int]) -> int:
    """The largest number of bytes of items that are live at one time."""
    return _peak(graph, assumed_sizes(graph), tiles)


def _peak(graph: Graph, sizes: Mapping[str, int], tiles: Mapping[Dim, int]) -> int:
    """The same for given sizes; a program may depend on some of the sizes and tiles only."""
    own = {name: sizes[name] for name in assumed_sizes(graph)}
    return meter(graph, own, {d: tiles[d] for d in graph.dims if d in tiles}).peak_local


def fits(graph: Graph, target: str) -> bool:
    """True if a program stays within local memory with its default tiles."""
    is_small = peak_local(graph, default_tiles(graph, target)) <= model_for(target).local
    return is_small or has_few_rows(graph, target)


def estimated_seconds(graph: Graph, tiles: Mapping[Dim, int], target: str) -> float:
    """The estimated time of a program with these tiles."""
    found = meter(graph, assumed_sizes(graph), dict(tiles.items()))
    return model_for(target).seconds(found.flops, found.loaded + found.stored)


def by_estimate(
    snapshots: Sequence[Graph],
    tiles: Sequence[Mapping[Dim, int]],
    target: str,
    own: int | None = None,
) -> list[int]:
    """The snapshots in the order of their estimated times; of equals, the later one first.

    Those after the first `own` come from other rules, and must be faster by a factor.
    """
    first = len(snapshots) if own is None else own
    times = [estimated_seconds(g, t, target) for g, t in zip(snapshots, tiles, strict=True)]
    least = [time if n < first else time * WORTH_IT for n, time in enumerate(times)]
    return sorted(range(len(snapshots)), key=lambda n: (least[n], n >= first, -n))


def chosen_units(
    graph: Graph, target: str, snapshots_for: Callable[[Collection[str]], Sequence[Graph]]
) -> tuple[str, ...]:
    """The axes that have one block: short ones, without the longest until some snapshot fits."""
    lengths = {dim.name: dim.axis.extent for dim in graph.dims}
    units = list(unit_axes(graph, target))
    while units and not any(fits(g, target) for g in snapshots_for(tuple(units))):
        units.remove(max(units, key=lambda name: int(str(lengths[name]))))
    return tuple(units)
