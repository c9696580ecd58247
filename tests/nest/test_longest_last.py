"""Programs with the longest loops start first, and every program has a place of its own."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.analysis.longest_last import longest_last
from blockbuster_fusion.nest.nest import Kernel
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.triton.grid import grid_lines
from blockbuster_fusion.printers.triton.launch_plan import KernelPlanner
from blockbuster_fusion.printers.triton.variables import Variables
from blockbuster_fusion.schedule.schedule import Schedule
from helpers.attention_forms import FORMS, QKV, attended, dots, places

UNORDERED = {
    "bias_of_heads": "a bias that is an input masks nothing by positions",
    "later_if_an_image": "data unmask later keys",
    "lengths_of_each": "all rows of a batch see as many keys",
    "query_and_a_length": "there is one row",
    "query_without_an_axis": "there is one row",
    "safe_with_any_mask": "a mask that is an input says nothing of positions",
}
"""Forms whose last rows see no more keys than the others."""


def one_kernel(program: ArrayProgram, schedule: Schedule | None = None) -> Kernel:
    request = Request(program, target="cuda", dtype="bfloat16", schedule=schedule)
    return choose(request)[0].scheduled()[0].kernels[0]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", FORMS)
def test_rows_of_attention(name: str) -> None:
    kernel = one_kernel(FORMS[name].traced())
    found = longest_last(kernel)
    if name in UNORDERED:
        assert found is None
    else:
        assert found is not None
        assert found.dim.name == "S"


def masked(mask: Callable[[Array, Array], Array]) -> ArrayProgram:
    def program(q: Array, k: Array, v: Array) -> Array:
        s = dots(q, k)
        return attended(ops.where(mask(*places(s)), s, float("-inf")), v)

    return bb.trace(program, **QKV)


@pytest.mark.parametrize(
    ("mask", "is_ordered"),
    [
        (lambda t, r: t <= r, True),
        (lambda t, r: (t <= r) & (t > r - 9), True),
        (lambda t, r: t <= ops.minimum(r + 5, 40), True),
        (lambda t, r: t < 2 * r + 3, True),
        (lambda t, r: t // 4 <= r // 4, True),
        (lambda t, r: t >= r, False),
        (lambda t, r: t <= 90 - r, False),
        (lambda t, r: t <= 17, False),
        (lambda t, r: t + r <= 70, False),
    ],
)
def test_directions_of_masks(mask: Callable[[Array, Array], Array], is_ordered: bool) -> None:
    kernel = one_kernel(masked(mask))
    assert (longest_last(kernel) is not None) == is_ordered
    lines = "\n".join(grid_lines(kernel, Variables(kernel, ())))
    assert ("s = tl.cdiv(SS, BLOCK_S) - 1 - " in lines) == is_ordered


def test_a_mirrored_grid_has_an_order_of_its_own() -> None:
    kernel = one_kernel(FORMS["added_mask"].traced())
    assert longest_last(replace(kernel, is_mirrored=True)) is None


def visited(kernel: Kernel, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """The places of the grid in the order of the numbers of programs."""
    code = compile("\n".join(grid_lines(kernel, Variables(kernel, ()))), "grid", "exec")
    names = Variables(kernel, ()).names.indices
    tl = SimpleNamespace(cdiv=lambda a, b: -(-a // b), minimum=min)
    found: list[tuple[int, ...]] = []
    lengths = [
        (sizes[i.dim.name * 2], sizes["BLOCK_S"] if i.dim.packed else 1) for i in kernel.grid
    ]
    counts = [tl.cdiv(*pair) for pair in lengths]
    for pid in range(math.prod(counts)):
        values = {"pid": pid, "tl": tl, **sizes}
        exec(code, values)
        found.append(tuple(values[names[index]] for index in kernel.grid))
    assert sorted(found) == sorted(product(*map(range, counts)))
    return found


@pytest.mark.sweep(3)
@pytest.mark.parametrize("group", [1, 2, 5, 32])
@pytest.mark.parametrize("name", ["added_mask", "groups_of_heads", "offset_that_is_an_input"])
@pytest.mark.parametrize("rows", [1, 16, 70])
def test_every_place_once_and_the_last_rows_first(name: str, group: int, rows: int) -> None:
    """Rows fall, of as many heads as go together; then come the next heads."""
    kernel = one_kernel(FORMS[name].traced())
    sizes = {"BB": 3, "HH": 5, "GG": 2, "RR": 4, "SS": rows, "BLOCK_S": 16, "GROUP": group}
    places = visited(kernel, sizes)
    blocks = -(-rows // 16)
    for first in range(0, len(places), group * blocks):
        falling = [place[-1] for place in places[first : first + group * blocks]]
        assert falling == sorted(falling, reverse=True)
        heads = {place[:-1] for place in places[first : first + group * blocks]}
        assert len(heads) * blocks == len(falling)


def test_an_order_that_is_asked_for_is_that_of_the_heads() -> None:
    kernel = one_kernel(FORMS["added_mask"].traced(), Schedule(order=("H", "B")))
    sizes = {"BB": 2, "HH": 3, "SS": 20, "BLOCK_S": 16, "GROUP": 32}
    assert [place[:2] for place in visited(kernel, sizes)[:3]] == [(0, 0), (0, 1), (1, 0)]


def test_all_heads_of_usual_models_start_with_their_longest_programs() -> None:
    program = FORMS["groups_of_heads"].traced()
    assert KernelPlanner(one_kernel(program)).group({}, {}) == 32
    plain = KernelPlanner(one_kernel(masked(lambda t, r: t >= r)))
    assert plain.group({"SS": 2048}, {}) != 32


def test_threads_take_the_longest_programs_first() -> None:
    for name, is_down in (("added_mask", True), ("lengths_of_each", False)):
        nest, tiles = choose(Request(FORMS[name].traced()))[0].scheduled()
        text = print_c(nest, tiles)
        assert ("const int64_t s = BLOCKS(SS, BLOCK_S) - 1 - program %" in text) == is_down
