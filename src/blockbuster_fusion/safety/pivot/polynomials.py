"""The values of a program as polynomials: enough algebra to prove that a shift cancels.

A value is a polynomial over *atoms*: inputs, extents, sums along an axis, and opaque functions of
other polynomials. Sums are linear: factors that do not vary along the axis move out of them. Blocks
are transparent: a sum over the elements of each block and then over the blocks is the sum over the
axis.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ADD, ANY
from blockbuster_fusion.ir.expr import Expr, const, fold, size
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.infer import map_types
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Map, Node, Reduce, Value
from blockbuster_fusion.ir.types import DType

MOST_TERMS = 64
"""The most monomials of a polynomial; a larger one becomes an atom."""


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """An opaque value; `axes` are those along which it varies."""

    number: int
    key: tuple[object, ...]
    axes: frozenset[Axis]
    inner: "Monomial" = ()
    """The monomial that is summed, if the atom is a sum."""

    @property
    def is_whole(self) -> bool:
        """True if it is not a sum over blocks, nor a sum of such sums."""
        return not self.inner or (self.key[0] == "sum" and all(a.is_whole for a, _ in self.inner))

    def is_sum_of(self, atom: "Atom", over: Collection[Axis]) -> bool:
        """True if it is the sum of another atom over some axes."""
        if not over:
            return self is atom
        if len(self.inner) != 1 or self.key[1] not in over:
            return False
        ((factor, power),) = self.inner
        rest = [axis for axis in over if axis is not self.key[1]]
        return power == 1 and factor.is_sum_of(atom, rest)

    def without(self, atom: "Atom", over: Collection[Axis]) -> "tuple[object, ...] | None":
        """The key of this sum over some axes with one factor `atom` less; None for other atoms."""
        if not self.inner or self.key[1] not in over:
            return None
        rest = [axis for axis in over if axis is not self.key[1]]
        if not rest:
            held = any(factor is atom for factor, _ in self.inner)
            return (*self.key[:2], keys_of(_times(self.inner, ((atom, -1),)))) if held else None
        for factor, power in self.inner:
            less = factor.without(atom, rest) if power == 1 else None
            if less is not None:
                others = (part for part in self.inner if part[0] is not factor)
                return (*self.key[:2], keys_of(others) | {(less, 1)})
        return None


Monomial = tuple[tuple[Atom, int], ...]
"""Atoms with their powers, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class Poly:
    """A sum of monomials with rational factors, in a normal form: equal means identical."""

    terms: frozenset[tuple[Monomial, Fraction]]

    @classmethod
    def of(cls, terms: Mapping[Monomial, Fraction]) -> "Poly":
        return cls(frozenset((m, c) for m, c in terms.items() if c))

    def __add__(self, other: "Poly") -> "Poly":
        made = dict(self.terms)
        _add_to(made, other)
        return Poly.of(made)

    def __mul__(self, other: "Poly") -> "Poly":
        made: dict[Monomial, Fraction] = {}
        for a, x in self.terms:
            for b, y in other.terms:
                product = _times(a, b)
                made[product] = made.get(product, Fraction(0)) + x * y
        return Poly.of(made)

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset().union(*(atom.axes for m, _ in self.terms for atom, _ in m))


def number(value: int | float | Fraction) -> Poly:
    return Poly.of({(): Fraction(value)})


def _add_to(made: dict[Monomial, Fraction], poly: Poly) -> None:
    for monomial, factor in poly.terms:
        made[monomial] = made.get(monomial, Fraction(0)) + factor


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(((t, p) for t, p in powers.items() if p), key=lambda part: part[0].number))


def keys_of(monomial: Iterable[tuple[Atom, int]]) -> frozenset[tuple[object, ...]]:
    """A monomial by the keys of its atoms."""
    return frozenset((key_of(atom), power) for atom, power in monomial)


def key_of(atom: Atom) -> tuple[object, ...]:
    """The key that identifies an atom; `Atom.without` gives such a key."""
    return (*atom.key[:2], keys_of(atom.inner)) if atom.inner else atom.key


Use = tuple[Path, int, int]
"""A node, by the path to its graph, and one of its operands."""


class Meaning:
    """The values of a graph as polynomials.

    `cut` are values that become one atom. `shifts` are uses whose operand is shifted by a multiple
    of the pivot. `restored` are uses whose operand is that of an `earlier` reading of the graph.
    Nodes whose operands have not changed since then are not read again.
    """

    def __init__(
        self,
        atoms: "Atoms",
        cut: Collection[tuple[Path, Value]],
        shifts: Mapping[Use, int] | None = None,
        earlier: "Meaning | None" = None,
        restored: Collection[Use] = (),
    ) -> None:
        self.atoms = atoms
        self.cut = cut
        self.shifts = dict(shifts or {})
        self.restored = frozenset(restored)
        self.known: dict[tuple[Path, Value], Poly] = {}
        self._made: dict[tuple[Path, Value], Poly] = {}
        """The polynomials of the values of the cut, before they become one atom."""
        self._earlier = {} if earlier is None else earlier.known
        self._made_earlier = self._made if earlier is None else earlier._made
        uses = (*self.shifts, *self.restored)
        self._shifted = {path[:depth] for path, _, _ in uses for depth in range(len(path) + 1)}

    def read(self, graph: Graph, inputs: Sequence[Poly], path: Path = ()) -> list[Poly]:
        """The polynomials of a graph's outputs for those of its inputs."""
        known = {Value(i): poly for i, poly in zip(graph.inputs, inputs, strict=True)}
        for i, node in graph.nodes.items():
            if Value(i) in known:
                continue
            values = [Value(i, port) for port in range(len(node.types))]
            if self._as_before(i, node, known, path):
                known.update((value, self._earlier[path, value]) for value in values)
                continue
            seen = [self._seen(known, v, (path, i, at)) for at, v in enumerate(node.inputs)]
            for value, poly in zip(values, self._results(i, node, seen, path), strict=True):
                before = self._earlier.get((path, value))
                if (path, value) in self.cut:
                    poly = self._cut((path, value), poly)
                known[value] = before if before is not None and before == poly else poly
        self.known.update(((path, value), poly) for value, poly in known.items())
        return [known[out.value] for out in graph.outputs]

    def _cut(self, place: tuple[Path, Value], poly: Poly) -> Poly:
        """The polynomial of a value of the cut, with its difference from the earlier reading."""
        self._made[place] = poly
        earlier = self._made_earlier.get(place, poly)
        summed = self.atoms.summed
        return summed if poly == earlier else summed + poly + number(-1) * earlier

    def _seen(self, known: Mapping[Value, Poly], value: Value, use: Use) -> Poly:
        if use in self.restored:
            return self._earlier[use[0], value]
        if use in self.shifts:
            return known[value] + number(self.shifts[use]) * self.atoms.pivot
        return known[value]

    def _as_before(self, i: int, node: Node, known: Mapping[Value, Poly], path: Path) -> bool:
        """True if no operand of a node has changed since the earlier reading."""
        if not self._earlier or (*path, i) in self._shifted:
            return False
        return all(
            known[v] is self._earlier[path, v] and (path, i, port) not in self.shifts
            for port, v in enumerate(node.inputs)
        )

    def _results(self, i: int, node: Node, operands: list[Poly], path: Path) -> list[Poly]:
        atoms = self.atoms
        match node.op:
            case Elementwise(expr=expr):
                return [atoms.expression(expr, operands)]
            case BlockReduce(dim=dim, combiner=combiner) if combiner is ADD:
                return [atoms.block_sum(operands[0], dim)]
            case Dot(dim=dim):
                return [atoms.block_sum(atoms.product(*operands), dim)]
            case Reduce(dim=dim, combiner=combiner) if combiner is ADD:
                return [atoms.loop_sum(operands[0], dim)]
            case Map() as op:
                return self._map(op, i, operands, path)
        key = (type(node.op), str(node.op), *operands)
        axes = frozenset().union(*(poly.axes for poly in operands))
        kinds = (axes | frozenset(t.axes) for t in node.types)
        return [atoms.atom((*key, port), found) for port, found in enumerate(kinds)]

    def _map(self, op: Map, i: int, operands: list[Poly], path: Path) -> list[Poly]:
        if _takes_a_block(op, operands):
            return self._unread(op, (*path, i), operands)
        results = self.read(op.body, operands, (*path, i))
        made: list[Poly] = []
        for port, (poly, mode) in enumerate(zip(results, op.modes, strict=True)):
            if mode is None or mode.combiner is ANY:
                made.append(poly)
            elif mode.combiner is ADD and not op.first:
                made.append(self.atoms.loop_sum(poly, op.dim))
            else:
                start = port - mode.component
                group = results[start : start + mode.combiner.arity]
                key = ("gathered", op.dim, op.first, mode.combiner, mode.component, *group)
                axes = frozenset().union(*(r.axes for r in group)) - {op.dim.axis}
                made.append(self.atoms.atom(key, axes))
        return made

    def _unread(self, op: Map, path: Path, operands: list[Poly]) -> list[Poly]:
        """The results of a map as atoms, which differ if an operand of a use inside differs."""
        uses = (*self.shifts.items(), *((use, None) for use in self.restored))
        inside = frozenset(use for use in uses if use[0][0][: len(path)] == path)
        axes = frozenset().union(*(poly.axes for poly in operands))
        kinds = (axes | frozenset(kind.axes) for kind in map_types(op))
        key = ("unread", path, inside, *operands)
        return [self.atoms.atom((*key, port), found) for port, found in enumerate(kinds)]


def _takes_a_block(op: Map, operands: Sequence[Poly]) -> bool:
    """True if a loop gets one block of its own axis from another loop around it.

    That block and the blocks of the loop itself could not be distinguished.
    """
    return any(
        op.dim.axis in poly.axes and op.body.type_of_input(port).list_dim(op.dim) is None
        for port, (poly, iterated) in enumerate(zip(operands, op.iterated, strict=True))
        if not iterated
    )


class Atoms:
    """The atoms of one analysis; equal values are the same atom.

    `summed` is the value under examination, `pivot` a number that may be added to it along some
    axes.
    """

    def __init__(self, axes: Collection[Axis], along: Collection[Axis]) -> None:
        self._known: dict[tuple[object, ...], Atom] = {}
        self._sized: dict[object, Axis] = {}
        self.along = frozenset(along)
        self.summed = self.atom(("summed",), frozenset(axes))
        self.pivot = self.atom(("pivot",), frozenset(axes) - self.along)

    def atom(self, key: tuple[object, ...], axes: frozenset[Axis], inner: Monomial = ()) -> Poly:
        if key not in self._known:
            self._known[key] = Atom(len(self._known), key, axes, inner)
        return Poly.of({((self._known[key], 1),): Fraction(1)})

    def multiple_of_pivot(self, new: Poly, old: Poly) -> Expr | None:
        """The difference of two polynomials as a multiple of the pivot, if it is one."""
        difference = new + number(-1) * old
        ((((pivot, _),), _),) = self.pivot.terms
        if len(difference.terms) != 1:
            return None
        ((monomial, factor),) = difference.terms
        made = const(float(factor))
        for atom, power in monomial:
            if atom is pivot and power == 1:
                continue
            if atom.key[0] != "extent":
                return None
            made = made * size(self._sized[atom.key[1]]) ** power
        return made if (pivot, 1) in monomial else None

    def is_total(self, poly: Poly) -> bool:
        """True if a polynomial is the sum of the value along the axes of the pivot."""
        if not self.is_multiple_of_total(poly):
            return False
        ((monomial, count),) = poly.terms
        return count == 1 and len(monomial) == 1 and monomial[0][0].is_whole

    def is_multiple_of_total(self, poly: Poly) -> bool:
        """True if a polynomial is a multiple of that sum, or of its sums of blocks."""
        ((((own, _),), _),) = self.summed.terms
        if len(poly.terms) != 1:
            return False
        ((monomial, _),) = poly.terms
        factors = [(atom, power) for atom, power in monomial if atom.key[0] != "extent"]
        return len(factors) == 1 and factors[0][1] == 1 and factors[0][0].is_sum_of(own, self.along)

    # ---------------------------------------------------------------- expressions

    def expression(self, expr: Expr, operands: Sequence[Poly]) -> Poly:
        """The polynomial of an expression of polynomials."""
        return fold(expr, lambda node, args: self._node(node, args, operands))

    def _node(self, node: Expr, args: list[Poly], operands: Sequence[Poly]) -> Poly:
        value = node.value
        match node.op:
            case "arg":
                return operands[node.index]
            case "const" if isinstance(value, int | float) and isfinite(value):
                return number(value)
            case "size" if isinstance(value, Axis):
                return self.extent(value)
            case "add":
                return args[0] + args[1]
            case "sub":
                return args[0] + number(-1) * args[1]
            case "neg":
                return number(-1) * args[0]
            case "cast" if isinstance(value, DType) and value.is_float:
                return args[0]
            case "mul":
                return self.product(*args)
            case "div":
                return self.product(args[0], self._inverse(args[1]))
            case "pow" if node.args[1].op == "const":
                return self._power(args[0], node.args[1].value)
        return self._function(node.op, value, args)

    def _function(self, op: str, value: object, args: Sequence[Poly]) -> Poly:
        axes = frozenset().union(*(poly.axes for poly in args))
        return self.atom(("function", op, repr(value), *args), axes)

    def product(self, a: Poly, b: Poly) -> Poly:
        if len(a.terms) * len(b.terms) > MOST_TERMS:
            return self._function("product", None, [a, b])
        return a * b

    def extent(self, axis: Axis) -> Poly:
        if isinstance(axis.extent, int):
            return number(axis.extent)
        self._sized.setdefault(axis.extent, axis)
        return self.atom(("extent", axis.extent), frozenset())

    def _inverse(self, poly: Poly) -> Poly:
        if len(poly.terms) != 1:
            return self._function("inverse", None, [poly])
        ((monomial, factor),) = poly.terms
        return Poly.of({tuple((atom, -power) for atom, power in monomial): 1 / factor})

    def _power(self, poly: Poly, exponent: object) -> Poly:
        if isinstance(exponent, int | float) and exponent in (0, 1, 2):
            made = number(1)
            for _ in range(int(exponent)):
                made = self.product(made, poly)
            return made
        return self._function("pow", exponent, [poly])

    # ---------------------------------------------------------------- sums

    def block_sum(self, poly: Poly, dim: Dim) -> Poly:
        """The sum along an axis inside a block; with one block, that is the whole sum."""
        if dim.unit:
            return self._summed(poly, dim.axis, ("sum", dim.axis), frozenset({dim.axis}))
        return self._summed(poly, dim.axis, ("part", dim.axis), frozenset())

    def loop_sum(self, poly: Poly, dim: Dim) -> Poly:
        """The sum over the blocks of an axis."""
        axis = dim.axis
        if not dim.packed:
            return self._summed(poly, axis, ("sum", axis), frozenset({axis}))
        made: dict[Monomial, Fraction] = {}
        for monomial, factor in poly.terms:
            parts = [a for a, power in monomial if a.key[:2] == ("part", axis) and power == 1]
            others = tuple((a, power) for a, power in monomial if a not in parts)
            if len(parts) != 1 or any(axis in a.axes for a, _ in others):
                return self.atom(("blocks", axis, poly), poly.axes - {axis})
            part = parts[0]
            whole = self.atom(("sum", axis, part.inner), part.axes - {axis}, part.inner)
            if part.inner == ():
                whole = self.extent(axis)
            _add_to(made, Poly.of({others: factor}) * whole)
        return Poly.of(made)

    def _summed(
        self, poly: Poly, axis: Axis, key: tuple[object, ...], gone: frozenset[Axis]
    ) -> Poly:
        made: dict[Monomial, Fraction] = {}
        for monomial, factor in poly.terms:
            inner = tuple((a, power) for a, power in monomial if axis in a.axes)
            outer = tuple((a, power) for a, power in monomial if axis not in a.axes)
            axes = frozenset({axis}).union(*(a.axes for a, _ in inner)) - gone
            total = self.atom((*key, inner), axes, inner)
            if inner == () and key[0] == "sum":
                total = self.extent(axis)
            _add_to(made, Poly.of({outer: factor}) * total)
        return Poly.of(made)
