"""The bytes that a kernel of a GPU moves between main memory and the second cache.

Programs start in order, and those that run at a time are a *wave*. What several programs of a wave
load comes from main memory once. A block is loaded again when a loop of the launch order that it
does not depend on goes on, or a loop in the program. It is in the cache still, if all that was
loaded since then fits there. Else it comes from main memory again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HELD = 0.6
"""The share of the cache that holds what was loaded before. It has two halves, and what processors
on both sides read is in both."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The bytes that all programs move of one array."""

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
    room, size = HELD * cache, sum(x.size for x in arrays)
    if size <= room:
        return size
    near = _reached(order, at_a_time)
    wave, sharing, programs = _touched(arrays, near), list[float](), 1.0
    for at in range(len(order) - 1, -1, -1):  # a step of a loop takes all programs of faster ones
        since = wave if programs <= at_a_time else _touched(arrays, _reached(order, programs))
        sharing.insert(0, order[at] if since <= room else near[at])
        programs *= order[at]
    total = 0.0
    for x in arrays:
        rounds = max(1.0, x.moved / max(1.0, x.own * programs))  # of loops in a program
        loads = x.moved / rounds if wave / rounds <= room else x.moved
        for number, varies in zip(sharing, x.varies, strict=True):
            loads /= 1.0 if varies else number
        total += max(x.size, loads)
    return total


def _reached(order: Sequence[float], count: float) -> list[float]:
    """The steps of each loop that some neighbouring programs are in."""
    found, faster = list[float](), 1.0
    for length in reversed(order):
        found.append(min(max(1.0, count / faster), length))
        faster *= length
    return found[::-1]


def _touched(arrays: Iterable[Reads], steps: Sequence[float]) -> float:
    """The bytes that programs in some steps of each loop touch."""
    total = 0.0
    for x in arrays:
        own = x.own
        for number, varies in zip(steps, x.varies, strict=True):
            own *= number if varies else 1.0
        total += own
    return total
