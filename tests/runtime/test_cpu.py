"""Kernels in C, against float64: as exact as PyTorch's operators, for any lengths and strides."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.runtime import disk_cache
from blockbuster_fusion.runtime.c import compiler as cc
from blockbuster_fusion.runtime.c import probe
from blockbuster_fusion.runtime.c.kernels import CpuKernels
from blockbuster_fusion.runtime.compiled import Compiled
from helpers.compiled import (
    EXACT,
    NAMES,
    allowed,
    error_of,
    expected,
    ragged_sizes,
    random_inputs,
    torch_error,
)
from helpers.effort import FULL, crossed

SEEDS = 3
LENGTHS = 300

DTYPES = ["float32", "bfloat16", "float16"]
SNAPSHOTS = [(name, n) for name in NAMES for n in range(len(bb.fuse(bb.examples.find(name)).fused))]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources that the compiler has been asked for."""
    made: list[Path] = []
    run = cc.compile_c

    def counted(source, **options):
        made.append(source)
        return run(source, **options)

    monkeypatch.setattr("blockbuster_fusion.runtime.c.kernels.compile_c", counted)
    return made


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("case", "dtype"), crossed(SNAPSHOTS, DTYPES), ids=str)
def test_every_snapshot_is_as_exact_as_pytorch(
    case: tuple[str, int], dtype: str, compilations: list
) -> None:
    name, snapshot = case
    program = bb.examples.find(name)
    kernel = bb.compile(program, snapshot=snapshot, dtype=dtype, unit=(), threads=2)
    for seed in range(SEEDS):
        sizes = ragged_sizes(program, seed + 100 * snapshot, LENGTHS)
        inputs = random_inputs(program, sizes, seed, dtype)
        assert error_of(kernel, program, inputs) <= allowed(program, sizes, dtype), sizes
    assert len(compilations) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_default_choice(name: str) -> None:
    """Widths are fixed, so that short axes have one block."""
    program = bb.examples.find(name)
    fixed = {"D": 64, "L": 48} if "attention" in name else {"K": 200}
    kernel = bb.compile(program, sizes=fixed)
    for seed in range(2):
        sizes = ragged_sizes(program, seed, LENGTHS) | fixed
        inputs = random_inputs(program, sizes, seed, "float32")
        assert error_of(kernel, program, inputs) <= allowed(program, sizes, "float32"), sizes


@pytest.mark.parametrize("name", ["attention", "layernorm-linear", "rmsnorm-swiglu-residual"])
def test_double_precision(name: str) -> None:
    program = bb.examples.find(name)
    function = as_function(program)
    specs = [bb.array(*(a.name for a in i.type.axes), dtype="float64") for i in program.inputs]
    kernel = bb.compile(function, *specs)
    sizes = ragged_sizes(program, 3, 80)
    inputs = random_inputs(program, sizes, 0, "float64")
    found = kernel(*inputs.values())[0]
    assert found.dtype == torch.float64
    (wanted,) = expected(program, inputs).values()
    assert np.abs(found.numpy() - wanted).max() <= 1e-13 * max(np.abs(wanted).max(), 1)


def as_function(program: bb.ArrayProgram):
    """A function that computes the same, to be traced with other dtypes."""
    functions = {
        "attention": lambda Q, K, V: bb.ops.softmax((Q @ K.T) * bb.ops.size(Q, 1) ** -0.5) @ V.T,
        "layernorm_linear": lambda X, g, b, W, c: bb.ops.layernorm(X, g, b) @ W.T + c,
        "rmsnorm_swiglu_residual": lambda X, g, W, V, U: (
            X + (bb.ops.swish((n := bb.ops.rmsnorm(X, g)) @ W.T) * (n @ V.T)) @ U.T
        ),
    }
    return functions[program.name]


@pytest.mark.parametrize("lengths", [(1, 1), (1, 300), (300, 1), (64, 64), (65, 63), (128, 257)])
def test_one_kernel_serves_all_lengths(lengths: tuple[int, int], compilations: list) -> None:
    program = bb.examples.causal_attention()
    kernel = bb.compile(program, sizes={"D": 32, "L": 32})
    sizes = dict(zip("MN", lengths, strict=True)) | {"D": 32, "L": 32}
    inputs = random_inputs(program, sizes, 1, "float32")
    assert error_of(kernel, program, inputs) <= allowed(program, sizes, "float32")
    assert len(compilations) == 1


def test_strided_inputs_are_read_where_they_lie() -> None:
    program = bb.examples.attention()
    kernel = bb.compile(program)
    rng = np.random.default_rng(0)
    Q = rng.standard_normal((2 * 40, 3, 24)).astype(np.float32)[::2, 1]
    K = rng.standard_normal((24, 50)).astype(np.float32).T
    V = rng.standard_normal((20, 50)).astype(np.float32)[::-1]
    wanted = bb.evaluate(program, [x.astype(np.float64) for x in (Q, K, V)])["O"]
    given = (Q, K, V, Q.copy(), K.copy(), V.copy())
    np.testing.assert_allclose(kernel(Q, K, V)["O"], wanted, atol=2e-5)
    for x, before in zip(given[:3], given[3:], strict=True):
        np.testing.assert_array_equal(x, before)
    tensors = [torch.from_numpy(x) for x in (Q, K, V.copy())]
    np.testing.assert_allclose(kernel(*tensors)["O"].numpy(), wanted, atol=2e-5)
    broadcast = np.broadcast_to(Q[:1], Q.shape)
    wanted = bb.evaluate(program, [x.astype(np.float64) for x in (broadcast, K, V)])["O"]
    np.testing.assert_allclose(kernel(broadcast, K, V)["O"], wanted, atol=2e-5)


def test_results_of_many_bytes() -> None:
    """They get large pages, where the system has some; what lies around them stays as it was."""
    x = torch.randn(1100, 1500)
    room = torch.full((1102, 1500), 7.0)
    with torch.no_grad():
        found = torch.compile(lambda x: x.exp() + 1, backend="blockbuster")(x)
        torch.compile(lambda x, y: y.copy_(x * 2), backend="blockbuster")(x, room[1:-1])
    assert torch.allclose(found, x.exp() + 1)
    assert torch.equal(room[1:-1], x * 2)
    assert (room[[0, -1]] == 7).all()


@pytest.mark.parametrize("empty", ["M", "N", "D", "L"])
def test_empty_axes(empty: str) -> None:
    program = bb.examples.matmul_relu() if empty in "ML" else bb.examples.attention()
    sizes = {"M": 5, "N": 7, "K": 4, "D": 6, "L": 3} | {empty: 0}
    inputs = random_inputs(program, sizes, 0, "float32")
    for unit in ((), ("K",) if empty in "ML" else ("D",)):
        kernel = bb.compile(program, unit=unit)
        reference = bb.compile(program, unit=unit, target="interpret")
        found = kernel(**inputs)[0].numpy()
        np.testing.assert_allclose(found, reference(**inputs)[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_empty_reductions(shape: tuple[int, int]) -> None:
    """The kernels of the unfused program give the identities, also of integers."""

    def reduced(X, I):  # noqa: E741
        return X.sum(-1), X.max(-1), X.min(0), I.max(-1), I.min(0), I.sum(-1)

    program = bb.trace(reduced, X="M N", I=bb.array("M", "N", dtype="int64"))
    given = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
    kernel = bb.compile(program)
    found, wanted = kernel(*given), bb.compile(program, target="interpret")(*given)
    assert [x.dtype for x in found] == [x.dtype for x in wanted]
    for x, identity in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, identity)
    assert isinstance(kernel.runner, Compiled)
    assert isinstance(kernel.runner.unfused, Compiled)
    assert kernel.runner.unfused.unfused is None


def test_many_threads_at_once() -> None:
    program = bb.examples.rmsnorm_swiglu()
    kernel = bb.compile(program, threads=1)
    sizes = ragged_sizes(program, 5, 150)
    cases = [random_inputs(program, sizes, seed, "float32") for seed in range(4)]
    alone = [kernel(**case)["O"] for case in cases]
    wrong = []

    def work(number: int) -> None:
        for _ in range(10):
            if not torch.equal(kernel(**cases[number])["O"], alone[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_library_that_does_not_load_is_compiled_again(
    compilations: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where its checksum is right."""
    source = bb.compile(bb.examples.matmul_relu()).source
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path))
    library = cc.compile_c(source).file
    other = library.with_name(disk_cache.file_name(library.parent.name, b"no library"))
    library.rename(other)
    other.write_bytes(b"no library")
    assert cc.compile_c(source).content == b"no library"
    compilations.clear()
    again = bb.compile(bb.examples.matmul_relu())
    x = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(again(x, x)["C"], x)
    assert len(compilations) == 2


SANITIZED = """
import os
del os.environ["LD_PRELOAD"]  # the compiler would be checked too
import numpy as np, sys
import blockbuster_fusion as bb
from blockbuster_fusion.runtime.bound import CompiledNest
from blockbuster_fusion.runtime.c import kernels as c_kernels
from blockbuster_fusion.runtime.c.kernels import CpuKernels
from blockbuster_fusion.runtime.compiled import Compiled
name, snapshot, dtype, rows = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if sys.argv[5:]:
    c_kernels.dot_unit = lambda: sys.argv[5]
program = bb.examples.find(name)
tiles = {"M": rows} if rows else None
made = bb.compile(program, snapshot=snapshot, dtype=dtype, unit=(), tiles=tiles, threads=2)
kernels = CpuKernels(made.nest, made.tiles, threads=2, sanitize=True)
runner = Compiled([CompiledNest(made.nest, made.inputs, made.tiles, kernels)], device="cpu")
rng = np.random.default_rng(0)
store = np.float16 if dtype == "float16" else np.float32
for most in (1, 7, 40, 130, 200):
    sizes = {}
    given = []
    for i in program.inputs:
        for a in i.type.axes:
            sizes.setdefault(a.name, int(rng.integers(1, 5 if a.name in "BHGR" else most + 1)))
        shape = [sizes[a.name] for a in i.type.axes]
        given.append(rng.standard_normal(shape).astype(store))
    found, wanted = (np.asarray(x[0], float) for x in (runner.run(given), made(*given)))
    both = np.isfinite(found) & np.isfinite(wanted)  # LayerNorm of one element divides by zero
    assert both.all() or 1 in sizes.values()
    scale = np.abs(wanted[both]).max(initial=1)
    assert np.abs(found - wanted)[both].max(initial=0) <= 1e-2 * scale
print("clean")
"""


KINDS = [
    *("layernorm-matmul", "multi-head-attention"),
    *("sliding-window-attention", "rmsnorm-swiglu-residual"),
]
"""A program of each kind: sums of rows, batches of heads, windows of blocks, products in turn."""
SANITIZED_CASES = [(*case, 0) for case in crossed(NAMES if FULL else KINDS, DTYPES)]
FEW_ROWS_CASES = [("rmsnorm-swiglu", "bfloat16", 16), ("layernorm-matmul", "float32", 4)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "dtype", "rows"), SANITIZED_CASES + FEW_ROWS_CASES)
def test_sanitizers_find_nothing(name: str, dtype: str, rows: int) -> None:
    """Of addresses and undefined behaviour, over ragged lengths, on the most fused snapshot."""
    check_with_sanitizers(name, dtype, rows)


def test_sanitizers_find_nothing_with_emulated_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if not probe.dot_units():
        pytest.skip("this CPU, or its compiler, has no dots of bfloat16")
    header = Path(__file__).parents[1] / "helpers" / "emulated_tiles.h"
    monkeypatch.setenv("CC", f"{' '.join(cc.compiler())} -include {header}")
    check_with_sanitizers("attention", "bfloat16", 0, "matrix")


def check_with_sanitizers(name: str, dtype: str, rows: int, *unit: str) -> None:
    """Runs a program with sanitizers, in a process of its own; `unit` multiplies bfloat16."""
    command = cc.compiler()[:1]
    found = subprocess.run(
        [*command, "-print-file-name=libasan.so"], capture_output=True, text=True
    )
    libasan = found.stdout.strip()
    if not Path(libasan).is_absolute():
        assert "CI" not in os.environ, "CI is to run this: install the compiler's sanitizers"
        pytest.skip("the compiler has no address sanitizer")
    environment = {
        **os.environ,
        "LD_PRELOAD": libasan,
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    last = bb.fuse(bb.examples.find(name)).most_fused
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, name, str(last), dtype, str(rows), *unit],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("clean\n"), done.stderr[-4000:]


def test_errors_of_pytorch_are_finite() -> None:
    """Else the tolerance would allow anything."""
    program = bb.examples.sliding_window_attention()
    error = torch_error(program, ragged_sizes(program, 1), "float16")
    assert error < 0.1
    assert EXACT["float16"] < 0.1


def test_the_source_says_what_it_was_made_from() -> None:
    kernel = bb.compile(bb.examples.matmul_relu())
    assert isinstance(kernel.runner.kernels, CpuKernels)
    assert kernel.nest is not None
    assert all(k.name in kernel.source for k in kernel.nest.kernels)
