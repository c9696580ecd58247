"""The operators of a captured graph as lines of text, by which a plan knows its model."""

from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.plans.operator_graph import OUTPUT, OperatorGraph
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import name_of


def operator_graph(analysis: Analysis) -> OperatorGraph:
    """The nodes of a graph in order: operators with their arguments, shapes and dtypes."""
    return OperatorGraph(tuple(_line(analysis, n) for n in analysis.module.graph.nodes))


def operator_name(node: Node) -> str:
    """The name of an operator, or of a Python function."""
    target: Any = node.target
    return name_of(node) if isinstance(target, torch._ops.OperatorBase) else target.__name__


def _line(analysis: Analysis, node: Node) -> str:
    shape = _described(node.meta.get("val"))
    match node.op:
        case "placeholder":
            what = "weight" if node in analysis.static else "input"
        case "get_attr":
            what = "attribute"
        case "output":
            what, shape = f"{OUTPUT}({_argument(node.args[0])})", "results"
        case _:
            given = [_argument(x) for x in node.args]
            given += [f"{name}={_argument(x)}" for name, x in node.kwargs.items()]
            what = f"{operator_name(node)}({', '.join(given)})"
    return f"%{node.name} = {what}: {shape}"


def _argument(given: Any) -> str:
    if isinstance(given, Node):
        return f"%{given.name}"
    if isinstance(given, list | tuple):
        return f"[{', '.join(map(_argument, given))}]"
    return str(getattr(given, "__name__", given)) if callable(given) else str(given)


def _described(value: Any) -> str:
    """The dtype and shape of a value, or of several."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_described, value))})"
    return str(value) if isinstance(value, torch.SymInt | torch.SymFloat) else type(value).__name__
