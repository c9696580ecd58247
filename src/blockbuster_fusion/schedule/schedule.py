"""From a block program to the nest that a printer gets: the passes, in their order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal

from blockbuster_fusion.errors import BadConfig
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.nest.lower import lower_to_nest
from blockbuster_fusion.nest.nest import Kernel, Launchable, Nest
from blockbuster_fusion.nest.passes.accumulate_in_place import accumulate_in_place
from blockbuster_fusion.nest.passes.cascade_sums import cascade_sums
from blockbuster_fusion.nest.passes.combine_where_read import combine_where_read
from blockbuster_fusion.nest.passes.describe_operands import describe_operands
from blockbuster_fusion.nest.passes.fold_after_loops import fold_after_loops
from blockbuster_fusion.nest.passes.fold_casts import fold_casts
from blockbuster_fusion.nest.passes.gather_in_groups import gather_in_groups
from blockbuster_fusion.nest.passes.hoist import hoist
from blockbuster_fusion.nest.passes.join_products import join_products
from blockbuster_fusion.nest.passes.mirror_grid import mirror_grid
from blockbuster_fusion.nest.passes.order_grid import order_grid
from blockbuster_fusion.nest.passes.order_tiles import order_tiles
from blockbuster_fusion.nest.passes.pad_operands import pad_operands
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.passes.skip_masked_blocks import skip_masked_blocks
from blockbuster_fusion.nest.passes.split_prologue import split_prologue
from blockbuster_fusion.nest.passes.split_reduction import reduction_loop, split_reduction
from blockbuster_fusion.nest.passes.split_scan import scan_loop, split_scan
from blockbuster_fusion.nest.passes.tail_masks import tail_masks
from blockbuster_fusion.nest.passes.take_turns import take_turns, takes_turns
from blockbuster_fusion.nest.passes.transpose_products import transpose_products
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.passes import Observer, Pass, run_passes

FLAGS = ("apart", "padded", "mirrored", "transposed", "described", "joined", "together", "early")
"""The options of a schedule that are true or false, beside `atomic`."""
LAUNCH = ("warps", "stages", "group", "programs", "threads", "chunk", "past")
"""The options of a schedule that concern launches, not loops."""
BESIDE_LOOPS = ("warps", "stages", "group", "threads", "chunk", "past")
"""Those among them that change no loop; programs that take turns have one more."""
LARGEST = 1 << 30
"""The largest number of such an option, so that no sum of a few overflows."""

MOST_LOWERED = 64
"""The number of nests that are kept while schedules are searched."""

Grid = Literal["outer", "all", "one"]
"""The parallel loops that become a grid."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Options of the passes that turn a block program into kernels."""

    grid: Grid = "all"
    """The parallel loops that become the grid. With "all", every nested parallel loop is in the
    grid, which gives the most programs. With "outer", the grid ends with the first loop over
    blocks, or before it if other loops stand beside it in the grid: nothing is computed twice. With
    "one", one program runs all loops: small arrays take one launch."""
    order: tuple[str, ...] = ()
    """The loops of a grid from the slowest to the fastest, by the labels of their dims or by axes.
    Loops that are not named stay where the program has them (nest/passes/order_grid.py)."""
    padded: bool = False
    """True to copy operands of products whose rows are not aligned first, on a GPU
    (nest/passes/pad_operands.py)."""
    mirrored: bool = False
    """True to compute blocks that read an array and its transpose right after each other, on a GPU
    (nest/passes/mirror_grid.py)."""
    described: bool = False
    """True to load operands of products by tensor descriptors, on a GPU that has them
    (nest/passes/describe_operands.py)."""
    joined: bool = False
    """True to compute two products of the same rows as one, if their operands are described
    (nest/passes/join_products.py)."""
    transposed: bool = False
    """True to compute the transposes of products with few rows, on a GPU
    (nest/passes/transpose_products.py)."""
    together: bool = False
    """True to launch kernels that do not depend on one another as one, on a GPU
    (nest/passes/join_grids.py)."""
    early: bool = False
    """True to start kernels before the one before them has ended, on a GPU that can
    (nest/passes/start_early.py)."""
    apart: bool = False
    """True to compute a prologue in a kernel of its own (nest/passes/split_prologue.py)."""
    split: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The number of programs that share each reduction over an axis
    (nest/passes/split_reduction.py)."""
    atomic: bool = False
    """True to add up split sums atomically rather than in a second kernel."""
    warps: int | None = None
    """The warps of a program on a GPU; by default, as many as its accumulators need, or
    without products its largest tile. Beside kernels with products, others keep the default."""
    stages: int | None = None
    """The stages of pipelined loops on a GPU; by default, as many as shared memory holds."""
    group: int | None = None
    """The blocks of rows whose programs run together on a GPU, so that they share columns. Where a
    mask makes the last rows take longest, the heads whose last rows start first."""
    programs: int | None = None
    """The programs that compute the blocks of products in turns on a GPU; by default, each block
    has its own. Beside kernels that sum one product and do nothing else, others keep the default
    (nest/passes/take_turns.py)."""
    threads: int | None = None
    """The threads of kernels on a CPU, at most those of the call of `compile`. By default these,
    but one for small arrays."""
    chunk: int | None = None
    """The consecutive programs that a thread of a CPU takes at a time. By default, an eighth of
    what each thread would have; one where a mask makes programs unequal."""
    past: int | None = None
    """The bytes of a result from which kernels of a CPU write it past the caches. By default, most
    of the last cache."""

    def __post_init__(self) -> None:
        """Raises BadConfig for flags, numbers and orders that no schedule can have."""
        for name in FLAGS:
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                raise BadConfig(name=name, problem=f"{flag!r} is neither True nor False")
        for name in LAUNCH:
            number = getattr(self, name)
            if number is not None:
                _check_number(name, number)
        if not isinstance(self.order, tuple | list) or not all(_is_label(x) for x in self.order):
            raise BadConfig(name="order", problem=f"{self.order!r} is no list of labels")
        object.__setattr__(self, "order", tuple(self.order))
        for label in self.order:
            if self.order.count(label) > 1:
                raise BadConfig(name="order", problem=f"{label} is named twice")

    def of_launch(self, launched: Launchable, kernels: Sequence[Kernel]) -> "Schedule":
        """The options for one of the launches of a nest."""
        return self.without(left_out(launched, kernels))

    def without(self, options: Iterable[str]) -> "Schedule":
        """The schedule that leaves some options of launches to the rule of thumb."""
        given: dict[str, Any] = {x: None for x in options if getattr(self, x) is not None}
        return replace(self, **given) if given else self

    @property
    def of_loops(self) -> "Schedule":
        """The options that loops depend on; launches have the others."""
        beside: dict[str, Any] = dict.fromkeys(BESIDE_LOOPS)
        return replace(self, together=False, early=False, **beside)

    @property
    def launch(self) -> dict[str, int]:
        """The options of a launch of a Triton kernel."""
        given = {"num_warps": self.warps, "num_stages": self.stages, "group": self.group}
        return {name: number for name, number in given.items() if number is not None}


def left_out(launched: Launchable, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """The options that a launch of a nest leaves to the rule of thumb.

    Warps of products are theirs alone, and so are the turns of kernels that gain by them.
    """
    has_warps = launched.multiplies or not any(other.multiplies for other in kernels)
    has_turns = any(takes_turns(kernel, kernels) for kernel in launched.kernels)
    taken = {"warps": has_warps, "programs": has_turns}
    return tuple(name for name, is_taken in taken.items() if not is_taken)


def _check_number(name: str, number: object) -> None:
    """Raises BadConfig if something is no number of an option of launches."""
    is_warps = name == "warps"
    if type(number) is not int or number < 1 or (is_warps and number & (number - 1)):
        wanted = "a power of two" if is_warps else "a number above 0"
        raise BadConfig(name=name, problem=f"{number!r} is not {wanted}")
    if number > LARGEST:
        raise BadConfig(name=name, problem=f"{number} is above {LARGEST}")


def _is_label(label: object) -> bool:
    return isinstance(label, str) and bool(label)


def scheduled(
    graph: Graph,
    name: str = "kernel",
    schedule: Schedule | None = None,
    observe: Observer | None = None,
    *,
    folds_late: bool = False,
) -> Nest:
    """The program as kernels that are ready to be printed.

    With `folds_late`, loops gather blocks place by place, as suits a GPU.
    """
    schedule = schedule or Schedule()
    lowered = _lowered if observe is None else partial(_lowered.__wrapped__, observe=observe)
    nest = lowered(graph, name, schedule.grid, schedule.apart)
    nest = run_passes(optional_passes(schedule, folds_late=folds_late), nest, observe)
    verify_nest(nest)
    return nest


@lru_cache(maxsize=MOST_LOWERED)
def _lowered(
    graph: Graph, name: str, grid: Grid, apart: bool, observe: Observer | None = None
) -> Nest:
    """The nest before the passes that a schedule asks for: a search needs it again and again."""
    schedule = Schedule(grid, apart=apart)
    graph = run_passes(graph_passes(schedule), graph, observe)
    return run_passes(CLEANING, lowering(name, schedule).observed(graph, observe), observe)


def graph_passes(schedule: Schedule) -> tuple[Pass[Graph, Graph], ...]:
    """The passes over the block program."""

    def prologue(graph: Graph) -> Graph:
        return split_prologue(graph) if schedule.apart else graph

    doc = "Computes a prologue that a grid would repeat in a kernel of its own, if asked for."
    return (Pass("split_prologue", doc, prologue),)


def lowering(name: str, schedule: Schedule) -> Pass[Graph, Nest]:
    """The pass from the block program to loop nests."""

    def lower(graph: Graph) -> Nest:
        return lower_to_nest(graph, name, grid=schedule.grid)

    return Pass("lower_to_nest", "Turns maps into grids and loops over tiles.", lower)


def nest_passes(schedule: Schedule, *, folds_late: bool = False) -> tuple[Pass[Nest, Nest], ...]:
    """The passes over loop nests, in order."""
    return (*CLEANING, *optional_passes(schedule, folds_late=folds_late))


def optional_passes(
    schedule: Schedule, *, folds_late: bool = False
) -> tuple[Pass[Nest, Nest], ...]:
    """The passes that depend on a schedule, and those after them."""

    def share_reductions(nest: Nest) -> Nest:
        for axis, parts in schedule.split.items():
            reduces = any(reduction_loop(kernel, axis) for kernel in nest.kernels)
            if reduces or not scans(nest, axis):
                nest = split_reduction(nest, axis, parts, atomic=schedule.atomic)
        return nest

    def share_scans(nest: Nest) -> Nest:
        for axis, parts in schedule.split.items():
            nest = split_scan(nest, axis, parts) if scans(nest, axis) else nest
        return nest

    def pad(nest: Nest) -> Nest:
        return pad_operands(nest) if schedule.padded else nest

    def order(nest: Nest) -> Nest:
        return order_grid(nest, schedule.order) if schedule.order else nest

    def mirror(kernel: Kernel) -> Kernel:
        return mirror_grid(kernel) if schedule.mirrored else kernel

    def describe(kernel: Kernel) -> Kernel:
        return describe_operands(kernel) if schedule.described else kernel

    def join(kernel: Kernel) -> Kernel:
        return join_products(kernel) if schedule.joined else kernel

    def transpose(kernel: Kernel) -> Kernel:
        return transpose_products(kernel) if schedule.transposed else kernel

    def turns(nest: Nest) -> Nest:
        return take_turns(nest, schedule.programs) if schedule.programs else nest

    late = (
        each_kernel(fold_after_loops, "Folds blocks after loops rather than in them, on a GPU."),
        each_kernel(gather_in_groups, "Gathers maxima and sums for groups of places, on a GPU."),
    )
    return (
        Pass(
            "split_reduction", "Shares reductions among programs, if asked for.", share_reductions
        ),
        Pass(
            "combine_where_read",
            "Has kernels that read statistics combine their shares.",
            combine_where_read,
        ),
        Pass("split_scan", "Shares scans among programs, if asked for.", share_scans),
        Pass("pad_operands", "Copies operands with rows that are not aligned, if asked for.", pad),
        *(late if folds_late else ()),
        each_kernel(
            transpose, "Transposes products with few rows, if asked for.", "transpose_products"
        ),
        Pass("order_grid", "Orders the loops of grids, if asked for.", order),
        each_kernel(mirror, "Orders a square grid by diagonals, if asked for.", "mirror_grid"),
        each_kernel(cascade_sums, "Gathers the sums of long loops in runs."),
        each_kernel(
            describe, "Has operands loaded by descriptors, if asked for.", "describe_operands"
        ),
        each_kernel(join, "Computes two products as one, if asked for.", "join_products"),
        Pass("take_turns", "Has programs compute blocks of products in turns.", turns),
    )


def scans(nest: Nest, axis: str) -> bool:
    """True if a kernel scans along an axis in a loop whose blocks can be shared."""
    return any(scan_loop(kernel, axis) for kernel in nest.kernels)


def each_kernel(
    change: Callable[[Kernel], Kernel], doc: str, name: str | None = None
) -> Pass[Nest, Nest]:
    """The pass that changes each kernel of a nest; by default, it has the name of the function."""

    def run(nest: Nest) -> Nest:
        steps = tuple(change(step) if isinstance(step, Kernel) else step for step in nest.steps)
        return replace(nest, steps=steps)

    return Pass(name or change.__name__, doc, run)


CLEANING: tuple[Pass[Nest, Nest], ...] = (
    each_kernel(fold_casts, "Folds casts into loads and stores."),
    each_kernel(accumulate_in_place, "Has contractions add straight into accumulators."),
    each_kernel(hoist, "Moves loads and what follows from them out of loops."),
    each_kernel(remove_dead_code, "Removes statements whose tile is not read."),
    each_kernel(order_tiles, "Orders the axes of computed tiles as their arrays have them."),
    each_kernel(tail_masks, "Masks the tail of a last block only where it is not neutral."),
    each_kernel(skip_masked_blocks, "Narrows loops to the blocks that a mask leaves."),
)
"""The passes over loop nests that come first, whatever the schedule."""
