"""Memory of a tape for arrays whose shapes depend on sizes, as regions of an arena."""

from collections.abc import Sequence
from typing import Any

from blockbuster_fusion.torch.plan.c_tape import ALIGNED
from blockbuster_fusion.torch.plan.placement import Base
from blockbuster_fusion.torch.plan.steps import Slot

Lengths = tuple[int, tuple[int, ...]]
"""A number of bytes: a factor, and the slots of lengths that it is multiplied by."""


class Regions:
    """Regions of an arena, one after the other.

    An array takes the region of a dead one if both have the same bytes whatever the sizes are.
    """

    def __init__(self, arrays: Sequence[tuple[Base, int, int]], first: int) -> None:
        """`arrays` have the first and the last action that use each; `first` is the number of the
        first region among the addresses of a call."""
        self.bytes: list[Lengths] = []
        self.numbers: dict[Base, int] = {}
        """The number of the address of each array."""
        ends: list[int] = []  # the last use of each region
        for base, begin, end in sorted(arrays, key=lambda x: x[1]):
            wanted = _bytes(base)
            fits = (n for n, own in enumerate(self.bytes) if own == wanted and ends[n] < begin)
            at = next(fits, None)
            if at is None:
                at = len(ends)
                ends.append(end)
                self.bytes.append(wanted)
            ends[at] = end
            self.numbers[base] = first + at
        self.total, self.place = _functions(self.bytes, first)
        """The bytes of all regions; and what puts their addresses among those of a call."""


def _bytes(base: Base) -> Lengths:
    factor, slots = base.dtype.itemsize, list[int]()
    for n in base.shape:
        if isinstance(n, Slot):
            slots.append(n.number)
        else:
            factor *= n
    return factor, tuple(sorted(slots))


def _functions(regions: Sequence[Lengths], first: int) -> tuple[Any, Any]:
    """Functions from text, which are fastest."""
    sizes = []
    for factor, slots in regions:
        number = "*".join([str(factor), *(f"values[{slot}]" for slot in slots)])
        sizes.append(f"({number} + {ALIGNED - 1} & {-ALIGNED})")
    lines = [
        f"def total(values): return {' + '.join(sizes) or 0}",
        "def place(addresses, at, values):",
        *(f"    addresses[{first + n}] = at; at += {size}" for n, size in enumerate(sizes)),
        "    return at",
    ]
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    return names["total"], names["place"]
