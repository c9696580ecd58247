"""Improves choices: the schedules and tiles of the least predicted times on a machine."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.schedule.cost import predicted
from blockbuster_fusion.schedule.search import searched

MOST_KEPT = 4
"""The number of searched choices that are tried in turn."""
MOST_SEARCHED = 2
"""The number of snapshots whose schedules are searched."""


def improved(
    choices: Sequence[Choice], sizes: Sizes, machine: Machine, most: int = MOST_KEPT
) -> list[Choice]:
    """The same programs with the schedules and tiles of the least predicted times, best first.

    `sizes` are the lengths of the axes that are not fixed. The choices as they were come last.
    """
    extents = Extents.of_sizes(sizes, "the given sizes")
    found: list[tuple[float, Choice]] = []
    for choice in choices[:MOST_SEARCHED]:
        lower = cache(lambda schedule, own=choice: replace(own, schedule=schedule).scheduled())
        points = searched(lower, choice.schedule, extents, machine)
        for best in points[: most * MOST_SEARCHED]:
            made = replace(choice, schedule=best.schedule, tiles=best.tiles)
            found.append((_predicted(made, extents, machine), made))
        found.append((_predicted(choice, extents, machine), choice))
    found.sort(key=lambda pair: pair[0])
    kept: dict[object, Choice] = {}  # points that are the same once tiles are fitted count once
    for _, choice in (pair for pair in found if math.isfinite(pair[0])):
        tiles = choice.scheduled()[1]
        kept.setdefault((choice.snapshot, str(choice.schedule), frozenset(tiles.items())), choice)
        if len(kept) == most:
            break
    return [*kept.values(), *choices]


def _predicted(choice: Choice, extents: Extents, machine: Machine) -> float:
    """The predicted time of the kernels that a choice becomes; infinite if there are none."""
    try:
        nest, tiles = choice.scheduled()
        return predicted(nest, Tiling(extents, tiles), machine, choice.schedule).device
    except BlockbusterError:
        return math.inf
