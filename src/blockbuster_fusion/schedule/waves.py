"""The bytes that a kernel of a GPU moves between main memory and the second cache.

Programs start in order, and those that run at a time are a *wave*. What several programs of a wave
load comes from main memory once. A block is loaded again when a loop of the launch order that it
does not depend on goes on, or a loop in the program. It is in the cache still, if all that was
loaded since then fits there. Else it comes from main memory again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

HELD = 0.6
"""The share of the cache that holds what was loaded before. It has two halves, and what processors
on both sides read is in both."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What all programs move of one array."""

    size: float
    """Bytes of the array that are touched."""
    own: float
    """Bytes of it that one program touches."""
    moved: float
    """Bytes that all programs move, each time."""
    varies: tuple[bool, ...]
    """For each loop of the launch order, whether it has other blocks in each step."""


def from_main(
    arrays: Sequence[Reads], order: Sequence[float], at_a_time: float, cache: float
) -> float:
    """The bytes from main memory, and to it.

    `order` has the lengths of the loops over programs, the slowest first.
    """
    room = HELD * cache
    if sum(x.size for x in arrays) <= room:
        return sum(x.size for x in arrays)
    faster = [math.prod(order[at + 1 :]) for at in range(len(order))]

    def reached(count: float) -> list[float]:
        """The steps of each loop that neighbouring programs are in."""
        return [min(max(1.0, count / f), n) for n, f in zip(order, faster, strict=True)]

    def touched(count: float) -> float:
        """The bytes that neighbouring programs touch."""
        steps = reached(count)
        return sum(
            x.own * math.prod(n for n, varies in zip(steps, x.varies, strict=True) if varies)
            for x in arrays
        )

    sharing = [
        n if touched(max(at_a_time, f)) <= room else near
        for n, near, f in zip(order, reached(at_a_time), faster, strict=True)
    ]
    programs, wave, total = math.prod(order), touched(at_a_time), 0.0
    for x in arrays:
        rounds = max(1.0, x.moved / max(1.0, x.own * programs))  # of loops in a program
        loads = x.moved / rounds if wave / rounds <= room else x.moved
        loads /= math.prod(n for n, varies in zip(sharing, x.varies, strict=True) if not varies)
        total += max(x.size, loads)
    return total
