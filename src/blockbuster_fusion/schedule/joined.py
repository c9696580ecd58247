"""The work of several kernels of one launch, as that of one kernel with all their programs."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from blockbuster_fusion.schedule.work import Work

SUMMED = frozenset(
    {
        "programs",
        "products",
        "operations",
        "functions",
        "moved",
        "scratch",
        "wasted",
        "arrays",
        "written",
        "read_by_cores",
        "by_words",
        "jumps",
        "turned",
        "transposed",
        "statements",
    }
)
"""The work of all programs together."""
OF_A_PROGRAM = frozenset({"own", "common", "busy"})
"""Averages over the programs."""
LEAST = frozenset(
    {
        "across",
        "along",
        "beside",
        "piece",
        "is_grouped",
        "is_plain",
        "has_few_rows",
        "has_few_columns",
        "is_describable",
        "is_joinable",
        "is_plain_joined",
    }
)
"""The least of all kernels: the shortest rows, products of whole groups."""
NONE = frozenset({"reads", "order"})
"""Left out: programs of several kernels have no order of one."""
KEPT = frozenset({"dtype"})
"""Taken from the kernel with the most products. All else is as much as in the kernel with the most:
a launch has the registers and the shared memory for each of its programs, and ends with the longest
of them."""


def joined_work(works: Sequence[Work]) -> Work:
    """The work of kernels that one launch runs, each program for one of them."""
    first = max(works, key=lambda work: work.products)
    programs = sum(work.programs for work in works)
    made: dict[str, Any] = {}
    for name in (field.name for field in fields(Work) if field.name not in KEPT):
        numbers = [getattr(work, name) for work in works]
        if name in NONE:
            made[name] = ()
        elif name in SUMMED:
            made[name] = sum(numbers)
        elif name in OF_A_PROGRAM:
            weighed = zip(numbers, (work.programs for work in works), strict=True)
            made[name] = sum(x * n for x, n in weighed) / programs
        else:
            made[name] = min(numbers) if name in LEAST else max(numbers)
    return replace(first, **made)
