"""Tests that tensors are like given ones, in one call into C."""

from collections.abc import Iterable
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards


def tests_of_tensors(
    placed: Iterable[tuple[str, torch.Tensor]], names: dict[str, Any]
) -> list[str]:
    """The tests, as text, that tensors in some places are like given ones; `names` gets theirs.

    They compare types, shapes, strides, dtypes, devices, whether gradients are required, and what
    PyTorch does in a call of an operator: negation, autocasting, modes of inference and others.
    Tensors that are one must be one, and others must not.
    """
    first: dict[int, tuple[str, torch.Tensor]] = {}
    tests = []
    for place, x in placed:
        known, _ = first.setdefault(id(x), (place, x))
        if known != place:
            tests.append(f"{place} is {known}")
    if first:
        tensors = [x for _, x in first.values()]
        made = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        names["alike"] = made.check
        tests.append(f"alike({', '.join(place for place, _ in first.values())})")
    return tests
