"""Has a fixed number of programs compute the blocks of a grid with products, one after the other.

While a program stores one block, it loads the operands of the next. With a program for each block,
nothing is loaded then, unless several programs share a processor.

Kernels that sum one product and do nothing else gain most. The steps of all blocks are one loop
then: what else a block needs takes registers in each step, and two products wait for each other.
Joined ones are one product, and what is computed from them alone needs no more registers. So beside
such kernels, the others of a nest have a program for each block.
"""

from collections.abc import Iterable
from dataclasses import replace

from blockbuster_fusion.nest.analysis.joined_products import joined_products
from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.nest import Cascade, Compute, Contract, Fill, For, Kernel, Nest, Store


def take_turns(nest: Nest, programs: int) -> Nest:
    """A nest in which the blocks of products are computed by at most so many programs."""
    return replace(
        nest,
        steps=tuple(
            replace(step, programs=programs)
            if isinstance(step, Kernel) and _multiplies(step) and takes_turns(step, nest.kernels)
            else step
            for step in nest.steps
        ),
    )


def takes_turns(kernel: Kernel, kernels: Iterable[Kernel]) -> bool:
    """True if no kernel of a nest gains more by turns than one of them."""
    return gains_by_turns(kernel) or not any(map(gains_by_turns, kernels))


def gains_by_turns(kernel: Kernel) -> bool:
    """True if a kernel sums one product, and does nothing else; or joined ones, and computes."""
    products = [s for s in kernel.statements if isinstance(s, Contract)]
    outside = [s for s in kernel.body if not isinstance(s, For | Cascade | Fill | Store)]
    pairs = joined_products(kernel)
    if len(pairs) == 1 and len(products) == 2:
        return all(isinstance(s, Compute) for s in outside)
    return len(products) == 1 and is_dot(products[0]) and not outside


def _multiplies(kernel: Kernel) -> bool:
    products = (s for s in kernel.statements if isinstance(s, Contract))
    return bool(kernel.grid) and any(map(is_dot, products))
