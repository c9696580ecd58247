"""The scalar and position variables of a Triton kernel: sizes, blocks, positions, tail masks."""

from collections.abc import Collection

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.nest.nest import Index, Kernel, Span
from blockbuster_fusion.printers.triton.expressions import ExpressionWriter
from blockbuster_fusion.printers.triton.names import ParameterNames


class Variables:
    """The variables and parameters of a kernel; only those that are used are declared."""

    def __init__(
        self, kernel: Kernel, constant: Collection[str], names: ParameterNames | None = None
    ) -> None:
        """`names` are those of a launch of several kernels."""
        self.constant = constant
        self.names = names or ParameterNames(kernel)
        self.used: set[str] = set()
        self.offsets: dict[Dim, str] = {}
        self.groups: dict[str, str] = {}
        """The numbers of groups in blocks, which are constants."""
        self.declared: dict[Index | None, dict[str, str]] = {None: {}}
        """The variables that are defined at the beginning of each loop, or of the kernel (None)."""
        self.grid = set(kernel.grid)
        self.expr = ExpressionWriter(self.size, self.names.part)

    def use(self, name: str) -> str:
        """A parameter; it is noted as used."""
        self.used.add(name)
        return name

    # ------------------------------------------------------------------- sizes

    def size(self, axis: Axis) -> tuple[str, bool]:
        """The extent of an axis, and whether it is known when the kernel is compiled."""
        extent = axis.extent
        if isinstance(extent, Symbol):
            return self.use(self.names.sizes[extent]), extent.name in self.constant
        return str(extent), True

    def extent(self, axis: Axis) -> str:
        return self.size(axis)[0]

    def block(self, dim: Dim) -> str:
        """The length of a dim's blocks."""
        return self.use(self.names.blocks[dim])

    def length(self, span: Span) -> str:
        """The length of an axis of a tile: of a block, or the number of its groups."""
        block = self.block(span.dim)
        if span.each == 1:
            return block
        name = self.names.local("groups", f"{self.names.suffixes[span.dim]}_{span.each}")
        self.groups[name] = f"({block} + {span.each - 1}) // {span.each}"
        return name

    def each(self, span: Span) -> str:
        """The length of groups: at most that of a block."""
        return f"{self.block(span.dim)} // {self.length(span)}"

    def count(self, dim: Dim) -> str:
        """The number of blocks of a dim."""
        if dim.unit:
            return "1"
        if not dim.packed:
            return self.extent(dim.axis)
        return f"tl.cdiv({self.extent(dim.axis)}, {self.block(dim)})"

    def whole(self, expr: Expr) -> str:
        """A sum of sizes and numbers as a term of another sum."""
        text = self.expr.write(expr, (), ())
        return text if text.isidentifier() or text.lstrip("-").isdigit() else f"({text})"

    # --------------------------------------------------------------- positions

    def at(self, span: Span) -> str:
        """The number of a span's block."""
        return str(span.at) if isinstance(span.at, int) else self.names.indices[span.at]

    def offset(self, dim: Dim) -> str:
        """The positions within a block."""
        if dim not in self.offsets:
            self.offsets[dim] = self.names.local("off", self.names.suffixes[dim])
        return self.offsets[dim]

    def number(self, span: Span) -> str | None:
        """The number of the block, wide enough to be multiplied by strides; None for 0."""
        if isinstance(span.at, int):
            return str(span.at) if span.at else None
        at = self.at(span)
        return self._declare(span, "wide", f"tl.cast({at}, tl.int64)")

    def start(self, span: Span) -> str | None:
        """The position of the first element of a block; None for 0."""
        if span.dim.unit or span.at == 0:
            return None
        if not span.dim.packed:
            return self.number(span)
        at = self.at(span)
        return self._declare(span, "start", f"tl.cast({at}, tl.int64) * {self.block(span.dim)}")

    def first(self, span: Span) -> str:
        """The same in 32 bits, as descriptors take it."""
        if span.dim.unit or span.at == 0:
            return "0"
        return f"{self.at(span)} * {self.block(span.dim)}"

    def positions(self, span: Span) -> str:
        """The positions of a block along its axis."""
        at, offset = self.at(span), self.offset(span.dim)
        if span.dim.unit or span.at == 0:
            return offset
        return self._declare(span, "at", f"{at} * {self.block(span.dim)} + {offset}")

    def inside(self, span: Span) -> str:
        """The tail mask of a block: True for positions within the axis."""
        self.expr.helpers.add("inside")
        even = self.use(self.names.evens[span.dim])
        extent, positions = self.extent(span.dim.axis), self.positions(span)
        return self._declare(span, "in", f"inside({positions}, {extent}, {even})")

    def _declare(self, span: Span, kind: str, value: str) -> str:
        """A variable of the loop over the block, or of the whole kernel."""
        if isinstance(span.at, Index):
            name = self.names.local(kind, self.names.indices[span.at])
            home = None if span.at in self.grid else span.at
        else:
            home, own = None, self.names.suffixes[span.dim]
            name = self.names.local(kind, own if span.dim.unit else f"{own}_{span.at}")
        self.declared.setdefault(home, {})[name] = value
        return name

    def declarations(self, loop: Index | None) -> list[str]:
        """The definitions at the beginning of a loop's body, or of the kernel."""
        return [f"{name} = {value}" for name, value in self.declared.get(loop, {}).items()]

    def preamble(self) -> list[str]:
        """The definitions at the beginning of the kernel."""
        made = [f"{name}: tl.constexpr = {value}" for name, value in self.groups.items()]
        offsets = self.offsets.items()
        made += [f"{name} = tl.arange(0, {self.block(dim)})" for dim, name in offsets]
        return [*made, *self.declarations(None)]
