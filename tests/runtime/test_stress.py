"""Many calls from many threads, and many programs in one process: results equal, memory level."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch import compile_parts
from helpers.torch_running import Watched

THREADS = 8
STATUS = Path("/proc/self/statm")
PAGE = 4096


def resident() -> int:
    """The bytes of this process that lie in memory."""
    gc.collect()
    return int(STATUS.read_text(encoding="ascii").split()[1]) * PAGE


def in_threads(work: Callable[[int], None]) -> None:
    """Runs the work of all threads at the same time, and raises an error of one of them."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def kernel_from_threads(calls: int) -> None:
    """One kernel, called with arrays of several lengths: each result is that of one thread."""
    kernel = bb.compile(lambda X, W: {"O": bb.ops.softmax(X) @ W}, X="M K", W="K N", threads=2)
    made = np.random.default_rng(0)
    given = [
        (made.standard_normal((m, 24), np.float32), made.standard_normal((24, 16), np.float32))
        for m in (1, 5, 40, 64)
    ]
    wanted = [kernel(*arrays)["O"] for arrays in given]

    def work(number: int) -> None:
        for call in range(calls):
            at = (number + call) % len(given)
            np.testing.assert_array_equal(kernel(*given[at])["O"], wanted[at])

    in_threads(work)


def model_from_threads(calls: int) -> None:
    """A model on its tape, whose kernels share an arena and whose cache is each thread's own."""

    def model(x: Tensor, w: Tensor, cache: Tensor) -> Tensor:
        cache.add_(1)
        y = torch.softmax(F.layer_norm(x @ w, (16,)), -1)
        return torch.cumsum(y, -1) @ w.t() + cache

    made = torch.Generator().manual_seed(0)
    w = torch.randn(24, 16, generator=made)
    given = [torch.randn(6, 24, generator=made) for _ in range(4)]
    watched = Watched(model, threads=1)
    zero = torch.zeros(24)
    wanted = [watched(x, w, zero.clone()) for x in given for _ in range(2)][::2]

    def work(number: int) -> None:
        for call in range(calls):
            at, cache = (number + call) % len(given), zero.clone()
            assert torch.equal(watched(given[at], w, cache), wanted[at])
            assert torch.equal(cache, zero + 1)

    in_threads(work)


@pytest.mark.parametrize("run", [kernel_from_threads, model_from_threads])
def test_threads(run: Callable[[int], None]) -> None:
    run(40)


@pytest.mark.long
@pytest.mark.skipif(not STATUS.exists(), reason="memory is measured by /proc")
@pytest.mark.parametrize("run", [kernel_from_threads, model_from_threads])
def test_thousands_of_calls_from_threads(run: Callable[[int], None]) -> None:
    run(100)
    before = resident()
    run(1000)
    grown = (resident() - before) / 1e6
    print(f"{run.__name__}: {THREADS} threads, 1000 calls each: {grown:+.1f} MB")
    assert grown < 32


def compile_distinct(number: int) -> None:
    """A program that no other number has, as a kernel and as a model."""
    x = np.linspace(-2, 2, 6 * 16, dtype=np.float32).reshape(6, 16)
    scale = 0.5 + number / 8  # exact in binary
    kernel = bb.compile(lambda X: {"O": bb.ops.relu(X * scale)}, X="M N", threads=1)
    np.testing.assert_array_equal(kernel(x)["O"], np.maximum(x * np.float32(scale), 0))
    found = Watched(lambda t: torch.relu(t * scale) + 1, threads=1)(torch.from_numpy(x))
    torch.testing.assert_close(found, torch.relu(torch.from_numpy(x) * scale) + 1)
    torch._dynamo.reset()


def test_compiled_programs_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_parts, "_COMPILED", RecentlyUsed(3))
    for number in range(5):
        compile_distinct(number)
        assert len(compile_parts._COMPILED) == min(number + 1, 3)


@pytest.mark.long
@pytest.mark.skipif(not STATUS.exists(), reason="memory is measured by /proc")
def test_hundreds_of_programs() -> None:
    """Memory grows by less than 1 MB a program: loaded libraries, and memory that PyTorch keeps."""
    sizes = {}
    for number in range(300):
        compile_distinct(number)
        if number in (99, 199, 299):
            sizes[number] = resident() / 1e6
    print(f"300 programs: {', '.join(f'{n + 1}: {size:.0f} MB' for n, size in sizes.items())}")
    assert sizes[299] - sizes[199] < 100
