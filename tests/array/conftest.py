"""Programs against NumPy: on whole arrays, and lowered, on blocks that do not fit evenly."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.program import ArrayProgram
from helpers.running import ragged_tiles

SIZES = {"M": 5, "K": 7, "N": 6, "D": 4, "L": 3, "E": 8, "B": 2, "H": 3, "G": 2, "R": 3}

Check = Callable[..., ArrayProgram]


@pytest.fixture
def check() -> Check:
    """`check(fn, *specs)`: the traced program gives the results of `fn` (or `reference`)."""
    return _check


def _check(
    fn: Callable[..., Any],
    *specs: Any,
    reference: Callable[..., Any] | None = None,
    inputs: Sequence[Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    **options: Any,
) -> ArrayProgram:
    program = bb.trace(fn, *specs, **options)
    given = _random(program, SIZES | dict(sizes or {})) if inputs is None else inputs
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of means of nothing
        wanted = (reference or fn)(*given)
    expected = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    named = {i.name: x for i, x in zip(program.inputs, given, strict=True)}
    _compare("evaluate", list(bb.evaluate(program, named).values()), expected)
    graph = bb.lower(program)
    for tiles in (ragged_tiles(graph), dict.fromkeys(ragged_tiles(graph), 1), {}):
        _compare(f"interpret with {tiles}", bb.interpret(graph, named, tiles), expected)
    return program


def _random(program: ArrayProgram, sizes: Mapping[str, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(len(program.operators))
    made = []
    for given in program.inputs:
        extents = [
            a.extent if isinstance(a.extent, int) else sizes[a.name] for a in given.type.axes
        ]
        made.append(rng.standard_normal(extents))
    return made


def _compare(how: str, computed: Sequence[np.ndarray], expected: Sequence[Any]) -> None:
    assert len(computed) == len(expected)
    for found, wanted in zip(computed, map(np.asarray, expected), strict=True):
        assert found.dtype.kind == wanted.dtype.kind, f"{how}: {found.dtype}, not {wanted.dtype}"
        # axes of length 1 that keepdims or None made are left out of outputs
        shape = [n for n in wanted.shape if n != 1]
        assert [n for n in found.shape if n != 1] == shape, f"{how}: {found.shape}, not {shape}"
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(found.reshape(shape), wanted.reshape(shape), how)
            continue
        # results of integers alone are computed in float32
        exact = 1e-12 if found.dtype == np.float64 else 1e-6
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1)
        np.testing.assert_allclose(
            found.reshape(shape), wanted.reshape(shape), exact, exact * scale, err_msg=how
        )
