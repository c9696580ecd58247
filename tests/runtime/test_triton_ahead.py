"""Triton kernels compiled ahead, without a GPU: the launch finds them in Triton's cache."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Choice, Request, choose, executable_of

if sys.platform != "linux":
    pytest.skip("Triton is for Linux alone", allow_module_level=True)

import torch
from triton.runtime.driver import driver

from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.tensors import TorchArrays
from blockbuster_fusion.runtime.triton.ahead import (
    kernel_jobs,
    launches_of,
)
from blockbuster_fusion.runtime.triton.kernel_job import KernelJob, Target, smallest
from blockbuster_fusion.runtime.triton.launch import TritonKernels
from blockbuster_fusion.runtime.workers import Workers
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.torch.rivals import compiling
from blockbuster_fusion.torch.rivals.compiling import compile_choices
from blockbuster_fusion.worker import PREPARE, serve

CAPABILITY = 90
LENGTH = 96


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Triton's, and Triton's own driver afterwards."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(driver, "_active", None)
    return tmp_path / "triton"


def compiled(choice: Choice) -> Compiled:
    runner = executable_of([choice]).runner
    assert isinstance(runner, Compiled)
    return runner


def chosen(name: str) -> Choice:
    program = bb.examples.find(name)
    sizes = {axis.name: LENGTH for given in program.inputs for axis in given.type.axes}
    return choose(Request(program, target="cuda", sizes=sizes, capability=CAPABILITY))[0]


def inputs(runner: Compiled) -> list[torch.Tensor]:
    """Arrays of which one is transposed, so that strides count."""
    shapes = [[LENGTH] * len(buffer.axes) for buffer in runner.program.nest.inputs]
    return [
        torch.zeros(shape).t() if at == 0 else torch.zeros(shape) for at, shape in enumerate(shapes)
    ]


def launch(runner: Compiled, given: list[torch.Tensor]) -> None:
    """Runs a program on a GPU that takes all launches; Triton compiles what is not in its cache."""
    kernels = runner.kernels
    assert isinstance(kernels, TritonKernels)
    driver.set_active(Target(CAPABILITY))
    for launcher in kernels._launchers.values():
        launcher.variants.function = Pretended(launcher.function)
    runner.run(given, (), TorchArrays(torch.device("cpu"), handles=False))


class Pretended:
    """A Triton function whose launches end before the GPU."""

    def __init__(self, function: Any) -> None:
        self.function, self.arg_names = function, function.arg_names

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*given: Any, **options: Any) -> None:
            self.function.run(*given, grid=grid, warmup=True, **options)

        return launch


def test_launches_find_what_workers_have_compiled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = chosen("softmax")
    shorter = {dim: max(16, tile // 2) for dim, tile in choice.tiles.items()}
    choices = [choice, replace(choice, tiles=shorter)]
    given = inputs(compiled(choice))
    monkeypatch.setattr(compiling, "capability_of", lambda target: CAPABILITY)
    pool = Workers(2)
    compile_choices(pool, choices, given, (), 1e9)
    processes = [worker.process for worker in pool._processes]
    pool.close()
    assert processes
    assert all(process.poll() is not None for process in processes)
    made = {file.name for file in cache.iterdir()}
    assert len(made) >= 2
    for one in choices:
        launch(compiled(one), given)
    assert {file.name for file in cache.iterdir()} == made


def test_launches_with_descriptors_find_what_a_worker_has_compiled(cache: Path) -> None:
    """The worker has no PyTorch: names stand for its dtypes."""
    program = bb.trace(lambda X, W: X @ W, "M K", "K N")
    request = Request(
        program,
        target="cuda",
        sizes=dict.fromkeys("MKN", LENGTH),
        dtype="bfloat16",
        schedule=Schedule(described=True),
        capability=CAPABILITY,
    )
    choice = choose(request)[0]
    given = [torch.zeros(LENGTH, LENGTH, dtype=torch.bfloat16) for _ in range(2)]
    (job,) = kernel_jobs(compiled(choice), given, (), CAPABILITY)
    assert job.matrices
    workers = Workers(1)
    workers.job(job.data()).result()
    workers.close()
    made = {file.name for file in cache.iterdir()}
    assert made
    launch(compiled(choice), given)
    assert {file.name for file in cache.iterdir()} == made


def test_the_program_of_a_worker_imports_no_torch() -> None:
    """Else it would take seconds to start."""
    jobs = [json.dumps(job) for job in ({"task": PREPARE}, smallest(CAPABILITY).data())]
    code = f"""
import sys
from blockbuster_fusion.worker import answer
for job in {jobs!r}:
    assert answer(job) == {{"result": None}}
assert "torch._C" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_launches_find_what_is_compiled_in_this_process(cache: Path) -> None:
    runner = compiled(chosen("softmax"))
    given = inputs(runner)
    driver.set_active(Target(CAPABILITY))
    for one in launches_of(runner, given, ()):
        one.compile()
    made = {file.name for file in cache.iterdir()}
    assert made
    launch(runner, given)
    assert {file.name for file in cache.iterdir()} == made


def test_another_launch_is_another_job(cache: Path) -> None:
    """Triton compiles strides of 1 in, and whether 16 divides the others."""
    runner = compiled(chosen("matmul-relu"))
    given = inputs(runner)
    (job,) = kernel_jobs(runner, given, (), CAPABILITY)
    (same,) = kernel_jobs(runner, [x.clone() for x in given], (), CAPABILITY)
    (other,) = kernel_jobs(runner, [x.contiguous() for x in given], (), CAPABILITY)
    assert json.loads(json.dumps(job.data())) == job.data()
    assert job == same
    assert replace(other, arguments=job.arguments) == job != other


def test_a_worker_tells_why_it_fails(cache: Path) -> None:
    answers = io.StringIO()
    bad = json.dumps(KernelJob("def f(:", "f", [], {}, {}, CAPABILITY, []).data())
    serve(io.StringIO(f"no job\n{bad}\n"), answers)
    first, second = map(json.loads, answers.getvalue().splitlines())
    assert first["failure"].startswith("JSONDecodeError: ")
    assert second["failure"].startswith("SyntaxError: ")
