"""Attention as models write it is one kernel, skips blocks that positions mask, and is exact."""

import functools
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Contract, For, Kernel
from blockbuster_fusion.tools.check.judge import relative_error
from helpers import torch_reference
from helpers.attention_forms import FORMS, inputs_of
from helpers.compiled import EXACT
from helpers.nest_text import read_back

SIZES = ({"S": 37, "T": 53}, {"S": 1, "T": 41}, {"S": 70, "T": 70})


def flash_loop(kernel: Kernel) -> For:
    """The one loop over the keys, which holds both contractions."""
    (loop,) = [s for s in kernel.statements if isinstance(s, For) and s.index.dim.name == "T"]
    assert sum(isinstance(s, Contract) for s in kernel.statements) == 2
    last = [s for s in loop.body if isinstance(s, Contract)][-1]
    assert last.tile in {tile for _, gathered in loop.gathered for tile in gathered}
    return loop


@functools.cache
def chosen(name: str, dtype: str | None) -> Kernel:
    """The kernel that is chosen for a form by default, if it is one."""
    nest, _ = choose(Request(FORMS[name].traced(), dtype=dtype))[0].scheduled()
    (kernel,) = read_back(nest).steps
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", FORMS)
def test_one_kernel_that_skips_what_positions_mask(name: str) -> None:
    form = FORMS[name]
    for dtype in (None, "bfloat16"):
        window = flash_loop(chosen(name, dtype)).window
        assert (window is not None) == form.skips
        assert bool(window and window.seen) == form.checked


@functools.cache
def small(name: str) -> bb.Executable:
    """A form in blocks of 8."""
    program = FORMS[name].traced()
    known = {axis.name for given in program.inputs for axis in given.type.axes}
    tiles = {axis: 8 for axis in ("S", "T") if axis in known}
    return bb.compile(program, tiles=tiles, snapshot="most_fused", threads=1)


def errors(
    name: str, kernel: bb.Executable, dtype: str, extents: dict[str, int], **changed: np.ndarray
) -> tuple[float, float]:
    """The error against float64, and that of PyTorch's float32, rounded as the result is."""
    program, stored = FORMS[name].traced(), getattr(torch, dtype)
    found: list[tuple[float, float]] = []
    for seed in range(3):
        given = {**inputs_of(program, seed, **extents), **changed}
        tensors = {n: torch.from_numpy(x) for n, x in given.items()}
        tensors = {n: x.to(stored) if x.is_floating_point() else x for n, x in tensors.items()}
        exact = {
            n: (x.double() if x.is_floating_point() else x).numpy() for n, x in tensors.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = torch_reference.run(program, exact, torch.float64)
            eager = torch_reference.run(program, exact, torch.float32)
        rounded = {n: torch.from_numpy(x).to(stored).double().numpy() for n, x in eager.items()}
        made = {n: x.double().numpy() for n, x in kernel(**tensors).items()}
        for n, x in wanted.items():
            np.testing.assert_array_equal(np.isnan(made[n]), np.isnan(x))
        found.append((relative_error(made, wanted), relative_error(rounded, wanted)))
    return max(own for own, _ in found), max(EXACT[dtype] / 2, *(theirs for _, theirs in found))


ALIKE = {
    "chosen_least",
    "masked_before_scaling",
    "nothing_before_scaling",
    "offset_of_sizes",
    "arithmetic_mask",
    "softcap",
    "softmax_written_out",
    "mask_inside_where",
    "neither_later_nor_padded",
    "prefix_of_each",
    "query_without_an_axis",
    "bias_of_heads",
    "cache_positions",
    "alibi_of_keys",
    "rows_without_keys",
    "root_of_the_scale_on_both",
}
"""Forms whose kernels differ little from others': these are run when there is time."""


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in ALIKE else n for n in FORMS]
)
def test_exact_in_small_blocks(name: str) -> None:
    kernel = small(name)
    fixed = {"S": 1} if "S:1" in str(FORMS[name].specs["q"]) else {}
    for extents in SIZES:
        own, torchs = errors(name, kernel, "float32", {**extents, **fixed})
        assert own <= 2 * torchs


@pytest.mark.parametrize("name", ["all_three", "cache_positions_safe", "groups_safe_with_padding"])
def test_exact_as_compiled_by_default(name: str) -> None:
    kernel = bb.compile(FORMS[name].traced(), dtype="bfloat16", threads=1)
    for extents in ({"S": 37, "T": 53}, {"S": 130, "T": 130}):
        own, torchs = errors(name, kernel, "bfloat16", extents)
        assert own <= 2 * torchs


# ---------------------------------------------------------------- blocks that are visited


def run(name: str, **given: np.ndarray) -> np.ndarray:
    """The result of a form in blocks of 8."""
    wide = {n: x.astype(np.float32) if x.dtype == np.float64 else x for n, x in given.items()}
    return small(name)(**wide)[0]


@pytest.mark.parametrize(
    ("name", "visible"),
    [
        ("window_and_padding", range(24, 40)),
        ("cache_positions_safe", range(24, 40)),
        ("added_twice", range(40)),
    ],
)
def test_blocks_without_a_visible_key_are_not_even_read(name: str, visible: range) -> None:
    """Values that are not numbers would show, even times 0."""
    given = inputs_of(FORMS[name].traced(), S=8, T=80)
    given["q"] = np.repeat(given["q"], 5, axis=2)  # rows 0 to 39; only the last block is looked at
    if "padding" in given:
        given["padding"][:] = True
    if "cache_position" in given:
        given["cache_position"] = np.arange(40)
    hidden = [t for t in range(80) if t not in visible]
    given["v"][:, :, hidden] = np.nan
    found = run(name, **given)[:, :, 32:]
    assert np.isfinite(found).all()


def test_rows_that_see_nothing_are_averaged_over_everything() -> None:
    """As in PyTorch, where their scores are all the least number; other rows still skip."""
    given = inputs_of(FORMS["window_and_padding"].traced(), S=40, T=40)
    given["padding"][:] = True
    given["padding"][0, :17] = False
    found = run("window_and_padding", **given)
    mean = given["v"].mean(axis=2, keepdims=True)
    np.testing.assert_allclose(found[0, :, :17], np.broadcast_to(mean[0], (3, 17, 16)), atol=1e-6)


def test_rows_that_see_nothing_are_exactly_zero_where_softmax_is_safe() -> None:
    given = inputs_of(FORMS["safe_with_padding"].traced(), S=40, T=40)
    given["padding"][:] = True
    given["padding"][0, :17] = False
    found = run("safe_with_padding", **given)
    assert (found[0, :, :17] == 0).all()
    assert (found[0, :, 17:] != 0).all()
    assert np.isfinite(found).all()


def test_a_bias_may_mask_a_whole_row() -> None:
    """The bias is an input, so a fully masked row is known only at run time."""
    given = inputs_of(FORMS["bias_and_mask"].traced(), S=40, T=40)
    given["bias"][1, 5] = np.finfo(np.float32).min
    own, torchs = errors("bias_and_mask", small("bias_and_mask"), "float32", {"S": 40, "T": 40},
                         bias=given["bias"])  # fmt: skip
    assert own <= 2 * torchs


@pytest.mark.parametrize("level", [-1000.0, 1000.0])
@pytest.mark.parametrize("scores", [0.0, 1000.0])
def test_sinks_far_from_the_scores(level: float, scores: float) -> None:
    """Exact in every spelling; the plain form would be infinite even in float64.

    A weight has the error of its score, whose rounding is 2⁻²⁴ of it.
    """
    name, extents = "sink_written_out", {"S": 20, "T": 20}
    given = inputs_of(FORMS[name].traced(), **extents)
    given["k"] = np.sign(given["q"]) * scores / np.abs(given["q"]).sum(-1, keepdims=True) * 4
    given["sink"] += level
    for kernel in (small(name), small("sink")):
        own, torchs = errors(name, kernel, "float32", extents, sink=given["sink"], k=given["k"])
        assert own <= 2 * max(torchs, scores * 2.0**-24)


def test_sums_without_softmax_skip_too() -> None:
    def program(q, k, v):
        s = q @ k.T
        t, r = ops.index(s, 1), ops.index(s, 0)
        return ops.where((t <= r) & (t > r - 4), s, 0.0) @ v

    traced = bb.trace(program, q="S D:16", k="T D:16", v="T E:16")
    nest, _ = choose(Request(traced))[0].scheduled()
    window = flash_loop(nest.kernels[0]).window
    assert window is not None
    assert window.seen == ()


def test_windows(golden: Callable[[str], None]) -> None:
    """The loops over keys, after the statements that compute the edges of their windows."""
    lines: list[str] = []
    for name in FORMS:
        kernel = chosen(name, None)
        window = flash_loop(kernel).window
        edges = () if window is None else tuple(f"{e}(" for e in (window.low, window.high))
        text = [line.strip() for line in show_nest(kernel).splitlines()]
        head = next(i for i, line in enumerate(text) if line.startswith("for t in"))
        made = [line for line in text[:head] if line.startswith(edges)]
        lines += [f"{name}:", *(f"    {line}" for line in (*made, text[head]))]
    golden("\n".join(lines))
