"""Has loops that fold or store each of their blocks load ahead.

Threads wait for each other in each step of such a loop. If other programs of the same processor do
not keep the memory busy meanwhile, the loads of the next steps do.
"""

from dataclasses import replace

from blockbuster_fusion.nest.analysis.spread_sums import folding_loops
from blockbuster_fusion.nest.nest import Kernel


def load_ahead(kernel: Kernel) -> Kernel:
    """The kernel that loads ahead, if it has such loops."""
    return replace(kernel, loads_ahead=True) if folding_loops(kernel) else kernel
