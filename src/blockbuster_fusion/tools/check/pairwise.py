"""Sums and products of matrices that are summed in pairs, so that their errors stay small."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CHUNK = 64
"""The number of products of a dot that are summed in one piece; pieces are summed in pairs."""


def product_in_pairs(left: Array, right: Array) -> Array:
    """A product of matrices: sums of `CHUNK` products each, which are summed in pairs."""
    length = left.shape[-1]
    sums: list[tuple[int, Array]] = []
    """Partial sums, each with its number of chunks."""
    for start in range(0, max(length, 1), CHUNK):
        stop = start + CHUNK
        made = _product_of(left[..., start:stop], right[..., start:stop, :])
        count = 1
        while sums and sums[-1][0] == count:
            made, count = sums.pop()[1] + made, 2 * count
        sums.append((count, made))
    total = sums.pop()[1]
    while sums:
        total = sums.pop()[1] + total
    return total


def _product_of(left: Array, right: Array) -> Array:
    """A product of matrices; BLAS may compute 0 times inf as 0, so infinities go through einsum."""
    if np.isfinite(left).all() and np.isfinite(right).all():
        return np.asarray(np.matmul(left, right))
    return np.asarray(np.einsum("...ij,...jk->...ik", left, right))


def in_pairs(x: Array) -> Array:
    """The sum along the last axis: pairs, then pairs of pairs, and so on."""
    if x.shape[-1] == 0:
        return np.zeros(x.shape[:-1], x.dtype)
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = np.concatenate([x[..., :-1:2] + x[..., 1::2], x[..., -1:]], axis=-1)
        else:
            x = x[..., ::2] + x[..., 1::2]
    return np.asarray(x[..., 0])
