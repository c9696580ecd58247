"""The order of a grid's loops: which programs run one after the other.

Programs are independent, so every order gives the same results. Those that follow each other find
in the cache what they share, and that depends on the order.
"""

from collections.abc import Sequence
from dataclasses import replace

from blockbuster_fusion.errors import BadConfig
from blockbuster_fusion.nest.nest import Index, Kernel, Nest


def order_grid(nest: Nest, order: Sequence[str]) -> Nest:
    """Orders the loops of each grid that `order` names, from the slowest to the fastest.

    A loop has the label of its dim, `M.0`, or the name of its axis. Those that are not named stay
    where they are.
    """
    loops = [index for kernel in nest.kernels for index in kernel.grid]
    for name in order:
        if not any(is_named(index, name) for index in loops):
            known = ", ".join(dict.fromkeys(index.dim.label for index in loops)) or "none"
            problem = f"no loop of a grid has the label {name}; known are {known}"
            raise BadConfig(name="order", problem=problem)
    steps = (_ordered(step, order) if isinstance(step, Kernel) else step for step in nest.steps)
    return replace(nest, steps=tuple(steps))


def is_named(index: Index, name: str) -> bool:
    """True if a name stands for a loop: the label of its dim, or its axis."""
    return name in (index.dim.label, index.dim.name)


def _ordered(kernel: Kernel, order: Sequence[str]) -> Kernel:
    named = [index for name in order for index in kernel.grid if is_named(index, name)]
    for index in named:
        if named.count(index) > 1:
            raise BadConfig(name="order", problem=f"{index.dim.label} is named twice")
    coming = iter(named)
    grid = tuple(next(coming) if index in named else index for index in kernel.grid)
    return replace(kernel, grid=grid)
