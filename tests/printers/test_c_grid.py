"""The programs of a grid in C: their order, the chunks that threads take, and no memory."""

import ctypes
from itertools import cycle, permutations

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.nest.nest import Contract, Nest
from blockbuster_fusion.printers.c.kernel import kernels_in_c
from blockbuster_fusion.printers.c.lanes import lanes_of
from blockbuster_fusion.runtime.bound import CompiledNest
from blockbuster_fusion.runtime.c.kernels import CpuKernels, loaded
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.schedule.defaults import all_tiles
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from helpers.programs import random_inputs, random_program
from helpers.running import inputs_for

CHUNKS: tuple[int | None, ...] = (None, 1, 3, 64)
RAGGED = {"B": 2, "H": 3, "G": 1, "R": 3, "M": 45, "N": 70, "D": 17, "L": 33, "K": 40}
PROGRAMS = {
    "multi-head-attention": ("D", "L"),
    "sliding-window-attention": ("D", "L"),
    "rmsnorm-swiglu": (),
    "softmax": (),
}


def run(
    graph: bb.Graph, schedule: Schedule, inputs: dict[str, np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """The results of a schedule with one thread and with two."""
    nest = scheduled(graph, "k", schedule)
    tiles = all_tiles(nest, dict.fromkeys((d for d in graph.dims if d.packed), 8), "cpu")
    names = tuple(graph.op(i).name for i in graph.inputs)
    made = []
    for threads in (1, 2):
        kernels = CpuKernels(nest, tiles, threads=2, chosen=threads, chunk=schedule.chunk)
        runner = Compiled([CompiledNest(nest, names, tiles, kernels)], device="cpu")
        found = Executable(graph, "cpu", tiles, 0, runner)(**inputs)
        made.append(dict(found.items()))
    return made


def grid_of(nest: Nest) -> list[str]:
    """The labels of the longest grid."""
    return max(([i.dim.label for i in kernel.grid] for kernel in nest.kernels), key=len)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_order_and_chunk_gives_the_same_results(name: str) -> None:
    """Programs are independent: not a bit depends on who runs them, and when."""
    program = bb.examples.find(name)
    graph = bb.fuse(bb.lower(program), unit=PROGRAMS[name]).snapshots[-1]
    inputs = inputs_for(program, **RAGGED)
    exact = dict(bb.interpret(bb.lower(program), inputs).items())
    narrow = {name: x.astype(np.float32) for name, x in inputs.items()}
    (usual, _) = run(graph, Schedule(), narrow)
    for name, wanted in exact.items():
        scale = np.abs(wanted).max(initial=1.0)
        np.testing.assert_allclose(usual[name], wanted, rtol=0, atol=5e-6 * scale)
    orders = [*permutations(grid_of(scheduled(graph, "k")))]
    times = max(1, len(CHUNKS) // len(orders))
    for order, chunk in zip(orders * times, cycle(CHUNKS), strict=False):
        for found in run(graph, Schedule(order=order, chunk=chunk), narrow):
            for name, x in found.items():
                np.testing.assert_array_equal(x, usual[name], err_msg=f"{order}, {chunk}")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_programs_in_any_order(seed: int) -> None:
    program = random_program(seed)
    graph = bb.fuse(bb.lower(program)).snapshots[-1]
    inputs = {n: x.astype(np.float32) for n, x in random_inputs(program, seed).items()}
    labels = {i.dim.label for k in scheduled(graph, "k").kernels for i in k.grid}
    order = tuple(np.random.default_rng(seed).permutation(sorted(labels)).tolist())
    chunk = (None, 1, 2, 1 << 30)[seed % 4]
    (usual, _) = run(graph, Schedule(), inputs)
    for found in run(graph, Schedule(order=order, chunk=chunk), inputs):
        for name, x in found.items():
            np.testing.assert_array_equal(x, usual[name], err_msg=f"{order}, {chunk}")


def test_an_order_changes_no_vectors() -> None:
    """The lanes are those of the results, whichever loop is the fastest."""
    graph = bb.fuse(bb.lower(bb.examples.find("rmsnorm-swiglu"))).snapshots[-1]
    lanes = [
        lanes_of(kernel)
        for order in ((), ("N.0", "M.0"))
        for kernel in scheduled(graph, "k", Schedule(order=order)).kernels
        if any(isinstance(s, Contract) for s in kernel.statements)
    ]
    assert {dim.label for dim in lanes if dim is not None} == {"N.0"}
    assert None not in lanes


# ----------------------------------------------------------------------------- text


def chunk_line(name: str, chunk: int | None) -> str:
    graph = bb.fuse(bb.lower(bb.examples.find(name)), unit=("D", "L")).snapshots[-1]
    _, text = kernels_in_c(scheduled(graph, "k"), {}, chunk)
    (line,) = [line.strip() for line in text.splitlines() if "chunk =" in line]
    return line


@pytest.mark.parametrize(
    ("name", "chunk", "expected"),
    [
        ("attention", None, "chunk_of(programs, threads)"),
        ("attention", 16, "16"),
        ("sliding-window-attention", None, "1"),  # its programs have unequal work
        ("sliding-window-attention", 16, "16"),
    ],
)
def test_chunks_are_constants_or_follow_a_rule(name: str, chunk: int | None, expected: str) -> None:
    assert chunk_line(name, chunk) == f"const int64_t chunk = {expected};"


# --------------------------------------------------------------------------- memory


def called(change: str, length: int, chunk: int | None, threads: int = 2) -> tuple[int, np.ndarray]:
    """The return value of a kernel that adds 1, and its result; its allocation is changed."""
    program = bb.trace(lambda X: {"Y": X + 1}, X="M")
    made = bb.compile(program, tiles={"M": 4}, schedule=Schedule(chunk=chunk))
    (kernel,) = made.nest.kernels
    source = CpuKernels(made.nest, made.tiles, chunk=chunk).source
    old = "(char *)aligned_alloc(64, bytes + 64)"
    assert source.count(old) == 1
    source = source.replace("static char *allocate", "static int calls;\nstatic char *allocate")
    library = loaded(source.replace(old, change.format(old)))
    x, y = np.arange(length, dtype=np.float32), np.zeros(length, np.float32)
    addresses = [x.ctypes.data, y.ctypes.data]
    assert [b.name for b in kernel.global_buffers] == ["X", "Y"]
    buffers = (ctypes.c_void_p * 2)(*addresses)
    strides, sizes = (ctypes.c_int64 * 2)(1, 1), (ctypes.c_int64 * 1)(length)
    return library[kernel.name](buffers, strides, sizes, threads), y


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_kernel_without_memory_says_so(chunk: int | None) -> None:
    code, y = called("calls ? {0} : NULL", 403, chunk)
    assert code == 1
    assert not y.any()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_thread_with_memory_runs_what_others_cannot(chunk: int | None) -> None:
    code, y = called("__sync_fetch_and_add(&calls, 1) ? NULL : {0}", 403, chunk)
    assert code == 0
    np.testing.assert_array_equal(y, np.arange(403) + 1)


@pytest.mark.parametrize("length", [0, 1, 4, 5, 403])
@pytest.mark.parametrize("threads", [0, 1, 2, 7])
def test_each_program_runs_once(length: int, threads: int) -> None:
    for chunk in (None, 3):
        code, y = called("{0}", length, chunk, threads)
        assert code == 0
        np.testing.assert_array_equal(y, np.arange(length) + 1)
