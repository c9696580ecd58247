"""A snapshot in words: its loops, the lists that it leaves in memory, and its cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blockbuster_fusion.explorer.picture import bytes_text
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.step_words import REPEATING, joined
from blockbuster_fusion.fusion.trace import Step
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import Labels
from blockbuster_fusion.ir.ops import Input


def snapshot_words(
    initial: Graph, graph: Graph, steps: Sequence[Step], sizes: Sizes, names: Labels
) -> Iterator[str]:
    """Sentences about a snapshot; `steps` are those that led to it."""
    before, after = (len(list(each.maps())) for each in (initial, graph))
    dims = {op.dim.name: op.dim for _, inner in graph.walk() for _, op in inner.maps()}
    loops = sum(len(list(inner.maps())) for _, inner in graph.walk())
    is_left = "is left" if after == 1 else "are left"
    yield f"Of {before} outermost loops {after} {is_left}, with {loops - after} inside."
    yield _memory(graph, names)
    once = [name for name, dim in sorted(dims.items()) if sizes.blocks(initial, dim) == 1]
    if once:
        have, runs = ("has", "its loop runs") if len(once) == 1 else ("have", "their loops run")
        yield f"{joined(once)} {have} one block at these sizes: {runs} once."
    moved = {step.dim.name: step.dim for step in steps if step.rule in REPEATING and step.dim}
    into = [
        f"{name} ({count} {'block' if count == 1 else 'blocks'})"
        for name, dim in sorted(moved.items())
        if name in dims
        for count in [sizes.blocks(initial, dim)]
    ]
    if into:
        loops_over = "loop" if len(into) == 1 else "loops"
        yield (
            f"Work was moved into the {loops_over} over {joined(into)}, and is done once for each "
            "block: with several blocks, it is repeated."
        )


def cost_words(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """The traffic and the buffered edges of the unfused program, and of a snapshot."""
    traffic = " to ".join(bytes_text(each["traffic"]) for each in (first, last))
    edges = " to ".join(str(each["edges"]) for each in (first, last))
    return f"From the unfused program to here: traffic from {traffic}, buffered edges from {edges}."


def _memory(graph: Graph, names: Labels) -> str:
    """A sentence about the lists that are in global memory."""
    inputs = [op.name for i in graph.inputs if isinstance(op := graph.op(i), Input)]
    outputs = [names.name((), out.value) or out.name for out in graph.outputs]
    border = f"the inputs {joined(inputs)}" if len(inputs) > 1 else f"the input {joined(inputs)}"
    border += f" and the {'output' if len(outputs) == 1 else 'outputs'} {joined(outputs)}"
    edges = (names.name(edge.path, edge.value) for edge in buffered(graph))
    between = [name for name in dict.fromkeys(edges) if name]
    if not between:
        return f"In global memory are {border}, and nothing else."
    return f"In global memory are {border}, and between operators {joined(between)}."
