"""Kernel programs of cases with several, and the configurations of each that are measured.

benchmarks/gpu_alternatives.py measures each program by itself. A program is named by an operator
that it computes. Other programs than the chosen ones are had by operators that are to be together,
or apart. Points are as in benchmarks/gpu_points.py; `snapshot` among their options, counted from
one, takes another snapshot of the program, with its default tiles.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

Point = tuple[dict[str, int], dict[str, Any]]
"""Tiles by their labels, and options of the schedule."""

Names = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Part:
    """A kernel program of a case."""

    case: str
    points: tuple[Point, ...]
    operator: str = ""
    """An operator that it computes; by default, the case has one program."""
    together: Names = ()
    apart: Names = ()
    """The sets of operators that one program holds, and those no two of which one holds."""


LAYER = "rms norm, SwiGLU, residual"
UP, DOWN = "mm_1", "mm_2"
"""The last product of the up-projections, and that of the down-projection. Other operators have
other names where PyTorch writes out a norm."""


def vectors(points: Iterable[tuple[int, int, int, int]]) -> Iterator[Point]:
    """Products with a vector: pieces of rows, rows, warps and stages."""
    for piece, rows, warps, stages in points:
        yield {"B.0": piece, "M.0": rows}, {"warps": warps, "stages": stages}


def up_of_one_row() -> Iterator[Point]:
    """Two products with a vector that is normed: are long pieces better, and how many stages?"""
    # fmt: off
    yield from vectors((
        (1024, 4, 4, 3), (1024, 4, 4, 2), (1024, 4, 4, 4), (1024, 4, 8, 3), (1024, 2, 2, 3),
        (1024, 8, 8, 3), (1024, 8, 4, 2), (512, 4, 2, 3), (512, 4, 2, 4), (512, 8, 2, 3),
        (512, 8, 4, 2), (512, 8, 4, 3), (512, 8, 4, 4), (512, 8, 8, 3), (256, 8, 2, 3),
        (256, 8, 2, 4), (256, 8, 2, 5), (256, 8, 2, 6), (256, 8, 4, 4), (256, 16, 4, 3),
        (256, 16, 4, 4), (2048, 2, 4, 2), (2048, 4, 8, 2), (4096, 1, 4, 1), (4096, 2, 8, 1),
        (4096, 1, 8, 1),
    ))
    # fmt: on


def down_of_one_row() -> Iterator[Point]:
    """A product with a vector that is long: the programs of one round, and their stages."""
    # fmt: off
    yield from vectors((
        (512, 8, 4, 2), (512, 8, 4, 3), (512, 8, 4, 4), (512, 8, 4, 5), (512, 8, 8, 4),
        (512, 8, 2, 4), (1024, 8, 4, 2), (1024, 8, 8, 3), (1024, 8, 8, 4), (1024, 4, 4, 2),
        (1024, 4, 4, 4), (512, 4, 2, 4), (512, 4, 2, 6), (512, 16, 8, 3), (256, 8, 2, 6),
        (256, 8, 4, 6), (2048, 4, 8, 2), (2048, 4, 8, 3), (2048, 2, 4, 3),
    ))
    # fmt: on
    yield {"B.0": 512, "M.0": 16}, {"split": {"B": 2}}


def up_of_one_short_row() -> Iterator[Point]:
    """Rows of 1024: all of a row in one step, which waits once, or some steps."""
    # fmt: off
    yield from vectors((
        (1024, 4, 4, 1), (1024, 2, 4, 1), (1024, 2, 2, 1), (1024, 4, 2, 1), (1024, 8, 8, 1),
        (1024, 8, 4, 1), (1024, 4, 8, 1), (1024, 1, 1, 1), (512, 8, 4, 3), (512, 8, 2, 3),
        (512, 4, 2, 3), (512, 4, 4, 3), (512, 2, 2, 3), (512, 16, 8, 3), (256, 8, 2, 5),
        (256, 8, 4, 5), (256, 4, 2, 5), (256, 16, 4, 5),
    ))
    # fmt: on


def down_of_one_short_row() -> Iterator[Point]:
    """Rows of 2816: one, three or six steps."""
    # fmt: off
    yield from vectors((
        (4096, 1, 4, 1), (4096, 1, 8, 1), (4096, 2, 8, 1), (2048, 2, 4, 2), (2048, 1, 4, 2),
        (1024, 4, 4, 3), (1024, 4, 4, 4), (1024, 4, 8, 4), (1024, 2, 2, 4), (1024, 2, 4, 4),
        (1024, 1, 2, 4), (1024, 8, 8, 4), (512, 4, 2, 4), (512, 4, 2, 6), (512, 4, 4, 6),
        (512, 2, 2, 6), (512, 8, 4, 6),
    ))
    # fmt: on


def up_of_few_rows() -> Iterator[Point]:
    """A norm within the kernel of both products, beside one before it."""
    inside = {"snapshot": 2, "apart": False}
    # fmt: off
    for depth, columns, warps, stages in (
        (256, 32, 4, 5), (256, 32, 4, 4), (256, 32, 4, 3), (256, 32, 8, 5), (256, 32, 2, 5),
        (128, 32, 4, 6), (128, 32, 4, 8), (512, 32, 4, 2), (512, 16, 4, 3), (512, 16, 8, 3),
        (256, 16, 4, 5), (256, 16, 2, 5), (128, 64, 4, 6), (1024, 16, 8, 1),
    ):
        tiles = {"B.0": 16, "M.0": depth, "N.0": columns}
        yield tiles, inside | {"warps": warps, "stages": stages}
    # fmt: on
    for depth, stages in ((128, 6), (256, 5)):
        tiles = {"B.0": 16, "M.0": depth, "N.0": 64}
        yield tiles, inside | {"transposed": True, "stages": stages}
    again = {"snapshot": 4, "apart": False}
    for depth, warps in product((128, 256), (4, 8)):
        tiles = {"B.0": 16, "M.0": 1024, "M.1": depth, "N.0": 32}
        yield tiles, again | {"warps": warps, "stages": 5}
    for depth, stages in ((128, 5), (256, 4), (256, 5), (64, 6)):
        yield {"M.1": depth}, {"stages": stages}


def down_of_few_rows() -> Iterator[Point]:
    """A product with few programs: shares of its sum, or narrow blocks of columns."""
    # fmt: off
    for depth, columns, warps, stages in (
        (512, 16, 4, 4), (512, 16, 4, 6), (256, 32, 4, 4), (256, 32, 4, 6), (256, 16, 2, 6),
        (256, 16, 4, 8), (1024, 16, 4, 3), (1024, 16, 8, 3), (512, 16, 2, 4),
    ):
        yield {"M.0": depth, "N.0": columns}, {"warps": warps, "stages": stages}
    # fmt: on
    for parts, depth, columns in ((16, 64, 64), (4, 256, 32), (8, 256, 64), (4, 128, 32)):
        tiles = {"M.0": depth, "N.0": columns, "B.1": 1, "N.1": 64}
        yield tiles, {"split": {"M": parts}, "stages": 6}
        yield tiles, {"split": {"M": parts}, "stages": 6, "atomic": True}


def gated() -> Iterator[Point]:
    """Two products of one operand: shorter blocks in more stages, groups, turns."""
    yield from (({}, {"stages": 4, "group": group}) for group in (1, 4, 8, 16))
    yield from (({}, {"stages": stages}) for stages in (3, 5))
    for stages, described in product((5, 6, 7, 8), (True, False)):
        yield {"M.0": 32}, {"stages": stages, "described": described}
    yield {}, {"stages": 4, "described": False}
    yield {}, {"stages": 4, "programs": 132}
    yield {}, {"stages": 4, "programs": 132, "described": False}
    yield {"M.0": 32}, {"stages": 6, "programs": 132}
    yield {"B.0": 256, "N.0": 64}, {"stages": 4}
    yield {"B.0": 64, "N.0": 256}, {"stages": 4}
    yield {"B.0": 128, "N.0": 64}, {"stages": 3, "warps": 4}
    yield {"M.0": 32, "B.0": 128, "N.0": 64}, {"stages": 5, "warps": 4}


def large(rows: str, depth: str, columns: str) -> Iterator[Point]:
    """One large product: turns, descriptors, blocks and groups."""
    yield from (({}, {"stages": 4, "group": group}) for group in (4, 16))
    for programs, described in product((132, None), (True, False)):
        yield {}, {"stages": 4, "programs": programs, "described": described}
    yield {}, {"stages": 3, "programs": 132, "described": True}
    yield {depth: 32}, {"stages": 6}
    for stages, programs in product((3, 4), (264, None)):
        narrow = {rows: 128, columns: 128, depth: 64}
        yield narrow, {"stages": stages, "warps": 4, "programs": programs, "described": True}
    yield {rows: 256, columns: 128, depth: 64}, {"stages": 4}


WIDE, NARROW = (4096, 14336), (1024, 2816)


def part(sizes: tuple[int, ...], operator: str, points: Iterable[Point], **wishes: Names) -> Part:
    """A program of RMS norm with SwiGLU, for some rows."""
    return Part(f"{LAYER} {'x'.join(map(str, sizes))}", (*points,), operator, **wishes)


GATED = {"together": (("mm", "silu", "mm_1"),)}
HALVES = {**GATED, "apart": ((UP, DOWN),)}
UNFUSED = {"apart": (("mm", UP, DOWN),)}
PARTS: dict[str, Part] = {
    "SwiGLU: up, 1x4096": part((1, *WIDE), UP, up_of_one_row()),
    "SwiGLU: down, 1x4096": part((1, *WIDE), DOWN, down_of_one_row()),
    "SwiGLU: up, 1x1024": part((1, *NARROW), UP, up_of_one_short_row()),
    "SwiGLU: down, 1x1024": part((1, *NARROW), DOWN, down_of_one_short_row()),
    "SwiGLU: up, 16x1024": part((16, *NARROW), UP, up_of_few_rows(), **HALVES),
    "SwiGLU: down, 16x1024": part((16, *NARROW), DOWN, down_of_few_rows(), **HALVES),
    "SwiGLU: both gates, 1024x4096": part((1024, *WIDE), UP, gated(), **GATED),
    "SwiGLU: both gates, 4096x4096": part((4096, *WIDE), UP, gated(), **GATED),
    "SwiGLU: first gate, 4096x4096": part(
        (4096, *WIDE), "mm", large("B.0", "M.0", "N.0"), **UNFUSED
    ),
    "SwiGLU: second gate, 4096x4096": part(
        (4096, *WIDE), UP, large("B.0", "N.0", "M.0"), **UNFUSED
    ),
    "SwiGLU: down, 4096x4096": part((4096, *WIDE), DOWN, large("B.0", "M.0", "N.0"), **UNFUSED),
}
"""Programs of RMS norm with SwiGLU: of cases that are short of the best kernels that are known."""
