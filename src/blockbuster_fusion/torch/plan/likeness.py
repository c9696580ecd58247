"""Tests that tensors are like given ones, in one call into C."""

from collections.abc import Iterable
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards


def tests_of_tensors(
    given: str, count: int, placed: Iterable[tuple[str, torch.Tensor]], names: dict[str, Any]
) -> list[str]:
    """The tests, as text, that tensors in some places are like given ones; `names` gets theirs.

    They compare types, shapes, strides, dtypes, devices, whether gradients are required, and what
    PyTorch does in a call of an operator: negation, autocasting, modes of inference and others.
    Tensors that are one must be one, and others must not. `given` is the name of a sequence of
    `count` elements, which may be all of them.
    """
    first: dict[int, tuple[str, torch.Tensor]] = {}
    tests = []
    for place, x in placed:
        known, _ = first.setdefault(id(x), (place, x))
        if known != place:
            tests.append(f"{place} is {known}")
    if first:
        places, tensors = zip(*first.values(), strict=True)
        made = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        names["alike"] = made.check
        is_all = [*places] == [f"{given}[{number}]" for number in range(count)]
        tests.append(f"alike({f'*{given}' if is_all else ', '.join(places)})")
    return tests
