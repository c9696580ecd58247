"""Candidates and windows: what may be a part, and that equal layers are looked at once."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from blockbuster_fusion.select.candidates import Limits, Window, windows
from blockbuster_fusion.select.constraints import Constraints
from blockbuster_fusion.select.ideals import Caps
from blockbuster_fusion.select.operators import Kind, Operator
from blockbuster_fusion.select.order import bits, members
from blockbuster_fusion.select.partition import Partition, Partitioner
from blockbuster_fusion.select.units import Units, contracted
from helpers.operator_graphs import Drawn, layer, llama, random_operators
from helpers.structured_costs import StructuredCosts, joined

GRAPHS = 60
FEW = Limits(units=6, products=3, depth=1, beyond=8)


def placed(found: Iterable[Window]) -> list[int]:
    """The candidates of all windows as sets of units of the model."""
    return [part << window.first for window in found for part in window.candidates]


def depth_of(units: Units, part: int) -> int:
    """The most products of a part, each of which needs the one before."""
    depth: dict[int, int] = {}
    for n in members(part):
        if units.operators[units.members[n][0]].kind is Kind.CONTRACTION:
            before = [depth[v] for v in depth if units.order.before[n] >> v & 1]
            depth[n] = 1 + max(before, default=0)
    return max(depth.values(), default=0)


def is_connected(units: Units, part: int) -> bool:
    """True if units of a part read each other's arrays, or the same ones."""
    seen = [
        {r.array for i in units.members[n] for r in units.operators[i].reads}
        | {units.operators[i].name for i in units.members[n]}
        for n in members(part)
    ]
    reached, count = seen[0], 0
    while len(reached) > count:
        count = len(reached)
        reached = reached.union(*(own for own in seen if own & reached))
    return all(own <= reached for own in seen)


@pytest.mark.parametrize("limits", [Limits(), FEW])
@pytest.mark.parametrize("block", range(3))
def test_candidates_of_random_graphs(block: int, limits: Limits) -> None:
    several = 0
    for seed in range(block * GRAPHS // 3, (block + 1) * GRAPHS // 3):
        units = contracted(random_operators(random.Random(seed)))
        found = placed(windows(units, limits))
        assert len({*found}) == len(found), seed
        assert {1 << n for n in range(len(units.members))} <= {*found}, seed
        for part in found:
            if part.bit_count() == 1:
                continue
            several += 1
            check(units, part, limits)
    assert several > GRAPHS


def check(units: Units, part: int, limits: Limits) -> None:
    own = [*members(part)]
    assert is_connected(units, part)
    assert units.order.is_convex(part)
    assert len(own) <= limits.units
    assert not any(units.is_misc(n) for n in own)
    products = [n for n in own if units.operators[units.members[n][0]].kind is Kind.CONTRACTION]
    assert len(products) <= limits.products
    assert depth_of(units, part) <= limits.depth
    for n in own:
        for i in units.members[n]:
            inside = [v for v in units.operators[i].operands if part >> units.unit_of[v] & 1]
            read = [v for v in inside if units.unit_of[v] != n]
            assert not any(units.operators[v].is_stored for v in read)


def test_products_of_one_array_are_together_or_alone() -> None:
    drawn = Drawn()
    drawn.norm("norm", "x")
    for name in "qkv":
        drawn.product(name, "norm.weighted", f"w{name}", is_output=True)
    units = contracted(drawn.operators)
    names = {units.operators[units.members[n][-1]].name: 1 << n for n in range(4)}
    found = {*placed(windows(units))}
    three = names["q"] | names["k"] | names["v"]
    assert found == {*names.values(), three, three | names["norm.weighted"]}


def test_products_of_one_input_are_candidates_in_pairs_too() -> None:
    """Nothing makes the array, so no part of some of them reads it in vain."""
    drawn = Drawn()
    for name in "qkv":
        drawn.product(name, "x", f"w{name}", is_output=True)
    found = placed(windows(contracted(drawn.operators)))
    assert sorted(found) == [*range(1, 8)]


@pytest.mark.parametrize("layers", [6, 12])
def test_equal_layers_have_equal_windows(layers: int) -> None:
    few = windows(contracted(llama(4).operators))
    many = windows(contracted(llama(layers).operators))
    assert len({w.digest for w in many}) == len({w.digest for w in few})
    assert len(many) > len(few)
    assert {w.digest: w.candidates for w in many} == {w.digest: w.candidates for w in few}


def changed(operators: Sequence[Operator], name: str, **fields: object) -> list[Operator]:
    """Operators, one of which is another."""
    return [
        replace(op, **fields) if op.name == name else op  # type: ignore[arg-type]
        for op in operators
    ]


def digests(operators: Sequence[Operator]) -> list[str]:
    return [window.digest for window in windows(contracted(operators))]


def test_layers_that_differ_have_other_windows() -> None:
    operators = llama(6).operators
    usual = digests(operators)
    wide, narrow = Drawn(), Drawn()
    layer(narrow, "layers.0", "x")
    layer(wide, "layers.0", "x", width=512)
    assert not {*digests(wide.operators)} & {*digests(narrow.operators)}
    other = {
        "a dtype": changed(operators, "layers.3.gate", form="contraction of bfloat16"),
        "an output": changed(operators, "layers.3.gate", is_output=True),
        "a stored array": changed(operators, "layers.3.gate", is_stored=True),
        "an extra reader": [
            *operators,
            Operator("late", Kind.MISC, (number(operators, "layers.3.gate"),), form="late"),
        ],
    }
    for what, own in other.items():
        assert {*digests(own)} - {*usual}, what


def number(operators: Sequence[Operator], name: str) -> int:
    return next(i for i, op in enumerate(operators) if op.name == name)


MANY = Caps(labels=1000)


@pytest.mark.parametrize("has_host", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_windows_cost_what_one_window_does(seed: int, has_host: bool) -> None:
    """Layers of random operators: several windows are as good as one of the same candidates."""
    operators = random_layers(random.Random(seed))
    units = contracted(operators)
    found = windows(units, FEW)
    costs = StructuredCosts(seed, has_host=has_host)
    several = solved(found, costs, MANY)
    whole, kept = joined(units, found, costs)
    one = Partitioner([whole], lambda _, p: kept[p] * 0.5, lambda _, p: kept[p], caps=MANY)
    best = one.cheapest([1 << n for n in range(whole.size)])
    assert several.certificate.proven
    assert best.certificate.proven
    assert several.certificate.value == pytest.approx(best.certificate.value, rel=1e-9)


def solved(found: Sequence[Window], costs: StructuredCosts, caps: Caps | None = None) -> Partition:
    partitioner = Partitioner(found, costs.floor, costs.price, caps=caps or Caps())
    return partitioner.cheapest([1 << n for n in range(sum(w.size for w in found))])


def random_layers(rng: random.Random) -> list[Operator]:
    """Equal layers of random operators, each of which reads the last array of the one before."""
    inner = rng.randint(5, 9)
    plan = []
    for i in range(inner):
        kind = rng.choice([Kind.POINTWISE, Kind.REDUCTION, Kind.CONTRACTION])
        near = [*range(max(-1, i - 3), i)]
        plan.append((kind, rng.sample(near, min(len(near), rng.choice([1, 2])))))
    drawn = Drawn()
    x = drawn.misc("words", "ids")
    for number_of_layer in range(rng.randint(2, 4)):
        names = [f"l{number_of_layer}.{i}" for i in range(inner)]
        read = {v for _, reads in plan for v in reads}
        for i, (kind, reads) in enumerate(plan):
            given = [x if v < 0 else names[v] for v in reads]
            if i == inner - 1:  # whatever nothing reads is added up
                given += [names[v] for v in range(inner - 1) if v not in read]
                kind = Kind.POINTWISE
            drawn.add(kind, names[i], *dict.fromkeys(given))
        x = names[-1]
    return drawn.operators


@pytest.mark.parametrize("seed", range(20))
def test_weighted_sums_bound_the_time_from_below(seed: int) -> None:
    """With few labels, device and host are weighted: the bound is not above the true time."""
    operators = random_layers(random.Random(seed))
    found = windows(contracted(operators), FEW)
    costs = StructuredCosts(seed, has_host=True)
    true = solved(found, costs, MANY).certificate
    weighted = solved(found, costs, Caps(labels=1)).certificate
    assert true.proven
    assert weighted.bound <= true.value * (1 + 1e-9)
    assert weighted.value >= true.value * (1 - 1e-9)


def test_a_cut_window_is_told() -> None:
    found = windows(contracted(llama(2).operators), Limits(each=5))
    assert any(window.is_cut for window in found)
    made = solved(found, StructuredCosts(0, has_host=False)).certificate
    assert made.caps == ("more candidates than the limits allow",)
    assert not made.proven


def test_a_set_that_may_not_grow_is_no_candidate() -> None:
    units = contracted(llama(2).operators)
    pair = bits([1, 2])
    found = windows(units, constraints=Constraints(apart=(pair,)))
    assert not any(part & pair == pair for part in placed(found))
