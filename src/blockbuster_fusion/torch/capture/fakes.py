"""New nodes of a graph, with their fake values: shapes, strides and dtypes without data."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.nodes import tensor_of

NONE: Mapping[str, Any] = MappingProxyType({})


def inserted(
    graph: Graph,
    target: Any,
    arguments: tuple[Any, ...],
    like: Node,
    options: Mapping[str, Any] = NONE,
) -> Node:
    """A new node at the insertion point of a graph, with the origin of an old one."""
    value = fake_result(target, arguments, like, options)
    made = graph.call_function(target, arguments, dict(options))
    made.meta = meta_like(like, value)
    return made


def fake_result(
    target: Any, arguments: tuple[Any, ...], like: Node, options: Mapping[str, Any] = NONE
) -> Any:
    """The fake result of an operator; `like` is a node of the graph that its operands are in."""
    with fake_mode_of(tensor_of(like)):
        options = {k: fake_argument(v) for k, v in options.items()}
        return target(*map(fake_argument, arguments), **options)


def meta_like(like: Node, value: Any) -> dict[str, Any]:
    """The metadata of a node, with another value."""
    kept = {k: v for k, v in like.meta.items() if k not in ("val", "tensor_meta")}
    return {**kept, "val": value}


@contextmanager
def fake_mode_of(tensor: torch.Tensor) -> Iterator[None]:
    """The fake mode of a tensor; the graph gets no guards from what is computed in it."""
    mode = getattr(tensor, "fake_mode", None)
    sizes = None if mode is None else mode.shape_env
    with mode or nullcontext(), nullcontext() if sizes is None else sizes.suppress_guards():
        yield


def fake_argument(given: Any) -> Any:
    """An argument with fake values in place of nodes."""
    if isinstance(given, Node):
        return given.meta["val"]
    if isinstance(given, list | tuple):
        return [fake_argument(x) for x in given]
    return given
