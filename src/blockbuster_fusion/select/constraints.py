"""Constraints on the parts of a model: what is together, apart, or stored."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from blockbuster_fusion.errors import BadConstraint
from blockbuster_fusion.select.operators import Operator
from blockbuster_fusion.select.order import bits, members
from blockbuster_fusion.select.units import Units


@dataclass(frozen=True)
class Constraints:
    """Sets of units that parts have to respect."""

    together: tuple[int, ...] = ()
    """A part holds all units of such a set or none."""
    apart: tuple[int, ...] = ()
    """A part holds at most one unit of such a set."""
    stored: tuple[tuple[int, int], ...] = ()
    """A unit whose result is stored, with its readers: no part holds it and one of them."""

    def may_grow(self, part: int) -> bool:
        """True if a part, or one that holds it, may be run."""
        if any((part & own).bit_count() > 1 for own in self.apart):
            return False
        return not any(part & unit and part & readers for unit, readers in self.stored)

    def may_hold(self, part: int) -> bool:
        """True if a part may be run."""
        return self.may_grow(part) and all(part & own in (0, own) for own in self.together)

    def within(self, first: int, end: int) -> str:
        """All that concerns some units that follow one another, numbered from the first one."""
        mask = (1 << end) - (1 << first)

        def inside(own: int) -> tuple[int, bool]:
            return (own & mask) >> first, not own & ~mask

        together = [inside(own) for own in self.together if own & mask]
        apart = [inside(own)[0] for own in self.apart if own & mask]
        stored = [(inside(x)[0], inside(own)[0]) for x, own in self.stored if x & mask]
        return repr((together, apart, stored)) if together or apart or stored else ""


@dataclass(frozen=True)
class Wishes:
    """Constraints as a caller writes them, by the names of operators; `*` stands for anything.

    A name is that of an operator in the graph, as `mm_1`, or with its layer, as `layers.0/mm_1`.
    """

    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    materialise: tuple[str, ...] = ()

    @property
    def allow_single_units(self) -> bool:
        """True if each operator may be a part of its own."""
        return not self.together

    def borders(self, operators: Sequence[Operator]) -> list[frozenset[int]]:
        """Sets of operators across whose borders nothing is contracted."""
        named = [*self.apart, *((name,) for name in self.materialise)]
        return [frozenset({i}) for names in named for i in _found(operators, names)]

    def constraints(self, units: Units) -> Constraints:
        """The constraints on units; BadConstraint if an operator is not there."""
        operators, order = units.operators, units.order

        def each(names: tuple[str, ...]) -> int:
            return units.covering(_found(operators, names))

        stored = bits(units.unit_of[i] for i in _found(operators, self.materialise))
        together = [each(names) for names in self.together]
        for own, names in zip(together, self.together, strict=True):
            if any(units.is_misc(n) for n in members(own)):
                problem = "one of them is an operator that no kernel computes"
                raise BadConstraint(kind="together", names=", ".join(names), problem=problem)
        return Constraints(
            tuple(together),
            tuple(each(names) for names in self.apart),
            tuple((1 << n, order.users[n]) for n in members(stored)),
        )


def _found(operators: Sequence[Operator], names: Iterable[str]) -> list[int]:
    """The numbers of the operators that some names stand for."""
    found: dict[int, None] = {}
    for name in names:
        own = [i for i, op in enumerate(operators) if _is_named(op, name)]
        if not own:
            known = ", ".join(op.name for op in operators[:8])
            problem = f"no operator has this name; there are {known}, …"
            raise BadConstraint(kind="constraint", names=name, problem=problem)
        found |= dict.fromkeys(own)
    return [*found]


def _is_named(op: Operator, name: str) -> bool:
    return fnmatchcase(op.name, name) or fnmatchcase(f"{op.region}/{op.name}", name)
