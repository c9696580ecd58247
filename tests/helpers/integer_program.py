"""The cheapest partition by an integer program, solved by HiGHS.

A variable for each candidate says whether it is taken. Each unit is in one candidate that is. Sets
of candidates that need each other are forbidden once a solution has them, and it is solved again.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize, sparse

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.order import Order, members


def cheapest_value(order: Order, costs: Mapping[int, Seconds]) -> float:
    """The least time of all partitions into candidates that can be run."""
    parts = [part for part, cost in costs.items() if not math.isinf(cost.device)]
    scale = max(costs[part].total() for part in parts)
    # the last variable is the time: at least the sum of the device, and that of the host
    columns = [(i, n) for n, part in enumerate(parts) for i in members(part)]
    rows, numbers = zip(*columns, strict=True)
    shape = (len(order), len(parts) + 1)
    covers = sparse.csr_array((np.ones(len(columns)), (rows, numbers)), shape=shape)
    sums = np.array(
        [
            [*(costs[part].device / scale for part in parts), -1.0],
            [*(costs[part].host / scale for part in parts), -1.0],
        ]
    )
    given = [
        optimize.LinearConstraint(covers, 1, 1),
        optimize.LinearConstraint(sums, -np.inf, 0),
    ]
    while True:
        made = optimize.milp(
            c=[*[0.0] * len(parts), 1.0],
            integrality=[*[1] * len(parts), 0],
            bounds=optimize.Bounds(0, [*[1.0] * len(parts), np.inf]),
            constraints=given,
            options={"mip_rel_gap": 1e-10},
        )
        assert made.success, made.message
        taken = [n for n in range(len(parts)) if made.x[n] > 0.5]
        waiting = _waiting(order, [parts[n] for n in taken])
        if not waiting:
            total = sum((costs[parts[n]] for n in taken), Seconds(0.0))
            return total.total()
        cut = np.zeros(len(parts) + 1)
        cut[[taken[n] for n in waiting]] = 1.0
        given.append(optimize.LinearConstraint(cut, -np.inf, len(waiting) - 1))


def _waiting(order: Order, parts: Sequence[int]) -> list[int]:
    """The parts of a cycle, each of which needs the next one; none if all can be run."""
    ideal, left = 0, {*range(len(parts))}
    while ready := [n for n in left if not order.needed(parts[n]) & ~ideal]:
        for n in ready:
            ideal |= parts[n]
        left.difference_update(ready)
    if not left:
        return []
    path = [min(left)]
    while True:
        missing = order.needed(parts[path[-1]]) & ~ideal
        after = next(n for n in sorted(left) if n != path[-1] and parts[n] & missing)
        if after in path:
            return path[path.index(after) :]
        path.append(after)
