"""Proves that a value may be shifted by a constant without a change of any output.

The graph is read as polynomials twice: as it is, and with every use of the value shifted by the
pivot. If a value has the same polynomial in both readings, the shift cancels there. A value that
differs by a multiple of the pivot is *moved*: the multiple can be added back. All others are
*spoiled*, which is harmless if they cancel further on. As long as an output changes, uses are
unshifted, or moved operands get their multiple back.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from blockbuster_fusion.ir.expr import Expr, const
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.ops import Elementwise, Map, Value
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.safety.pivot.cancelling_sums import Summed, item_uses, kind_of_use
from blockbuster_fusion.safety.pivot.polynomials import Atom, Atoms, Meaning, Poly, Use, key_of
from blockbuster_fusion.safety.storage import NARROW

LocatedValue = tuple[Path, Value]
"""A value, by the path to its graph."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Multiples of the pivot to add: to operands at uses, and to outputs.

    The value itself gets -1 at shifted uses; a moved operand gets its multiple back. The sum of the
    value, and a function of it such as the mean, are computed from the sum of the pivot instead.
    """

    uses: dict[Use, Expr]
    outputs: dict[int, Expr]
    total_uses: dict[Use, Elementwise | None] = field(default_factory=dict)
    """Operands that are the sum, or a function of it."""
    total_outputs: dict[int, Elementwise | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShiftProof:
    """The result of a proof: the shift, if any; `loses` is True if digits are lost without it."""

    shift: Shift | None
    loses: bool


def unfelt_shift(graph: Graph, summed: Summed, fixed: Collection[int] = ()) -> ShiftProof:
    """A shift of a value that repairs a cancellation and changes no output, if there is one.

    The operands of the nodes `fixed` are not shifted.
    """
    trial = _Trial.of(graph, summed, fixed)
    if trial is None:
        return ShiftProof(None, loses=True)
    return (
        ShiftProof(_settled(trial, summed), loses=True)
        if trial.loses
        else ShiftProof(None, loses=False)
    )


def _settled(trial: "_Trial", summed: Summed) -> Shift | None:
    """The shift that is left after all repairs, if it still repairs a cancellation."""
    while trial.spoiled:
        repaired = trial.repaired()
        if repaired is None:
            return None
        trial = repaired
    kinds = {kind_of_use(trial.graph, use, summed.axes) for use in trial.shifted}
    if kinds.isdisjoint(("square", "dot")) or not trial.is_consistent:
        return None
    return trial.shift


@dataclass(frozen=True)
class _Trial:
    """A reading of a graph with some uses shifted and some operands restored."""

    graph: Graph
    atoms: Atoms
    cut: frozenset[LocatedValue]
    inputs: tuple[Poly, ...]
    before: Meaning
    expected: tuple[Poly, ...]
    shifted: frozenset[Use]
    restored: Mapping[Use, Expr]

    @classmethod
    def of(cls, graph: Graph, summed: Summed, fixed: Collection[int]) -> "_Trial | None":
        """The trial with all uses of the value, and of equal values, shifted.

        For a pivot along several axes only sums are shifted: one row may be far from the mean of
        all. None if the value is in a loop that cannot be read.
        """
        kind = graph.at(summed.loops).type(summed.value)
        atoms = Atoms({*kind.axes, *summed.axes}, summed.axes)
        cut = _same_meaning(graph, (summed.loops, summed.value))
        if not cut:
            return None
        inputs = tuple(
            atoms.summed
            if ((), Value(i)) in cut
            else atoms.atom(("input", i), frozenset(graph.type(Value(i)).axes))
            for i in graph.inputs
        )
        before = Meaning(atoms, cut)
        expected = tuple(before.read(graph, inputs))
        made_first = _made_before_pivot(graph, summed)
        uses = {use for at, value in cut for use in item_uses(graph.at(at), value, at)}
        shifted = frozenset(
            use
            for use in uses
            if (*use[0], use[1])[0] not in made_first
            if use[1] not in fixed and not _is_rounded(graph, use)
            if len(summed.dims) == 1 or kind_of_use(graph, use, summed.axes)
        )
        return cls(graph, atoms, cut, inputs, before, expected, shifted, {})

    # ---------------------------------------------------------------- the reading

    @cached_property
    def _after(self) -> tuple[Meaning, tuple[Poly, ...]]:
        shifts = dict.fromkeys(self.shifted, 1)
        meaning = Meaning(self.atoms, self.cut, shifts, self.before, self.restored)
        return meaning, tuple(meaning.read(self.graph, self.inputs))

    @cached_property
    def changed(self) -> frozenset[LocatedValue]:
        """The values whose polynomial changes with the shift."""
        known, before = self._after[0].known, self.before.known
        return frozenset(at for at, poly in known.items() if poly != before[at])

    def moved_by(self, place: LocatedValue) -> Expr | None:
        """The multiple of the pivot that an item lacks, if that is its only change."""
        path, value = place
        if self.graph.at(path).type(value).is_list:
            return None
        if not self.atoms.is_multiple_of_total(self.before.known[place]):
            return None  # it may be small compared with the mean
        return self.atoms.multiple_of_pivot(self._after[0].known[place], self.before.known[place])

    @cached_property
    def _outputs(self) -> dict[int, Expr | None]:
        """The multiple of the pivot that each changed output lacks; None if it is not one."""
        pairs = enumerate(zip(self._after[1], self.expected, strict=True))
        return {
            n: self.moved_by(((), self.graph.outputs[n].value))
            for n, (new, old) in pairs
            if new != old
        }

    @property
    def spoiled(self) -> list[LocatedValue]:
        """The outputs that would change, and elements that would get a different magnitude."""
        outputs = [n for n, factor in self._outputs.items() if factor is None]
        places: list[LocatedValue] = [((), self.graph.outputs[n].value) for n in outputs]
        several = len(self.atoms.along) > 1
        return places + [p for p in self._elements if several or self._is_mixed(p)]

    @property
    def _elements(self) -> list[LocatedValue]:
        """The changed values that vary along an axis of the pivot, except squares to be summed."""
        along = self.atoms.along
        squares = {
            (path, Value(node))
            for path, node, port in self.shifted
            if kind_of_use(self.graph, (path, node, port), along) == "square"
        }
        return [p for p in self.changed if p not in squares and self._varies(p)]

    def _varies(self, place: LocatedValue) -> bool:
        path, value = place
        return not self.atoms.along.isdisjoint(self.graph.at(path).type(value).axes)

    def _is_mixed(self, place: LocatedValue) -> bool:
        """True if a value is a sum of shifted and unshifted elements."""
        path, value = place
        op = self.graph.at(path).op(value.node)
        if not isinstance(op, Elementwise) or op.expr.op not in ("add", "sub"):
            return False
        return any(
            use not in self.shifted and operand not in self.changed and self._varies(operand)
            for use, operand in self._operands(place)
        )

    @property
    def shift(self) -> Shift:
        subtracted = dict.fromkeys(sorted(self.shifted), const(-1.0))
        outputs = {n: factor for n, factor in self._outputs.items() if factor is not None}
        uses = {use: self._total_at(self._operand(use)) for use in self.restored}
        ends = {n: self._total_at(((), self.graph.outputs[n].value)) for n in outputs}
        return Shift(
            {**subtracted, **{u: f for u, f in self.restored.items() if uses[u] is None}},
            {n: factor for n, factor in outputs.items() if ends[n] is None},
            {use: found.by for use, found in uses.items() if found is not None},
            {n: found.by for n, found in ends.items() if found is not None},
        )

    def _operand(self, use: Use) -> LocatedValue:
        path, node, port = use
        return path, self.graph.at(path)[node].inputs[port]

    def _total_at(self, place: LocatedValue) -> "_Total | None":
        """The sum of the shifted value, or a function of that alone, if a value is one."""
        path, value = place
        if self._is_total(place):
            return _Total(None)
        node = self.graph.at(path)[value.node]
        if isinstance(node.op, Elementwise) and len(node.inputs) == 1:
            return _Total(node.op) if self._is_total((path, node.inputs[0])) else None
        return None

    def _is_total(self, place: LocatedValue) -> bool:
        """True if a value is the sum of the shifted one, in the dtype that the pivot has."""
        path, value = place
        same = self.graph.at(path).type(value).dtype is self._total_dtype
        return same and self.atoms.is_total(self.before.known[place])

    @cached_property
    def _total_dtype(self) -> DType:
        path, value = next(iter(self.cut))
        dtype = self.graph.at(path).type(value).dtype
        return DType.float32 if dtype in NARROW else dtype

    @property
    def loses(self) -> bool:
        """True if sums of products with the value are added to sums of the other factors alone.

        Σx² and Σx nearly cancel if the rows of x have an offset, and so do Σxw and Σw.
        """
        polys = [
            poly
            for (path, value), poly in self.before.known.items()
            if isinstance(self.graph.at(path).op(value.node), Elementwise)
        ]
        return self._mix(polys)

    def _mix(self, polys: Sequence[Poly]) -> bool:
        """True if such sums are added in a polynomial, or in one that it is a function of."""
        pending, seen = list(polys), set(polys)
        while pending:
            monomials = [monomial for monomial, _ in pending.pop().terms]
            factors = [frozenset(a for a, power in m if power > 0) for m in monomials]
            if self._adds_both(factors):
                return True
            inside = {x for m in monomials for a, _ in m for x in a.key if isinstance(x, Poly)}
            pending += inside - seen
            seen |= inside
        return False

    def _adds_both(self, monomials: Sequence[frozenset[Atom]]) -> bool:
        ((((own, _),), _),) = self.atoms.summed.terms
        return any(
            less in {key_of(a) for a in other}
            for monomial in monomials
            for atom in monomial
            if (less := atom.without(own, self.atoms.along)) is not None
            for other in monomials
            if atom not in other
        )

    # ---------------------------------------------------------------- repairs

    def repaired(self) -> "_Trial | None":
        """The trial with operands repaired on the way to outputs that would change, if possible.

        Repairs come as late as possible: a moved operand gets its multiple back at the use by a
        spoiled value, and the value itself is unshifted there.
        """
        unshifted: set[Use] = set()
        restored: dict[Use, Expr] = {}
        pending: list[LocatedValue] = list(self.spoiled)
        seen = set(pending)
        while pending:
            for use, place in self._operands(pending.pop()):
                if use is not None and use in self.shifted:
                    unshifted.add(use)
                    continue
                if place not in self.changed or (use is not None and use in self.restored):
                    continue
                factor = None if use is None else self.moved_by(place)
                if use is not None and factor is not None:
                    restored[use] = factor
                elif place not in seen:
                    seen.add(place)
                    pending.append(place)
        if not unshifted and not restored:
            return None
        if unshifted:  # other changes are found without them
            return replace(self, shifted=self.shifted - unshifted, restored={})
        return replace(self, restored={**self.restored, **restored})

    @property
    def is_consistent(self) -> bool:
        """True if every restored operand lacks exactly its multiple."""
        return all(
            (place := self._operand(use)) in self.changed and self.moved_by(place) == factor
            for use, factor in self.restored.items()
        )

    def _operands(self, place: LocatedValue) -> Iterator[tuple[Use | None, LocatedValue]]:
        """The operands of a value: uses of other values, or a value inside or outside of a map."""
        path, value = place
        inner = self.graph.at(path)
        if path and value.node in inner.inputs:
            outer, loop = path[:-1], path[-1]
            port = inner.inputs.index(value.node)
            yield (outer, loop, port), (outer, self.graph.at(outer)[loop].inputs[port])
            return
        op = inner.op(value.node)
        if isinstance(op, Map) and (at := (*path, value.node)) in self._read:
            mode = op.modes[value.port]
            start = value.port if mode is None else value.port - mode.component
            arity = 1 if mode is None else mode.combiner.arity
            for out in op.body.outputs[start : start + arity]:
                yield None, (at, out.value)
            return
        for port, operand in enumerate(inner[value.node].inputs):
            yield (path, value.node, port), (path, operand)

    @cached_property
    def _read(self) -> frozenset[Path]:
        """The paths of the graphs that could be read."""
        return frozenset(path for path, _ in self.before.known)


@dataclass(frozen=True, slots=True)
class _Total:
    """The sum of the shifted value; `by` is the operator that is applied to it, if any."""

    by: Elementwise | None


def _is_rounded(graph: Graph, use: Use) -> bool:
    """True if a use only casts the value to store it, which must not be shifted."""
    path, node, _ = use
    op = graph.at(path).op(node)
    return isinstance(op, Elementwise) and op.expr.op == "cast"


def _made_before_pivot(graph: Graph, summed: Summed) -> set[int]:
    """The nodes that the pivot depends on, which cannot use it."""
    ends = graph[summed.loops[0]].inputs if summed.loops else [summed.value]
    found: set[int] = set()
    pending = [value.node for value in ends]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [value.node for value in graph[node].inputs]
    return found


def _same_meaning(graph: Graph, place: LocatedValue) -> frozenset[LocatedValue]:
    """A value and its equals, such as copies that a rule has made of its producer."""
    path, value = place
    kind = graph.at(path).type(value)
    atoms = Atoms((), ())
    inputs = [atoms.atom(("input", i), frozenset(graph.type(Value(i)).axes)) for i in graph.inputs]
    meaning = Meaning(atoms, ())
    meaning.read(graph, inputs)
    known = meaning.known
    return frozenset(
        at
        for at, poly in known.items()
        if poly == known.get(place) and _alike(graph.at(at[0]).type(at[1]), kind)
    )


def _alike(a: Type, b: Type) -> bool:
    """True if items of two values have the same dtype and axes."""
    return a.dtype is b.dtype and set(a.items) == set(b.items)
