"""Fusers compete: each part is run by the one that is the cheapest in the cheapest set."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.fusers import Offer
from blockbuster_fusion.select.operators import Kind, Operator, Read
from blockbuster_fusion.select.order import bits
from blockbuster_fusion.select.selection import Selected, Selection
from blockbuster_fusion.select.units import Units

ALL = {bits([n]): 4.0 for n in range(4)}
"""A chain of four operators, each by itself."""


@dataclass(frozen=True)
class Toy:
    """A fuser that runs some parts, each in a number of seconds."""

    name: str
    costs: dict[int, float]
    is_exact: bool = True
    expected: list[int] = field(default_factory=list)
    """The parts that it was told of ahead."""
    asked: list[int] = field(default_factory=list)

    def candidates(self) -> list[int]:
        return [part for part in self.costs if part.bit_count() > 1]

    def floor(self, part: int) -> Seconds | None:
        return Seconds(self.costs[part]) if part in self.costs else None

    def guess(self, part: int) -> Seconds | None:
        return self.floor(part)

    def ahead(self, parts: Iterable[int]) -> None:
        self.expected.extend(parts)

    def offer(self, part: int) -> Offer | None:
        self.asked.append(part)
        seconds = self.floor(part)
        return None if seconds is None else Offer(self.name, seconds, seconds, "measured")


def selected(*fusers: Toy) -> Selected:
    """The cheapest parts of a chain of four operators."""
    operators = tuple(
        Operator(
            f"op{n}",
            Kind.CONTRACTION,
            (n - 1,) if n else (),
            (Read(f"op{n - 1}" if n else "x", 64),),
            64,
            form=f"form {n}",
            is_output=n == 3,
        )
        for n in range(4)
    )
    units = Units(operators, tuple((n,) for n in range(4)))
    return Selection(units, fusers).cheapest()


def chosen(found: Selected) -> list[tuple[int, str]]:
    return [(part, offer.fuser) for part, offer in found.parts]


FRONT, MIDDLE, BACK = bits([0, 1]), bits([1, 2]), bits([2, 3])
KERNELS = Toy("kernels", {**ALL, FRONT: 6.5, MIDDLE: 3.0}, is_exact=False)
LIBRARY = Toy("library", {bits([n]): 3.0 for n in range(4)})


def test_each_part_goes_to_the_cheapest() -> None:
    custom = Toy("custom", {BACK: 2.0})
    found = selected(KERNELS, LIBRARY, custom)
    assert chosen(found) == [(1, "library"), (2, "library"), (BACK, "custom")]
    assert found.cost.total() == 8.0
    assert found.certificate.proven


def test_a_slow_one_gets_nothing() -> None:
    found = selected(KERNELS, LIBRARY, Toy("custom", {BACK: 7.0}))
    assert chosen(found) == [(1, "library"), (MIDDLE, "kernels"), (8, "library")]
    assert found.cost.total() == 9.0


def test_one_that_is_fast_may_not_pay_in_the_set() -> None:
    """It is the fastest for its part, but what it leaves to others costs more."""
    custom = Toy("custom", {FRONT: 5.5})
    kernels = Toy("kernels", {**ALL, MIDDLE: 1.0}, is_exact=False)
    found = selected(kernels, LIBRARY, custom)
    assert chosen(found) == [(1, "library"), (MIDDLE, "kernels"), (8, "library")]


def test_it_is_told_ahead_of_what_it_is_asked() -> None:
    kernels = Toy("kernels", {**ALL, FRONT: 6.5, MIDDLE: 3.0, BACK: 9.0}, is_exact=False)
    selected(kernels, LIBRARY, Toy("custom", {BACK: 7.0}))
    assert kernels.asked
    assert {*kernels.asked} == {*kernels.expected}
    assert BACK not in kernels.expected


def test_all_in_one() -> None:
    found = selected(KERNELS, LIBRARY, Toy("custom", {bits(range(4)): 7.5, BACK: 5.0}))
    assert chosen(found) == [(bits(range(4)), "custom")]


@pytest.mark.parametrize("cheapest", ["kernels", "library", "custom"])
def test_the_cheapest_of_three_wins_a_part(cheapest: str) -> None:
    names = ("kernels", "library", "custom")
    fusers = [
        Toy(name, {**ALL, FRONT: 1.0 if name == cheapest else 2.0}, is_exact=name != "kernels")
        for name in names
    ]
    assert chosen(selected(*fusers))[0] == (FRONT, cheapest)
