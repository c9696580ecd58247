"""The cheapest partition, against all partitions and against an integer program."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.candidates import Window
from blockbuster_fusion.select.ideals import Caps, Ideals
from blockbuster_fusion.select.order import Order, bits, connected_parts, members
from blockbuster_fusion.select.partition import NEVER, Partition, Partitioner
from helpers.integer_program import cheapest_value
from helpers.partitions import partitions, random_costs, random_order

PROGRAMS = 1000


def floors(costs: Mapping[int, Seconds], rng: random.Random) -> dict[int, Seconds]:
    """Floors that are below the costs by a random share."""
    return {part: cost * rng.uniform(0.3, 1.0) for part, cost in costs.items()}


def window(order: Order, candidates: Iterable[int]) -> Window:
    """All of an order in one window."""
    parts = tuple(candidates)
    return Window(
        0, len(order), "all", parts, tuple(map(order.needed, parts)), tuple(map(str, parts))
    )


def partitioner(
    order: Order,
    below: Mapping[int, Seconds],
    price: Callable[[int], Seconds],
    guess: Mapping[int, Seconds] | None = None,
    caps: Caps | None = None,
) -> Partitioner:
    return Partitioner(
        [window(order, below)],
        lambda _, part: below[part],
        lambda _, part: price(part),
        None if guess is None else lambda _, part: guess[part],
        caps=caps or Caps(),
    )


def cheapest(order: Order, costs: Mapping[int, Seconds], rng: random.Random) -> Partition:
    below = floors(costs, rng)
    guesses = {part: cost * rng.uniform(1.0, 2.0) for part, cost in below.items()}
    found = partitioner(order, below, costs.__getitem__, rng.choice([guesses, None]))
    return found.cheapest([1 << i for i in range(len(order))])


def test_a_copy_of_a_window_follows_what_it_needs_itself() -> None:
    """A search that looks ahead goes through copies whose candidates need less."""
    own = window(Order([(), (0,)]), [1, 2])
    copied = replace(own, needed=(0, 0))
    search, free = Ideals(Seconds.total, Caps()), {"1": Seconds(1.0), "2": Seconds(1.0)}
    for some in (own, copied, own):
        assert [*search.ends(some, 0, free.__getitem__, (1.0, 0.0))] == [3]
    assert [part for part, _, _ in own.following[0][0]] == [1]
    assert own.following is not copied.following


def test_ideals_of_a_diamond() -> None:
    order = Order([(), (0,), (0,), (1, 2)])
    assert order.needed(bits([3])) == bits([0, 1, 2])
    assert not order.is_convex(bits([0, 3]))
    assert not order.is_convex(bits([0, 1, 3]))
    assert order.is_convex(bits([1, 2]))
    assert [*order.ready(bits([0]))] == [1, 2]
    assert order.is_partition([bits([0]), bits([2]), bits([1, 3])])
    assert not order.is_partition([bits([0]), bits([1, 3]), bits([2])])


def test_an_operator_reads_only_earlier_ones() -> None:
    with pytest.raises(ValueError, match="operator 0 reads operator 1"):
        Order([(1,), ()])


@pytest.mark.parametrize("seed", range(100))
def test_connected_parts_are_all_there_once(seed: int) -> None:
    order = random_order(random.Random(seed))
    found = [*connected_parts(order, order.all, most=len(order))]
    assert len({*found}) == len(found)
    for part in range(1, 1 << len(order)):
        reached = part & -part
        while True:
            more = part & bits(i for v in members(reached) for i in members(order.beside[v]))
            if not more & ~reached:
                break
            reached |= more
        assert (part in found) == (reached == part and order.is_convex(part))


@pytest.mark.parametrize("has_host", [False, True])
@pytest.mark.parametrize("block", range(10))
def test_equal_to_all_partitions(block: int, has_host: bool) -> None:
    """A thousand programs, half of them bound by the host here and there."""
    for seed in range(block * PROGRAMS // 20, (block + 1) * PROGRAMS // 20):
        rng = random.Random(2 * seed + has_host)
        order = random_order(rng)
        costs = random_costs(rng, order, has_host=has_host)
        found = cheapest(order, costs, rng)
        every = (sum((costs[p] for p in own), Seconds(0.0)) for own in partitions(order, costs))
        assert found.cost.total() == pytest.approx(min(x.total() for x in every)), seed
        assert order.is_partition(found.parts)
        assert found.certificate.proven
        assert found.certificate.priced <= found.certificate.candidates


def in_windows(order: Order, costs: Mapping[int, Seconds], border: int) -> list[Window]:
    """An order in two windows; candidates may need units of the second one."""
    made = []
    for first, end in ((0, border), (border, len(order))):
        own = [p for p in costs if first <= (p & -p).bit_length() - 1 < end]
        needed = tuple(order.needed(part) >> first for part in own)
        parts, keys = tuple(part >> first for part in own), tuple(map(str, own))
        looks_ahead = any(x >> (end - first) for x in needed)
        digest = f"from {first} on"
        size = end - first
        made.append(Window(first, size, digest, parts, needed, keys, looks_ahead=looks_ahead))
    return made


def test_candidates_that_look_beyond_their_window() -> None:
    """A partition that the search has proven is the cheapest of all."""
    unproven = 0
    for seed in range(PROGRAMS // 2):
        rng = random.Random(seed)
        order = random_order(rng)
        costs = random_costs(rng, order, has_host=bool(seed % 2))
        if len(order) < 2:
            continue
        windows = in_windows(order, costs, rng.randrange(1, len(order)))
        below = floors(costs, rng)
        floor, price = (lambda w, part, own=own: own[part << w.first] for own in (below, costs))
        single = [1 << i for i in range(len(order))]
        found = Partitioner(windows, floor, price, order=order.in_order).cheapest(single)
        alone = Partitioner(windows, floor, price).cheapest(single)
        every = (sum((costs[p] for p in own), Seconds(0.0)) for own in partitions(order, costs))
        best = min(x.total() for x in every)
        assert order.is_partition(found.parts), seed
        assert best <= found.certificate.value * (1 + 1e-12), seed
        assert found.certificate.value <= alone.certificate.value, seed
        assert found.certificate.bound <= best * (1 + 1e-12), seed
        if found.certificate.proven:
            assert found.certificate.value == pytest.approx(best), seed
        unproven += not found.certificate.proven
    assert unproven < PROGRAMS // 50


def test_an_order_of_parts() -> None:
    order = Order([(), (), (1,), (0,)])
    assert order.in_order([bits([3]), bits([1, 2]), bits([0])]) == [6, 1, 8]
    assert order.in_order([bits([0, 2]), bits([1, 3])]) is None


def test_parts_that_need_each_other_are_no_partition() -> None:
    """Two convex parts, each of which reads the other: 0 → 3 and 1 → 2."""
    order = Order([(), (), (1,), (0,)])
    costs = {1 << i: Seconds(10.0) for i in range(4)}
    costs |= {bits([0, 2]): Seconds(1.0), bits([1, 3]): Seconds(1.0)}
    found = cheapest(order, costs, random.Random(0))
    assert found.certificate.value == 21.0


def test_what_nothing_can_run_is_left_out() -> None:
    order = Order([(), (0,)])
    costs = {0b01: Seconds(1.0), 0b10: Seconds(1.0), 0b11: NEVER}
    below = {0b01: Seconds(1.0), 0b10: Seconds(1.0), 0b11: Seconds(0.1)}
    found = partitioner(order, below, costs.__getitem__).cheapest([1, 2])
    assert found.parts == (1, 2)
    assert found.certificate.proven


def test_candidates_with_high_floors_are_not_priced() -> None:
    order = Order([(), (0,), (1,)])
    asked: list[int] = []
    costs = {part: Seconds(float(part.bit_count())) for part in connected_parts(order, 7, 3)}
    costs[0b111] = Seconds(1.5)

    def price(part: int) -> Seconds:
        asked.append(part)
        return costs[part]

    found = partitioner(order, costs, price).cheapest([1, 2, 4])
    assert found.parts == (0b111,)
    assert sorted(asked) == [1, 2, 4, 7]


def test_a_cap_is_told_and_the_incumbent_stays() -> None:
    order = Order([()] * 12)
    costs = {1 << i: Seconds(1.0) for i in range(12)}
    below = {part: cost * 0.5 for part, cost in costs.items()}
    found = partitioner(order, below, costs.__getitem__, caps=Caps(ideals=10)).cheapest([*costs])
    assert found.certificate.value == 12.0
    told = "a window of 12 units has more than 10 ideals: the cheapest are followed"
    assert found.certificate.caps == (told,)
    assert not found.certificate.proven


@pytest.mark.parametrize(("light", "parts"), [(0, 4), (8, 2)])
def test_light_candidates_are_priced_after_the_cap(light: int, parts: int) -> None:
    """The pairs 0b11 and 0b1100 are light, and cheaper than what they stand for."""
    order = Order([(), (0,), (1,), (2,)])
    candidates = [1, 2, 4, 8, 0b11, 0b110, 0b1100]
    costs = {part: Seconds(1.0) for part in candidates}
    below = {part: cost * 0.9 for part, cost in costs.items()}
    found = partitioner(order, below, costs.__getitem__, caps=Caps(priced=0, light=light))
    found.sure = lambda _, part: Seconds(1.0) if part == 8 else found.priced.get(str(part), NEVER)
    found.is_light = lambda _, part: part in (0b11, 0b1100)
    best = found.cheapest([1, 2, 4, 8], Seconds(4.0))
    assert len(best.parts) == parts
    assert best.certificate.value == parts
    assert "6" not in found.priced  # 0b110 is not light
    assert best.certificate.bound == pytest.approx(1.8)
    told = "the search works out the times of 0 candidates at most"
    more = f", and of {light} without products" if light else ""
    assert best.certificate.caps == (told + more,)


@pytest.mark.parametrize("light", [0, 1, 2, 5])
def test_light_candidates_alone_are_priced_after_the_cap(light: int) -> None:
    """The others of a partition count with what is known of them."""
    order = Order([(), *((n,) for n in range(5))])
    single, whole = [1 << n for n in range(6)], 0b111111
    costs = dict.fromkeys(single, Seconds(1.0)) | {whole: Seconds(50.0), 0b11: Seconds(1.5)}
    below = {part: cost * 0.9 for part, cost in costs.items()}
    heavy = (4, 16)
    found = partitioner(order, below, costs.__getitem__, caps=Caps(priced=0, light=light))
    known = dict.fromkeys(heavy, Seconds(1.0))
    found.sure = lambda _, part: found.priced.get(str(part), known.get(part, NEVER))
    found.is_light = lambda _, part: part not in heavy
    best = found.cheapest([whole], Seconds(50.0))
    assert len(found.priced) == min(light, 3)
    assert not {str(part) for part in heavy} & found.priced.keys()
    assert best.certificate.value == (5.5 if light > 2 else 50.0)


@pytest.mark.parametrize("caps", [Caps(ideals=2, tries=2, beam=2), Caps()])
def test_light_candidates_are_priced_beyond_their_cap_alone(caps: Caps) -> None:
    """Not if another limit was reached."""
    order = Order([(), (), (), ()])
    costs = dict.fromkeys([1, 2, 4, 8, 0b1111], Seconds(1.0))
    found = partitioner(order, costs, costs.__getitem__, caps=caps)
    found.sure = lambda _, part: found.priced.get(str(part), NEVER)
    with patch.object(found, "price_light") as light:
        found.cheapest([1, 2, 4, 8])
    light.assert_not_called()


@pytest.mark.parametrize("has_host", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_a_narrow_search_is_no_worse_than_single_operators(seed: int, has_host: bool) -> None:
    """Its bound holds, and its parts can be run."""
    rng = random.Random(seed)
    order = random_order(rng)
    costs = random_costs(rng, order, has_host=has_host)
    single = [1 << i for i in range(len(order))]
    below = floors(costs, rng)
    exact = partitioner(order, below, costs.__getitem__).cheapest(single)
    caps = Caps(ideals=2, tries=2, beam=2)
    found = partitioner(order, below, costs.__getitem__, caps=caps).cheapest(single)
    alone = sum((costs[part] for part in single), Seconds(0.0))
    assert order.is_partition(found.parts)
    assert exact.certificate.value <= found.certificate.value <= alone.total()
    assert found.certificate.bound <= exact.certificate.value * (1 + 1e-12)
    assert found.certificate.proven is not bool(found.certificate.caps)


def test_one_window_over_its_cap_leaves_the_others_exact() -> None:
    """A chain of three follows a window in which each of ten operators waits for another one."""
    wide = Order([*([()] * 10), *((i,) for i in range(10))])
    pairs = {bits([i, 10 + (i + 1) % 10]): Seconds(1.0) for i in range(10)}
    several = {1 << i: Seconds(1.0) for i in range(20)} | pairs
    several |= {bits([i, 10 + i]): Seconds(1.2) for i in range(10)}
    first = window(wide, several)
    chain = Order([(), (0,), (1,)])
    parts = {part: Seconds(1.0) for part in connected_parts(chain, 7, 3)}
    keys = tuple(f"chain {part}" for part in parts)
    second = replace(window(chain, parts), first=20, digest="chain", keys=keys)

    def price(own: Window, part: int) -> Seconds:
        return (parts if own.digest == "chain" else several)[part]

    caps = Caps(ideals=8)
    found = Partitioner([first, second], price, price, caps=caps)
    best = found.cheapest([1 << i for i in range(23)])
    assert best.parts[-1] == 7 << 20  # the chain is one part
    assert best.certificate.value <= 13.0
    assert len(best.certificate.caps) == 1
    assert "20 units" in best.certificate.caps[0]


@pytest.mark.parametrize("has_host", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_equal_to_an_integer_program(seed: int, has_host: bool) -> None:
    rng = random.Random(seed)
    order = random_order(rng, most=10)
    costs = random_costs(rng, order, has_host=has_host)
    value = cheapest(order, costs, rng).certificate.value
    assert value == pytest.approx(cheapest_value(order, costs))
