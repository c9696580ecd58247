"""Has a fixed number of programs compute the blocks of a grid with products, one after the other.

While a program stores one block, it loads the operands of the next. With a program for each block,
nothing is loaded then, unless several programs share a processor.
"""

from dataclasses import replace

from blockbuster_fusion.nest.analysis.matrix_products import is_dot
from blockbuster_fusion.nest.nest import Contract, Kernel


def take_turns(kernel: Kernel, programs: int) -> Kernel:
    """A kernel whose blocks are computed by at most so many programs, if it has products."""
    products = [s for s in kernel.statements if isinstance(s, Contract) and is_dot(s)]
    return replace(kernel, programs=programs) if products and kernel.grid else kernel
