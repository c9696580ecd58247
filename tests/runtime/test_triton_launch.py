"""Launches that ask a GPU for more than it has."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.ops import BlockReduce, Value
from blockbuster_fusion.printers.triton.tiles import Halving, seen_outside
from blockbuster_fusion.schedule.schedule import scheduled
from helpers.graphs import array, k, m

if sys.platform != "linux":
    pytest.skip("Triton is for Linux alone", allow_module_level=True)

import torch
from triton.compiler import CompiledKernel
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from blockbuster_fusion.printers.triton.launch_plan import LaunchPlan
from blockbuster_fusion.runtime.triton.descriptors import Matrix, is_describable
from blockbuster_fusion.runtime.triton.launch import BoundLaunch, Launcher, TritonKernels


class Device:
    """Stands in for a compiled function on a GPU that takes just some launches."""

    def __init__(self, function: Any, takes: Callable[[dict[str, int]], bool]) -> None:
        self.arg_names: list[str] = function.arg_names
        self.takes = takes
        self.asked: list[dict[str, int]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, **options: int) -> None:
            given = dict(zip(self.arg_names, arguments, strict=True))
            blocks = {k: v for k, v in given.items() if k.startswith("BLOCK_")}
            self.asked.append({**blocks, **options, "programs": grid[0]})
            if not self.takes(self.asked[-1]):
                raise OutOfResources(327680, 232448, "shared memory")

        return run


SIZES = {"MM": 256, "NN": 256, "KK": 256}


def launched(takes: Callable[[dict[str, int]], bool], program: str = "matmul-relu") -> Device:
    """The launches of a program's first kernel, until the device takes one."""
    nest = scheduled(bb.fuse(bb.lower(bb.examples.find(program))).snapshots[-1], "program")
    kernel = nest.kernels[0]
    tiles = {dim: 64 for dim in kernel.dims if dim.packed and not dim.unit}
    kernels = TritonKernels(nest, tiles)
    device = Device(kernels._launchers[id(kernel)].function, takes)
    kernels._launchers[id(kernel)] = Launcher(kernel, device)
    tensors = [torch.zeros(256, 256) for _ in kernel.global_buffers]
    strides = [x.stride() for x in tensors]
    sizes = {symbol: SIZES[symbol.name] for symbol in kernel.symbols}
    launch = kernels.bind(kernel, strides, sizes)
    launch(tensors)
    launch(tensors)
    return device


def test_a_launch_that_fits_is_left_alone() -> None:
    device = launched(lambda asked: True)
    assert device.asked[0] == device.asked[1]
    assert device.asked[0]["num_stages"] == 3


def test_there_is_one_stage_less_first(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "blockbuster_fusion"):
        device = launched(lambda asked: asked["num_stages"] == 1)
    assert [asked["num_stages"] for asked in device.asked] == [3, 2, 1, 1]
    assert {asked["BLOCK_M"] for asked in device.asked} == {64}
    first, second = caplog.messages
    assert first.startswith("kernel program gets 2 instead of 3 stages: out of resource")
    assert second.startswith("kernel program gets 1 instead of 2 stages: out of resource")


def test_then_the_longest_tile_is_halved(caplog: pytest.LogCaptureFixture) -> None:
    def area(asked: dict[str, int]) -> int:
        return asked["BLOCK_M"] * asked["BLOCK_N"] * asked["BLOCK_K"]

    with caplog.at_level(logging.WARNING, "blockbuster_fusion"):
        device = launched(lambda asked: area(asked) <= 32**3)
    areas = [area(asked) for asked in device.asked]
    assert areas == [64**3, 64**3, 64**3, 64**3 // 2, 64**3 // 4, 32**3, 32**3]
    assert device.asked[-1]["programs"] == 64  # there are more, and smaller, blocks
    assert "tiles of 32 for" in caplog.messages[-1]


def test_where_nothing_can_be_smaller_the_error_is_told() -> None:
    with pytest.raises(OutOfResources):
        launched(lambda asked: False)


def test_tiles_that_arrays_depend_on_stay() -> None:
    """A kernel that adds the sums of the blocks of K counts on their length."""
    build = Builder()
    x = build.input("X", array(m, k))

    def sums(g: Builder, row: Value) -> list[tuple[Value, None]]:
        each = g.map(k, [row], [], lambda g, x: [(g.one(BlockReduce(k, ADD), x), None)])
        return [(each[0], None)]

    (partial,) = build.map(m, [x], [], sums)
    build.output("S", partial)
    (kernel,) = scheduled(build.build()).kernels
    assert seen_outside(kernel) == {dim for dim in kernel.dims if dim.name == "K"}
    halving = Halving(kernel, {"MM": 256, "KK": 256}, seen_outside(kernel))
    tiles = dict.fromkeys(kernel.dims, 64)
    assert {dim.name for dim in halving.halvable(tiles)} == {"M"}


class Compiled(CompiledKernel):  # type: ignore[misc]
    """Stands in for a kernel that Triton has compiled; notes what it is launched with."""

    def __init__(self, notes: list[tuple[Any, ...]]) -> None:
        self.notes = notes
        self.metadata = SimpleNamespace(num_ctas=2)  # so the driver's plain launch does not do

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments: self.notes.append((grid, *arguments))


class Function(JITFunction[Any]):  # type: ignore[misc]
    """Stands in for a function that Triton compiles; notes what it is compiled for or run with."""

    def __init__(self, notes: list[tuple[Any, ...]]) -> None:
        object.__setattr__(self, "compiled", [])
        object.__setattr__(self, "run_with", [])
        object.__setattr__(self, "direct", notes)

    def warmup(self, *arguments: Any, grid: Any, **options: int) -> Compiled:
        self.compiled.append(arguments)
        return Compiled(self.direct)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *arguments, **options: self.run_with.append(arguments)


def test_later_launches_call_the_compiled_kernel_itself() -> None:
    """With addresses; arrays that are aligned otherwise have another compiled kernel."""
    direct: list[tuple[Any, ...]] = []
    function = Function(direct)
    plan = LaunchPlan((3, 1, 1), (), {}, {"num_warps": 4}, {})
    launch = BoundLaunch(function, [None, 7, None], plan, [0, None, 2], [], {})
    whole = torch.zeros(65)
    aligned, unaligned = whole[:64], whole[1:]
    launch([aligned, aligned, aligned])
    launch([aligned, unaligned, aligned])  # the second one is no argument
    assert len(function.compiled) == 1
    assert direct == [((3, 1, 1), aligned.data_ptr(), 7, aligned.data_ptr())] * 2
    for _ in range(2):
        launch([aligned, aligned, unaligned])
    assert len(function.compiled) == 2
    assert function.compiled[1][2] is unaligned
    assert direct[2:] == [((3, 1, 1), aligned.data_ptr(), 7, unaligned.data_ptr())] * 2
    launch([aligned, aligned, aligned])
    assert len(function.compiled) == 2
    assert not function.run_with


def test_a_matrix_is_described_unless_its_address_is_not_aligned() -> None:
    """A descriptor has an address that is a multiple of 16 bytes."""
    function = Function([])
    plan = LaunchPlan((3, 1, 1), (), {}, {"num_warps": 4}, {})
    matrices = {0: Matrix((8, 8), (8, 1), (4, 4))}
    launch = BoundLaunch(function, [None, 7, None], plan, [0, None, 2], [], matrices)
    whole = torch.zeros(65)
    aligned, unaligned = whole[:64].view(8, 8), whole[1:].view(8, 8)
    launch([aligned, aligned, unaligned])  # no driver is there to launch it
    (given,) = function.compiled
    assert given[0].base is aligned
    assert (given[0].shape, given[0].strides, given[0].block_shape) == ([8, 8], [8, 1], [4, 4])
    assert function.run_with[0][0].base is aligned
    assert function.run_with[0][2] is unaligned
    launch([unaligned, aligned, aligned])
    assert function.compiled[1][0] is unaligned
    assert len(function.run_with) == 1


def test_two_matrices_are_joined_unless_they_overlap() -> None:
    """Then, and if one is at an odd address, each has a descriptor of its own or none."""
    function = Function([])
    plan = LaunchPlan((3, 1, 1), (), {}, {"num_warps": 4}, {})
    one = Matrix((8, 8), (8, 1), (4, 4))
    matrices = {0: replace(one, other=2, bytes=8 * 8 * 4), 2: one}
    launch = BoundLaunch(function, [None, 7, None], plan, [0, None, 2], [], matrices)
    whole = torch.zeros(257)
    parts = [whole[at : at + 64].view(8, 8) for at in (0, 64, 128, 32, 65)]
    for first, second, order in [(0, 1, 2), (0, 2, 2), (2, 0, 3)]:
        launch([parts[first], parts[first], parts[second]])
        joined, _, told = function.run_with[-1]
        assert joined.base is parts[min(first, second)]
        assert (joined.shape, joined.block_shape) == ([2, 8, 8], [2, 4, 4])
        assert joined.strides == [64 * abs(first - second), 8, 1]
        assert told == order
    for second in (0, 3):
        launch([parts[0], parts[0], parts[second]])
        assert [x.base for x in function.run_with[-1][::2]] == [parts[0], parts[second]]
    launch([parts[0], parts[0], parts[4]])
    assert function.run_with[-1][0].base is parts[0]
    assert function.run_with[-1][2] is parts[4]


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((37, 72), (72, 1), True),
        ((37, 45), (48, 1), True),
        ((37, 45), (45, 1), False),  # rows are not aligned
        ((72, 37), (1, 72), False),  # columns are contiguous
        ((37, 72), (0, 1), False),  # one row is repeated
        ((37, 72), (36, 1), False),  # rows overlap
        ((0, 72), (72, 1), False),
        ((1 << 31, 8), (8, 1), False),  # positions would not fit 32 bits
        ((2, 8), (1 << 39, 1), False),
    ],
)
def test_matrices_with_descriptors(
    shape: tuple[int, int], strides: tuple[int, int], expected: bool
) -> None:
    assert is_describable(shape, strides, 2) == expected
