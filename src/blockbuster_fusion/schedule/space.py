"""The schedule space: what may be chosen for a program on a machine, and within which bounds.

A point of the space is a `Config` (schedule/config.py). Nothing is searched here.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeGuard

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.nest.analysis.described_blocks import describable_blocks
from blockbuster_fusion.nest.analysis.few_rows import products_with_few_rows, weights_in_place
from blockbuster_fusion.nest.analysis.joined_products import joinable_products
from blockbuster_fusion.nest.analysis.launch_order import LaunchOrder
from blockbuster_fusion.nest.analysis.matrix_products import is_dot, product_of
from blockbuster_fusion.nest.analysis.spread_sums import streaming_loops
from blockbuster_fusion.nest.nest import (
    Contract,
    Fold,
    For,
    Kernel,
    Load,
    Nest,
    Span,
    Statement,
    Tile,
)
from blockbuster_fusion.nest.passes.order_grid import is_named
from blockbuster_fusion.nest.passes.take_turns import gains_by_turns
from blockbuster_fusion.nest.passes.transpose_products import few_rows_and_columns
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.schedule.config import GRIDS
from blockbuster_fusion.schedule.cpu import ALONE
from blockbuster_fusion.schedule.defaults import is_tiled
from blockbuster_fusion.schedule.gpu import has_descriptors
from blockbuster_fusion.schedule.schedule import LARGEST, Grid, Schedule

MOST_OF_ONE = 1 << 15
"""The elements of all arrays of a kernel that one program of a GPU may run alone."""
LAUNCHES = {"warps": (1, 2, 4, 8, 16), "stages": (1, 2, 3, 4, 5), "group": (1, 4, 16)}
"""The numbers that are tried for a GPU."""
SEARCHED_LAUNCHES = {"warps": (2, 4, 8, None), "stages": (2, 3, 4, 5, 6)}
"""Those that are predicted for products; None leaves it to the rule of thumb."""
PASTS = (None, 1, LARGEST)
"""The sizes from which results of a CPU go past the caches that are tried: all, or none."""
CHUNKS = (1, 4, 16, 64)
"""The programs for a thread of a CPU at a time that are tried."""
SHORTEST_DOT = 16
LONGEST = {"cpu": 16384, "cuda": 4096}
"""The longest tile of an axis that no product has."""
LONGEST_FOLDED = 8192
"""The same for an axis along which a GPU folds each block, or multiplies it with a vector: its
threads meet less often."""
SHORTEST_SUM = 64
"""The shortest tile of a GPU along which dots sum contiguous rows: 128 bytes of 16-bit numbers."""
SHORTEST_STREAM = 32
"""The shortest piece of a row that a GPU multiplies with a vector."""
LONGEST_DOT = {"cpu": 256, "cuda": 512}
LONGEST_IN_PLACE = 1 << 14
"""The same where few rows are multiplied with blocks that are read in place."""
LEAST = {"cpu": 4, "cuda": 1}
"""The shortest tile; shorter ones make loops over too little."""
VECTOR = 16
"""The elements of the longest vectors of a CPU."""
GOOD_DOTS = ((128, 256, 64), (128, 128, 64), (16, 32, 256))
"""Rows, columns and summed elements of tiles with which large products, and few rows, are fast."""
GOOD_TWINS = (128, 64, 64)
"""The same for products of the same rows, so that a processor runs two programs at a time."""
GOOD_VECTORS = ((8, 512), (16, 256))
"""Rows and their elements of blocks that are multiplied with a vector."""
SHARES = (0.25, 1, 4, 16)
"""The shares of the programs that would fill a machine that reductions are split for."""
FULL = 4
"""The number of programs for each processor with which a grid need not be split."""


MOST_BYTES = {"cpu": 256 << 10, "cuda": 16 << 10}
"""The bytes of the largest tile, in float32."""
MOST_FOLDED_BYTES = 32 << 10
"""The same for tiles that a GPU folds, or multiplies with vectors."""
MOST_MIRRORED_BYTES = 64 << 10
"""The same for a grid by diagonals, whose programs read short pieces of rows apart."""
MOST_PRODUCT_BYTES = 128 << 10
"""The same for kernels of a GPU with products of matrices, which have more warps."""


def balanced(length: int, tile: int) -> int:
    """The tile of equal blocks, as many as a tile gives; whole vectors, several in long blocks."""
    count = max(1, -(-length // tile))
    whole = next((n for n in (4 * VECTOR, VECTOR) if tile >= 4 * n), 1)
    return min(tile, -(-length // (count * whole)) * whole) if length > tile else tile


class Space:
    """The choices for a nest on a machine, for arrays of certain sizes."""

    def __init__(
        self,
        nest: Nest,
        extents: Extents,
        machine: Machine,
        usual: Mapping[Dim, int] | None = None,
    ) -> None:
        """`usual` are the tiles with which programs are counted."""
        self.nest, self.extents, self.machine = nest, extents, machine
        self.tiling = Tiling(extents, usual or {})
        contracts = [s for k in nest.kernels for s in k.statements if self.is_product(s)]
        spans = [span for c in contracts for t in (c.tile, c.left, c.right) for span in t.spans]
        self.multiplied = {span.dim for span in spans}
        self.in_place = self._in_place()
        self.streamed = self._streamed()
        self.summed = self._summed() if machine.target == "cuda" else set()
        self.folded = self._folded() if machine.target == "cuda" else set()
        self.long = self.folded | (self.streamed - self.multiplied)

    def is_product(self, statement: Statement) -> TypeGuard[Contract]:
        """True for a product of matrices; on a GPU, products with vectors have tiles as others."""
        if not isinstance(statement, Contract):
            return False
        return self.machine.target == "cpu" or is_dot(statement)

    def _in_place(self) -> set[Tile]:
        """The blocks of weights that few rows are multiplied with; a CPU does not copy them."""
        if self.machine.target != "cpu":
            return set()

        def longest(span: Span) -> int:
            return self.extents.of(span.dim.axis)

        found: set[Tile] = set()
        for kernel in self.nest.kernels:
            statements = kernel.statements
            found |= {*weights_in_place(statements, products_with_few_rows(statements, longest))}
        return found

    def _summed(self) -> set[Dim]:
        """The dims that dots sum along contiguous rows of at least a line of the second cache."""
        statements = [s for kernel in self.nest.kernels for s in kernel.statements]
        dots = [s for s in statements if isinstance(s, Contract) and is_dot(s)]
        last = {s.source.spans[-1].dim for s in statements if isinstance(s, Load) and s.tile.spans}
        return {
            s.span.dim
            for s in dots
            if s.span.dim in last and self.extents.of(s.span.dim.axis) >= SHORTEST_SUM
        }

    def _folded(self) -> set[Dim]:
        """The dims along which whole rows or the blocks of loops are folded, without products.

        Rows may be folded after their loop, unless programs share them. Loops that go through the
        same rows again have blocks as long.
        """
        statements = [s for kernel in self.nest.kernels for s in kernel.statements]
        has_parts = any(isinstance(s, For) and s.share is not None for s in statements)
        kernels = [
            kernel
            for kernel in self.nest.kernels
            if not any(isinstance(s, Contract) for s in kernel.statements)
        ]
        found: set[Dim] = set()
        for kernel in kernels:
            loops = [s for s in kernel.statements if isinstance(s, For)]
            folds = [s for s in kernel.statements if isinstance(s, Fold)]
            rows = [] if has_parts else [s for s in folds if s.span == s.operand.spans[-1]]
            folding = {
                loop.index.dim.axis
                for loop in loops
                if any(s.span.at is loop.index for s in folds if s in loop.body or s in rows)
            }
            found |= {loop.index.dim for loop in loops if loop.index.dim.axis in folding}
            found |= {s.span.dim for s in folds if s.span.dim.unit}
        return found

    def _streamed(self) -> set[Dim]:
        """The dims of rows that a GPU multiplies with vectors; it reads long pieces of them."""
        if self.machine.target != "cuda":
            return set()
        statements = [s for kernel in self.nest.kernels for s in kernel.statements]
        loads = {s.tile: s.source.spans for s in statements if isinstance(s, Load)}
        vectors = [s for s in statements if isinstance(s, Contract) and not is_dot(s)]
        spans = [loads[side] for s in vectors for side in (s.left, s.right) if side in loads]
        return {own[-1].dim for own in spans if len(own) > 1 and is_tiled(own[-1].dim)}

    def tiles(self, dim: Dim) -> list[int]:
        """The tiles of a dim: powers of two, up to the length of its axis.

        On a CPU blocks are about equally long, so that threads have equal shares. One tile gives
        each thread one block.
        """
        target = self.machine.target
        is_multiplied = dim in self.multiplied
        least = SHORTEST_DOT if is_multiplied else LEAST[target]
        least = SHORTEST_STREAM if dim in self.streamed - self.multiplied else least
        least = SHORTEST_SUM if dim in self.summed else least
        most = (LONGEST_DOT if is_multiplied else LONGEST)[target]
        most = LONGEST_IN_PLACE if self.in_place else most
        most = LONGEST_FOLDED if dim in self.long else most
        whole = 1 << max(self.extents.of(dim.axis) - 1, 0).bit_length()
        first, last = least.bit_length() - 1, max(least, min(most, whole)).bit_length()
        powers = [1 << power for power in range(first, last)]
        if target == "cpu":
            length, processors = self.extents.of(dim.axis), self.machine.processors
            share = -(-length // (VECTOR * processors)) * VECTOR
            shares = {share} if processors > 1 and least <= share <= powers[-1] else set()
            return sorted(shares | {balanced(length, power) for power in powers})
        return powers

    @cached_property
    def dims(self) -> list[Dim]:
        """The dims whose tiles may be chosen."""
        found = {dim for kernel in self.nest.kernels for dim in kernel.dims if is_tiled(dim)}
        return sorted(found, key=lambda dim: dim.label)

    @property
    def long_rows(self) -> dict[Dim, int]:
        """Tiles that are a few long rows of inputs and results: a start for a search.

        What is between kernels does not count, as the parts of sums have rows of their own.
        """
        between = {*self.nest.between}
        buffers = [b for k in self.nest.kernels for b in k.global_buffers if b.axes]
        buffers = [b for b in buffers if b not in between]
        rank = max((len(buffer.axes) for buffer in buffers), default=0)
        along = {buffer.axes[-1].dim.axis for buffer in buffers if len(buffer.axes) == rank}
        tiles = {dim: self.tiles(dim)[-1 if dim.axis in along else 0] for dim in self.dims}
        return self.shortened(tiles)

    def shortened(self, tiles: Mapping[Dim, int]) -> dict[Dim, int]:
        """Tiles of which the longest are made shorter until they fit."""
        made = dict(tiles)
        while not self.fits(made):
            longest = max(self.dims, key=lambda dim: (made[dim], dim.label), default=None)
            if longest is None or made[longest] <= self.tiles(longest)[0]:
                break
            shorter = [tile for tile in self.tiles(longest) if tile < made[longest]]
            made[longest] = shorter[-1]
        return made

    @property
    def starts(self) -> list[dict[Dim, int]]:
        """Tiles from which a search begins: long rows, and those of good products on a GPU."""
        made = [self.long_rows]
        kernels = self.nest.kernels if self.machine.target == "cuda" else ()
        products = [s for k in kernels for s in k.statements if isinstance(s, Contract)]
        dots = [product_of(s) for s in products if is_dot(s)]
        good = [*GOOD_DOTS] if dots else []
        good += [GOOD_TWINS] if len({x.first for x in dots}) < len(dots) else []
        for rows, columns, summed in good:
            tiles = {span.dim: columns for p in dots for span in p.columns}
            tiles |= {span.dim: rows for p in dots for span in p.rows}
            made.append(tiles | {s.span.dim: summed for s in products})
        for rows, piece in GOOD_VECTORS if self.streamed else ():
            others = dict.fromkeys(self.dims, rows)
            made.append(others | dict.fromkeys(self.streamed, piece))
        return [self.bounded(tiles) for tiles in made]

    def has_one_step(self, tiles: Mapping[Dim, int]) -> bool:
        """True if products with vectors, and no others, take one step by some tiles."""
        lengths = {dim: self.extents.of(dim.axis) for dim in self.streamed}
        is_whole = all(tiles.get(dim, 0) >= length for dim, length in lengths.items())
        return bool(lengths) and is_whole and not self.multiplied

    def bounded(self, tiles: Mapping[Dim, int]) -> dict[Dim, int]:
        """Tiles no longer than their axes need."""
        longest = {dim: self.tiles(dim)[-1] for dim in tiles if is_tiled(dim)}
        return {dim: min(tiles[dim], most) for dim, most in longest.items()}

    def splits(self, programs: int) -> Iterator[dict[str, int]]:
        """The ways to share reductions and scans, if a grid of so few programs is idle."""
        idle = self.machine.processors * FULL // max(programs, 1)
        if idle < 2 or self.machine.processors == 1:
            return
        loops = [s for k in self.nest.kernels for s in k.body if isinstance(s, For)]
        loops = [loop for loop in loops if loop.gathered or loop.carried]
        lengths = {s.index.dim.name: self.extents.of(s.index.dim.axis) for s in loops}
        for axis, length in lengths.items():
            powers = (1 << max(1, int(idle / share).bit_length() - 1) for share in SHARES)
            for parts in dict.fromkeys(min(power, length) for power in powers):
                if parts >= 2:
                    yield {axis: parts}

    @property
    def launches(self) -> list[dict[str, Any]]:
        """The options of launches that may be chosen: one of them changed at a time."""
        made: list[dict[str, Any]] = []
        if self.machine.target == "cuda":
            grouped = any(LaunchOrder(kernel).is_grouped for kernel in self.nest.kernels)
            tried = {name: LAUNCHES[name] for name in LAUNCHES if grouped or name != "group"}
            made += [{name: number} for name, numbers in tried.items() for number in numbers]
            processors = self.machine.processors
            turns = (None, processors, 2 * processors) if self.multiplied else ()
            return [*made, *({"programs": number} for number in turns)]
        made += [{"threads": number} for number in self.threads]
        made += [{"chunk": number} for number in self.chunks]
        return made + [{"past": number} for number in self.pasts]

    @cached_property
    def searched_launches(self) -> list[dict[str, Any]]:
        """The options of launches that are searched by predicted time: those of GPU products.

        Loops that sum whole rows may do without stages.
        """
        kernels = self.nest.kernels if self.machine.target == "cuda" else ()
        if not any(isinstance(s, Contract) for k in kernels for s in k.statements):
            streams = {loop.index.dim for k in kernels for loop in streaming_loops(k)}
            return [{"stages": 1}] if streams & self.folded else []
        single = () if self.multiplied else ({"warps": 1},)  # enough for one row of a block
        made: list[dict[str, Any]] = [*single]
        made += [{name: n} for name in ("warps", "stages") for n in SEARCHED_LAUNCHES[name]]
        joined = (replace(x, is_described=True, is_joined=True) for x in kernels if self.are_joined)
        gain = any(map(gains_by_turns, (*kernels, *joined)))
        turns = (self.machine.processors, None) if gain else ()
        described = (True, False) if self.are_described else ()
        made += [{"described": True}, {"described": False, "joined": False}] if described else []
        made += [{"joined": flag} for flag in described if self.are_joined]
        made += [{"programs": number} for number in turns]
        if described and turns:  # descriptors store results while a program goes on to its next
            made.append({"described": True, "programs": turns[0]})
        return made

    @property
    def may_transpose(self) -> bool:
        """True if there are products with few rows."""
        return any(few_rows_and_columns(kernel) for kernel in self.nest.kernels)

    @property
    def are_described(self) -> bool:
        """True if descriptors can load operands of products."""
        return has_descriptors(self.machine) and any(map(describable_blocks, self.nest.kernels))

    @property
    def are_joined(self) -> bool:
        """True if a descriptor can load columns of two products of the same rows."""
        return has_descriptors(self.machine) and any(map(joinable_products, self.nest.kernels))

    @property
    def pasts(self) -> list[int | None]:
        """The sizes from which results go past the caches; products are stored through tiles."""
        return [] if self.multiplied else [*PASTS]

    @property
    def threads(self) -> list[int | None]:
        """The threads of a CPU: one, all, or None for the rule; teams of other sizes start slowly.

        The rule has all processors run large arrays, so all are tried for small ones only.
        """
        most = self.machine.processors
        if most == 1:
            return []
        return [None, 1, *([most] if self.is_small else [])]

    @property
    def is_small(self) -> bool:
        """True if a kernel has so few elements that it runs on one thread of a CPU."""
        return any(self.elements(kernel) <= ALONE for kernel in self.nest.kernels)

    def elements(self, kernel: Kernel) -> int:
        """The elements of the arrays of a kernel."""
        return sum(math.prod(buffer_shape(b, self.tiling)) for b in kernel.global_buffers)

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The grids that are worth a look: one program for several small kernels of a GPU."""
        kernels = self.nest.kernels
        is_one = self.machine.target == "cuda" and len(kernels) > 1 and not self.multiplied
        return GRIDS if is_one and max(map(self.elements, kernels)) <= MOST_OF_ONE else GRIDS[:2]

    @property
    def chunks(self) -> list[int | None]:
        """The programs that a thread takes at a time, fewer than there are; None for the rule."""
        counts = [[self.blocks(i.dim) for i in k.grid] for k in self.nest.kernels]
        programs = max(map(math.prod, counts), default=1)
        fewer: list[int | None] = [number for number in CHUNKS if number < programs]
        return [None, *fewer] if fewer else []

    def blocks(self, dim: Dim) -> int:
        return len(self.tiling.starts(dim))

    def orders(self, order: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The orders of grids in which two loops that follow each other are swapped.

        Loops over one block make no difference.
        """
        yield ()
        for kernel in self.nest.kernels:
            own = {
                index: next((name for name in order if is_named(index, name)), index.dim.label)
                for index in kernel.grid
            }
            others = [name for name in order if name not in own.values()]
            whole = order if set(order) >= {*own.values()} else (*own.values(), *others)
            longer = [name for index, name in own.items() if self.blocks(index.dim) > 1]
            for slow, fast in pairwise(longer):
                swapped = {slow: fast, fast: slow}
                yield tuple(swapped.get(name, name) for name in whole)

    def near(self, schedule: Schedule) -> Iterator[Schedule]:
        """The schedules that differ in one option; not all can be run.

        Loops that go or come have the order of the program.
        """
        others = [grid for grid in self.grids if grid != schedule.grid]
        changes: list[dict[str, Any]] = [{"grid": grid, "order": ()} for grid in others]
        changes += [{"apart": not schedule.apart, "order": ()}]
        if self.machine.target == "cuda":
            changes += [{"padded": not schedule.padded, "order": ()}]
            changes += [{"mirrored": False}] if schedule.mirrored else []
            changes += [{"transposed": not schedule.transposed}] if self.may_transpose else []
            changed = {"described": not schedule.described, "joined": False}
            changes += [changed] if self.are_described else []
            is_joined = schedule.described and self.are_joined
            changes += [{"joined": not schedule.joined}] if is_joined else []
            has_several = len(self.nest.kernels) > 1
            changes += [{"together": not schedule.together}] if has_several else []
        changes += [{"order": order} for order in self.orders(schedule.order)]
        changes += self.launches
        for axis, parts in schedule.split.items():
            rest = {a: n for a, n in schedule.split.items() if a != axis}
            counts = [n for n in (parts * 2, parts // 2) if n > 1]
            changes += [{"split": {**rest, axis: n}} for n in counts]
            atomic = schedule.atomic and bool(rest)
            changes += [{"split": rest, "atomic": atomic, "order": ()}]
        if schedule.split:
            changes += [{"atomic": not schedule.atomic}]
        made = dict.fromkeys(replace(schedule, **change) for change in changes)
        yield from (other for other in made if other != schedule)

    @cached_property
    def blocks_of_tiles(self) -> tuple[tuple[tuple[Dim, ...], int], ...]:
        """The dims of each tile, with the bytes that it may have."""
        target, found = self.machine.target, dict[tuple[tuple[Dim, ...], int], None]()
        for kernel in self.nest.kernels:
            multiplies = any(self.is_product(s) for s in kernel.statements)
            most = MOST_PRODUCT_BYTES if multiplies and target == "cuda" else MOST_BYTES[target]
            most = MOST_MIRRORED_BYTES if kernel.is_mirrored and not multiplies else most
            for statement in kernel.statements:
                made = getattr(statement, "tile", None)
                if made is not None and made not in self.in_place:
                    dims = tuple(span.dim for span in made.spans)
                    is_long = not multiplies and any(dim in self.long for dim in dims)
                    found[dims, MOST_FOLDED_BYTES if is_long else most] = None
        return tuple(found)

    def fits(self, tiles: Mapping[Dim, int]) -> bool:
        """True if no tile is larger than registers, or the second cache, can hold."""
        lengths = {dim: self.length(dim, tiles) for dim in self.dims_of_tiles}
        return all(
            math.prod([lengths[dim] for dim in dims]) * 4 <= most
            for dims, most in self.blocks_of_tiles
        )

    @cached_property
    def dims_of_tiles(self) -> tuple[Dim, ...]:
        """The dims that tiles have, each once."""
        return tuple(dict.fromkeys(dim for dims, _ in self.blocks_of_tiles for dim in dims))

    def length(self, dim: Dim, tiles: Mapping[Dim, int]) -> int:
        """The elements of a block; a GPU multiplies whole ones, also of shorter axes."""
        extent = self.extents.of(dim.axis)
        if dim.unit or not dim.packed:
            return extent if dim.unit else 1
        tile = tiles.get(dim, 1)
        is_whole = self.machine.target == "cuda" and dim in self.multiplied
        return tile if is_whole else min(extent, tile)
