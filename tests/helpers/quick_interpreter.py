"""Triton's interpreter with less to do: the same operations and results, in half of the time.

Triton patches its language in each launch, and again in each call of a device function. It computes
whether integers overflow, and drops the answer. And it folds one element at a time, unless it knows
how the elements are combined. A full run has the interpreter as it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

from helpers.effort import FULL

Blocks = list[np.ndarray]
"""The values that are folded together, the folded axis first."""
OWN = {"reduce": interpreter.ReduceOps.generic_reduce, "scan": interpreter.ScanOps.generic_scan}
"""The folds of Triton's own."""
LANGUAGE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
"""A function that sees all modules which are patched."""


def quicken() -> None:
    """Makes the interpreter of this process quick, if it has one, except in a full run."""
    if FULL or not triton.knobs.runtime.interpret or interpreter._patch_lang is _patched:
        return
    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "then Triton tells of integers that overflow"
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang(LANGUAGE)
    interpreter._patch_lang = _patched
    interpreter.ReduceOps.generic_reduce = reduced
    interpreter.ScanOps.generic_scan = scanned


def _patched(function: Any) -> Any:
    """No change that is to be undone: the language is patched for as long as the process runs."""
    return interpreter._LangPatchScope()


def reduced(fold: Any, given: Any) -> list[Any]:
    """The fold of an axis: neighbours are combined, then the results of these, and so on."""
    blocks, axis = fold.unravel(given, fold.axis)
    found = [np.moveaxis(x.handle.data, axis, 0) for x in blocks]
    while len(found[0]) > 1:
        found = _combined(fold, blocks, [x[0::2] for x in found], [x[1::2] for x in found])
    if fold.axis is None:
        last = [x if fold.keep_dims else x.item() for x in found]
    else:
        last = [np.moveaxis(x, 0, axis) if fold.keep_dims else x[0] for x in found]
    return [fold.to_tensor(x, block.dtype) for x, block in zip(last, blocks, strict=True)]


def scanned(fold: Any, given: Any) -> list[Any]:
    """The folds of an axis up to each element: those of pairs first, then those between."""
    data = [np.moveaxis(x.handle.data, fold.axis, 0) for x in given]
    found = _scanned(fold, given, data)
    turned = [np.moveaxis(x, 0, fold.axis) for x in found]
    return [fold.to_tensor(x, block.dtype) for x, block in zip(turned, given, strict=True)]


def _scanned(fold: Any, given: Any, data: Blocks) -> Blocks:
    half = len(data[0]) // 2
    if half == 0:
        return data
    pairs = _combined(fold, given, [x[0::2] for x in data], [x[1::2] for x in data])
    odd = _scanned(fold, given, pairs)
    found = [x.copy() for x in data]
    for to, x in zip(found, odd, strict=True):
        to[1::2] = x
    if half > 1:
        # Blocks have powers of two elements: the last pair of this one is there twice.
        at = np.minimum(np.arange(half), half - 2)
        even = _combined(fold, given, [x[at] for x in odd], [x[2 * at + 2] for x in data])
        for to, x in zip(found, even, strict=True):
            to[2::2] = x[:-1]
    return found


def _combined(fold: Any, given: Any, left: Blocks, right: Blocks) -> Blocks:
    """Two parts of an axis, element by element."""
    sides = [
        fold.to_tensor(x, block.dtype)
        for side in (left, right)
        for x, block in zip(side, given, strict=True)
    ]
    made = fold.combine_fn.fn(*sides)
    results: Sequence[Any] = made if isinstance(made, tuple) else (made,)
    values = [one.handle.data if isinstance(one, tl.core.tensor) else one for one in results]
    return [
        np.broadcast_to(value, x.shape).astype(x.dtype)
        for value, x in zip(values, left, strict=True)
    ]


def _later(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """x -> a x + b, and then x -> c x + d: which one is first matters."""
    return a * c, b * c + d


COMBINATIONS = {
    "larger": (1, lambda a, b: tl.maximum(a, b)),
    "first": (1, lambda a, b: a),
    "last": (1, lambda a, b: b),
    "constant": (1, lambda a, b: 3),
    "linear functions": (2, _later),
}
SHAPES = ((1,), (2,), (16,), (1, 4), (4, 1), (8, 4), (2, 4, 8))


def fold_results() -> Iterator[dict[str, object]]:
    """True for each fold that equals that of Triton's own, on each axis of each shape."""
    rng = np.random.default_rng(0)
    scope = interpreter._patch_lang(LANGUAGE)
    for name, (count, combine) in COMBINATIONS.items():
        function, same = SimpleNamespace(fn=combine), list[bool]()
        for shape in SHAPES:
            arrays = [rng.integers(-2, 3, shape, np.int32) for _ in range(count)]
            for axis in range(len(shape)):
                scan = interpreter.ScanOps(axis, function, False)
                given = tuple(scan.to_tensor(x, tl.int32) for x in arrays)
                same.append(_equal(scanned(scan, given), OWN["scan"](scan, given)))
            for axis, keep in product((None, *range(len(shape))), (False, True)):
                fold = interpreter.ReduceOps(axis, function, keep)
                given = tuple(fold.to_tensor(x, tl.int32) for x in arrays)
                if axis is not None or count == 1:  # Triton flattens the first of several alone
                    same.append(_equal(reduced(fold, given), OWN["reduce"](fold, given)))
        yield {"case": name, "folds": len(same), "same": all(same)}
    scope.restore()


def _equal(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return len(found) == len(wanted) and all(
        one.type == other.type and np.array_equal(one.handle.data, other.handle.data)
        for one, other in zip(found, wanted, strict=True)
    )
