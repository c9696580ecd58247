"""Names of stored arrays that stay the same from program to program of a page.

A listing numbers its arrays from I1 on. On a page an array keeps the number of the first program
that has it. A number whose array is gone is not given to another one.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.listing import Listed, listed
from blockbuster_fusion.ir.ops import Input, Iota, Map, Pick, Reduce, Rename, Value
from blockbuster_fusion.naming import word

Origin = tuple[Value, int, int]
"""The operator that makes an array's elements, and the reductions of these on their way to it.
The last number tells arrays apart that are alike in this."""
_ARRAY = re.compile(r"\bI\d+(?=\b|_|R)")
_NUMBERED = re.compile(r"I\d+")


@dataclass(frozen=True, slots=True)
class _Array:
    """An array of a program: the value that it holds, and its origin."""

    place: tuple[Path, Value]
    origin: Origin


@dataclass(frozen=True)
class ArrayNames:
    """The names that are known so far, by the origins of arrays."""

    known: Mapping[Origin, str] = field(default_factory=dict)

    @classmethod
    def of(cls, programs: Iterable[Graph]) -> "ArrayNames":
        """The names of the arrays of programs, in this order."""
        names = cls()
        for program in programs:
            names = names.after(program)
        return names

    def after(self, program: Graph) -> "ArrayNames":
        """These names, and new ones for arrays that only this program has."""
        return self._named(program)[0]

    def across(self, before: Graph, program: Graph) -> "ArrayNames":
        """The names after a pass, in which an array in the place of another one has its name."""
        old, new = _arrays(before), _arrays(program)
        names = self.after(before)
        named = {array.place: names.known[array.origin] for array in old.values()}
        kept = {names.known.get(array.origin) for array in new.values()}
        taken_over = {
            array.origin: named[array.place]
            for array in new.values()
            if array.origin not in names.known and named.get(array.place, "") not in {"", *kept}
        }
        return ArrayNames({**names.known, **taken_over}).after(program)

    def listed(self, program: Graph) -> Listed:
        """The listing of a program with these names."""
        return listed(program, self._named(program)[1])

    def rewritten(self, text: str, program: Graph) -> str:
        """A text that is made from a program, with these names for the arrays of its listing.

        An array that only the text has gets a number of its own.
        """
        names, renamed = self._named(program)
        own = _own(program)
        others = {*_ARRAY.findall(text)} - {*renamed} - own
        renamed |= dict(zip(sorted(others, key=_number), names._fresh(own), strict=False))
        return _ARRAY.sub(lambda match: renamed.get(match[0], match[0]), text)

    def _named(self, program: Graph) -> tuple["ArrayNames", dict[str, str]]:
        """The names after a program, and those of its own listing with what they become."""
        arrays = _arrays(program)
        known, fresh = dict(self.known), self._fresh(_own(program))
        for name in sorted(arrays, key=_number):
            if arrays[name].origin not in known:
                known[arrays[name].origin] = next(fresh)
        return ArrayNames(known), {name: known[array.origin] for name, array in arrays.items()}

    def _fresh(self, taken: Collection[str]) -> Iterator[str]:
        """Names with numbers that no array has had, and that are not `taken`."""
        last = max(map(_number, self.known.values()), default=0)
        return (name for i in count(last + 1) if (name := f"I{i}") not in taken)


def _number(name: str) -> int:
    return int(name[1:])


def _own(program: Graph) -> set[str]:
    """The names of the inputs, outputs and axes of a program."""
    inputs = (program.input(i).name for i in program.inputs)
    axes = (dim.name for dim in program.dims)
    return {word(name) for name in (*inputs, *(out.name for out in program.outputs), *axes)}


def _arrays(program: Graph) -> dict[str, _Array]:
    """The arrays that a program's own listing numbers, by their names there."""
    found: dict[str, _Array] = {}
    alike: dict[tuple[Value, int], int] = {}
    own, graphs = _own(program), dict(program.walk())
    for (path, value), name in listed(program).labels.names.items():
        if name in found or name in own or _NUMBERED.fullmatch(name) is None:
            continue
        graph = graphs[path]
        if isinstance(graph.op(value.node), Input | Rename | Pick | Iota):
            continue  # a view of an array
        made = _origin(graph, value)
        alike[made] = alike.get(made, -1) + 1
        found[name] = _Array((path, value), (*made, alike[made]))
    return found


def _origin(graph: Graph, value: Value) -> tuple[Value, int]:
    """The value that a list has as its elements, behind loops; and the reductions on the way."""
    reductions = 0
    op = graph.op(value.node)
    while isinstance(op, Map | Rename | Pick | Reduce):
        if isinstance(op, Map):
            reductions += op.modes[value.port] is not None
            graph, value = op.body, op.body.outputs[value.port].value
        else:
            reductions += isinstance(op, Reduce)
            value = graph[value.node].inputs[value.port]
        op = graph.op(value.node)
    return value, reductions
