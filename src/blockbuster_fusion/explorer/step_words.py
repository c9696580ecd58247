"""A step of a fusion in words: the operators that it joins or moves, and the lists that go."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockbuster_fusion.explorer.operator_words import Operators
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.fusion.trace import Step
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import Listed
from blockbuster_fusion.ir.ops import Map, Reduce, Value
from blockbuster_fusion.rules.swap_scale_dot import parts

_PHRASES = {
    "fuse_consecutive_maps": (
        "join {a} with {b}",
        "Joins the loop over {dim} of {a} with that of {b}.",
    ),
    "fuse_sibling_maps": (
        "join {a} and {b}",
        "Joins the loops over {dim} of {a} and of {b}: each block of {shared} is loaded once.",
    ),
    "fuse_map_with_reduction": (
        "add up {a} as it is made",
        "Adds up the blocks of {a} in the loop over {dim} that makes them.",
    ),
    "fuse_consecutive_elementwise": (
        "{a} and {b} as one",
        "Computes {a} and {b} as one expression.",
    ),
    "swap_scale_dot": ("move {a} behind {b}", "Moves {a} behind {b}.{wait}"),
    "swap_shift_dot": ("move {a} behind {b}", "Moves the shift {a} behind {b}.{wait}"),
    "swap_row_column_scale": ("swap {a} and {b}", "Lets {a} and {b} change places."),
    "extend_map": (
        "move {b} into the loop over {dim}",
        "Moves the loop of {b}, with what lies beside it, into the loop over {dim}.",
    ),
    "extend_map_over_producers": (
        "move {b} into the loop over {dim}",
        "Moves the loop of {b} into the loop over {dim} that reads its result.",
    ),
    "peel_first_iteration": (
        "first iteration over {dim} apart",
        "Takes the first iteration out of the loop over {dim}, and {b} to it.",
    ),
    "duplicate_mapped_scale": ("copy {a} for {b}", "Copies {a} for one of its readers, {b}."),
    "recompute_producer": ("compute {a} again for {b}", "Computes {a} a second time, for {b}."),
    "rederive_list": (
        "derive {a} again for {b}",
        "Computes the list of {a} again for {b}, from a list that is loaded there anyway.",
    ),
    "interchange_loops": (
        "change loops of {a}",
        "The loops of {a} change places, so that the outer one is over {dim}.",
    ),
    "drop_softmax_shift": ("drop the shift before {b}", "Drops the shift {a} before {b}."),
    "expand_square_of_shift": (
        "expand the square of {a}",
        "Expands the square of the difference {a}, which {b} reads.",
    ),
}
"""By rules: for the list of steps, and as a sentence. A rule of a user's own has a general one."""
REPEATING = ("extend_map", "extend_map_over_producers")
"""The rules that move work into a loop, which may repeat it."""
WAITING = ("swap_scale_dot", "swap_shift_dot")
"""The rules by which a product need not wait for an operand of a scale or shift before it."""
_GENERAL = ("{a}, {b}", "Rewrites {a} and {b}.")


@dataclass(frozen=True)
class _Pair:
    """The two nodes that a step matches, and the lists from the first to the second."""

    step: Step
    graph: Graph
    found: Listed
    operators: Operators

    @property
    def first(self) -> int:
        return self.step.firing.nodes[0]

    @property
    def second(self) -> int:
        return self.step.firing.nodes[-1]

    @property
    def passed(self) -> list[Value]:
        given = dict.fromkeys(self.graph[self.second].inputs)
        return [value for value in given if value.node == self.first]

    def names(self) -> tuple[list[str], list[str]]:
        """The operators that make what is passed on and read it, or the makers of both results."""
        known, values = self.operators, self.passed
        made = [known.maker(self.graph, value) for value in values]
        read = [name for v in values for name in known.readers(self.graph, self.second, v)]
        first = made if any(made) else known.of(self.graph, self.first)
        return first, read or known.of(self.graph, self.second)

    def shared(self) -> list[str]:
        """The lists that both nodes read."""
        path, names, other = self.step.firing.path, self.found.labels, self.graph[self.second]
        both = [v for v in dict.fromkeys(self.graph[self.first].inputs) if v in other.inputs]
        found = [names.name(path, v) for v in both if self.graph.type(v).is_list]
        return [name for name in found if name] or ["what both read"]


def step_words(step: Step, sizes: Sizes, found: Listed) -> tuple[str, list[str]]:
    """A few words about a step for the list of steps, and sentences about it.

    Names are those of `found`, the listing before the step.
    """
    pair = _Pair(step, step.before.at(step.firing.path), found, Operators(step.before, found))
    short, long = _PHRASES.get(step.rule, _GENERAL)
    a, b = pair.names()
    given = {"dim": step.dim, "a": quoted(a), "b": quoted(b), "shared": joined(pair.shared())}
    given["wait"] = _wait_words(pair, quoted(b)) if step.rule in WAITING else ""
    lists = [text for value in pair.passed if (text := _list_words(pair, value))]
    sentences = [long.format(**given), *lists]
    if step.rule in REPEATING and step.dim is not None:
        sentences.append(_repeated(step.dim, sizes.blocks(step.before, step.dim)))
    return short.format(**given), sentences


def _list_words(pair: _Pair, value: Value) -> str:
    """A sentence about a list that a join or a reduction takes out of memory, or leaves there."""
    rule = pair.step.rule
    name = pair.found.labels.name(pair.step.firing.path, value)
    op = pair.graph.op(value.node)
    joins = rule in ("fuse_consecutive_maps", "fuse_map_with_reduction")
    if not joins or not name or not isinstance(op, Map) or op.modes[value.port] is not None:
        return ""
    if not pair.graph.type(value).is_buffered:
        return ""
    readers = [i for i, node in pair.graph.nodes.items() if value in node.inputs]
    others = len(readers) > 1 or any(out.value == value for out in pair.graph.outputs)
    if op.body.type(op.body.outputs[value.port].value).is_buffered:
        if others:
            return f"{name} is still stored: others read it, too."
        return (
            f"{name} is still in global memory, inside the loop now: its part for one block of "
            f"{pair.step.dim} at a time."
        )
    if others:
        return f"{name} is still stored for others, but its blocks are used from local memory here."
    if rule == "fuse_map_with_reduction":
        return f"{name} is not stored any more: only the sum is kept, in local memory."
    return f"{name} is not stored any more: its blocks stay in local memory."


def _wait_words(pair: _Pair, product: str) -> str:
    """Sentences about the factor or shift that a product had to wait for."""
    moved, _ = parts(pair.graph, pair.step.firing.at(pair.step.before))
    name = pair.operators.maker(pair.graph, moved.c)
    what = "shift" if pair.step.rule == "swap_shift_dot" else "factor"
    made = f", the result of {quoted([name])}," if name else ""
    dim = _completed_by(pair.graph, moved.c)
    if dim is None:
        return f" The product {product} need not wait for the {what}{made} any more."
    return (
        f" The {what}{made} is complete only after a loop over {dim}, so {product} had to wait "
        "for all of that loop. Now it need not."
    )


def _completed_by(graph: Graph, value: Value) -> Dim | None:
    """The dim of the nearest loop or reduction that adds up what a value is made of."""
    left, seen = [value], {value}
    while left:
        value = left.pop(0)
        op = graph.op(value.node)
        if isinstance(op, Reduce) or (isinstance(op, Map) and op.modes[value.port] is not None):
            return op.dim
        new = [each for each in graph[value.node].inputs if each not in seen]
        left += new
        seen |= {*new}
    return None


def _repeated(dim: Dim, count: int) -> str:
    """A sentence about the work that an extension repeats at these sizes, and at others."""
    if count == 1:
        return (
            f"{dim} has one block at these sizes, so nothing is repeated. With several blocks of "
            f"{dim}, all that was moved would be computed for each of them."
        )
    return f"{dim} has {count} blocks at these sizes: what was moved is computed for each of them."


def quoted(names: Sequence[str]) -> str:
    """Names of operators in a sentence, at most three of them."""
    return joined([f"`{name}`" for name in dict.fromkeys(names) if name][:3]) or "an input"


def joined(names: Sequence[str]) -> str:
    """Names in a sentence: `Q, KT and VT`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
