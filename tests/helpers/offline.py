"""Plans of models without running them: captured graphs, and a GPU that is not here.

Kernels are chosen for the machine of the package, and nothing is compiled. The times of PyTorch's
operators follow from a simple model: their arrays and products at the machine's rates, and more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node

from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import compile_graph, part_choices
from blockbuster_fusion.torch.backend import _called, _static_inputs, decompositions
from blockbuster_fusion.torch.capture.attention import restore_attention
from blockbuster_fusion.torch.compile_graph import _copied, _WeighedGraph
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals.choose import Chooser
from blockbuster_fusion.torch.rivals.composites import Called, Composite
from blockbuster_fusion.torch.rivals.least import least
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.weighing import Weighing

CAPABILITY = 90
"""That of an H200."""
SLOWER, BETWEEN, CALLED = 1.15, 1.5e-6, 5e-6
"""An operator of PyTorch: the factor over the least time, and its seconds of device and host."""
COMPOSITE = (1.3, 2e-6, 6e-6)
"""The same for one operator that computes a composite, as attention."""


@dataclass(frozen=True)
class Captured:
    """A graph of a call, with the numbers of its weights and the composites that it calls."""

    module: GraphModule
    static: list[int]
    called: Called

    def parts(self, options: Options, weighing: Weighing | None = None) -> PartCompiler:
        """The graph as a selection gets it: nothing is selected."""
        with patch.object(compile_graph, "_weighed", lambda *given: ({}, [])):
            module = _copied(self.module)
            return _WeighedGraph(module, self.static, options, weighing or Weighing()).parts

    def chooser(self, options: Options, machine: Machine, **terms: Any) -> Chooser:
        """The one that selects the parts of the graph for a machine, and has not done so.

        It measures no kernels.
        """
        weighing = Weighing(called=self.called, **terms)
        weighing.trial_time.left = dict.fromkeys(weighing.trial_time.left, 0.0)
        return Chooser(self.parts(options, weighing), machine, weighing)


class _IsCaptured(Exception):
    """All is known of a call that is not to be run."""


def captured(
    model: Callable[..., Any], *given: Any, runs: bool = True, **named: Any
) -> list[Captured]:
    """The graphs of a call; without `runs`, of its first graph alone, of which nothing is run."""
    graphs: list[Captured] = []

    def refused(*arguments: Any) -> Any:
        raise _IsCaptured

    def backend(module: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        called = _called(module)

        def keep(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            graphs.append(Captured(_copied(graph), _static_inputs(), called))
            return graph.forward if runs else refused

        try:
            return aot_autograd(
                fw_compiler=keep,
                inference_compiler=keep,
                decompositions=decompositions(),
                keep_inference_input_mutations=True,
            )(module, examples)
        finally:
            restore_attention(module)

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(model, backend=backend, dynamic=False)(*given, **named)
    except _IsCaptured:
        pass
    return graphs


@contextmanager
def offline(machine: Machine) -> Iterator[None]:
    """Kernels are chosen for a machine, and PyTorch's operators have times by a model."""

    def operator(times: LibraryTimes, node: Node) -> Seconds:
        return modelled(times, [node], (SLOWER, BETWEEN, CALLED))

    def composite(times: LibraryTimes, found: Composite) -> Seconds:
        return modelled(times, found.members, COMPOSITE)

    def modelled(
        times: LibraryTimes, nodes: Sequence[Node], more: tuple[float, float, float]
    ) -> Seconds:
        _, seconds = least(times.analysis, nodes, machine, times.length)
        factor, device, host = more
        if machine.target == "cpu":
            return Seconds(seconds.device * factor + host)
        return Seconds(seconds.device * factor + device, host)

    with ExitStack() as stack:
        for owner, name, made in (
            (part_choices, "check_target", lambda target: None),
            (part_choices, "capability_of", lambda target: CAPABILITY),
            (PartCompiler, "machine", lambda parts, target: machine),
            (LibraryTimes, "operator", operator),
            (LibraryTimes, "composite", composite),
        ):
            stack.enter_context(patch.object(owner, name, made))
        yield
