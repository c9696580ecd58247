"""Has two products of the same rows computed as one, on a GPU with tensor descriptors.

One descriptor loads the columns of both, which lie in different arrays. After the loop the sums are
parted (analysis/joined_products.py).
"""

from dataclasses import replace

from blockbuster_fusion.nest.analysis.joined_products import joinable_products
from blockbuster_fusion.nest.nest import Kernel


def join_products(kernel: Kernel) -> Kernel:
    """The described kernel with such products, if it has any."""
    can_join = kernel.is_described and joinable_products(kernel)
    return replace(kernel, is_joined=True) if can_join else kernel
