"""The axes solver: which named axes the positions of arrays stand for.

A framework's array has positions; an axis is what two positions share that an operator walks
together. A view that merges or splits positions only says that one position is several axes in a
row. So every position is a sequence of *factors*, and each operator states equations between such
sequences. Solving them is union-find with splitting: of two factors that stand for the same thing,
equal sizes are made one, and the larger is split by the smaller. What cannot be split any further
are the atomic axes of the program; over these, a view is nothing at all.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from blockbuster_fusion.errors import BlockbusterError


class AxesDisagree(BlockbusterError):
    """Positions that an operator walks together have no common atomic axes."""

    template = "{left} and {right} have no common factors"


class AxesMeet(BlockbusterError):
    """Two axes would become one, and some array has both."""

    template = "{left} and {right} would be one axis, and one array has both"


@dataclass(frozen=True, slots=True)
class Size:
    """A product: of a number and of sizes that are known only when the program runs."""

    number: int
    symbols: tuple[str, ...] = ()

    def __mul__(self, other: "Size") -> "Size":
        return Size(self.number * other.number, tuple(sorted(self.symbols + other.symbols)))

    def divided_by(self, other: "Size") -> "Size | None":
        """The whole quotient, or None where there is none for all sizes."""
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


ONE = Size(1)


def product(sizes: Iterable[Size]) -> Size:
    """All sizes multiplied."""
    return reduce(mul, sizes, ONE)


@dataclass(eq=False, slots=True)
class Factor:
    """An axis in the making: an atom, or by now the same as another, or split into several."""

    size: Size
    parts: tuple["Factor", ...] | None = None
    """What it has become; None for an atom."""

    def __repr__(self) -> str:
        return f"<{self.size}>"


Position = tuple[Factor, ...]
"""What one position of an array is; nothing where it has length 1."""


class Axes:
    """One system of equations between sequences of factors, solved as they come."""

    def __init__(self) -> None:
        self.together: list[tuple[Factor, ...]] = []
        """The axes of each array, which must stay different ones."""

    def new(self, size: Size) -> Position:
        """A position of its own."""
        return () if size == ONE else (Factor(size),)

    def atoms(self, factors: Iterable[Factor]) -> Position:
        """What the factors have come to."""
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
        """Some array has all of these axes, so no two of them may become one."""
        self.together.append(tuple(factors))

    def unify(self, left: Sequence[Factor], right: Sequence[Factor]) -> None:
        """The two sequences stand for the same indices.

        AxesDisagree where they have no common factors, AxesMeet where one array has both; what
        was solved until then stays, since every step of it is required.
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
            # what was split or merged may stand further on as well
            lefts, rights = [*self.atoms(lefts)], [*self.atoms(rights)]
        if lefts or rights:
            raise AxesDisagree(left=_shown(left), right=_shown(right))

    def refine(self, left: Sequence[Factor], right: Sequence[Factor]) -> bool:
        """Split the two sequences at each other's borders, without making them one; whether any
        factor was split. AxesDisagree where no split does."""
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
        """Make two atoms of one size the same axis."""
        if any(a in atoms and b in atoms for atoms in self.met()):
            raise AxesMeet(left=a.size, right=b.size)
        b.parts = (a,)

    def split(self, whole: Factor, first: Factor, rest: Size) -> list[Factor]:
        """Split an atom into another one and what is left; that which is left."""
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

        Positions are matched from the left in runs of equal products; the factors of a run are
        dealt out again, split where a border falls inside one.
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
