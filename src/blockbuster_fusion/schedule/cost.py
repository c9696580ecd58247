"""The predicted time of kernels on a machine: seconds of the device, and of the host.

Each kernel is a grid of programs. A program moves blocks and computes with them, so its time is
the longer of both, and a part of the shorter, which does not overlap. Arrays come from the memory
that holds them; blocks that are read again come from a cache. A grid that does not fill the machine
wastes the rest of it, and one program alone has the bandwidth of one processor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.nest import (
    Access,
    Body,
    Buffer,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Kernel,
    Load,
    Lookup,
    Nest,
    Space,
    Span,
    Store,
    Tile,
    written,
)
from blockbuster_fusion.nest.shapes import buffer_shape


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time of the device, and of the host that launches what it runs."""

    device: float
    host: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.device + other.device, self.host + other.host)

    def __mul__(self, factor: float) -> "Seconds":
        return Seconds(self.device * factor, self.host * factor)

    def total(self, *, replayed: bool = False) -> float:
        """The time of a run: the device's if launches are replayed, else the longer of both."""
        return self.device if replayed else max(self.device, self.host)

    def __str__(self) -> str:
        return f"{self.total() * 1e6:.4g} µs"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The shares of a machine's rates that generated kernels reach, and the error of predictions.

    `benchmarks/cost_error.py` measures them.
    """

    vector: float
    matrix: float
    memory: float
    overlap: float
    """The share of the shorter of computing and moving that is hidden behind the longer."""
    row: float
    """Seconds to begin a row of a tile."""
    error: float
    """The factor within which 9 of 10 measured times of kernels without products lie."""
    product_error: float
    """The same for kernels with products of matrices."""


EFFICIENCY = {
    "cpu": Efficiency(0.17, 0.6, 0.6, 0.3, 4e-9, 1.8, 2.0),
    "cuda": Efficiency(0.5, 0.8, 0.8, 0.9, 0.0, 2.0, 2.5),
}

LIBM = (
    *("log10", "expm1", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "cbrt"),
    *("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "arctan2"),
)
"""Functions that kernels in C call for each number alone."""
WEIGHTS: dict[str, dict[str, float]] = {
    "cpu": {
        **dict.fromkeys(LIBM, 150.0),
        **dict.fromkeys(("exp", "exp2"), 8.0),
        **dict.fromkeys(("log", "log2"), 38.0),
        "erf": 60.0,
        "pow": 68.0,
        "div": 6.0,
        "floordiv": 12.0,
        "mod": 60.0,
        "sqrt": 3.0,
        "where": 3.0,
    },
    "cuda": {
        **dict.fromkeys(LIBM, 20.0),
        **dict.fromkeys(("exp", "exp2", "log", "log2", "div", "sqrt"), 6.0),
        "pow": 30.0,
        "floordiv": 12.0,
        "mod": 30.0,
    },
}
"""Operations of a function by target, in additions; 1 for all others."""


@dataclass(slots=True)
class Work:
    """The work of one kernel."""

    programs: int = 1
    products: float = 0.0
    """Multiplications and additions of products of matrices."""
    operations: float = 0.0
    """Other operations, in additions."""
    moved: float = 0.0
    """Bytes between memory and tiles, each time that a block is loaded or stored."""
    arrays: float = 0.0
    """Bytes of the arrays, each once."""
    written: float = 0.0
    """Bytes that are stored."""
    busy: float = 1.0
    """The share of the programs that have something to do."""
    steps: float = 0.0
    """Steps of loops in one program that load something."""
    statements: float = 0.0
    """Rows of tiles that statements are run for."""
    dtype: str = "float32"


def work_of(kernel: Kernel, tiling: Tiling, target: str) -> Work:
    """Counts the work of a kernel with certain sizes and tiles."""
    return _Count(tiling, target).of(kernel)


class _Count:
    def __init__(self, tiling: Tiling, target: str) -> None:
        self.tiling, self.weights = tiling, WEIGHTS[target]
        self.has_cached_scratch = target == "cpu"
        self.work = Work()
        self.seen: dict[Buffer, float] = {}

    def of(self, kernel: Kernel) -> Work:
        work = self.work
        work.programs = math.prod(self.blocks(index.dim) for index in kernel.grid)
        self.body(kernel.body, float(work.programs))
        work.arrays = sum(self.seen.values())
        work.steps /= work.programs * work.busy
        return work

    def blocks(self, dim: Dim) -> int:
        return max(1, len(self.tiling.starts(dim)))

    def body(self, body: Body, times: float) -> None:
        work = self.work
        if any(isinstance(statement, Load | Lookup) for statement in body):
            work.steps += times
        for statement in body:
            made = written(statement)
            if made is not None:
                work.statements += times * self.rows(made)
            match statement:
                case For(index, inner):
                    trips = float(max(self.blocks(index.dim) - statement.first, 0))
                    trips *= 0.5 if statement.window is not None else 1.0
                    if statement.share is not None:  # programs without a block stay idle
                        parts = statement.share.parts
                        work.busy = min(work.busy, trips / parts)
                        trips /= parts
                    self.body(inner, times * trips)
                case Cascade():
                    pass  # it runs a few times only
                case Load(tile, access):
                    self.move(access, tile, times)
                case Lookup(tile, access):
                    size = self.elements(tile) * access.buffer.dtype.bytes * times
                    work.moved += size
                    self.seen[access.buffer] = self.seen.get(access.buffer, 0.0) + size
                case Store(access, tile):
                    self.move(access, tile, times)
                    if access.buffer.space is Space.GLOBAL:  # a cache reads what it writes
                        size = self.elements(tile) * access.buffer.dtype.bytes * times
                        work.written += size
                case Compute(tile, expr):
                    work.operations += weight(expr, self.weights) * self.elements(tile) * times
                case Fold(_, operand):
                    work.operations += self.elements(operand) * times
                case Contract(tile, left, _, span):
                    size = self.elements(tile) * self.length(span)
                    work.products += 2.0 * size * times
                    work.dtype = str(left.dtype)
                case Fill(tile):
                    work.operations += 0.25 * self.elements(tile) * times

    def rows(self, tile: Tile) -> float:
        """The rows of a tile, each of which is one loop over vectors."""
        return math.prod((self.length(span) for span in tile.spans[:-1]), start=1.0)

    def move(self, access: Access, tile: Tile, times: float) -> None:
        buffer = access.buffer
        size = self.elements(tile) * buffer.dtype.bytes * times
        if buffer.space is Space.GLOBAL:
            self.work.moved += size * self.waste(access)
            whole = math.prod(buffer_shape(buffer, self.tiling)) * buffer.dtype.bytes
            self.seen[buffer] = max(self.seen.get(buffer, 0.0), float(whole))
        elif self.has_cached_scratch:
            self.work.operations += 0.5 * self.elements(tile) * times
        else:  # scratch of a GPU lies in its main memory
            self.work.moved += size

    def waste(self, access: Access) -> float:
        """The bytes that memory moves for each byte of a block whose rows are short."""
        if not access.spans:
            return 1.0
        row = self.length(access.spans[-1]) * access.buffer.dtype.bytes
        whole = buffer_shape(access.buffer, self.tiling)[-1] * access.buffer.dtype.bytes
        return max(1.0, min(LINE, whole) / row)

    def elements(self, tile: Tile) -> float:
        return math.prod((self.length(span) for span in tile.spans), start=1.0)

    def length(self, span: Span) -> float:
        """The mean length of the blocks of a span."""
        return self.tiling.extents.of(span.dim.axis) / self.blocks(span.dim)


def weight(expr: Expr, weights: Mapping[str, float]) -> float:
    """The operations of an expression, in additions; a part that occurs twice counts once."""
    seen: set[Expr] = set()
    stack, total = [expr], 0.0
    while stack:
        node = stack.pop()
        if node not in seen and node.args:
            seen.add(node)
            total += 0.5 if node.op == "cast" else _weight(node, weights)
            stack.extend(node.args)
    return max(total, 0.5)


def _weight(node: Expr, weights: Mapping[str, float]) -> float:
    """The operations of one function; a square is a product, and x^-0.5 a root."""
    if node.op == "pow" and node.args[1].op == "const":
        count = float(node.args[1].number)
        if count in (2.0, 0.5, -0.5, -1.0, 3.0):
            return 1.0 if count > 1 else weights["div"]
    return weights.get(node.op, 1.0)


def predicted(nest: Nest, tiling: Tiling, machine: Machine) -> Seconds:
    """The time of a nest's kernels on a machine."""
    total = Seconds(0.0, 0.0)
    for kernel in nest.kernels:
        device = kernel_seconds(work_of(kernel, tiling, machine.target), machine)
        total += Seconds(device + machine.step, machine.launch)
    if machine.target == "cpu":  # the host is the device
        return Seconds(total.device + total.host, 0.0)
    return total


LINE = 64
"""The bytes that memory moves at least, if they lie together."""
ALONE = 1 << 14
"""The number of elements up to which a kernel runs on one thread of a CPU."""


def kernel_seconds(work: Work, machine: Machine) -> float:
    """The time of one kernel on the device."""
    share = EFFICIENCY[machine.target]
    is_alone = machine.target == "cpu" and work.arrays <= ALONE * 4
    room = 1 if is_alone else machine.full
    programs = max(1.0, work.programs * work.busy)
    waves = math.ceil(programs / room)
    if waves > 1:
        busy = programs / (waves * room) * (1 if is_alone else machine.processors)
    else:  # a few programs on a processor of a GPU do not keep it busy
        busy = 1.0 if is_alone else min(machine.processors, programs / SATURATING[machine.target])
    scalar = machine.rate("float32", processors=1) / 2
    computing = work.operations / (scalar * share.vector) + work.statements * share.row
    computing += work.products / (
        machine.rate(work.dtype, matrix=True, processors=1) * share.matrix
    )
    home = machine.memory_for(work.arrays)
    cache = machine.memories[max(0, machine.memories.index(home) - 1)]
    allocated = work.written if machine.target == "cpu" else 0.0  # read before it is written
    moving = (work.arrays + allocated) / _bandwidth(home.each, home.total, busy)
    moving += max(work.moved - work.arrays, 0.0) / _bandwidth(cache.each, cache.total, busy)
    moving /= share.memory
    computing /= busy
    longer, shorter = max(moving, computing), min(moving, computing)
    wake = 0.0 if is_alone or machine.processors == 1 else machine.wake
    waiting = (work.steps + 2) * machine.latency * waves
    return max(longer + (1 - share.overlap) * shorter, waiting) + wake


SATURATING = {"cpu": 1.0, "cuda": 6.0}
"""The programs with which a processor reaches its rates."""


def _bandwidth(each: float, total: float, processors: float) -> float:
    return min(each * processors, total)


def has_products(nest: Nest) -> bool:
    """True if a kernel of a nest multiplies matrices."""
    return any(isinstance(s, Contract) for kernel in nest.kernels for s in kernel.statements)


def error_of(nest: Nest, machine: Machine) -> float:
    """The factor by which the time of a nest may be longer than predicted."""
    share = EFFICIENCY[machine.target]
    return share.product_error if has_products(nest) else share.error
