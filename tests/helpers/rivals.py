"""Decides what runs the parts of a model, whatever is faster: kernels, or PyTorch's operators."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

from torch.fx import Node

from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.rivals.choose import Chooser
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.fusers import KernelFuser
from blockbuster_fusion.torch.rivals.library import LibraryTimes

INSTANT, FAST = Seconds(1e-15), Seconds(1e-12)
"""The times of kernels, and of each of PyTorch's operators: few parts are better than many."""

Wanted = Callable[[Sequence[Node]], bool]


def is_product(nodes: Sequence[Node]) -> bool:
    return any("mm" in str(n.target) or "linear" in str(n.target) for n in nodes)


@contextlib.contextmanager
def by_pytorch(wanted: Wanted) -> Iterator[None]:
    """PyTorch runs the operators that are wanted, and kernels all others in as few parts."""

    def floor(self: KernelFuser, part: int) -> Seconds | None:
        return None if self.is_misc(part) or wanted(self.of(part)) else INSTANT

    def estimate(self: Chooser, nodes: Sequence[Node]) -> Estimate:
        self.parts.program(nodes)  # it raises if there is none
        return Estimate(INSTANT, "predicted")

    with (
        mock.patch.object(KernelFuser, "floor", floor),
        mock.patch.object(Chooser, "estimate", estimate),
        mock.patch.object(Chooser, "lost_later", return_value=False),
        mock.patch.object(Chooser, "pays", return_value=True),
        mock.patch.object(LibraryTimes, "_timed", return_value=FAST),
        mock.patch.object(CompiledGraph, "gains", True),
    ):
        yield
