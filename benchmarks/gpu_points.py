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
    # The warps that hold a row of 32,768: one program a processor in all of these.
    "log softmax 512x32000": [({}, {"warps": 8}), ({}, {"warps": 32}), ({}, {"warps": 4})],
    # Few programs in long chains: more stages, narrower columns, or shares of the rows.
    "cumsum of columns 8192x4096": [
        *(({}, {"stages": stages}) for stages in (2, 4, 6)),
        *(({"M.0": columns}, {}) for columns in (16, 64)),
        *(({"B.0": rows, "M.0": 32}, {}) for rows in (64, 32)),
        ({}, {"warps": 4}),
        *shares("B", (2, 4, 8), ({"M.0": 32}, {"M.0": 64})),
    ],
    "sum with a transpose 4096x4096": [*squares()],
    "sum with a transpose 8192x8192": [*squares()],
    # About 40 instructions for an element: fewer of them beside the chain with more elements.
    "long chain 8192x4096": [
        *grid("M.0", (2048,), (2, 8)),
        *grid("M.0", (1024,), (2, 4)),
        *grid("M.0", (4096,), (4, 8, 16)),
        *grid("M.0", (512,), (2,)),
    ],
    # A launch that is over in 2.8 µs: programs, and elements of a thread.
    "long chain 256x1024": [
        *grid("M.0", (128,), (1, 2)),
        *grid("M.0", (256,), (1, 2)),
        *grid("M.0", (512,), (1, 2, 4)),
        *grid("M.0", (1024,), (4, 8)),
    ],
    # Loads ahead while threads meet; registers for all 1024 programs at a time.
    "cross entropy 1024x128256": [
        *(({}, {"ahead": True, "stages": stages}) for stages in (2, 3, 4)),
        *(({"M.0": 2048}, {"ahead": True, "stages": n, "warps": 2}) for n in (3, 4)),
        *(({"M.0": 8192}, {"ahead": True, "stages": n, "warps": 8}) for n in (2, 3)),
        ({"M.0": 4096}, {"ahead": True, "stages": 3, "warps": 8}),
        ({"M.0": 8192}, {"warps": 8}),
        ({"M.0": 8192}, {"warps": 4}),
        ({"M.0": 16384}, {"warps": 16}),
        ({}, {"warps": 8}),
        ({}, {"atomic": True}),
    ],
    # 400 programs are 3.03 for each processor: shares that are divided more evenly.
    "sum of rows 200x100000": [
        *shares("M", (2, 3, 4, 5, 6, 8), ({"B.0": 1, "M.0": 4096},)),
        *shares("M", (4, 8, 12), ({"B.0": 1, "M.0": 2048},)),
        ({}, {"stages": 4}),
        ({}, {"stages": 5}),
        ({}, {"warps": 8}),
    ],
    "sum of all 16000000": [
        *shares("B", (264, 396, 528, 1024), ({"B.0": 4096},)),
        *shares("B", (528, 1056), ({"B.0": 2048},)),
        *shares("B", (264, 528), ({"B.0": 8192},)),
        ({}, {"atomic": True}),
        ({}, {"stages": 4}),
        ({}, {"stages": 5}),
    ],
    # The rows and warps of a program: elements of a thread, and programs at a time.
    "softmax 200000x100": [
        *grid("B.0", (16,), (1, 4)),
        *grid("B.0", (8,), (1, 2)),
        *grid("B.0", (32,), (2, 4, 8)),
        *grid("B.0", (64,), (4, 8)),
        *grid("B.0", (4,), (1,)),
    ],
    "softmax 16384x1000": [
        *grid("B.0", (2,), (1, 4, 8)),
        *grid("B.0", (1,), (1, 2, 4)),
        *grid("B.0", (4,), (4, 8)),
    ],
    "rms norm 4096x4096": [*grid("B.0", (1,), (2, 8, 16)), *grid("B.0", (2,), (4, 8, 16))],
    "layer norm 8192x4096": [*grid("B.0", (1,), (2, 8, 16)), *grid("B.0", (2,), (4, 8, 16))],
    # The elements of a thread in a copy: eight are one load of 16 bytes.
    "negation 8192x4096": [
        *grid("M.0", (4096,), (4, 16)),
        *grid("M.0", (2048,), (2, 4, 8)),
        *grid("M.0", (1024,), (1, 2, 4)),
        *grid("M.0", (512,), (1, 2)),
    ],
    "negation 200000x100": [
        *grid("B.0", (16,), (1, 2, 4, 8)),
        *grid("B.0", (8,), (1, 2, 4)),
        *grid("B.0", (32,), (4, 8)),
    ],
}
"""The points of each case. The cases are those that are short of their goals, or nearly so."""
