"""The operator table: a row for each operator of PyTorch that kernels compute."""

import torch

from blockbuster_fusion.torch.table import (  # noqa: F401  (each registers its rows)
    generators,
    losses,
    pointwise,
    products,
    reductions,
    scans,
    views,
)
from blockbuster_fusion.torch.table.row import TABLE, Row

_NAMES: dict[int, tuple[str, str, torch._ops.OpOverload]] = {}
"""The names of operators with overload and, for a usual one, without, by their addresses."""


def row_for(target: object) -> Row | None:
    """The row of an operator, or None if the table does not have it."""
    known = _NAMES.get(id(target))
    if known is None:
        if not isinstance(target, torch._ops.OpOverload):
            return None
        name = f"{target.namespace}.{target._schema.name.split('::')[1]}"
        usual = name if target._overloadname in OVERLOADS else ""
        known = _NAMES[id(target)] = f"{name}.{target._overloadname}", usual, target
    return TABLE.get(known[0]) or TABLE.get(known[1])


OVERLOADS = frozenset(
    {
        *("default", "self", "int", "other", "sizes", "memory_format", "correction"),
        *("Tensor", "Scalar", "Tensor_Scalar", "Tensor_Tensor", "Scalar_Tensor", "Scalar_self"),
        *("Tensor_mode", "Scalar_mode", "ScalarSelf", "ScalarOther", "start", "start_step"),
        *("dim", "dims", "dim_int", "dim_IntList"),
    }
)
"""Overloads that differ in the kinds of their arguments alone: `view.dtype` is another operator."""
