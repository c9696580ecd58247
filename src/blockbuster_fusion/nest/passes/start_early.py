"""Has kernels start before the one before them has ended, on a GPU (programmatic dependent launch).

A GPU needs about a microsecond from the end of one kernel to the first load of the next. An early
kernel is launched meanwhile: it starts as soon as each program of the kernel before it has ended,
or has said that it may. Its own programs wait first, until the results of all earlier kernels are
in memory. They neither load nor store anything before that: what they store, an earlier kernel may
still read. Then they say that the next kernel may start.

As every early kernel waits, all kernels before it have ended when it ends. So any other kernel may
follow.
"""

from dataclasses import replace

from blockbuster_fusion.nest.nest import Grids, Kernel, Nest


def start_early(nest: Nest) -> Nest:
    """The nest whose kernels start early."""
    steps = (replace(x, early=True) if isinstance(x, Kernel | Grids) else x for x in nest.steps)
    return replace(nest, steps=tuple(steps))
