"""Safety passes in words: what each one did to a program, and why figures change."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from blockbuster_fusion.explorer.operator_words import Operators
from blockbuster_fusion.explorer.step_words import quoted
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.combiner import SIMPLE
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import listed
from blockbuster_fusion.ir.ops import Map, Reduce
from blockbuster_fusion.plans.amounts import counted
from blockbuster_fusion.safety.choices import SafetyChoice

NOTES = {
    "storage": "Numbers of 16 bits are loaded and stored; what is computed has 32 bits.",
    "pivot": "Subtracting a common part first loses fewer digits; the exact result is the same.",
    "pairs": (
        "A pair (S, t) stands for S·eᵗ and cannot overflow. Sums of pairs are rescaled when the "
        "exponent grows: for a softmax that is the running maximum of the online softmax."
    ),
}
"""The reason for each pass."""
COSTS = {
    "storage": "In local memory, numbers of 32 bits take twice the bytes.",
    "pivot": "The common part has to be computed and subtracted: that adds operations.",
    "pairs": "Maxima and rescaling add operations. Exponents need local memory.",
}
"""The reason why figures change."""
STORED = {"pairs": "A stored list of exponentials has a list of exponents beside it"}
"""The reason why a pass has more lists in global memory."""
_EXPONENTIAL = re.compile(r"\bexp2?\(")


@dataclass(frozen=True)
class SafetyWords:
    """The words for a pass, from the programs before and after it and its decisions."""

    name: str
    before: Graph
    after: Graph
    choices: Sequence[SafetyChoice]

    def short(self) -> str:
        """The effect of the pass, in a few words."""
        axes = ", ".join(dict.fromkeys(choice.axis for choice in self.choices if choice.axis))
        if self.name == "storage":
            return "compute in 32 bits"
        if self.name == "pivot":
            return f"subtract a common part before sums along {axes}"
        if not any(choice.shared in ("row", "block") for choice in self.choices):
            return f"keep {self._exponentials()} as pairs"
        running = "running maximum" if self._rescales() else "maximum"
        online = " (online softmax)" if self._rescales() else ""
        return f"{running} for {self._exponentials()}{online}"

    def costs(self) -> str:
        """The reason why figures change, with the lists that are stored from here on."""
        more = len(buffered(self.after)) - len(buffered(self.before))
        if more <= 0:
            return COSTS[self.name]
        stored = STORED.get(self.name, "Some of that is stored")
        return f"{COSTS[self.name]} {stored}: {counted(more, 'more buffered edge')}."

    def decisions(self) -> list[str]:
        """The decisions of the pass as sentences."""
        known, graphs = Operators(self.before, listed(self.before)), dict(self.before.walk())
        found = []
        for choice in self.choices:
            graph = graphs.get(choice.path)  # a choice may be on what an earlier one has made
            if graph is None or choice.node not in graph.nodes:
                found.append(_sentence(choice, None))
            else:
                found.append(_sentence(choice, known.of(graph, choice.node)))
        return found

    def _exponentials(self) -> str:
        """The operators with an exponential."""
        known = Operators(self.before, listed(self.before))
        found = [
            name
            for _, graph in self.before.walk()
            for i in graph.nodes
            if has_exponential(known.text.get(i, ""))
            for name in known.of(graph, i)
        ]
        return quoted(found) if found else "exponentials"

    def _rescales(self) -> bool:
        """True if a loop sums pairs, whose exponent grows on the way."""
        simple = set(SIMPLE.values())
        ops = [node.op for _, graph in self.after.walk() for node in graph.nodes.values()]
        modes = [mode for op in ops if isinstance(op, Map) for mode in op.modes if mode is not None]
        combiners = [mode.combiner for mode in modes]
        combiners += [op.combiner for op in ops if isinstance(op, Reduce)]
        return any(combiner not in simple for combiner in combiners)


def has_exponential(statement: str) -> bool:
    """True for a statement that computes an exponential."""
    return _EXPONENTIAL.search(statement) is not None


def _sentence(choice: SafetyChoice, operators: list[str] | None) -> str:
    name = "a value" if operators is None else quoted(operators)
    axis, reason = choice.axis, choice.reason
    if choice.kind == "exponent" and choice.shared in ("row", "block"):
        return (
            f"Before {name}, the exponentials of a {choice.shared} along {axis} get one exponent "
            "in common, their maximum. They are only scaled and summed after that, so the "
            "exponent can be put back at the end."
        )
    if choice.kind == "exponent":
        return f"{name} keeps an exponent for every element, because {reason}."
    if choice.kind == "native":
        return f"{name} stays as it is, because {reason}."
    if choice.kind == "pivot":
        what = "the operand" if operators == ["input"] else name
        return f"Along {axis}, a common part of {what} is subtracted, because {reason}."
    return f"It is {choice.kind}, because {reason}."
