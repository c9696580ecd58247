"""Bytes of main memory that kernels of a GPU move: some blocks are loaded again."""

from collections.abc import Callable
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.nest.analysis.launch_order import HEADS, LaunchOrder
from blockbuster_fusion.schedule.cost import predicted_bytes
from blockbuster_fusion.schedule.waves import HELD, Reads, from_main
from helpers.attention_forms import FORMS

H200 = known()["h200"]
ALLOWED = 0.15
o = bb.ops

MEASURED: dict[str, tuple[Callable[..., Any], dict[str, str], dict[str, int], float]] = {
    "layer norm": (lambda x: o.layernorm(x), {"x": "M N"}, {"M": 8192, "N": 4096}, 133.4),
    "softmax": (lambda x: o.softmax(x), {"x": "M N"}, {"M": 16384, "N": 4096}, 267.6),
    "gate": (
        lambda x, y: o.silu(x) * y,
        {"x": "M N", "y": "M N"},
        {"M": 8192, "N": 8192},
        402.0,
    ),
    "product": (
        lambda x, y: x @ y,
        {"x": "M K", "y": "K N"},
        dict.fromkeys("MKN", 4096),
        177.9,
    ),
    "causal attention": (
        FORMS["added_mask"].function,
        {"q": "B H S D:128", "k": "B H T D:128", "v": "B H T E:128"},
        {"B": 4, "H": 16, "S": 4096, "T": 4096},
        674.5,
    ),
}
"""Programs with the axes of their arrays, their sizes, and the megabytes that an H200 counted."""


@pytest.mark.parametrize("name", MEASURED)
def test_bytes_of_main_memory(name: str) -> None:
    """`benchmarks/gpu_traffic.py` has measured them."""
    function, specs, sizes, measured = MEASURED[name]
    program = bb.trace(function, **specs)
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    choice = Improver(choose(request), H200).best(())[0]
    nest, tiles = choice.scheduled()
    found = predicted_bytes(nest, Tiling(Extents(), tiles), H200, choice.schedule)
    assert found / 1e6 == pytest.approx(measured, rel=ALLOWED)


def product(rows: float, columns: float, depth: float) -> list[Reads]:
    """A product whose programs have one row and one column of blocks each, in groups of rows."""
    by_rows, by_columns = (True, False, True), (False, True, False)
    return [
        Reads(rows * depth, depth, rows * columns * depth, by_rows),
        Reads(columns * depth, depth, rows * columns * depth, by_columns),
        Reads(rows * columns, 1.0, rows * columns, (True, True, True)),
    ]


def test_each_byte_is_moved_once_if_the_cache_holds_all() -> None:
    arrays = product(16, 16, 64)
    size = sum(x.size for x in arrays)
    assert from_main(arrays, (4, 16, 4), 8, size / HELD) == size
    assert from_main(arrays, (4, 16, 4), 8, 0.4 * size / HELD) > size


def test_programs_of_a_wave_share_what_they_load() -> None:
    """Four rows and two columns of blocks at a time: rows are loaded 8 times, columns 4 times."""
    arrays = product(16, 16, 1000)
    assert from_main(arrays, (4, 16, 4), 8, 0.0) == 8 * 16000 + 4 * 16000 + 256
    all_at_once = from_main(arrays, (4, 16, 4), 256, 0.0)
    assert all_at_once == sum(x.size for x in arrays)


def test_rows_stay_in_the_cache_for_all_columns() -> None:
    """The rows of one group and the columns of a wave fit; not all columns do."""
    arrays = product(16, 16, 1000)
    cache = (4 * 1000 + 2 * 1000 + 8) / HELD
    assert from_main(arrays, (4, 16, 4), 8, cache) == 16000 + 4 * 16000 + 256


def test_loops_of_a_program_load_again_what_the_cache_lost() -> None:
    twice = [Reads(1e6, 1e3, 2e6, (True,))]
    assert from_main(twice, (1000,), 100, 1e5 / HELD) == 1e6
    assert from_main(twice, (1000,), 100, 4e4 / HELD) == 2e6


def test_programs_start_in_groups() -> None:
    program = bb.trace(lambda x, y: x @ y, "M K", "K N")
    sizes = dict.fromkeys("MKN", 4096)
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    (kernel,) = choose(request)[0].scheduled()[0].kernels
    order = LaunchOrder(kernel)
    lengths = {"M": 128, "N": 256}
    assert order.group(lambda dim: lengths[dim.name]) == 16
    loops = order.loops(lambda dim: 4096 // lengths[dim.name], 16)
    assert [(index.dim.name, count) for index, count in loops] == [("M", 2), ("N", 16), ("M", 16)]


def test_the_longest_programs_of_some_heads_start_first() -> None:
    function, specs, sizes, _ = MEASURED["causal attention"]
    program = bb.trace(function, **specs)
    request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
    kernel = choose(request)[0].scheduled()[0].kernels[-1]
    order = LaunchOrder(kernel)
    assert order.group(lambda dim: 128) == HEADS
    loops = order.loops(lambda dim: {"B": 4, "H": 16, "S": 32}[dim.name], HEADS)
    found = [(index.dim.name, count) for index, count in loops if count > 1]
    assert found == [("B", 2), ("S", 32), ("B", 2), ("H", 16)]
