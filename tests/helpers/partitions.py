"""Random orders with random costs, and the cheapest partition by looking at all of them."""

import random
from collections.abc import Iterator, Mapping

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.order import Order, connected_parts, members


def random_order(rng: random.Random, most: int = 7) -> Order:
    count = rng.randint(1, most)
    width = rng.choice([1, 2, 3, count])
    operands = []
    for i in range(count):
        near = range(max(0, i - width), i)
        operands.append([v for v in near if rng.random() < 0.6])
    return Order(operands)


def random_costs(rng: random.Random, order: Order, *, has_host: bool) -> dict[int, Seconds]:
    """A cost for each candidate: about that of its members, less what fusing saves, or more."""
    each = [rng.randint(1, 20) for _ in range(len(order))]
    costs = {}
    for part in connected_parts(order, order.all, most=len(order)):
        alone = sum(each[i] for i in members(part))
        saved = rng.uniform(-0.6, 0.6) if part.bit_count() > 1 else 0.0
        if part.bit_count() > 1 and rng.random() < 0.2:
            continue  # nothing can run it
        host = rng.randint(1, 12) if has_host else 0
        costs[part] = Seconds(max(1, round(alone * (1 - saved))), host)
    return costs


def partitions(order: Order, candidates: Mapping[int, object]) -> Iterator[tuple[int, ...]]:
    """Every partition into candidates that can be run, in one of its orders."""

    def blocks(left: int) -> Iterator[tuple[int, ...]]:
        if not left:
            yield ()
            return
        least = left & -left
        for part in candidates:
            if part & least and not part & ~left:
                for rest in blocks(left & ~part):
                    yield (part, *rest)

    for found in blocks(order.all):
        ordered = _in_order(order, found)
        if ordered is not None:
            yield ordered


def _in_order(order: Order, parts: tuple[int, ...]) -> tuple[int, ...] | None:
    """The parts in an order in which they can be run; None if some need each other."""
    ideal, left, found = 0, [*parts], list[int]()
    while left:
        ready = next((p for p in left if not order.needed(p) & ~ideal), None)
        if ready is None:
            return None
        left.remove(ready)
        found.append(ready)
        ideal |= ready
    return tuple(found)
