"""Products of bfloat16 on units made for them: vectors, and tiles, which are emulated here."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.runtime.c import compiler as cc
from blockbuster_fusion.runtime.c import kernels, probe
from helpers import torch_reference
from helpers.compiled import EXACT
from helpers.effort import FULL, crossed, part

o = bb.ops
EMULATED = Path(__file__).parents[1] / "helpers" / "emulated_tiles.h"
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 65, 100, 257]
UNITS = ["vector", "matrix"]


def softmax(S):
    E = o.exp(S - S.max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)


def norm(X):
    return X * o.rsqrt(o.square(X).mean(-1, keepdims=True) + 1e-5)


PROGRAMS = {
    "rows and columns": (lambda X, W: X @ W, ("MK", "KN")),
    "linear": (lambda X, W: X @ W.T, ("MK", "NK")),
    "both turned": (lambda X, W: X.T @ W, ("KM", "KN")),
    "turned rows": (lambda X, W: X.T @ W.T, ("KM", "NK")),
    "with itself": (lambda X: X @ X.T, ("MK",)),
    "norm and linear": (lambda X, W: norm(X) @ W.T, ("MK", "NK")),
    "residual": (lambda X, W: X + X @ W.T, ("MK", "KK")),
    "gate": (lambda X, W, V: o.swish(X @ W.T) * (X @ V), ("MK", "NK", "KN")),
    "two products": (lambda X, W, V: o.relu(X @ W.T) @ V, ("MK", "NK", "NK")),
    "attention": (lambda Q, K, V: softmax(Q @ K.T) @ V, ("MK", "NK", "NL")),
    "attention, turned": (lambda Q, K, V: softmax(Q @ K) @ V.T, ("MK", "KN", "LN")),
}
"""Functions with the axes of their inputs."""
SOME = [*PROGRAMS] if FULL else [*PROGRAMS][1::2]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has kernels made for a unit: vectors if this CPU has it, and tiles in plain C."""
    if not probe.dot_units():
        pytest.skip("this CPU, or its compiler, has no dots of bfloat16")
    monkeypatch.setattr(kernels, "dot_unit", lambda: request.param)
    if request.param == "matrix":
        monkeypatch.setenv("CC", f"{' '.join(cc.compiler())} -include {EMULATED}")
    return request.param


def traced(name: str) -> bb.ArrayProgram:
    function, shapes = PROGRAMS[name]
    names = function.__code__.co_varnames
    specs = {own: " ".join(shape) for own, shape in zip(names, shapes, strict=False)}
    return bb.trace(function, **specs)


def strided(x: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
    """The same numbers: contiguous, with turned axes, within NaN, or every other one."""
    made = torch.from_numpy(x).bfloat16()
    kind = rng.integers(4)
    if kind == 1:
        return torch.from_numpy(np.asfortranarray(x)).bfloat16()
    step = 1 if kind == 2 else 2
    room = torch.full([2 * n + 3 for n in x.shape], torch.nan, dtype=made.dtype)
    place = room[tuple(slice(3, 3 + step * n, step) for n in x.shape)]
    return place.copy_(made) if kind else made


def check(name: str, kernel: bb.Executable, sizes: dict[str, int], seed: int) -> None:
    """A kernel's error may be twice that of PyTorch's operators in bfloat16."""
    rng = np.random.default_rng(seed)
    program, shapes = traced(name), PROGRAMS[name][1]
    given = [rng.standard_normal([sizes[axis] for axis in shape]) for shape in shapes]
    tensors = [strided(x / sizes["K"] ** 0.25, rng) for x in given]
    inputs = {i.name: x.double().numpy() for i, x in zip(program.inputs, tensors, strict=True)}
    (exact,) = torch_reference.run(program, inputs, torch.float64).values()
    (usual,) = torch_reference.run(program, inputs, torch.bfloat16).values()
    found = kernel(*tensors)[0].double().numpy()
    scale = np.abs(exact).max()
    least, error = (np.abs(x - exact).max() / scale for x in (usual, found))
    assert error <= 2 * max(least, EXACT["bfloat16"]), f"{name}, {sizes}, seed {seed}"


def sizes_of(name: str, seed: int) -> dict[str, int]:
    """A length for each axis, on or beside the edges of blocks."""
    rng = np.random.default_rng(seed)
    return {axis: int(rng.choice(LENGTHS)) for axis in sorted({*"".join(PROGRAMS[name][1])})}


@pytest.mark.parametrize(("name", "unit"), crossed(SOME, UNITS), indirect=["unit"])
def test_any_sizes_and_strides(name: str, unit: str) -> None:
    """One kernel serves all lengths, with blocks that these rarely fill."""
    axes = {*"".join(PROGRAMS[name][1])}
    tiles = {axis: n for axis, n in {"M": 48, "N": 80, "K": 70}.items() if axis in axes}
    kernel = bb.compile(traced(name), dtype="bfloat16", threads=1, tiles=tiles)
    assert f"contract_pairs_bfloat16_{unit}(" in kernel.source
    for seed in range(part(60, least=10)):
        check(name, kernel, sizes_of(name, seed), seed)


@pytest.mark.parametrize(("name", "unit"), crossed(SOME[1::2], UNITS), indirect=["unit"])
def test_known_sizes(name: str, unit: str) -> None:
    """Kernels for known sizes, by default: long sums are made of several panels."""
    seed = [*PROGRAMS].index(name)
    rng = np.random.default_rng(seed)
    most = {"M": 200, "N": 300, "K": 1300, "L": 80}
    axes = sorted({*"".join(PROGRAMS[name][1])})
    sizes = {axis: int(rng.integers(20, most[axis])) for axis in axes}
    kernel = bb.compile(traced(name), dtype="bfloat16", threads=1, sizes=sizes)
    check(name, kernel, sizes, seed)


@pytest.mark.parametrize("unit", UNITS, indirect=True)
@pytest.mark.parametrize("rows", [1, 40])
def test_infinities_and_nan_stay_in_their_rows_and_columns(rows: int, unit: str) -> None:
    """Zeros beyond the end of a sum are multiplied with zeros alone."""
    kernel = bb.compile(traced("linear"), dtype="bfloat16", threads=1)
    for depth in (1, 7, 33, 95, 289):
        x, w = torch.ones(rows, depth), torch.ones(50, depth)
        x[0, -1], w[3, -1], w[4, 0], w[5, depth // 2] = 3e38, torch.inf, torch.nan, -torch.inf
        given = [strided(t.numpy(), np.random.default_rng(depth)) for t in (x, w)]
        (found,) = kernel(*given)
        torch.testing.assert_close(
            found.float(), (x.double() @ w.double().T).float(), rtol=1e-2, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("unit", UNITS[:1], indirect=True)
@pytest.mark.parametrize("rows", [1, 20])
def test_all_numbers_but_subnormal_ones_are_multiplied(rows: int, unit: str) -> None:
    """Times 1 a number stays as it is; subnormal numbers are zeros for the unit."""
    kernel = bb.compile(traced("linear"), dtype="bfloat16", threads=1, sizes={"K": 1, "M": rows})
    numbers = torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16)
    (found,) = kernel(torch.ones((rows, 1), dtype=torch.bfloat16), numbers[:, None])
    least = torch.finfo(torch.bfloat16).smallest_normal
    wanted = torch.where(numbers.abs() < least, 0.0, numbers.float())
    for row in found[:: max(1, rows - 1)]:
        assert torch.equal(row.isnan(), numbers.isnan())
        assert torch.equal(row.float().nan_to_num(1.0), wanted.nan_to_num(1.0))


# ---------------------------------------------------------------- what is multiplied so


def printed(function: Callable[..., Any], dtypes: str, unit: str | None) -> str:
    """A program of X, W and their result O, with the dtype of each."""
    program = bb.trace(function, X="M K", W="N K")
    storage = {name: DType(dtype) for name, dtype in zip("XWO", dtypes.split(), strict=True)}
    (choice, *_) = choose(Request(program, dtype=storage))
    return print_c(*choice.scheduled(), dots=unit)


@pytest.mark.parametrize(
    ("function", "dtypes", "is_dot"),
    [
        (lambda X, W: X @ W.T, "bfloat16 bfloat16 bfloat16", True),
        (lambda X, W: X @ W.T, "bfloat16 bfloat16 float32", True),
        (lambda X, W: X @ W.T, "bfloat16 float32 bfloat16", False),
        (lambda X, W: X @ W.T, "float16 float16 float16", False),
        (lambda X, W: o.relu(X) @ W.T, "bfloat16 bfloat16 bfloat16", False),
        (lambda X, W: o.exp(X) @ W.T, "bfloat16 bfloat16 bfloat16", True),
        (lambda X, W: o.exp(X) @ W.T, "bfloat16 bfloat16 float32", False),
        (lambda X, W: o.exp(X) @ W.T, "float32 bfloat16 bfloat16", True),
    ],
)
def test_only_exponentials_are_rounded(function, dtypes: str, is_dot: bool) -> None:
    """Their sums do not cancel; and they are rounded only if all results are."""
    assert ("contract_pairs" in printed(function, dtypes, "vector")) == is_dot
    assert "contract_pairs" not in printed(function, dtypes, None)


def test_sums_that_cancel_are_not_rounded() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x.float() + 1000.0) @ w.float()).bfloat16()

    x = torch.rand(64, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    w = torch.cat([torch.ones(16, 40), -torch.ones(16, 40)]).bfloat16()
    made = torch.compile(f, backend="blockbuster", options={"library": "never"})(x, w)
    exact = (x.double() + 1000.0) @ w.double()
    assert (made.double() - exact).abs().max() <= 2 * (f(x, w).double() - exact).abs().max()


def test_a_copy_in_pairs_is_made_before_the_loop_that_reads_it() -> None:
    program = bb.trace(lambda X, W: o.exp(X) @ W.T, X="M K", W="N K")
    (choice, *_) = choose(Request(program, sizes={"K": 64}, dtype="bfloat16"))
    source = print_c(*choice.scheduled(), dots="vector")
    kernel = source[source.index("kernel_lambda_part(") :]
    assert 0 < kernel.index("pairs_float(") < kernel.index("for (int64_t n")


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [
        ({}, None),
        ({"vector": 3.0}, None),
        ({"vector": 1.0}, "vector"),
        ({"vector": 1.0, "matrix": 0.1}, "matrix"),
        ({"vector": 1.0, "matrix": 1.5}, "vector"),
    ],
)
def test_the_fastest_unit_is_taken(seconds: dict, unit: str, monkeypatch) -> None:
    """A round of each unit has as many multiply-adds as one of float32, which takes 2 seconds."""
    names = {f"peak_{name}": name for name in ("float32", *UNITS)}
    library = SimpleNamespace(vector_bytes=lambda: 64, **names)
    monkeypatch.setattr(probe, "_library", lambda: library)
    monkeypatch.setattr(probe, "dot_units", lambda: dict.fromkeys(seconds, 160))
    monkeypatch.setattr(probe, "_soon", lambda name: {"float32": 2.0, **seconds}[name])
    monkeypatch.setattr(probe, "_dot_rates", probe._dot_rates.__wrapped__)
    assert probe.dot_unit() == unit


def test_tiles_compile_for_a_cpu_that_has_them(tmp_path: Path) -> None:
    options = ["-march=sapphirerapids", "-O1", "-Werror", "-Wno-unused-function", "-c"]
    known = subprocess.run([*cc.compiler(), *options[:1], "-E", "-xc", os.devnull])
    if known.returncode:
        pytest.skip("the compiler does not know this CPU")
    (choice, *_) = choose(Request(traced("attention"), dtype="bfloat16"))
    for name, text in {
        "kernel.c": print_c(*choice.scheduled(), dots="matrix"),
        "probe.c": probe.SOURCE,
    }.items():
        (tmp_path / name).write_text(text)
        subprocess.run([*cc.compiler(), *options, name], cwd=tmp_path, check=True)
