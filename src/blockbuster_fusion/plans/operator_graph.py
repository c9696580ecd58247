"""The operator graph that a plan is for, as lines of text: operators, operands, shapes, dtypes.

    %x = input: float32[6, 4]
    %mm = aten.mm.default(%x, %t): float32[6, 8]

Names are those of the graph. The digest depends on them no more than on the names of sizes.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from blockbuster_fusion.errors import BadPlan

_NAME = re.compile(r"%(\w+)")
_SYMBOL = re.compile(r"\b[su]\d+\b")
_CALL = re.compile(r"%\w+ = ([\w.]+)\(")
_LINE = re.compile(r"%\w+ = .+")
OUTPUT = "output"


@dataclass(frozen=True)
class OperatorGraph:
    """The operators of a graph in order, its inputs first."""

    lines: tuple[str, ...]

    def check(self, place: str) -> None:
        """Raises BadPlan if a line is none of such a graph, or a name is not defined before."""
        known = set[str]()
        for number, line in enumerate(self.lines):
            if not _LINE.fullmatch(line):
                raise BadPlan(place=f"{place}[{number}]", problem=f"{line!r} is no operator")
            name, *operands = _NAME.findall(line)
            for operand in operands:
                if operand not in known:
                    problem = f"%{operand} is not defined before"
                    raise BadPlan(place=f"{place}[{number}]", problem=problem)
            if name in known:
                raise BadPlan(place=f"{place}[{number}]", problem=f"%{name} is defined twice")
            known.add(name)

    @cached_property
    def names(self) -> dict[str, int]:
        """The number of each operator by its name."""
        return {_NAME.findall(line)[0]: number for number, line in enumerate(self.lines)}

    @cached_property
    def operators(self) -> dict[str, str]:
        """The operators by their names; inputs and outputs are none."""
        found = {name: _CALL.match(line) for name, line in zip(self.names, self.lines, strict=True)}
        calls = {name: call[1] for name, call in found.items() if call is not None}
        return {name: operator for name, operator in calls.items() if operator != OUTPUT}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The sizes that change from call to call, in the order in which shapes name them."""
        shapes = (line.rpartition(": ")[2] for line in self.lines)
        return tuple(dict.fromkeys(name for shape in shapes for name in _SYMBOL.findall(shape)))

    @cached_property
    def anonymous(self) -> tuple[str, ...]:
        """The lines with numbers for the names of operators and of sizes."""

        def size(found: re.Match[str]) -> str:
            return f"n{self.symbols.index(found[0])}"

        def numbered(found: re.Match[str]) -> str:
            return f"%{self.names[found[1]]}"

        lines = []
        for line in self.lines:
            head, colon, shape = line.rpartition(": ")
            shown = f"{head}{colon}{_SYMBOL.sub(size, shape)}"
            lines.append(_NAME.sub(numbered, shown))
        return tuple(lines)

    @cached_property
    def digest(self) -> str:
        """A hash of the operators, edges, shapes and dtypes."""
        return hashlib.sha256("\n".join(self.anonymous).encode()).hexdigest()[:32]

    def shared(self, other: "OperatorGraph") -> int:
        """The number of lines at the beginning that are the same in another graph."""
        pairs = zip(self.anonymous, other.anonymous, strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), self._least(other))

    def _least(self, other: "OperatorGraph") -> int:
        return min(len(self.lines), len(other.lines))

    def difference(self, other: "OperatorGraph") -> str:
        """The first difference of another graph in words; empty if there is none."""
        at = self.shared(other)
        if at == len(self.lines) == len(other.lines):
            return ""
        if at == len(self.lines):
            return f"the model goes on with {other.lines[at]}, and the plan ends there"
        if at == len(other.lines):
            return f"the model ends before {self.lines[at]}"
        return f"the model has {other.lines[at]}, and the plan is for {self.lines[at]}"


def nearest(graphs: Sequence[OperatorGraph], graph: OperatorGraph) -> OperatorGraph:
    """That of some graphs which has the most lines in common with another."""
    return max(graphs, key=lambda x: x.shared(graph))
