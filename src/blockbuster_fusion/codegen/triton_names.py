"""What a Triton kernel calls its parameters: the printer writes them, the launcher fills them."""

import keyword
import re

from blockbuster_fusion.codegen.nest import (
    Buffer,
    Compute,
    For,
    Index,
    Kernel,
    Lookup,
    Space,
    tiles,
)
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.expr import Expr, postorder

TAKEN = ("tl", "triton", "libdevice", "pid", "group", "rows", "place", "width", "on_axis", "GROUP")
"""Names that a printed kernel has for itself."""


def function_name(kernel: Kernel) -> str:
    """The kernel's name as a Python function may have it."""
    return identifier(kernel.name)


def identifier(text: str) -> str:
    """A text as a Python identifier."""
    made = re.sub(r"\W", "_", text)
    if not made or made[0].isdigit() or keyword.iskeyword(made):
        made = f"_{made}"
    return made


class ParameterNames:
    """The names of one kernel's parameters, whether it needs them all or not."""

    def __init__(self, kernel: Kernel) -> None:
        self._used = {*TAKEN, *(tile.name for s in kernel.statements for tile in tiles(s))}
        self._grid = set(kernel.grid)
        self.indices: dict[Index, str] = {}
        self.blocks: dict[Dim, str] = {}
        self.evens: dict[Dim, str] = {}
        self.suffixes: dict[Dim, str] = {}
        self.pointers: dict[Buffer, str] = {}
        self.strides: dict[Buffer, tuple[str, ...]] = {}
        self.copies: dict[Buffer, str] = {}
        self.sizes: dict[Symbol, str] = {}
        for index in _indices(kernel):
            self.indices[index] = self._variable(index)
        for dim in kernel.dims:
            self._name_dim(dim)
        for buffer in kernel.buffers:
            self._name_buffer(buffer)
        for axis in _axes(kernel):
            if isinstance(axis.extent, Symbol) and axis.extent not in self.sizes:
                self.sizes[axis.extent] = self._unique(axis.extent.name)

    def _unique(self, text: str) -> str:
        base = made = identifier(text)
        number = 2
        while made in self._used:
            made = f"{base}_{number}" if base[-1].isdigit() else f"{base}{number}"
            number += 1
        self._used.add(made)
        return made

    def _variable(self, index: Index) -> str:
        """Loops side by side may share a name, as long as they are over one dim."""
        for other, name in self.indices.items():
            if other in self._grid or index in self._grid:
                continue  # what a program is about holds before, in and after every loop
            if other.name == index.name and other.dim is index.dim:
                return name
        return self._unique(index.name)

    def _name_dim(self, dim: Dim) -> None:
        at = next((name for index, name in self.indices.items() if index.dim is dim), dim.name)
        suffix, number = identifier(at).lower(), 2
        while suffix in self.suffixes.values():
            suffix = f"{identifier(at).lower()}{number}"
            number += 1
        self.suffixes[dim] = suffix
        if dim.packed:
            self.blocks[dim] = self._unique(f"BLOCK_{suffix.upper()}")
            self.evens[dim] = self._unique(f"EVEN_{suffix.upper()}")

    def _name_buffer(self, buffer: Buffer) -> None:
        if buffer.space is Space.RING:
            return
        self.pointers[buffer] = self._unique(f"{buffer.name}_ptr")
        if buffer.space is Space.SCRATCH:
            self.copies[buffer] = self._unique(f"{buffer.name}_stride")
        self.strides[buffer] = tuple(
            self._unique(f"{buffer.name}_stride_{axis.dim.name}") for axis in buffer.axes
        )


def sizes_in(expr: Expr) -> list[Axis]:
    """The axes whose extents an expression mentions."""
    return [node.value for node in postorder(expr) if isinstance(node.value, Axis)]


def _indices(kernel: Kernel) -> list[Index]:
    loops = [s.index for s in kernel.statements if isinstance(s, For)]
    return [*kernel.grid, *loops]


def _axes(kernel: Kernel) -> list[Axis]:
    found = [dim.axis for dim in kernel.dims]
    for statement in kernel.statements:
        if isinstance(statement, Lookup):
            found.append(statement.along)
        if isinstance(statement, Compute):
            found += sizes_in(statement.expr)
        if isinstance(statement, For) and statement.window is not None:
            for edge in (statement.window.low, statement.window.high):
                found += sizes_in(edge) if isinstance(edge, Expr) else []
    return found
