"""The account of a graph: the times of what kernels have won, and of what is left to PyTorch."""

import math
from collections.abc import Sequence

from torch.fx import Node

from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals.part_weigher import PartWeigher
from blockbuster_fusion.torch.rivals.weighing import Weighing


class Account(PartWeigher):
    """Notes the parts that kernels win, and sums the times of both sides."""

    def __init__(self, parts: PartCompiler, machine: Machine, weighing: Weighing) -> None:
        super().__init__(parts, machine, weighing)
        self.gain, self.recognised = 0.0, 0.0
        """The seconds that kernels win, and that recognised composites win."""
        self.won: list[tuple[Sequence[Node], LibraryChoice]] = []
        """The parts that kernels run, with the times."""
        self.gains: dict[str, float] = {}
        """The seconds that kernels win, by the kinds of parts."""
        self.weighed_as: dict[tuple[Node, ...], object] = {}
        """The keys of the estimates with which kernels won parts: they may read other arrays now,
        as PyTorch's operators make what a part would have computed anew."""

    def win(
        self,
        nodes: Sequence[Node],
        choice: LibraryChoice,
        seconds: Seconds,
        kind: str,
        weighed_as: object,
    ) -> None:
        """Notes a part that kernels run, with what they win."""
        self.won.append((nodes, choice))
        self.weighed_as[(*nodes,)] = weighed_as
        self.gain += self.total(choice.library) - self.total(seconds)
        gain = self.total(choice.library) - self.total(choice.kernels)
        self.gains[kind] = self.gains.get(kind, 0.0) + gain

    def pays(self, call_cost: float) -> bool:
        """True if kernels win more than a call of the compiled graph costs.

        A GPU works while the host calls: the longer of both times counts, of the whole graph.
        """
        if self.machine.target == "cpu" or math.isinf(self.gain):
            return self.gain + self.recognised >= call_cost
        ours = sum((x.kernels for _, x in self.won), self.left) + Seconds(0.0, call_cost)
        return ours.total() < self.captured.total() + self.recognised

    @property
    def left(self) -> Seconds:
        """The time of the operators that PyTorch runs."""
        alive = {*self.parts.analysis.module.graph.nodes}
        found = {id(x): x.library for n, x in self.parts.libraries.items() if n in alive}
        return sum(found.values(), Seconds(0.0))

    @property
    def captured(self) -> Seconds:
        """The time of all operators if PyTorch ran them, but for what it recognises."""
        made, several = sum((x.library for _, x in self.won), self.left), self.several_times
        return made + self.spent(several) if several else made

    @property
    def several_times(self) -> list[Node]:
        """The cheap operators that several parts compute anew, so that none counts them."""
        analysis, libraries = self.parts.analysis, self.parts.libraries
        counted = {name for _, x in self.won for name in x.nodes}
        anew = sorted(self.anew([n for nodes, _ in self.won for n in nodes]))
        anew = [n for n in anew if n not in libraries and n.name not in counted]
        return [n for n in anew if analysis.kind(n) is not Kind.VIEW]
