"""The extent of sweeps: all cases by command, a seeded part of them in every run of the tests."""

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

FULL = os.environ.get("BLOCKBUSTER_TESTS") == "full"
"""True in `make fuzz`, which sets the variable."""


def part(count: int, least: int = 1, of: int = 4) -> int:
    """The number of programs to try: `count` in a full run, else one in four of them."""
    return count if FULL else max(least, count // of)


def crossed(items: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """All pairs in a full run; else each of the first with one of the others, in turn."""
    if FULL:
        return list(product(items, others))
    return [(item, others[at % len(others)]) for at, item in enumerate(items)]
