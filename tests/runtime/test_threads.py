"""The threads of kernels on a CPU: those of a schedule, and never more than the caller's."""

import os
from pathlib import Path

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.runtime.c import kernels as runtime
from blockbuster_fusion.runtime.c.kernels import ALONE, CpuKernels, CpuLaunch
from blockbuster_fusion.runtime.compiled import Compiled

TASKS = Path("/proc/self/task")
"""The threads of this process, where the system lists them."""
PROGRAM = bb.trace(lambda X: {"Y": X + 1}, X="M")


def kernels_of(executable: bb.Executable) -> CpuKernels:
    assert isinstance(executable.runner, Compiled)
    kernels = executable.runner.programs[0].kernels
    assert isinstance(kernels, CpuKernels)
    return kernels


def threads_of(executable: bb.Executable, elements: int) -> int:
    """The threads of a launch for so many elements."""
    (kernel,) = executable.nest.kernels
    kernels = kernels_of(executable)
    sizes = dict.fromkeys(kernel.symbols, elements // 2)
    launch = kernels.bind(kernel, [[1], [1]], sizes, elements=elements)
    assert isinstance(launch, CpuLaunch)
    return launch.threads


@pytest.mark.parametrize(
    ("config", "callers", "small", "large"),
    [
        ({}, 2, 1, 2),  # the rule: one thread for few elements
        ({"threads": 1}, 2, 1, 1),
        ({"threads": 2}, 2, 2, 2),
        ({"threads": 2}, 4, 2, 2),
        ({"threads": 64}, 2, 2, 2),
        ({"threads": 64}, 1, 1, 1),
    ],
)
def test_threads_are_those_of_the_schedule_up_to_the_callers(
    config: dict[str, int], callers: int, small: int, large: int
) -> None:
    made = bb.compile(PROGRAM, config=config, threads=callers)
    assert [threads_of(made, n) for n in (ALONE, ALONE + 1)] == [small, large]


def test_a_schedule_takes_no_more_threads_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    made = bb.compile(PROGRAM, config={"threads": 64})
    assert threads_of(made, ALONE + 1) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_process_has_one_whatever_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime._Threads, "most", 1)
    made = bb.compile(PROGRAM, config={"threads": 2, "chunk": 3, "tiles": {"M": 8}}, threads=2)
    taken = []
    (kernel,) = made.nest.kernels
    function = kernels_of(made).functions[kernel.name]
    kernels_of(made).functions[kernel.name] = lambda *given: (
        taken.append(given[-1]) or function(*given)
    )
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(made(x)["Y"], x + 1)
    assert taken == [1]


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are not listed")
def test_kernels_with_few_programs_end_no_threads() -> None:
    """Teams keep their size: OpenMP would end the others, and start them anew for the next."""
    many, few = (bb.compile(PROGRAM, config={"tiles": {"M": n}}, threads=4) for n in (64, 8192))
    x = np.ones(ALONE, np.float32)
    found = []
    for _ in range(3):
        for executable in (many, few):
            np.testing.assert_array_equal(executable(x)["Y"], x + 1)
            found.append(frozenset(TASKS.iterdir()))
    assert len({*found}) == 1


def test_arrays_without_elements_have_the_usual_schedule() -> None:
    """They run the program before fusion, whose loops may be others than those chosen for."""
    program = bb.examples.find("rmsnorm-swiglu-residual")
    schedule = bb.Schedule(order=("D.2", "M.0"), chunk=2)
    (choice,) = choose(Request(program, snapshot="most_fused", schedule=schedule))
    assert [index.dim.label for index in choice.scheduled()[0].kernels[-1].grid] == ["D.2", "M.0"]
    assert choice.before_fusion is not None
    assert choice.before_fusion().schedule == bb.Schedule()
    made = bb.compile(program, snapshot="most_fused", schedule=schedule)
    sizes = {"M": 0, "D": 8, "K": 8, "N": 8}
    inputs = [np.ones([sizes[a.name] for a in i.type.axes], np.float32) for i in program.inputs]
    assert made(*inputs)[0].shape == (0, 8)
