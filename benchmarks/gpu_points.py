"""Configurations that benchmarks/gpu_alternatives.py measures beside those of the search.

Each point changes tiles and options of the chosen configuration. Some are beyond the space that is
searched. The comment before the points of a case says what they are to decide.
"""

from collections.abc import Iterator
from typing import Any

Point = tuple[dict[str, int], dict[str, Any]]
"""Tiles by their labels, and options of the schedule."""


def grid(label: str, tiles: tuple[int, ...], warps: tuple[int | None, ...]) -> Iterator[Point]:
    """Each tile of a dim with each number of warps."""
    yield from (({label: tile}, {"warps": number}) for tile in tiles for number in warps)


def squares() -> Iterator[Point]:
    """Square blocks with several numbers of warps."""
    for side, warps in ((64, (4, 8, 16)), (128, (8, 16)), (32, (4,))):
        yield from (({"B.0": side, "M.0": side}, {"warps": number}) for number in warps)


def shares(axis: str, counts: tuple[int, ...], tiles: tuple[dict[str, int], ...]) -> list[Point]:
    """Each number of programs that share a reduction or a scan with each of some tiles."""
    return [(tile, {"split": {axis: count}}) for tile in tiles for count in counts]


POINTS: dict[str, list[Point]] = {
    # Four programs a processor, all at the same place: fewer or more warps, and longer blocks.
    "log softmax 512x32000": [
        *(({}, {"warps": warps}) for warps in (4, 16)),
        *(({"M.0": 4096, "M.1": 4096}, {"warps": warps}) for warps in (4, 8)),
        *(({"M.0": 16384, "M.1": 16384}, {"warps": warps}) for warps in (8, 16)),
        ({"M.0": 16384, "M.1": 8192}, {"warps": 16}),
    ],
    # Triangles in registers: the rows of a block, two programs a processor, and stages.
    "cumsum of columns 8192x4096": [
        *(({"B.0": rows, "M.0": 32}, {"warps": warps}) for rows, warps in ((128, 4), (64, 4))),
        *(({"B.0": rows, "M.0": 16}, {"warps": warps}) for rows, warps in ((128, 8), (64, 4))),
        ({"B.0": 128, "M.0": 16}, {"warps": 4}),
        ({"B.0": 32, "M.0": 32}, {"warps": 4}),
        *(({}, {"stages": stages}) for stages in (2, 4, 6)),
        *(({"B.0": 64, "M.0": 32}, {"stages": stages}) for stages in (4, 6)),
        *shares("B", (2, 4), ({"B.0": 128, "M.0": 64},)),
    ],
    "sum with a transpose 4096x4096": [*squares()],
    "sum with a transpose 8192x8192": [*squares()],
    # A launch that is over in 2.3 µs: programs, and elements of a thread.
    "long chain 256x1024": [
        *grid("M.0", (256,), (4,)),
        *grid("M.0", (512,), (2, 4, 8)),
        *grid("M.0", (1024,), (8, 16)),
    ],
    # Registers for all 1024 programs at a time; longer blocks, in which threads meet less often.
    "cross entropy 1024x128256": [
        ({}, {"warps": 8}),
        *grid("M.0", (8192,), (4, 8, 16)),
        *grid("M.0", (16384,), (8, 16)),
        *grid("M.0", (2048,), (2, 4)),
        ({}, {"atomic": True}),
    ],
    # One kernel with a program for each row, against two kernels.
    "sum of rows 200x100000": [
        *(({"M.0": 4096}, {"split": {}, "stages": stages}) for stages in (3, 5, 6)),
        *(({"M.0": 8192}, {"split": {}, "warps": warps}) for warps in (8, 16)),
        *(({"M.0": 8192}, {"split": {}, "warps": 16, "stages": n}) for n in (4, 5)),
        ({"M.0": 16384}, {"split": {}, "warps": 16}),
        *shares("M", (2,), ({"B.0": 1, "M.0": 8192},)),
    ],
    "sum of all 16000000": [
        *shares("B", (264, 528), ({"B.0": 4096}, {"B.0": 8192})),
        ({}, {"stages": 5}),
    ],
    # The rows and warps of a program: elements of a thread, and programs at a time.
    "softmax 200000x100": [
        *grid("B.0", (16,), (1, 4)),
        *grid("B.0", (8,), (1, 2)),
        *grid("B.0", (32,), (2, 8)),
        *grid("B.0", (64,), (8,)),
    ],
    # The last of two kernels: long pieces of single rows, or square blocks.
    "softmax 64x128256": [
        *(({"B.1": 1, "M.1": columns}, {}) for columns in (1024, 2048, 4096)),
        *(({"B.1": rows, "M.1": 4096 // rows}, {}) for rows in (8, 32, 64)),
    ],
    # Whole rows in one step, or pieces of several rows in stages.
    "matrix times vector 16384x8192": [
        *(({"B.0": 1, "M.0": 8192}, {"warps": warps}) for warps in (4, 8, 16)),
        ({"B.0": 16, "M.0": 256}, {"warps": None, "stages": 6}),
        ({"B.0": 8, "M.0": 512}, {"warps": None, "stages": 6}),
    ],
    "matrix times vector 4096x4096": [
        *(({"B.0": 1, "M.0": 4096}, {"warps": warps}) for warps in (2, 4, 8)),
        ({"B.0": 16, "M.0": 256}, {"warps": None, "stages": 6}),
    ],
    # The rows of a scan that programs share.
    "cumsum of rows 4x1000000": [
        *(({"B.0": rows, "M.0": 2048}, {}) for rows in (1, 2)),
    ],
    # Copies whose rows are aligned could be loaded by descriptors.
    "product 8205x2949x5921": [
        ({}, {"described": True}),
        *(({}, {"described": True, "programs": 132, "stages": n}) for n in (3, 4)),
        *(({}, {"programs": 132, "stages": n}) for n in (3, 4)),
        *(({"B.0": 256, "N.0": 128}, {"stages": n}) for n in (3, 4)),
        ({}, {"together": False}),
        *(({}, {"group": n}) for n in (4, 16)),
    ],
    "rms norm 4096x4096": [*grid("B.0", (1,), (4, 8)), *grid("B.0", (2,), (4, 8, 16))],
    "layer norm 8192x4096": [*grid("B.0", (1,), (4,)), *grid("B.0", (2,), (4, 8))],
    "layer norm 16384x8192": [*grid("B.0", (1,), (4, 8, 16)), *grid("B.0", (2,), (8, 16))],
    # The elements of a thread in a copy, and of a program.
    "negation 16384x8192": [*grid("M.0", (1024,), (4,)), *grid("M.0", (4096,), (8, 16))],
    "negation 16384x1000": [*grid("B.0", (1,), (2, 4)), *grid("B.0", (2,), (4, 8))],
    "negation 200000x100": [*grid("B.0", (8,), (1, 2, 4)), *grid("B.0", (16,), (2, 4, 8))],
    "gelu 8192x4096": [*grid("M.0", (1024,), (4,)), *grid("M.0", (2048,), (4,))],
    "silu gate 8192x4096": [*grid("M.0", (2048,), (4, 8)), *grid("M.0", (1024,), (2,))],
    "row and column 8192x4096": [
        *grid("M.0", (2048,), (4, 8)),
        ({"M.0": 2048}, {"grid": "outer", "warps": 4}),
    ],
}
"""The points of each case. The cases are those that are short of their goals, or nearly so."""
