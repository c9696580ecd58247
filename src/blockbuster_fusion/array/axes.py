"""The axes solver: finds the named axes that the positions of arrays stand for.

A framework's array has positions. Two positions that an operator iterates together share an axis. A
view that merges or splits positions makes one position several axes in a row. So every position is
a sequence of *factors*, and each operator states equations between such sequences. They are solved
by union-find with splitting: of two factors that must be equal, equal sizes are merged, and the
larger is split by the smaller. The factors that remain whole, the atoms, are the axes of the
program; over atoms, a view is the identity.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from blockbuster_fusion.errors import BlockbusterError


class AxesDisagree(BlockbusterError):
    """Positions that an operator iterates together have no common atoms."""

    template = "{left} and {right} have no common factors"


class AxesMeet(BlockbusterError):
    """Two axes would become one, and some array has both."""

    template = "{left} and {right} would be one axis, and one array has both"


@dataclass(frozen=True, slots=True)
class Size:
    """A product of a number and of sizes that are known only at run time."""

    number: int
    symbols: tuple[str, ...] = ()

    def __mul__(self, other: "Size") -> "Size":
        return Size(self.number * other.number, tuple(sorted(self.symbols + other.symbols)))

    def divided_by(self, other: "Size") -> "Size | None":
        """The integer quotient, or None if the division leaves a remainder for some sizes."""
        left = Counter(self.symbols)
        left.subtract(other.symbols)
        if other.number == 0 or self.number % other.number or min(left.values(), default=0) < 0:
            return None
        return Size(self.number // other.number, tuple(sorted(left.elements())))

    @property
    def is_known(self) -> bool:
        return not self.symbols

    def __str__(self) -> str:
        factors = ([] if self.number == 1 and self.symbols else [str(self.number)]) + [
            *self.symbols
        ]
        return "*".join(factors)


Length = Callable[[Size], int]
"""A function that gives the length of a size."""


ONE = Size(1)


def product(sizes: Iterable[Size]) -> Size:
    """All sizes multiplied."""
    return reduce(mul, sizes, ONE)


@dataclass(eq=False, slots=True)
class Factor:
    """An axis that is not yet named: an atom, or merged with another, or split into several."""

    size: Size
    parts: tuple["Factor", ...] | None = None
    """The factors that replace it; None for an atom."""

    def __repr__(self) -> str:
        return f"<{self.size}>"


Position = tuple[Factor, ...]
"""The factors of one position of an array; none if it has length 1."""


class Axes:
    """A system of equations between sequences of factors, solved one by one."""

    def __init__(self) -> None:
        self.together: list[tuple[Factor, ...]] = []
        """The factors of each array, which must stay different."""

    def new(self, size: Size) -> Position:
        """The factors of a new position."""
        return () if size == ONE else (Factor(size),)

    def atoms(self, factors: Iterable[Factor]) -> Position:
        """The atoms that the factors consist of by now."""
        made: list[Factor] = []
        stack = [*factors][::-1]
        while stack:
            factor = stack.pop()
            if factor.parts is None:
                made.append(factor)
            else:
                stack.extend(reversed(factor.parts))
        return tuple(made)

    def keep_apart(self, factors: Iterable[Factor]) -> None:
        """Forbids to merge any two of these factors: one array has them all."""
        self.together.append(tuple(factors))

    def unify(self, left: Sequence[Factor], right: Sequence[Factor]) -> None:
        """Makes two sequences equal, factor by factor.

        AxesDisagree if they have no common factors, AxesMeet if one array has both. Steps that were
        done until then stay, since every one of them is required.
        """
        lefts, rights = [*self.atoms(left)], [*self.atoms(right)]
        while lefts and rights:
            a, b = lefts.pop(0), rights.pop(0)
            if a is b:
                continue
            if a.size == b.size:
                self.merge(a, b)
            elif (rest := b.size.divided_by(a.size)) is not None:
                rights = [*self.split(b, a, rest), *rights]
            elif (rest := a.size.divided_by(b.size)) is not None:
                lefts = [*self.split(a, b, rest), *lefts]
            else:
                raise AxesDisagree(left=a.size, right=b.size)
            # a factor that was split or merged may occur again later
            lefts, rights = [*self.atoms(lefts)], [*self.atoms(rights)]
        if lefts or rights:
            raise AxesDisagree(left=_shown(left), right=_shown(right))

    def refine(self, left: Sequence[Factor], right: Sequence[Factor]) -> bool:
        """Splits two sequences at each other's boundaries, without merging; True if any was split.

        AxesDisagree if no split does it.
        """
        is_split = False
        lefts, rights = [*self.atoms(left)], [*self.atoms(right)]
        while lefts and rights:
            a, b = lefts.pop(0), rights.pop(0)
            if a.size == b.size:
                continue
            is_split = True
            if (rest := b.size.divided_by(a.size)) is not None:
                rights = [*self.split(b, Factor(a.size), rest), *rights]
            elif (rest := a.size.divided_by(b.size)) is not None:
                lefts = [*self.split(a, Factor(b.size), rest), *lefts]
            else:
                raise AxesDisagree(left=a.size, right=b.size)
            lefts, rights = [*self.atoms(lefts)], [*self.atoms(rights)]
        return is_split

    def merge(self, a: Factor, b: Factor) -> None:
        """Merges two atoms of one size."""
        if any(a in atoms and b in atoms for atoms in self.met()):
            raise AxesMeet(left=a.size, right=b.size)
        b.parts = (a,)

    def split(self, whole: Factor, first: Factor, rest: Size) -> list[Factor]:
        """Splits an atom into another one and a remainder, which is returned."""
        if any(whole in atoms and first in atoms for atoms in self.met()):
            raise AxesMeet(left=whole.size, right=first.size)
        remainder = Factor(rest)
        whole.parts = (first, remainder)
        return [remainder]

    def met(self) -> Iterator[Position]:
        """The atoms of each array."""
        return (self.atoms(factors) for factors in self.together)

    def regroup(
        self, positions: Sequence[Position], sizes: Sequence[Size], wanted: Sequence[Size]
    ) -> list[Position]:
        """The positions of a view: `positions`, of these sizes, seen in the shape `wanted`.

        Positions are matched from the left in runs of equal products. The factors of a run are
        distributed again; a factor is split if a boundary falls inside it.
        """
        made: list[Position] = []
        at = 0
        pool: list[Factor] = []
        for size in wanted:
            if size == ONE:
                made.append(())
                continue
            taken: list[Factor] = []
            need = size
            while need != ONE:
                while not pool:
                    if at == len(positions):
                        raise AxesDisagree(left=_sizes(sizes), right=_sizes(wanted))
                    pool = [*self.atoms(positions[at])]
                    at += 1
                factor = pool.pop(0)
                if factor.parts is not None:
                    pool = [*self.atoms([factor]), *pool]
                    continue
                if (rest := need.divided_by(factor.size)) is not None:
                    taken.append(factor)
                    need = rest
                elif (rest := factor.size.divided_by(need)) is not None:
                    first = Factor(need)
                    pool = [*self.split(factor, first, rest), *pool]
                    taken.append(first)
                    need = ONE
                else:
                    raise AxesDisagree(left=factor.size, right=need)
            made.append(tuple(taken))
        if pool or any(self.atoms(p) for p in positions[at:]):
            raise AxesDisagree(left=_sizes(sizes), right=_sizes(wanted))
        return made


def _shown(factors: Sequence[Factor]) -> str:
    return "(" + ", ".join(str(f.size) for f in factors) + ")"


def _sizes(sizes: Sequence[Size]) -> str:
    return "(" + ", ".join(map(str, sizes)) + ")"
