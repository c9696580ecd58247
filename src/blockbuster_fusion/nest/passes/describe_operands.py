"""Has the operands of products loaded by tensor descriptors, on a GPU that has them.

Threads then issue one instruction for a block, and keep no addresses in registers. Programs that
take turns also store results so.
"""

from dataclasses import replace

from blockbuster_fusion.nest.analysis.described_blocks import describable_blocks
from blockbuster_fusion.nest.nest import Kernel


def describe_operands(kernel: Kernel) -> Kernel:
    """The kernel with such loads, if an operand of its products allows them."""
    return replace(kernel, is_described=True) if describable_blocks(kernel) else kernel
