"""Dtypes of expressions; plain numbers are weakly typed."""

from collections.abc import Sequence

from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, fold, fold_nodes
from blockbuster_fusion.ir.types import DType, promote


def result_dtype(expr: Expr, arguments: Sequence[DType]) -> DType:
    """The dtype that `expr` gives for arguments of these dtypes; plain numbers are weakly typed."""
    return node_dtypes(expr, arguments)[expr] or number_dtype(expr)


def node_dtypes(expr: Expr, arguments: Sequence[DType]) -> dict[Expr, DType | None]:
    """The dtype of every node of `expr`; None for plain numbers, which adopt that of others."""
    return fold_nodes(expr, lambda node, operands: _node_dtype(node, operands, arguments))


def _node_dtype(
    node: Expr, operands: list[DType | None], arguments: Sequence[DType]
) -> DType | None:
    if node.op == "arg":
        return arguments[node.index]
    if node.op == "cast":
        return node.dtype
    if not node.args:
        return None  # a number adopts the dtype of the other operand
    if node.op == "where":
        operands = operands[1:]
    if FUNCTIONS[node.op].result == "bool":
        return DType.bool_
    known = [d for d in operands if d is not None]
    if not known:
        return None
    dtype = promote(*known)
    args = node.args[-len(operands) :]
    numbers = [number_dtype(a) for a, d in zip(args, operands, strict=True) if d is None]
    wants_float = FUNCTIONS[node.op].result == "float" or any(d.is_float for d in numbers)
    if wants_float and not dtype.is_float:
        return DType.float32
    if dtype is DType.bool_ and any(d is not DType.bool_ for d in numbers):
        return DType.int64  # a mask times 2 is 0 or 2
    return dtype


def number_dtype(expr: Expr) -> DType:
    """The dtype of an expression of numbers alone: bool, int64 or float32."""
    return fold(expr, _number_node_dtype)


def _number_node_dtype(node: Expr, operands: list[DType]) -> DType:
    if isinstance(node.value, DType):
        return node.value
    if isinstance(node.value, bool | float):
        return DType.bool_ if isinstance(node.value, bool) else DType.float32
    if node.op not in FUNCTIONS:
        return DType.int64
    result = FUNCTIONS[node.op].result
    if result == "float" or (node.op == "pow" and not _counts(node.args[1])):
        return DType.float32
    return DType.bool_ if result == "bool" else promote(*operands[node.op == "where" :])


def _counts(exponent: Expr) -> bool:
    return isinstance(exponent.value, int) and exponent.value >= 0
