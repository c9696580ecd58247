"""The work of a kernel: the bytes that it moves, its products, and what its programs wait for."""

import math
from dataclasses import dataclass

from blockbuster_fusion.nest.analysis.thread_blocks import Sharing
from blockbuster_fusion.schedule.waves import Reads

GROUPED, WARPS = 64, 4
"""The rows that a group of four warps multiplies at a time."""


@dataclass(slots=True)
class Work:
    """The work of one kernel."""

    programs: int = 1
    sharing: Sharing = Sharing.OWN
    """The way in which threads of a GPU share blocks, without products."""
    products: float = 0.0
    """Multiplications and additions of products of matrices."""
    operations: float = 0.0
    """Other operations, in additions."""
    functions: float = 0.0
    """Those among them of functions such as exp."""
    moved: float = 0.0
    """Bytes between arrays and tiles, each time that a block is loaded or stored, as
    nest/analysis/traffic.py has them. The blocks of a window are estimated here; and a kernel of a
    GPU does not load a block that it has loaded before."""
    scratch: float = 0.0
    """Bytes between tiles and the buffers of single programs."""
    wasted: float = 0.0
    """Bytes that memory moves beside those of arrays, as rows are shorter than its lines."""
    arrays: float = 0.0
    """Bytes of the arrays, each once."""
    written: float = 0.0
    """Bytes that are stored."""
    busy: float = 1.0
    """The share of the programs that have something to do."""
    steps: float = 0.0
    """Steps of loops in one program that load something."""
    folding: float = 0.0
    """Folds of tiles in one program, for which its threads wait for each other; those of several
    rows take longer."""
    spread: float = 0.0
    """Sums of products with vectors in one program, which its threads fold after a loop: as often
    as they wait for each other there."""
    crossed: float = 0.0
    """Results of folds across rows in one program: warps with other rows hand theirs over."""
    handed_over: float = 0.0
    """Blocks of pointwise kernels that go from the threads which load them to others, in a step."""
    multiplying: float = 0.0
    """The steps among them that multiply matrices; their loads may run ahead."""
    storing: float = 0.0
    """The steps among these that also store something, as what they have just multiplied."""
    streaming: float = 0.0
    """The steps that only gather blocks, place by place; on a GPU, their loads run ahead too, but
    for the first of a loop."""
    gathering: float = 0.0
    """The steps that gather maxima and sums for groups of places, but for the first of a loop: no
    thread waits for another one, but each for its own loads."""
    further: int = 0
    """The stages in which these run ahead beside the usual ones."""
    staged: float = 0.0
    """The most bytes that one such step loads."""
    read_by_cores: float = 0.0
    """Bytes of shared memory that tensor cores read, as operands of products."""
    in_a_row: float = 0.0
    """The products of few rows that one program adds to the same sum, one after the other, each as
    deep as tensor cores multiply at once; and the waiting of each step, in such products."""
    each_stage: float = 0.0
    """Bytes of shared memory that each stage but the first takes."""
    kept: float = 0.0
    """Bytes of shared memory beside those: operands of products, and products to be stored."""
    across: float = math.inf
    """The bytes of the shortest vector that such a step multiplies with rows of a block, all of one
    row with one number."""
    along: float = math.inf
    """The bytes of these rows."""
    beside: float = math.inf
    """The bytes of the shortest vector that a step with products of matrices computes with."""
    piece: float = math.inf
    """The bytes of the shortest pieces of rows that such a step loads."""
    by_words: float = 0.0
    """Bytes of such steps whose rows are aligned to words only, and are not copied in vectors."""
    held: float = 0.0
    """The most elements that one program holds in accumulators and one tile beside them."""
    accumulated: float = 0.0
    """The most elements of accumulators that one program holds in a loop with products."""
    held_over: float = 0.0
    """The most registers of one program for what it has before a loop with products, and needs
    only after it."""
    largest: float = 0.0
    """The elements of the largest tile, in whole blocks."""
    own: float = 0.0
    """Bytes of the parts of arrays that one program moves, each once."""
    common: float = 0.0
    """The bytes among them that all programs move, as those of the weights of a norm."""
    jumps: float = 0.0
    """Rows of blocks in arrays that do not begin where the row before them ends."""
    turned: float = 0.0
    """Bytes of blocks that are transposed, as their rows are columns of a result."""
    turning: float = 0.0
    """Bytes of the largest such block."""
    transposed: float = 0.0
    """Bytes of operands of products that are transposed, as columns of the product are their rows.
    Each time such a product is computed counts."""
    statements: float = 0.0
    """Rows of tiles that statements are run for."""
    has_few_rows: bool = False
    """True if all products are of few rows (nest/analysis/few_rows.py)."""
    dtype: str = "float32"
    """The dtype in which products multiply."""
    restarts: float = 0.0
    """The times that one program begins a loop with products again, as it is in another loop."""
    is_scattered: bool = False
    """True if the grid goes by diagonals, so that programs do not read neighbouring pieces of rows
    at a time."""
    is_exact: bool = False
    """True if products of float32 are not rounded to what tensor cores multiply."""
    is_chained: bool = False
    """True if the program computes an operand of such a product."""
    is_mixed: bool = False
    """True if operands of products are also computed with, or come of it, in the same step."""
    has_parts: bool = False
    """True if programs share a sum, and each stores its part."""
    has_few_columns: bool = False
    """True if all products have many rows and few columns, as transposes of few rows have."""
    has_twins: bool = False
    """True if several products of a step multiply the same rows of 64 and more, as gates do."""
    is_describable: bool = False
    """True if descriptors can load operands of products on a GPU."""
    is_joinable: bool = False
    """True if two products of the same rows can be one on a GPU."""
    is_plain: bool = False
    """True if a kernel sums one product of matrices on a GPU, and does nothing else."""
    is_plain_joined: bool = False
    """True if a kernel joins two products on a GPU, and only computes with them beside that."""
    is_grouped: bool = True
    """True if tensor cores multiply the rows of all products in groups of 64."""

    reads: tuple[Reads, ...] = ()
    """The arrays of a GPU's kernel with products of matrices, by the blocks that programs share."""
    order: tuple[float, ...] = ()
    """The lengths of the loops over its programs (nest/analysis/launch_order.py)."""

    @property
    def is_one_step(self) -> bool:
        """True if programs only multiply a whole row with a vector, in one step."""
        return self.spread == 1 and self.multiplying <= 1 and not self.products

    @property
    def passed(self) -> float:
        """All bytes that memories and caches pass on."""
        return self.moved + self.scratch + self.wasted
