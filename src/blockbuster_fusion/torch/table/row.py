"""The operator table for PyTorch: what each ATen operator is over positions.

An entry is a function of the builder and of the operator's own arguments, with a `PositionalArray`
where the operator has a tensor. To add an operator, register one function in this folder:

    @pointwise("hardswish")
    def _hardswish(p: PositionalBuilder, x: PositionalArray) -> PositionalArray:
        return p.elementwise(lambda t: t * call("minimum", call("maximum", t + 3, 0), 6) / 6, x)

An entry raises NotExpressible for arguments that it cannot express.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.select.operators import Kind

EmitFunction = Callable[..., Any]
E = TypeVar("E", bound=EmitFunction)

DTYPES = {getattr(torch, str(dtype)): dtype for dtype in DType}
"""The dtypes that kernels compute with or store."""


@dataclass(frozen=True)
class Row:
    """A row of the table: how an operator is expressed, and what kind of operator it is."""

    kind: Kind
    emit: EmitFunction
    cheap: bool = False
    """True if computing it again costs less than storing it."""


TABLE: dict[str, Row] = {}
"""The rows, by the operator's name without its overload: `aten.add`."""


def _register(kind: Kind, names: Sequence[str], cheap: bool = False) -> Callable[[E], E]:
    def register(entry: E) -> E:
        for name in names:
            full = name if name.startswith(("aten.", "prims.")) else f"aten.{name}"
            TABLE[full] = Row(kind, entry, cheap)
        return entry

    return register


def pointwise(*names: str, cheap: bool = True) -> Callable[[E], E]:
    """Registers an operator that computes each element from single elements of its operands."""
    return _register(Kind.POINTWISE, names, cheap)


def reduction(*names: str, cheap: bool = False) -> Callable[[E], E]:
    """Registers an operator that combines along some positions."""
    return _register(Kind.REDUCTION, names, cheap)


def contraction(*names: str) -> Callable[[E], E]:
    """Registers an operator that sums products."""
    return _register(Kind.CONTRACTION, names)


def view(*names: str) -> Callable[[E], E]:
    """Registers an operator whose result is a view of its operand."""
    return _register(Kind.VIEW, names, cheap=True)


def generator(*names: str) -> Callable[[E], E]:
    """Registers an operator that makes an array from numbers."""
    return _register(Kind.GENERATOR, names, cheap=True)
