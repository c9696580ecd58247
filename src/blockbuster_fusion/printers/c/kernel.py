"""Loop nests as C: one function for each kernel, for any C compiler with vector extensions.

A tile is an array in a thread's own memory, its rows padded to whole vectors. In a kernel with
contractions, one packed dim of the grid gives the *lanes*: every tile that has it has it innermost,
so that what is elementwise, and every reduction along another axis, runs in whole vectors, and a
contraction needs no packing: its vectors run along the lanes, and what it is multiplied with is
broadcast. Without contractions tiles lie as arrays do, and nothing is turned. Loops run to the
exact end of a ragged block, so that nothing is masked.
"""

from collections.abc import Mapping

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.naming import comment
from blockbuster_fusion.nest.nest import (
    Contract,
    Fold,
    Lookup,
    Nest,
    Space,
)
from blockbuster_fusion.printers.c.expressions import Need
from blockbuster_fusion.printers.c.layout import DEFAULT_TILE
from blockbuster_fusion.printers.c.memory import share
from blockbuster_fusion.printers.c.prelude import OUTSIDE, prelude
from blockbuster_fusion.printers.c.statements import Statements
from blockbuster_fusion.printers.operators import C_STORED


def print_c(nest: Nest, tiles: Mapping[Dim, int]) -> str:
    """The kernels of a program as C; `tiles` are constants of the text (64 where none is given)."""
    needs: set[Need] = set()
    kernels = [_Kernel(kernel, tiles, needs).text() for kernel in nest.kernels]
    return "\n".join([prelude(needs), *kernels])


class _Kernel(Statements):
    """One kernel as a function: its parameters, its memory, its grid."""

    def text(self) -> str:
        arguments = (
            "void *const *buffers, const int64_t *strides, const int64_t *sizes, int threads"
        )
        self.contract_of_call()
        with self.braces(f"int {self.kernel.name}({arguments})"):
            self.parameters()
            here = len(self.lines)
            self.line("int64_t next = 0;")
            if self.looks_up:
                self.line("int outside = 0;")
            self.line("#pragma omp parallel num_threads(MAX(1, MIN(threads, programs)))")
            with self.braces(""):
                self.memory()
                if self.looks_up:
                    self.line("int astray = 0;")
                with self.braces(
                    "for (int64_t program; memory && (program = claim(&next)) < programs;)"
                ):
                    self.grid()
                    self.body(self.kernel.body)
                self.line("free(memory);")
                if self.looks_up:
                    self.line("#pragma omp atomic")
                    self.line("outside |= astray;")
            outside = f" ? 1 : outside * {OUTSIDE}" if self.looks_up else ""
            self.line(f"return next < programs{outside};")
        runs = [
            f"    const int64_t {name} = run_length({self.count(dim)});"
            for dim, name in self.runs.items()
        ]
        self.lines[here:here] = runs + [
            f"    const int64_t {name} = PADDED({self.block(dim)}, {held});"
            for (dim, held), name in self.padded.items()
        ]
        return "\n".join(self.lines) + "\n"

    @property
    def looks_up(self) -> bool:
        return any(isinstance(s, Lookup) for s in self.kernel.statements)

    def contract_of_call(self) -> None:
        """How the function is called, as a comment."""
        buffers = self.kernel.global_buffers
        axes = [f"{b.name}[{', '.join(str(a.dim) for a in b.axes)}]" for b in buffers]
        sizes = ", ".join(str(s) for s in self.kernel.symbols) or "none"
        self.line(f"/* buffers: {comment(', '.join(axes))}.")
        self.line("   strides: of every axis of every buffer, in that order, in elements.")
        self.line(f"   sizes: {comment(sizes)}.")
        looks_up = f", or {OUTSIDE} when a lookup was outside of its table" if self.looks_up else ""
        self.line(f"   Returns 0, or 1 when there was no memory{looks_up}. */")

    def parameters(self) -> None:
        at = 0
        for i, buffer in enumerate(self.kernel.global_buffers):
            stored = C_STORED[buffer.dtype]
            self.needs |= {("bfloat16",)} if stored == "bfloat16" else set()
            const = "" if buffer in self.stored_to else "const "
            kind = f"{const}{stored} *"
            self.line(f"{kind}const {self.name(buffer)} = ({kind})buffers[{i}];")
            for axis in buffer.axes:
                name = self.stride(buffer, axis)
                self.line(f"const int64_t {name} = strides[{at}];")
                at += 1
        for i, symbol in enumerate(self.kernel.symbols):
            self.line(f"const int64_t {self.id(symbol, symbol.name)} = sizes[{i}];")
        for dim in self.blocks:
            self.line(f"enum {{ {self.block(dim)} = {self.tiles.get(dim, DEFAULT_TILE)} }};")
        for name, text in self.fixed_lengths().items():
            self.line(f"const int64_t {name} = {text};")
        counts = [self.count(i.dim) for i in self.kernel.grid]
        self.line(f"const int64_t programs = {' * '.join(counts) or '1'};")

    def fixed_lengths(self) -> dict[str, str]:
        """Lengths of blocks that no loop is at: a pick of the first."""
        made: dict[str, str] = {}
        for span in self.spans():
            if isinstance(span.at, int) and span.dim.packed and not span.dim.unit:
                block = self.block(span.dim)
                before = f" - {span.at} * {block}" if span.at else ""
                made[self.length(span)] = f"MIN({block}, {self.extent(span.dim.axis)}{before})"
        return made

    def grid(self) -> None:
        """Which block of each dim a program has; the last index varies fastest."""
        after: list[str] = []
        for index in reversed(self.kernel.grid):
            count = self.count(index.dim)
            rest = f"program / ({' * '.join(after)})" if after else "program"
            self.line(f"const int64_t {self.name(index)} = {rest} % {count};")
            after.insert(0, count)
        for index in self.kernel.grid:
            self.line_length(index)

    def memory(self) -> None:
        """Every thread's own memory, cut into tiles."""
        sharing = share(self.kernel, self.kind)
        pieces = [(self.name(t), self.held(t), self.reserved(t)) for t in sharing.owners]
        pieces += [
            (self.name(b), C_STORED[b.dtype], self.buffer_room(b))
            for b in self.kernel.buffers
            if b.space is Space.SCRATCH
        ]
        for s in self.kernel.statements:
            if isinstance(s, Fold | Contract) and (part := self.part_name(s)) is not None:
                pieces.append((part, self.held(s.tile), self.room(s.tile)))
            if isinstance(s, Contract) and (name := self.turned_name(s)) is not None:
                plan = self.contraction(s)
                assert plan is not None
                wide = self.row(plan[1].dim, self.held(s.tile))
                pieces.append((name, self.held(s.tile), f"{self.block(s.span.dim)} * {wide}"))
        pieces = list(dict.fromkeys(pieces))
        self.line("size_t bytes = 0;")
        for name, held, room in pieces:
            at = self.id(("at", name), f"{name}_at")
            self.line(f"const size_t {at} = reserve(&bytes, {room}, sizeof({held}));")
        self.line("char *const memory = allocate(bytes);")
        for name, held, _ in pieces:
            at = self.id(("at", name), f"{name}_at")
            self.line(f"{held} *const {name} = ({held} *)(memory + {at});")
        for tile, owner in sharing.taken.items():
            self.line(f"{self.held(tile)} *const {self.name(tile)} = {self.name(owner)};")
