"""Products with few rows: random sizes, strides and dtypes, against float64."""

import os
import platform

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.runtime.c import kernels
from helpers.compiled import EXACT
from helpers.effort import FULL, crossed, part

o = bb.ops


def norm_gate_and_two_products(X, G, W, V, U):
    Y = X * o.rsqrt(o.square(X).mean(-1, keepdims=True) + 1e-5) * G
    return X + (o.swish(Y @ W.T) * (Y @ V.T)) @ U


PROGRAMS = {
    "weights along the sum": (lambda X, W: X @ W.T, ("MK", "NK")),
    "weights along columns": (lambda X, W: X @ W, ("MK", "KN")),
    "turned rows": (lambda X, W: X.T @ W.T, ("KM", "NK")),
    "few columns": (lambda X, W: X @ W.T, ("NK", "MK")),
    "few columns, turned weights": (lambda X, W: X @ W, ("NK", "KM")),
    "few columns, both turned": (lambda X, W: X.T @ W, ("KN", "KM")),
    "gate and bias": (lambda X, W, V, B: o.tanh(X @ W.T + B) * (X @ V), ("MK", "NK", "KN", "N")),
    "matrix and vector": (lambda A, V: A @ V, ("NK", "K")),
    "vector and matrix": (lambda V, A: V @ A, ("K", "KN")),
    "norm, gate and two products": (norm_gate_and_two_products, ("MK", "K", "NK", "NK", "NK")),
}
"""Functions with the axes of their inputs; axis M is short."""
DTYPES = ["float32", "bfloat16", "float64", "float16"]
TILES = {"M": 16, "N": 80, "K": 72}
CASES = part(48, least=12)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def traced(name: str, dtype: str) -> bb.ArrayProgram:
    function, shapes = PROGRAMS[name]
    names = function.__code__.co_varnames
    specs = {own: " ".join(shape) for own, shape in zip(names, shapes, strict=False)}
    return bb.trace(function, **specs, dtype="float64" if dtype == "float64" else "float32")


def compiled(name: str, dtype: str, **options) -> bb.Executable:
    stored = None if dtype == "float64" else dtype
    return bb.compile(traced(name, dtype), dtype=stored, threads=1, **options)


def tiles_of(name: str) -> dict[str, int]:
    return {axis: n for axis, n in TILES.items() if any(axis in s for s in PROGRAMS[name][1])}


def strided(x: np.ndarray, dtype: str, rng: np.random.Generator) -> torch.Tensor:
    """The same numbers: contiguous, with turned axes, within a larger array, or every other one."""
    made = torch.from_numpy(x).to(getattr(torch, dtype))
    kind = rng.integers(4)
    if kind == 1:
        return torch.from_numpy(np.asfortranarray(x)).to(made.dtype)
    step = 1 if kind == 2 else 2
    room = torch.full([2 * n + 3 for n in x.shape], torch.nan, dtype=made.dtype)
    place = room[tuple(slice(3, 3 + step * n, step) for n in x.shape)]
    return place.copy_(made) if kind else made


def check(name: str, kernel: bb.Executable, sizes: dict[str, int], dtype: str, seed: int) -> None:
    """A kernel's error may be twice that of NumPy with the same dtype."""
    rng = np.random.default_rng(seed)
    shapes = PROGRAMS[name][1]
    given = [rng.standard_normal([sizes[axis] for axis in shape]) for shape in shapes]
    tensors = [strided(x / sizes["K"] ** 0.5, dtype, rng) for x in given]
    program = traced(name, dtype)
    (exact,) = bb.evaluate(program, [x.double().numpy() for x in tensors]).values()
    (usual,) = bb.evaluate(program, [x.to(torch.float32).numpy() for x in tensors]).values()
    found = kernel(*tensors)[0].double().numpy()
    scale = np.abs(exact).max()
    least = 0.0 if dtype == "float64" else np.abs(usual - exact).max() / scale
    error = np.abs(found - exact).max() / scale
    assert error <= 2 * max(least, EXACT[dtype]), f"{name}, {dtype}, {sizes}, seed {seed}"


@pytest.mark.parametrize(("name", "dtype"), crossed([*PROGRAMS], DTYPES))
def test_any_sizes_and_strides(name, dtype):
    """One kernel serves all lengths: blocks of 16 rows, and whatever is left."""
    kernel = compiled(name, dtype, tiles=tiles_of(name))
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        sizes = {"M": 1 + seed % 17, **{axis: int(rng.integers(1, 200)) for axis in "NK"}}
        check(name, kernel, sizes, dtype, seed)


@pytest.mark.parametrize(
    ("name", "seed"), [*zip(PROGRAMS, range(10), strict=True)][:: 1 if FULL else 3]
)
def test_known_sizes(name, seed):
    """Kernels for known sizes, by default: long sums are made of several pieces."""
    rng = np.random.default_rng(seed)
    sizes = {"M": 1 + seed % 5, "N": int(rng.integers(1, 700)), "K": int(rng.integers(900, 2500))}
    known = {axis: sizes[axis] for axis in sizes if any(axis in s for s in PROGRAMS[name][1])}
    kernel = compiled(name, "float32", sizes=known)
    for again in range(3):
        check(name, kernel, sizes, "float32", seed + again)


def test_many_rows_become_few_in_a_call():
    """With unknown lengths blocks are of many rows; the last block, or the only one, has few."""
    kernel = compiled("weights along the sum", "float32")
    assert "if (m_len <= 16 && W_K == 1)" in kernel.source
    for rows in (1, 3, 16, 17, 257):
        check("weights along the sum", kernel, {"M": rows, "N": 50, "K": 300}, "float32", rows)


def test_weights_are_read_in_place():
    """No statement loads a block of weights, and none is turned."""
    kernel = compiled("norm, gate and two products", "bfloat16", sizes={"M": 4, "N": 64, "K": 96})
    text = kernel.source[kernel.source.index("norm_gate_and_two_products_part") :]
    for weight in "WVU":
        assert f"= {weight} " in text or f"= {weight};" in text
    assert text.count("load_bfloat16_float(") == 2  # the rows, and the weight of the norm
    assert text.count("few_rows_bfloat16_float(") == 3


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="options of x86")
@pytest.mark.parametrize(("flag", "dtype"), [("-mno-avx512f", "float32"), ("-mno-avx", "bfloat16")])
def test_narrower_vectors(flag, dtype, monkeypatch):
    monkeypatch.setenv("CC", f"{os.environ.get('CC', 'cc')} {flag}")
    kernel = compiled("gate and bias", dtype, tiles=TILES)
    for seed in range(17):
        sizes = {"M": 1 + seed, "N": 7 * seed + 1, "K": 190 - 11 * seed}
        check("gate and bias", kernel, sizes, dtype, seed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_number_of_16_bits_is_widened(dtype, monkeypatch):
    """Times 1 it stays as it is, also denormal numbers, infinities and NaN."""
    monkeypatch.setattr(kernels, "dot_unit", lambda: None)
    kernel = compiled("weights along the sum", dtype, sizes={"M": 1, "K": 1, "N": 1 << 16})
    bits = torch.arange(1 << 16).to(torch.int16)
    numbers = bits.view(getattr(torch, dtype))[:, None]
    (found,) = kernel(torch.ones((1, 1), dtype=numbers.dtype), numbers)
    assert torch.equal(found[0].isnan(), numbers[:, 0].isnan())
    assert torch.equal(found[0].nan_to_num(1.0), numbers[:, 0].nan_to_num(1.0))
