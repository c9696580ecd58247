"""Counts the work of a kernel: what each program loads, computes and stores, and how often."""

import math
from collections import Counter

from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.few_rows import products_with_few_rows
from blockbuster_fusion.nest.analysis.launch_order import LaunchOrder
from blockbuster_fusion.nest.analysis.thread_blocks import VECTOR_BYTES
from blockbuster_fusion.nest.analysis.triangular_scans import (
    FURTHER,
    LONGEST,
    SHORTEST,
)
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
    Index,
    Kernel,
    Load,
    Lookup,
    RunningFold,
    Space,
    Span,
    Statement,
    Store,
    Tile,
)
from blockbuster_fusion.schedule.block_sizes import BlockSizes
from blockbuster_fusion.schedule.kernel_facts import BodyFacts, KernelFacts
from blockbuster_fusion.schedule.waves import Reads
from blockbuster_fusion.schedule.weights import WEIGHTS, weight
from blockbuster_fusion.schedule.work import GROUPED, WARPS, Work

SCANNED = {"cpu": 24.0, "cuda": 8.0}
"""The operations of a scan for each number: one waits for the other, or they go in rounds."""
TRIANGULAR = 2.0
"""The same for a scan by tensor cores (nest/analysis/triangular_scans.py)."""
WIDENED = 2.0
"""The additions that a product of two numbers of a block takes, with the conversion of one."""
IN_BATCHES = 40.0
"""The additions that a number of an operand or of a product takes, if a program multiplies several
blocks at once: they are laid out anew, and summed across warps."""
PASSED_ON = 8.0
"""The additions that a number takes for each product with few rows, if it is computed with in the
same step: it goes from registers to shared memory, and back to each warp."""
DEEP = 16
"""The numbers of a row that tensor cores multiply at once, with few rows."""
BEFORE = 3.0
"""The products of that many numbers that take as long as threads wait for each other and for the
first operands in a step."""
WORD = 4
"""The bytes of a register."""
AT_A_TIME = 8
"""The rows of an operand that tensor cores read at a time."""


def work_of(kernel: Kernel, tiling: Tiling, target: str) -> Work:
    """Counts the work of a kernel with certain sizes and tiles."""
    return work_with(KernelFacts(kernel, target), tiling)


def work_with(facts: KernelFacts, tiling: Tiling) -> Work:
    """Counts the work of a kernel whose facts are known."""
    return _Count(facts, tiling).counted()


class _Count(BlockSizes):
    """The work of a kernel in the making."""

    def __init__(self, facts: KernelFacts, tiling: Tiling) -> None:
        super().__init__(facts, tiling)
        self.facts, self.target = facts, facts.target
        self.weights = WEIGHTS[self.target]
        self.has_tensor_cores = facts.has_tensor_cores
        self.work = Work()
        self.seen: dict[Buffer, float] = {}
        self.own: dict[Buffer, float] = {}
        self.common: set[Buffer] = set()
        self.moved_by: dict[tuple[Buffer, frozenset[Index]], float] = {}
        self.grid = facts.grid
        self.parts: dict[Index, int] = {}
        self.gathered = 0.0
        self.loaded: dict[Tile, Access] = {}
        self.mixed: set[Tile] = set()
        self.there: set[object] = set()
        self.triangles = frozenset(loop for loop in facts.scans if self.is_triangular(loop))
        self.streams = facts.streams | self.triangles
        self.has_many_columns = False
        self.rows_read: set[Tile] = set()

    def counted(self) -> Work:
        work, kernel = self.work, self.facts.kernel
        work.further = FURTHER if self.triangles else 0
        work.programs = math.prod(self.blocks(index.dim) for index in kernel.grid)
        work.is_plain, work.sharing = self.facts.is_plain, self.facts.sharing
        self.body(kernel.body, float(work.programs))
        mirrored = self.mirrored()
        work.arrays, work.is_scattered = sum(self.seen.values()) - mirrored, mirrored > 0
        work.steps /= work.programs * work.busy
        work.multiplying /= work.programs * work.busy
        work.restarts /= work.programs * work.busy
        work.storing /= work.programs * work.busy
        work.streaming /= work.programs * work.busy
        work.folding /= work.programs * work.busy
        work.gathering /= work.programs * work.busy
        work.spread /= work.programs * work.busy
        work.crossed /= work.programs * work.busy
        work.handed_over /= work.programs * work.busy
        work.own = sum(self.own.values())
        work.common = sum(size for buffer, size in self.own.items() if buffer in self.common)
        work.has_few_rows = bool(products_with_few_rows(self.facts.statements, self.longest))
        is_tall = self.has_tensor_cores and work.is_grouped and not self.has_many_columns
        work.has_few_columns = bool(work.products) and is_tall
        if work.products and not work.by_words:
            work.is_describable = self.facts.is_describable
            work.is_joinable = self.facts.is_joinable
            work.is_plain_joined = self.facts.is_plain_joined
        if work.has_few_rows:  # weights are read as they lie
            work.transposed = 0.0
        if self.has_tensor_cores and work.staged:
            self.share_memory()
        if self.facts.order is not None:
            self.share_blocks(self.facts.order)
        return work

    def mirrored(self) -> float:
        """The bytes that a grid by diagonals reads soon after their transposes, from a cache.

        Blocks are square then (nest/passes/mirror_grid.py).
        """
        kernel = self.facts.kernel
        if not kernel.is_mirrored:
            return 0.0
        *others, slow, fast = kernel.grid
        if self.whole(slow.dim) != self.whole(fast.dim):
            return 0.0
        sources = [s.source for s in self.facts.statements if isinstance(s, Load)]
        turned = {x.buffer for x in sources if [s.at for s in x.spans] == [*others, fast, slow]}
        return sum(self.seen[buffer] for buffer in turned)

    def is_triangular(self, loop: For) -> bool:
        """True if a loop scans its blocks by products with triangles."""
        rows, columns = map(self.block, self.facts.scans[loop].load.tile.spans)
        return SHORTEST <= rows <= LONGEST and columns >= SHORTEST

    def body(self, body: Body, times: float, ahead: float = 0.0) -> None:
        """Adds the work of statements that run some times; so often their loads have run ahead."""
        work, own = self.work, self.facts.bodies[body]
        loads = [s for s in own.loads if not self.is_there(s)]
        work.steps += times * bool(loads)
        multiplies = bool(own.products)
        work.piece = min([work.piece, *(self.piece(s.source) for s in loads)])
        if loads and (multiplies or ahead):
            sizes = [self.elements(s.tile) * s.source.buffer.dtype.bytes for s in loads]
            pairs = [*zip(loads, sizes, strict=True)]
            twice = sum(n for s, n in pairs if s.tile in own.mixed)  # printers load it once more
            work.staged = max(work.staged, sum(sizes) + twice)
            work.streaming += 0.0 if multiplies else ahead
            if multiplies:
                by_words = sum(n for s, n in pairs if not self.has_long_rows(s.source))
                work.by_words += times * by_words
                work.multiplying += times
                work.storing += times * bool(own.stores)
                work.is_mixed |= bool(own.mixed)
                self.mixed |= own.mixed
                work.accumulated = max(work.accumulated, self.gathered)
            if multiplies and self.has_tensor_cores:
                self.note_vectors(own)
        if self.facts.is_pointwise:
            work.handed_over += times * sum(self.is_handed_over(s, body) for s in loads)
        held = [*map(self.elements, own.computed)]
        if own.gathers:  # a block is held as it is loaded, and computed with group by group
            held = [self.elements(s.tile) * s.source.buffer.dtype.bytes / WORD for s in loads]
        work.held = max(work.held, self.gathered + max(held, default=0.0))
        before, self.rows_read = self.rows_read, set()
        for statement, made in own.made:
            if made is not None:
                work.largest = max(work.largest, math.prod(map(self.block, made.spans)))
                work.statements += times * self.rows(made)
            self.statement(statement, times)
        self.rows_read = before

    def statement(self, statement: Statement, times: float) -> None:
        """Adds the work of a statement that runs some times."""
        work = self.work
        match statement:
            case For():
                self.loop(statement, times)
            case Cascade():
                pass  # it runs a few times only
            case Load() if self.is_there(statement):
                self.loaded[statement.tile] = statement.source
            case Load(tile, access):
                self.loaded[tile] = access
                self.there.add(_place(access))
                self.move(access, tile, times)
                if self.is_turned(access):
                    size = self.elements(tile) * access.buffer.dtype.bytes
                    work.turned += size * times
                    work.turning = max(work.turning, size)
            case Lookup(tile, access):
                size = self.elements(tile) * access.buffer.dtype.bytes * times
                work.moved += size
                self.seen[access.buffer] = self.seen.get(access.buffer, 0.0) + size
            case Store(access, tile, places=Tile()):
                size = self.elements(tile) * access.buffer.dtype.bytes * times
                work.moved += size
                work.written += size
                self.seen[access.buffer] = self.seen.get(access.buffer, 0.0) + size
            case Store(access, tile):
                self.move(access, tile, times)
                if access.buffer.space is Space.GLOBAL:  # a cache reads what it writes
                    size = self.elements(tile) * access.buffer.dtype.bytes * times
                    work.written += size
            case Compute(tile):
                elements = self.elements(tile) * times
                operations, functions = self.facts.weights[statement]
                work.operations += operations * elements
                work.functions += functions * elements
            case Fold(_, operand, groups=Span()):
                work.operations += self.elements(operand) * times
            case Fold(tile, operand):
                work.folding += times * self.waits(tile)
                if statement.span != operand.spans[-1]:
                    work.crossed += times * self.elements(tile)
                work.operations += self.elements(operand) * times
            case RunningFold(_, operand) if any(statement in x.body for x in self.triangles):
                work.operations += TRIANGULAR * self.elements(operand) * times
            case RunningFold(_, operand, _, combiner):
                work.folding += times
                each = SCANNED[self.target] * weight(combiner.combine[0], self.weights)
                work.operations += each * self.elements(operand) * times
            case Contract(tile, left, right, span) if self.has_tensor_cores:
                self.multiply(statement, times)
            case Contract(tile, left, right, span):
                work.products += 2.0 * self.elements(tile) * self.length(span) * times
                work.dtype = str(self.facts.types.of(statement))
                accesses = [self.loaded.get(side) for side in (left, right)]
                columns = self.columns(tile)
                work.transposed += times * sum(
                    4.0 * math.prod(map(self.length, access.spans))
                    for access in accesses
                    if access is not None and columns in access.spans[:-1]
                )
            case Fill(tile):
                work.operations += 0.25 * self.elements(tile) * times

    def is_there(self, statement: Load | Lookup) -> bool:
        """True if a kernel of a GPU has loaded a block before, which its loops do not change."""
        if self.target != "cuda" or isinstance(statement, Lookup):
            return False
        spans = statement.source.spans
        fixed = (
            s.at in self.grid or isinstance(s.at, int) or self.blocks(s.dim) == 1 for s in spans
        )
        return _place(statement.source) in self.there and all(fixed)

    def share_memory(self) -> None:
        """Notes the shared memory of a program: for each stage, and for all that it needs once."""
        memory, work = self.facts.shared, self.work
        few, more = (memory.estimate(self.whole, stages, WARPS) for stages in (2, 3))
        work.each_stage, work.kept = float(more - few), float(2 * few - more)

    def share_blocks(self, order: LaunchOrder) -> None:
        """Notes which loops over programs load the same blocks of arrays again."""
        work, loops = self.work, order.loops(self.blocks, order.group(self.whole))
        work.order = tuple(length for _, length in loops)
        patterns = Counter(buffer for buffer, _ in self.moved_by)
        work.reads = tuple(
            Reads(
                self.seen[buffer] / patterns[buffer],
                min(self.own[buffer], moved / work.programs),
                moved,
                tuple(index in indices for index, _ in loops),
            )
            for (buffer, indices), moved in self.moved_by.items()
        )

    def note_vectors(self, body: BodyFacts) -> None:
        """Notes the vectors that a step multiplies with all of a row, one number each.

        Beside products of matrices, all vectors count.
        """
        products = [s for s in body.products if s not in self.facts.dots]
        if len(products) < len(body.products):
            vectors = [s for s in body.loads if len(s.tile.spans) == 1]
            lengths = (self.elements(s.tile) * s.source.buffer.dtype.bytes for s in vectors)
            self.work.beside = min([self.work.beside, *lengths])
        loaded = {s.tile: s.source for s in body.loads if isinstance(s, Load)}
        for sides in ((s.left, s.right) for s in products):
            for vector, block in (sides, sides[::-1]):
                spans = loaded[block].spans if vector in loaded and block in loaded else ()
                if len(vector.spans) == 1 < len(spans) and vector.spans[0] in spans[:-1]:
                    sizes = loaded[vector].buffer.dtype.bytes, loaded[block].buffer.dtype.bytes
                    self.work.across = min(self.work.across, self.elements(vector) * sizes[0])
                    self.work.along = min(self.work.along, self.length(spans[-1]) * sizes[1])

    def multiply(self, statement: Contract, times: float) -> None:
        """Adds the work of a product on a GPU: that of tensor cores, or of others with vectors.

        A group of four warps multiplies 64 rows at a time with all columns, which it reads from
        shared memory; it reads the rows of two products in a step once. With fewer rows, each warp
        has columns of its own and reads all rows.
        """
        work = self.work
        depth = math.prod(map(self.length, statement.summed))
        product = self.facts.dots.get(statement)
        if product is None:
            work.operations += WIDENED * self.products(statement) * times
            return
        rows, columns = (
            math.prod(map(self.length, some)) for some in (product.rows, product.columns)
        )
        batch = math.prod(map(self.length, product.batch), start=1.0)
        work.products += 2.0 * batch * rows * columns * depth * times
        own = self.facts.types.of(statement)
        work.dtype = str(own)
        is_grouped = rows >= GROUPED
        read = rows + columns * rows / GROUPED
        if is_grouped and product.first in self.rows_read:
            work.has_twins, read = True, read - rows
        self.rows_read.add(product.first)
        if not is_grouped:
            steps = times / (work.programs * work.busy)
            work.in_a_row = max(work.in_a_row, steps * (depth / DEEP + BEFORE))
            row = depth * own.bytes
            merged = [len(x) > 1 for x in (product.rows, product.columns, statement.summed)]
            first, second = (conflicts(row, merged=x or merged[2]) for x in merged[:2])
            read = rows * WARPS * first + columns * second
        work.read_by_cores += batch * depth * own.bytes * read * times
        work.is_grouped &= is_grouped
        self.has_many_columns |= columns >= GROUPED
        if own is DType.float32 and self.facts.types.is_exact(statement):
            work.is_exact = True
            work.is_chained |= not {statement.left, statement.right} <= self.loaded.keys()
        if batch > 1:
            blocks = map(self.elements, (statement.left, statement.right, statement.tile))
            work.operations += IN_BATCHES * times * sum(blocks)
        if not is_grouped:
            passed = self.mixed & {statement.left, statement.right}
            work.operations += PASSED_ON * times * sum(map(self.elements, passed))

    def is_handed_over(self, load: Load | Lookup, body: Body) -> bool:
        """True if threads use what others have loaded, as the numbers of a row for several rows.

        Each loads a single number itself.
        """
        if self.elements(load.tile) == 1:
            return False
        users = [s.tile for s in body if isinstance(s, Compute) and load.tile in s.operands]
        missing = {span for tile in users for span in tile.spans} - {*load.tile.spans}
        return any(self.length(span) > 1 for span in missing)

    def loop(self, loop: For, times: float) -> None:
        """Adds the work of a loop, by its mean number of trips."""
        trips = float(max(self.blocks(loop.index.dim) - loop.first, 0))
        if loop.window is not None:
            trips = self.visited(loop, loop.window, trips)
        if loop.share is not None:  # programs without a block stay idle
            parts = self.parts[loop.index] = loop.share.parts
            self.work.has_parts = True
            self.work.busy = min(self.work.busy, trips / parts)
            trips /= parts
        sums = self.facts.spread[loop] if self.has_tensor_cores else ()
        self.work.spread += times * sum(self.waits(s.tile) for s in sums)
        gathered = [t for _, some in loop.gathered for t in some]
        before, own = self.gathered, sum(map(self.elements, gathered))
        if self.has_tensor_cores:
            own += sum(map(self.products, sums))
        self.gathered = before + own
        if any(isinstance(s, Contract) for s in loop.body):
            over = self.facts.held_over.get(loop, {})
            registers = sum(self.elements(tile) * share for tile, share in over.items())
            self.work.held_over = max(self.work.held_over, registers)
            self.work.restarts += max(0.0, times - self.work.programs * self.work.busy)
        after = times * max(0.0, trips - 1)
        self.work.gathering += after if self.facts.bodies[loop.body].gathers else 0.0
        ahead = after if loop in self.streams else 0.0
        self.body(loop.body, times * trips, ahead)
        self.gathered = before

    def move(self, access: Access, tile: Tile, times: float) -> None:
        buffer = access.buffer
        size = self.elements(tile) * buffer.dtype.bytes * times
        if buffer.space is Space.GLOBAL:
            self.work.moved += size
            self.work.wasted += size * (self.waste(access) - 1)
            self.work.jumps += self.jumps(access) * times
            whole = math.prod(self.shape(buffer)) * buffer.dtype.bytes
            self.seen[buffer] = max(self.seen.get(buffer, 0.0), float(whole))
            self.own[buffer] = max(self.own.get(buffer, 0.0), self.reached(access))
            indices = frozenset(s.at for s in access.spans if isinstance(s.at, Index))
            indices &= self.grid
            if not indices:
                self.common.add(buffer)
            if self.facts.order is not None:
                key = (buffer, indices)
                self.moved_by[key] = self.moved_by.get(key, 0.0) + size
            return
        self.work.scratch += size
        if self.target == "cpu":  # that of a GPU lies in its main memory
            self.own[buffer] = max(self.own.get(buffer, 0.0), self.reached(access))

    def reached(self, access: Access) -> float:
        """The bytes of a buffer that one program moves."""
        return math.prod(map(self.reach, access.spans), start=float(access.buffer.dtype.bytes))

    def reach(self, span: Span) -> float:
        """The elements along a dim that one program moves."""
        if isinstance(span.at, int) or span.at in self.grid:
            return self.length(span)
        return self.tiling.extents.of(span.dim.axis) / self.parts.get(span.at, 1)

    def columns(self, tile: Tile) -> Span | None:
        """The axis of a product along which a CPU's vectors run: that of results, or the last."""
        lanes = [result[-1] for result in self.facts.results if result]
        along = [span for span in tile.spans if span.dim in lanes]
        return next(reversed(along or tile.spans), None)

    def is_turned(self, access: Access) -> bool:
        """True if rows of a block are columns of a result."""
        dims = [span.dim for span in access.spans]
        return any(
            dims[-1] in result[:-1] and result[-1] in dims for result in self.facts.results if dims
        )


def conflicts(row: float, *, merged: bool) -> float:
    """The times that shared memory is read for a row of an operand, if some axes are merged.

    Rows of matrices are shifted, so that cores read the same columns of several at a time. Where
    axes are merged they are not: eight rows lie in the same banks.
    """
    return max(1.0, min(float(AT_A_TIME), row / VECTOR_BYTES)) if merged else 1.0


def _place(access: Access) -> object:
    """The block of a buffer, by dims: loops over one block differ in their indices."""
    return access.buffer, *(span.dim for span in access.spans)
