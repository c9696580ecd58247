"""Facts of a kernel that its work depends on, whatever the tiles: a search needs them once."""

from dataclasses import dataclass, replace
from functools import cached_property

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.analysis.described_blocks import describable_blocks
from blockbuster_fusion.nest.analysis.held_over_loops import held_over_loops
from blockbuster_fusion.nest.analysis.joined_products import joinable_products
from blockbuster_fusion.nest.analysis.launch_order import LaunchOrder
from blockbuster_fusion.nest.analysis.matrix_products import Product, is_dot, product_of
from blockbuster_fusion.nest.analysis.product_types import ProductTypes
from blockbuster_fusion.nest.analysis.shared_memory import SharedMemory
from blockbuster_fusion.nest.analysis.spread_sums import spread_sums, streaming_loops
from blockbuster_fusion.nest.analysis.thread_blocks import sharing
from blockbuster_fusion.nest.analysis.triangular_scans import TriangularScan, triangular_scan
from blockbuster_fusion.nest.nest import (
    Body,
    Compute,
    Contract,
    Fold,
    For,
    Kernel,
    Load,
    Lookup,
    Statement,
    Store,
    Tile,
    read,
    written,
)
from blockbuster_fusion.nest.passes.take_turns import gains_by_turns
from blockbuster_fusion.schedule.weights import WEIGHTS, functions, weight


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """The statements of a body by their kinds."""

    loads: tuple[Load | Lookup, ...]
    computed: tuple[Tile, ...]
    """The tiles that are loaded or computed."""
    products: tuple[Contract, ...]
    stores: tuple[Store, ...]
    made: tuple[tuple[Statement, Tile | None], ...]
    """Each statement with the tile that it writes, or folds."""
    mixed: frozenset[Tile]
    """The operands of dots that arithmetic of the same step reads or makes."""
    gathers: bool
    """True if groups of places have maxima and sums of their own."""

    @classmethod
    def of(cls, body: Body) -> "BodyFacts":
        return cls(
            tuple(s for s in body if isinstance(s, Load | Lookup)),
            tuple(s.tile for s in body if isinstance(s, Compute | Load)),
            tuple(s for s in body if isinstance(s, Contract)),
            tuple(s for s in body if isinstance(s, Store)),
            tuple((s, s.operand if isinstance(s, Fold) else written(s)) for s in body),
            frozenset(mixed_tiles(body)),
            any(isinstance(s, Fold) and s.groups is not None for s in body),
        )


class KernelFacts:
    """The facts of one kernel on a CPU or a GPU."""

    def __init__(self, kernel: Kernel, target: str) -> None:
        self.kernel, self.target = kernel, target
        self.has_tensor_cores = target == "cuda"
        self.statements = kernel.statements
        self.grid = frozenset(kernel.grid)
        self.types = ProductTypes(kernel)
        products = [s for s in self.statements if isinstance(s, Contract)]
        self.multiplies = bool(products)
        self.dots: dict[Contract, Product] = {s: product_of(s) for s in products if is_dot(s)}
        """The products that tensor cores compute."""
        others = (isinstance(s, Contract | Fold) for s in self.statements)
        self.is_pointwise = self.has_tensor_cores and not any(others)
        stores = [s.target.spans for s in self.statements if isinstance(s, Store)]
        self.results = [[span.dim for span in spans] for spans in stores]
        """The dims of each result."""
        loops = [s for s in self.statements if isinstance(s, For)] if self.has_tensor_cores else []
        self.spread: dict[For, tuple[Contract, ...]] = {loop: spread_sums(loop) for loop in loops}
        """The products of each loop whose sums are spread over a block."""
        self.sharing = sharing(kernel)
        self.is_plain = self.has_tensor_cores and gains_by_turns(kernel)
        self.streams = frozenset(streaming_loops(kernel)) if self.has_tensor_cores else frozenset()
        """The loops whose loads run ahead, beside those with dots."""
        self.held_over = held_over_loops(kernel) if self.dots and self.has_tensor_cores else {}
        """For each loop, the tiles that are needed only after it, with the registers for each
        element."""
        scans = ((loop, triangular_scan(loop)) for loop in loops)
        self.scans: dict[For, TriangularScan] = {x: scan for x, scan in scans if scan is not None}
        """The loops that triangles may scan."""
        bodies = (kernel.body, *(s.body for s in self.statements if isinstance(s, For)))
        self.bodies = {body: BodyFacts.of(body) for body in bodies}
        computes = [s for s in self.statements if isinstance(s, Compute)]
        weights = WEIGHTS[target]
        self.weights = {s: (weight(s.expr, weights), functions(s.expr, weights)) for s in computes}
        """The operations of each expression, and those among them of functions such as exp."""

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the kernel: its work depends on their tiles alone."""
        return self.kernel.dims

    @cached_property
    def order(self) -> LaunchOrder | None:
        """The order of a GPU's programs that multiply matrices."""
        return LaunchOrder(self.kernel) if self.has_tensor_cores and self.dots else None

    @cached_property
    def shared(self) -> SharedMemory:
        """The shared memory of a program."""
        return SharedMemory(self.kernel)

    @cached_property
    def is_describable(self) -> bool:
        """True if descriptors can load operands of products."""
        return self.has_tensor_cores and bool(describable_blocks(self.kernel))

    @cached_property
    def is_joinable(self) -> bool:
        """True if a descriptor can load columns of two products of the same rows."""
        return self.has_tensor_cores and bool(joinable_products(self.kernel))

    @cached_property
    def is_plain_joined(self) -> bool:
        """True if the kernel gains by turns once its products are joined."""
        joined = replace(self.kernel, is_described=True, is_joined=True)
        return self.is_joinable and gains_by_turns(joined)


def mixed_tiles(body: Body) -> set[Tile]:
    """The operands of dots that arithmetic of the same step reads, or makes of loaded blocks.

    What is made of products of the same step does not count.
    """
    loaded = {s.tile for s in body if isinstance(s, Load | Lookup)}
    dots = [s for s in body if isinstance(s, Contract) and is_dot(s)]
    multiplied = {s.tile for s in body if isinstance(s, Contract)}
    made: set[Tile] = set()
    for s in body:
        if isinstance(s, Compute | Fold):
            if multiplied.intersection(read(s)):
                multiplied.add(s.tile)
            elif (loaded | made).intersection(read(s)):
                made |= {s.tile, *loaded.intersection(read(s))}
    return {side for s in dots for side in (s.left, s.right)} & made
