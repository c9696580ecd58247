"""Names of the parameters of a Triton kernel, for the printer and for the launcher."""

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.expr import Expr, axes_in
from blockbuster_fusion.naming import Scope, word
from blockbuster_fusion.nest.nest import (
    Buffer,
    Compute,
    For,
    Index,
    Launchable,
    Space,
    Tile,
    is_placed,
    tiles,
)
from blockbuster_fusion.printers.reserved import TRITON

GROUP = "GROUP"
"""The parameter for the length of groups of blocks of rows (grid.py)."""


class ParameterNames:
    """The names of all parameters that a launch may have; several kernels share them."""

    def __init__(self, launched: Launchable) -> None:
        own = {tile.name for s in launched.statements for tile in tiles(s)}
        self._scope = Scope(TRITON, own, underscore=False)
        self._endings = Scope(TRITON, underscore=False)
        self._grid = {index for kernel in launched.kernels for index in kernel.grid}
        self.indices: dict[Index, str] = {}
        self.blocks: dict[Dim, str] = {}
        self.evens: dict[Dim, str] = {}
        self.runs: dict[Dim, str] = {}
        """The lengths of runs; where sizes change, 1 if there are any, and `run_lengths`."""
        self.run_lengths: dict[Dim, str] = {}
        self.suffixes: dict[Dim, str] = {}
        self.pointers: dict[Buffer, str] = {}
        self.strides: dict[Buffer, tuple[str, ...]] = {}
        self.copies: dict[Buffer, str] = {}
        self.sizes: dict[Symbol, str] = {}
        self.groups: dict[str, str] = {}
        """The length of groups of blocks of rows, by the name of the kernel."""
        for index in _indices(launched):
            self.indices[index] = self._variable(index)
        for dim in launched.dims:
            self._name_dim(dim)
        for buffer in launched.buffers:
            self._name_buffer(buffer)
        for axis in _axes(launched):
            if isinstance(axis.extent, Symbol) and axis.extent not in self.sizes:
                self.sizes[axis.extent] = self._scope.claim(axis.extent.name)
        for number, kernel in enumerate(launched.kernels, 1):
            is_alone = launched is kernel
            self.groups[kernel.name] = GROUP if is_alone else self._scope.claim(f"{GROUP}_{number}")

    def local(self, kind: str, of: str) -> str:
        """A variable that belongs to a parameter, a loop or a tile: `first_m`."""
        return self._scope((kind, of), f"{kind}_{of}")

    def again(self, tile: Tile) -> str:
        """The variable of the second load of a tile."""
        return self._scope(("again", tile), f"{tile}_again")

    def spread(self, tile: Tile) -> str:
        """The variable of a sum that is spread over a block."""
        return self._scope(("spread", tile), f"{tile}_spread")

    def joined(self, tile: Tile) -> str:
        """The variable of two products, of which the first is a tile."""
        return self._scope(("joined", tile), f"{tile}_joined")

    def part(self) -> str:
        """A name for a part of an expression."""
        return self._scope.claim("part")

    def _variable(self, index: Index) -> str:
        """The variable of an index; consecutive loops over one dim may share it."""
        for other, name in self.indices.items():
            if other in self._grid or index in self._grid:
                continue  # what a program is about holds before, in and after every loop
            if other.name == index.name and other.dim is index.dim:
                return name
        return self._scope.claim(index.name)

    def _name_dim(self, dim: Dim) -> None:
        at = next((name for index, name in self.indices.items() if index.dim is dim), dim.name)
        suffix = self.suffixes[dim] = self._endings.claim(word(at).lower())
        if dim.packed:
            self.blocks[dim] = self._scope.claim(f"BLOCK_{suffix.upper()}")
            self.evens[dim] = self._scope.claim(f"EVEN_{suffix.upper()}")
        self.runs[dim] = self._scope.claim(f"RUN_{suffix.upper()}")
        if not isinstance(dim.axis.extent, int):
            self.run_lengths[dim] = self._scope.claim(f"run_{suffix}")

    def _name_buffer(self, buffer: Buffer) -> None:
        self.pointers[buffer] = self._scope.claim(f"{buffer.name}_ptr")
        if buffer.space is Space.SCRATCH:
            self.copies[buffer] = self._scope.claim(f"{buffer.name}_stride")
        self.strides[buffer] = tuple(
            self._scope.claim(f"{buffer.name}_stride_{axis.dim.name}") for axis in buffer.axes
        )


def _indices(launched: Launchable) -> list[Index]:
    loops = [s.index for s in launched.statements if isinstance(s, For)]
    return [*(index for kernel in launched.kernels for index in kernel.grid), *loops]


def _axes(launched: Launchable) -> list[Axis]:
    found = [dim.axis for dim in launched.dims]
    for statement in launched.statements:
        if is_placed(statement):
            found.append(statement.along)
        if isinstance(statement, Compute):
            found += axes_in(statement.expr)
        if isinstance(statement, For) and statement.window is not None:
            for edge in (statement.window.low, statement.window.high):
                found += axes_in(edge) if isinstance(edge, Expr) else ()
    return found
