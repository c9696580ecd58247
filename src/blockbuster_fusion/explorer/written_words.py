"""The program as it is written, in words: what may overflow, and the moments that prevent it."""

from collections.abc import Iterator, Sequence

from blockbuster_fusion.explorer.operator_words import Operators
from blockbuster_fusion.explorer.safety_words import has_exponential
from blockbuster_fusion.explorer.step_words import quoted
from blockbuster_fusion.explorer.steps import Data
from blockbuster_fusion.ir.combiner import MAX
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import listed
from blockbuster_fusion.ir.ops import BlockReduce, Map, Op, Reduce
from blockbuster_fusion.safety.pipeline import make_safe

GUARDING = ("pivot", "pairs")
"""The passes against overflow and lost digits."""


def as_written(initial: Graph, moments: Sequence[Data]) -> Data:
    """A sentence about a program before fusion, and the moments that make its snapshots safe.

    A program whose snapshots are safe as they are has neither.
    """
    made = [x for x in moments if x.get("stage") == "safety" and x["title"] in GUARDING]
    if not made:
        return {}
    links = [[x["id"], f"{x['group'].replace('-', ' ')}: {x['short']}"] for x in made]
    names = [*dict.fromkeys(_overflowing(initial))]
    may = ""
    if names and any(x["title"] == "pairs" for x in made):
        before = "it" if len(names) == 1 else "them"
        may = f"As written, {quoted(names)} may overflow: no maximum is subtracted before {before}."
    return {"safe": {"may": may, "moments": links}}


def _overflowing(initial: Graph) -> Iterator[str]:
    """The operators with an exponential that neither a maximum nor its reader keeps finite."""
    known = Operators(initial, listed(initial))
    native = {x.node for x in make_safe(initial).choices if x.kind == "native"}
    for node in initial.nodes:
        for graph, inner in _operators(initial, node):
            exponential = has_exponential(known.text.get(inner, "")) and inner not in native
            if exponential and not _shifted(initial, node):
                yield from known.of(graph, inner)


def _operators(graph: Graph, node: int) -> Iterator[tuple[Graph, int]]:
    """A node, or the operators in its loops, each with its graph."""
    op = graph.op(node)
    if not isinstance(op, Map):
        yield graph, node
        return
    for _, body in op.body.walk():
        yield from ((body, inner) for inner in body.nodes if not isinstance(body.op(inner), Map))


def _shifted(initial: Graph, node: int) -> bool:
    """True if a node reads something that a maximum was subtracted from: no product is between."""
    left, seen = [node], {node}
    while left:
        here = left.pop()
        op = initial.op(here)
        inner = op.body.walk() if isinstance(op, Map) else ()
        if any(map(_is_maximum, [op, *(x.op for _, body in inner for x in body.nodes.values())])):
            return True
        if isinstance(op, Map) and op.body.holds_dot:
            continue
        new = {value.node for value in initial[here].inputs} - seen
        left += new
        seen |= new
    return False


def _is_maximum(op: Op) -> bool:
    """True for a reduction to a maximum, by itself or at the end of a loop."""
    if isinstance(op, Map):
        return any(mode is not None and mode.combiner is MAX for mode in op.modes)
    return isinstance(op, Reduce | BlockReduce) and op.combiner is MAX
