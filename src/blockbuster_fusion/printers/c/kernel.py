"""Loop nests as C: one function for each kernel, for any C compiler with vector extensions.

A tile is an array in a thread's own memory, its rows padded to whole vectors. In a kernel with
contractions, one packed dim of the grid gives the *lanes*: every tile that has it has it innermost.
Elementwise statements, and reductions along another axis, then run in whole vectors. A contraction
needs no packing: its vectors run along the lanes, and the other operand is broadcast. Without
contractions tiles lie as arrays do, and nothing is turned. Loops run to the exact end of a ragged
block, so that nothing is masked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.tiling import DEFAULT_TILE
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.naming import comment
from blockbuster_fusion.nest.analysis.longest_last import longest_last
from blockbuster_fusion.nest.nest import (
    Contract,
    Fold,
    For,
    Kernel,
    Nest,
    Space,
    Store,
    is_placed,
)
from blockbuster_fusion.printers.c.counters import (
    write_counters,
    write_own_counters,
    write_totals,
)
from blockbuster_fusion.printers.c.dots import DotRules
from blockbuster_fusion.printers.c.expressions import Need
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.layout import Layout
from blockbuster_fusion.printers.c.prelude import OUTSIDE, prelude
from blockbuster_fusion.printers.c.prelude_dots import PAIR
from blockbuster_fusion.printers.c.statements import write_body
from blockbuster_fusion.printers.c.stored_rows import room_of_line
from blockbuster_fusion.printers.c.tile_facts import is_shared_out
from blockbuster_fusion.printers.c.tile_sharing import share
from blockbuster_fusion.printers.operators import C_STORED


def print_c(
    nest: Nest,
    tiles: Mapping[Dim, int],
    chunk: int | None = None,
    past: int | None = None,
    dots: str | None = None,
    *,
    is_counted: bool = False,
) -> str:
    """The kernels of a program as C.

    `tiles` are constants of the text (64 where none is given), and so is `chunk`, the number of
    programs that a thread takes at a time. By default it is computed from their number. `past` is
    the size of a result, in bytes, from which it is written past the caches. `dots` is the unit
    that multiplies bfloat16; without one, these are widened to float32. With `is_counted`, kernels
    count the bytes that they load and store (printers/c/counters.py).
    """
    needs, kernels = kernels_in_c(nest, tiles, chunk, past, dots, is_counted=is_counted)
    return "\n".join([prelude(needs), kernels])


def kernels_in_c(
    nest: Nest,
    tiles: Mapping[Dim, int],
    chunk: int | None = None,
    past: int | None = None,
    dots: str | None = None,
    *,
    is_counted: bool = False,
) -> tuple[set[Need], str]:
    """The parts of the prelude that the kernels of a program need, and the kernels as C."""
    buffers = {*nest.inputs, *(view.buffer for view in nest.outputs)}
    buffers.update(buffer for kernel in nest.kernels for buffer in kernel.buffers)
    is_narrow = any(buffer.dtype is DType.bfloat16 for buffer in buffers)
    needs: set[Need] = {("bfloat16",)} if is_narrow else set()
    rules = DotRules.of(nest, dots)
    kernels = [
        _function(
            KernelText(Layout(kernel, tiles, rules), needs, past, is_counted=is_counted), chunk
        )
        for kernel in nest.kernels
    ]
    return needs, "\n".join(kernels)


def _function(out: KernelText, chunk: int | None) -> str:
    """A kernel as a function, after one with the share of a thread: its memory, grid and body.

    One thread calls its share by itself: OpenMP would take as long as a small kernel. Otherwise all
    are called, even for fewer programs: where teams change their size, OpenMP ends threads and
    begins others, which takes longer than most kernels.
    """
    layout = out.layout
    looks_up = _looks_up(layout.kernel)
    part = layout.id("part", f"{layout.kernel.name}_part")
    arguments = "void *const *buffers, const int64_t *strides, const int64_t *sizes, int threads"
    counters = "int64_t *next" + ", int *outside" * looks_up
    if out.is_counted:
        write_counters(out)
    with out.braces(f"static void {part}({arguments}, {counters})"):
        _share(out, chunk, looks_up=looks_up)
    _contract_of_call(out)
    with out.braces(f"int {layout.kernel.name}({arguments})"):
        _programs(out)
        out.line("int64_t next = 0;")
        if looks_up:
            out.line("int outside = 0;")
        call = f"{part}(buffers, strides, sizes, threads, &next{', &outside' * looks_up});"
        out.line(f"if (MIN(threads, programs) <= 1) {call}")
        with out.braces("else"):
            out.line("#pragma omp parallel num_threads(threads)")
            out.line(f"if (THREAD < programs) {call}")
        outside = f" ? 1 : outside * {OUTSIDE}" if looks_up else ""
        out.line(f"return next < programs{outside};")
    return "\n".join(out.lines) + "\n"


def _share(out: KernelText, chunk: int | None, *, looks_up: bool) -> None:
    """Writes the share of a thread: chunks of programs, until all are taken."""
    layout = out.layout
    _buffers(out)
    _sizes(out)
    _chunk(out, chunk)
    here = len(out.lines)
    _memory(out)
    if looks_up:
        out.line("int astray = 0;")
    if out.is_counted:
        write_own_counters(out)
    claimed = "(program = claim(next, program, chunk)) < programs"
    with out.braces(f"for (int64_t program = 0; memory && {claimed}; program++)"):
        _large_pages(out)
        _grid(out)
        write_body(out, layout.kernel.body)
    out.line("free(memory);")
    if out.is_counted:
        write_totals(out)
    if looks_up:
        out.line("#pragma omp atomic")
        out.line("*outside |= astray;")
    runs = [
        f"    const int64_t {name} = run_length({layout.count(dim)});"
        for dim, name in layout.runs.items()
    ]
    out.lines[here:here] = runs + [
        f"    const int64_t {name} = PADDED({layout.block(dim)}, {held});"
        for (dim, held), name in layout.padded.items()
    ]


def _looks_up(kernel: Kernel) -> bool:
    return any(map(is_placed, kernel.statements))


def _contract_of_call(out: KernelText) -> None:
    """Writes the calling convention of the function as a comment."""
    layout = out.layout
    buffers = layout.kernel.global_buffers
    axes = [f"{b.name}[{', '.join(str(a.dim) for a in b.axes)}]" for b in buffers]
    sizes = ", ".join(str(s) for s in layout.kernel.symbols) or "none"
    out.line(f"/* buffers: {comment(', '.join(axes))}.")
    out.line("   strides: of every axis of every buffer, in that order, in elements.")
    out.line(f"   sizes: {comment(sizes)}.")
    outside = ""
    if _looks_up(layout.kernel):
        outside = f", or {OUTSIDE} when a place was beyond its axis"
    out.line(f"   Returns 0, or 1 when there was no memory{outside}. */")


def _buffers(out: KernelText) -> None:
    """Writes the addresses and strides of arrays."""
    layout = out.layout
    at = 0
    for i, buffer in enumerate(layout.kernel.global_buffers):
        stored = C_STORED[buffer.dtype]
        const = "" if buffer in layout.stored_to else "const "
        kind = f"{const}{stored} *"
        out.line(f"{kind}const {layout.name(buffer)} = ({kind})buffers[{i}];")
        for axis in buffer.axes:
            name = layout.stride(buffer, axis)
            out.line(f"const int64_t {name} = strides[{at}];")
            at += 1


def _sizes(out: KernelText) -> None:
    """Writes the sizes, the lengths of blocks and the number of programs."""
    layout = out.layout
    _write_sizes(out, layout.kernel.symbols, layout.blocks)
    for name, text in _fixed_lengths(out).items():
        out.line(f"const int64_t {name} = {text};")
    _write_count(out)


def _programs(out: KernelText) -> None:
    """Writes the number of programs, and the sizes that it depends on."""
    layout = out.layout
    dims = [index.dim for index in layout.kernel.grid]
    extents = {dim.axis.extent for dim in dims}
    blocks = [dim for dim in layout.blocks if dim in dims]
    _write_sizes(out, [s for s in layout.kernel.symbols if s in extents], blocks)
    _write_count(out)


def _write_sizes(out: KernelText, symbols: Collection[Symbol], blocks: Iterable[Dim]) -> None:
    layout = out.layout
    for i, symbol in enumerate(layout.kernel.symbols):
        if symbol in symbols:
            out.line(f"const int64_t {layout.id(symbol, symbol.name)} = sizes[{i}];")
    for dim in blocks:
        name, tile = layout.block(dim), layout.tiles.get(dim, DEFAULT_TILE)
        if is_shared_out(dim, layout.kernel):
            length, threads = layout.extent(dim.axis), _threads_along(dim, layout)
            out.line(f"const int64_t {name} = block_of({length}, {tile}, {threads});")
        else:
            out.line(f"enum {{ {name} = {tile} }};")


def _threads_along(dim: Dim, layout: Layout) -> str:
    """The threads that blocks of a dim are shared out to: other axes have their own programs."""
    others = [index.dim for index in layout.kernel.grid if index.dim is not dim]
    counts = [layout.extent(other.axis) for other in others if not other.packed]
    return f"BLOCKS(threads, MAX(1, {' * '.join(counts)}))" if counts else "threads"


def _write_count(out: KernelText) -> None:
    counts = [out.layout.count(i.dim) for i in out.layout.kernel.grid]
    out.line(f"const int64_t programs = {' * '.join(counts) or '1'};")


def _chunk(out: KernelText, chunk: int | None) -> None:
    """Writes the number of programs that a thread takes at a time."""
    loops = [s for s in out.layout.kernel.statements if isinstance(s, For)]
    if chunk is None and any(loop.window is not None for loop in loops):
        # A mask gives some programs more blocks than others: neighbours in one chunk would
        # all be long, and the thread that takes them last would keep the others waiting.
        chunk = 1
    text = "chunk_of(programs, threads)" if chunk is None else str(chunk)
    out.line(f"const int64_t chunk = {text};")


def _large_pages(out: KernelText) -> None:
    """Writes the requests of large pages for results, which the first program makes."""
    layout = out.layout
    scattered = {s.target.buffer for s in layout.statements if isinstance(s, Store) and s.places}
    for buffer in layout.kernel.global_buffers:
        if buffer in layout.stored_to - scattered and buffer.axes:
            last = [
                f"({layout.axis_length(axis)} - 1) * {layout.stride(buffer, axis)}"
                for axis in buffer.axes
            ]
            stored, name = C_STORED[buffer.dtype], layout.name(buffer)
            size = f"sizeof({stored}) * (1 + {' + '.join(last)})"
            out.line(f"if (program == 0) want_large_pages({name}, {size});")


def _fixed_lengths(out: KernelText) -> dict[str, str]:
    """Lengths of blocks with a fixed number, which no loop visits."""
    layout = out.layout
    made: dict[str, str] = {}
    for span in layout.spans():
        if isinstance(span.at, int) and span.dim.packed and not span.dim.unit:
            block = layout.block(span.dim)
            before = f" - {span.at} * {block}" if span.at else ""
            made[layout.length(span)] = f"MIN({block}, {layout.extent(span.dim.axis)}{before})"
    return made


def _stream_pieces(layout: Layout) -> Iterator[tuple[str, str, str]]:
    """The memory of streams: rows that are kept, and copies of blocks that are not contiguous."""
    for tile, stream in layout.plan.rows.items():
        held = layout.held(tile)
        row, count = layout.row(stream.last.dim, held), stream.together
        yield layout.name(tile), held, row if count == 1 else f"{count} * {row}"
    for tile, access in layout.plan.views.items():
        if tile.spans and (room := layout.copied(tile)):
            yield layout.copy_name(tile), C_STORED[access.buffer.dtype], room
    for stream in layout.plan.streams.values():
        for store in stream.stores:
            if room := layout.copied(store):
                yield layout.copy_name(store), C_STORED[store.target.buffer.dtype], room
            line = str(room_of_line(layout, stream))
            yield layout.line_name(store), C_STORED[store.target.buffer.dtype], line


def _grid(out: KernelText) -> None:
    """Writes the indices of a program; the last varies fastest. Long programs begin first."""
    layout = out.layout
    longest = longest_last(layout.kernel)
    after: list[str] = []
    for index in reversed(layout.kernel.grid):
        count = layout.count(index.dim)
        rest = f"program / ({' * '.join(after)})" if after else "program"
        down = f"{count} - 1 - " if index is longest else ""
        out.line(f"const int64_t {layout.name(index)} = {down}{rest} % {count};")
        after.insert(0, count)
    for index in layout.kernel.grid:
        out.line_length(index)


def _memory(out: KernelText) -> None:
    """Writes the allocation of a thread's memory, and its division into tiles."""
    layout = out.layout
    sharing = share(layout.kernel, layout.kind)
    pieces = [(layout.name(t), layout.held(t), layout.reserved(t)) for t in sharing.owners]
    pieces += list(_stream_pieces(layout))
    pieces += [
        (layout.name(b), C_STORED[b.dtype], layout.buffer_room(b))
        for b in layout.kernel.buffers
        if b.space is Space.SCRATCH
    ]
    for s in layout.kernel.statements:
        if isinstance(s, Fold | Contract) and (part := layout.part_name(s)) is not None:
            pieces.append((part, layout.held(s.tile), layout.room(s.tile)))
        if isinstance(s, Contract) and (plan := layout.contraction(s)) is not None:
            name, held = layout.turned_name(s), layout.held(s.tile)
            if name is not None:
                row = layout.row(plan.columns.dim, held)
                pieces.append((name, held, f"{layout.block(s.span.dim)} * {row}"))
    copies = ((layout.pairs_name(p), PAIR, layout.pairs_room(p)) for p in layout.dots.copies)
    pieces = list(dict.fromkeys([*pieces, *copies]))
    out.line("size_t bytes = 0;")
    for name, held, room in pieces:
        at = layout.id(("at", name), f"{name}_at")
        out.line(f"const size_t {at} = reserve(&bytes, {room}, sizeof({held}));")
    out.line("char *const memory = allocate(bytes);")
    for name, held, _ in pieces:
        at = layout.id(("at", name), f"{name}_at")
        out.line(f"{held} *const {name} = ({held} *)(memory + {at});")
    for tile, owner in sharing.taken.items():
        out.line(f"{layout.held(tile)} *const {layout.name(tile)} = {layout.name(owner)};")
