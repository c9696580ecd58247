"""Constraints: what is together, apart or stored, and the cheapest parts under them."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

from blockbuster_fusion.errors import BadConstraint
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.constraints import Constraints, Wishes
from blockbuster_fusion.select.fusers import Offer
from blockbuster_fusion.select.operators import Kind, Operator
from blockbuster_fusion.select.order import bits
from blockbuster_fusion.select.selection import Selected, Selection
from blockbuster_fusion.select.units import Units, contracted
from helpers.operator_graphs import Drawn, llama
from helpers.partitions import partitions
from helpers.structured_costs import share


@dataclass(frozen=True)
class Hashed:
    """A fuser whose costs depend on the forms of a part's operators alone."""

    units: Units
    seed: int = 0

    name, is_exact = "hashed", False

    def candidates(self) -> list[int]:
        return []

    def floor(self, part: int) -> Seconds | None:
        offer = self.offer(part)
        return None if offer is None else offer.cost * 0.6

    def guess(self, part: int) -> Seconds | None:
        return self.floor(part)

    def ahead(self, parts: Iterable[int]) -> None:
        """Needs no time."""

    def offer(self, part: int) -> Offer | None:
        forms = [self.units.operators[i].form for i in self.units.operators_in(part)]
        single = [0.5 + share(self.seed, form) for form in forms]
        is_one = part.bit_count() == 1
        cost = Seconds(sum(single) * (1.0 if is_one else 0.4 + share(self.seed, forms)))
        return Offer(self.name, cost, cost)


def selection(units: Units, constraints: Constraints, seed: int = 0) -> Selection:
    return Selection(units, [Hashed(units, seed)], constraints=constraints)


def chain_of_pairs(rng: random.Random) -> list[Operator]:
    """A few products and pointwise operators, each of which reads one or two before."""
    drawn = Drawn()
    for i in range(rng.randint(4, 7)):
        near = [f"op{v}" for v in range(max(0, i - 2), i)] or ["x"]
        reads = rng.sample(near, min(len(near), rng.choice([1, 2])))
        kind = rng.choice([Kind.POINTWISE, Kind.CONTRACTION])
        drawn.add(kind, f"op{i}", *reads, form=f"{i}", is_output=rng.random() < 0.2)
    return drawn.operators


def random_constraints(rng: random.Random, count: int) -> Constraints:
    def some() -> int:
        return bits(rng.sample(range(count), min(count, 2)))

    together = tuple(some() for _ in range(rng.randint(0, 1)))
    return Constraints(together, tuple(some() for _ in range(rng.randint(0, 2))))


@pytest.mark.parametrize("block", range(4))
def test_cheapest_under_constraints(block: int) -> None:
    """Equal to the cheapest of all partitions that respect the constraints."""
    met = 0
    for seed in range(block * 40, block * 40 + 40):
        rng = random.Random(seed)
        units = contracted(chain_of_pairs(rng))
        count = len(units.members)
        given = random_constraints(rng, count)
        stored = tuple(
            (1 << n, units.order.users[n]) for n in rng.sample(range(count), rng.randint(0, 1))
        )
        given = Constraints(given.together, given.apart, stored)
        looked = selection(units, given, seed)
        costs = {p << w.first: Seconds(0.0) for w in looked.windows for p in w.candidates}
        allowed = {part: looked.offer(part) for part in costs if given.may_hold(part)}
        every = [
            sum(allowed[part].cost.device for part in own)  # type: ignore[union-attr]
            for own in partitions(units.order, allowed)
        ]
        if not every:
            with pytest.raises(BadConstraint, match="nothing runs all operators"):
                looked.cheapest()
            continue
        met += 1
        found = looked.cheapest()
        assert found.certificate.proven, seed
        assert found.certificate.value == pytest.approx(min(every)), seed
        assert all(given.may_hold(part) for part, _ in found.parts), seed
    assert met > 20


def named_parts(units: Units, selected: Selected) -> list[set[str]]:
    return [
        {units.operators[i].name for i in units.operators_in(part)} for part, _ in selected.parts
    ]


def wished(operators: Sequence[Operator], wishes: Wishes, seed: int = 0) -> list[set[str]]:
    """The names of the operators of each part under some wishes."""
    units = contracted(operators, wishes.borders(operators))
    found = selection(units, wishes.constraints(units), seed).cheapest()
    assert found.certificate.proven
    return named_parts(units, found)


def part_of(parts: Sequence[set[str]], name: str) -> set[str]:
    return next(own for own in parts if name in own)


LAYERS = 5


@pytest.mark.parametrize("number", range(LAYERS))
@pytest.mark.parametrize("kind", ["together", "apart", "materialise"])
def test_a_constraint_on_one_layer_is_for_that_layer_alone(kind: str, number: int) -> None:
    """Equal layers are solved once, but not where a constraint makes one another."""
    operators = llama(LAYERS).operators
    for seed in range(20):
        free = wished(operators, Wishes(), seed)
        pair = [f"layers.{number}.{name}" for name in ("gated", "down")]
        is_together = pair[1] in part_of(free, pair[0])
        if is_together == (kind != "together"):
            break
    name = f"layers.{number}/layers.{number}."
    both = ((f"{name}gated", f"{name}down"),)
    wishes = {
        "together": Wishes(together=both),
        "apart": Wishes(apart=both),
        "materialise": Wishes(materialise=(f"{name}gated",)),
    }[kind]
    parts = wished(operators, wishes, seed)
    assert (pair[1] in part_of(parts, pair[0])) == (kind == "together")
    other = f"layers.{(number + 2) % LAYERS}."
    assert part_of(parts, f"{other}gated") == part_of(free, f"{other}gated")


def test_a_star_names_operators_of_all_layers() -> None:
    operators = llama(3).operators
    wishes = Wishes(materialise=("layers.*.gated",))
    parts = wished(operators, wishes)
    for number in range(3):
        own = part_of(parts, f"layers.{number}.gated")
        assert f"layers.{number}.down" not in own


def test_an_unknown_name_gets_a_sentence() -> None:
    operators = llama(1).operators
    units = contracted(operators)
    with pytest.raises(BadConstraint, match=r"constraint of nothing\*: no operator has this name"):
        Wishes(apart=(("nothing*", "head"),)).constraints(units)
    with pytest.raises(BadConstraint, match="no operator has this name; there are words, "):
        Wishes(materialise=("layers.9/mm",)).borders(operators)


def test_what_no_kernel_computes_is_together_with_nothing() -> None:
    units = contracted(llama(1).operators)
    wishes = Wishes(together=(("words", "layers.0.n1.square"),))
    with pytest.raises(BadConstraint, match="an operator that no kernel computes"):
        wishes.constraints(units)


def test_contradictions_get_a_sentence() -> None:
    units = contracted(llama(1).operators)
    pair = ("layers.0.gated", "layers.0.down")
    wishes = Wishes(together=(pair,), apart=(pair,))
    with pytest.raises(BadConstraint, match="nothing runs all operators under these constraints"):
        selection(units, wishes.constraints(units)).cheapest()


def test_what_is_far_apart_cannot_be_together() -> None:
    units = contracted(llama(4).operators)
    wishes = Wishes(together=(("layers.0.gate", "layers.3.gate"),))
    with pytest.raises(BadConstraint, match="nothing runs all operators"):
        selection(units, wishes.constraints(units)).cheapest()


def test_operators_of_one_unit_can_be_apart() -> None:
    drawn = Drawn()
    drawn.pointwise("a", "x")
    drawn.pointwise("b", "a")
    drawn.pointwise("c", "b", is_output=True)
    assert len(contracted(drawn.operators).members) == 1
    parts = wished(drawn.operators, Wishes(apart=(("a", "c"),)))
    assert "c" not in part_of(parts, "a")
    parts = wished(drawn.operators, Wishes(materialise=("a",)))
    assert part_of(parts, "a") == {"a"}


def test_parts_hold_all_of_a_set_or_none() -> None:
    given = Constraints((0b011,), (0b110,), ((0b001, 0b1000),))
    assert given.may_hold(0b0011)
    assert not given.may_hold(0b0001)
    assert given.may_grow(0b0001)
    assert not given.may_grow(0b0110)
    assert not given.may_grow(0b1001)
