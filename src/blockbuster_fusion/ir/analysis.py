"""Analyses of graphs: functions whose results are kept with the graph."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from blockbuster_fusion.ir.graph import Graph

P = ParamSpec("P")
T = TypeVar("T")
_MISSING = object()


def analysis(
    compute: Callable[Concatenate[Graph, P], T],
) -> Callable[Concatenate[Graph, P], T]:
    """Decorates a function of a graph, and of hashable arguments, that is computed only once.

    A graph never changes, so a result holds as long as the graph lives.
    """

    @wraps(compute)
    def kept(graph: Graph, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (compute, *args, *kwargs.items())
        found = graph.results.get(key, _MISSING)
        if found is _MISSING:
            found = graph.results[key] = compute(graph, *args, **kwargs)
        return found  # type: ignore[no-any-return]

    return kept
