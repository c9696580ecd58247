"""Corrects predictions by measurements: of the kernels that a selection has chosen.

A selection takes what is predicted to be fast, so it finds the predictions that are wrong. Kernels
of a GPU are compiled before the first call anyway. Each is run a few times then, and its time is
kept. If some are slower than they counted for, the parts are selected again. Another selection may
be wrong as well, so the fastest one by what was measured is taken; and if PyTorch is faster than
all of them, it runs the graph.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.executable import Sizes
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import Fused, Group
from blockbuster_fusion.torch.options import device_of
from blockbuster_fusion.torch.rivals.choose import Chooser
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.timing import Timing, launcher, randomised, timed
from blockbuster_fusion.torch.rivals.weighing import MEASURED

MOST = 2
"""The most times that parts are selected again."""
NOTABLE = 0.02
"""The share of a graph's time by which kernels may be slower than they counted for."""
MOST_COPIES = 16
"""The number of inputs that calls take in turns, so that each comes from memory."""


@dataclass(frozen=True)
class Checked:
    """The time of a graph whose chosen kernels are measured."""

    seconds: float
    excess: float
    """The seconds of the device by which kernels are slower than they counted for."""
    captured: float
    """The seconds of the graph if PyTorch ran all of it."""

    @property
    def is_mispredicted(self) -> bool:
        """True if kernels are slower than they counted for, notably."""
        return self.excess > NOTABLE * self.seconds


def checked(chooser: Chooser, groups: Iterable[Group]) -> Checked:
    """Measures the chosen kernels of a graph, and notes their times.

    Kernels that cannot be measured count as predicted, with the error of predictions.
    """
    equal: dict[int, list[Fused]] = {}
    for fused in (g for g in groups if isinstance(g, Fused)):
        equal.setdefault(id(fused.executable), []).append(fused)
    found = [(alike, _estimate(chooser, alike[0])) for alike in equal.values()]
    call = chooser.weighing.call_cost(chooser.machine.target) if chooser.parts.pays else 0.0
    whole, excess = chooser.left + Seconds(0.0, call), 0.0
    for alike, made in found:
        error = made.error if made.basis == "predicted" else 1.0
        spent = replace(made.seconds, device=made.seconds.device * error)
        excess += sum(max(0.0, spent.device - _counted(chooser, x)) for x in alike)
        whole += spent * len(alike)
    _note(chooser, found)
    captured = chooser.total(chooser.captured) + chooser.recognised
    return Checked(chooser.total(whole), excess, captured)


def _estimate(chooser: Chooser, fused: Fused) -> Estimate:
    """The time of a part's kernels, which are measured unless they were before."""
    known = chooser.estimates.of(fused.part.nodes)
    found = _measured(chooser.parts, fused) if known.basis == "predicted" else None
    if found is None:
        return known
    told = (fused.part.expressed.program.name, found.device, known.seconds.device)
    log.info("%s: measured %.3g s, predicted %.3g s", *told)
    spent = Seconds(found.device, known.seconds.host)
    return replace(known, seconds=spent, basis="measured", error=MEASURED)


def _counted(chooser: Chooser, fused: Fused) -> float:
    """The seconds of the device for which a part's kernels counted when they won."""
    nodes, known = fused.part.nodes, chooser.estimates.known
    made = known.get(chooser.weighed_as.get(nodes)) or chooser.estimates.of(nodes)
    if made.basis != "predicted":
        return made.seconds.device
    power = chooser.weighing.attitude[has_product(chooser.parts, nodes)]
    return made.seconds.device * math.pow(made.error, power)


def _note(chooser: Chooser, found: Iterable[tuple[list[Fused], Estimate]]) -> None:
    """Keeps the times of parts: for the parts as they are, and as they won.

    Of several that won as one, and differ now, the longest time counts for what won.
    """
    estimates, now, won = chooser.estimates, set[object](), dict[object, Estimate]()
    for alike, made in found:
        now.add(estimates.key(alike[0].part.nodes))
        estimates.note(alike[0].part.nodes, made)
        for place in {chooser.weighed_as.get(x.part.nodes) for x in alike}:
            longest = max(made, won.get(place, made), key=lambda x: x.seconds.device)
            if made.basis != "predicted":
                won[place] = longest
    for place in won.keys() & estimates.known.keys() - now:
        made = won[place]
        before = estimates.known[place]
        known = replace(before, seconds=made.seconds, basis=made.basis, error=made.error)
        estimates.known[place] = known


def has_product(parts: PartCompiler, nodes: Iterable[Node]) -> bool:
    """True if some of the operators are products: their predictions have another error."""
    return any(parts.analysis.kind(n) is Kind.CONTRACTION for n in nodes)


def _measured(parts: PartCompiler, fused: Fused) -> Seconds | None:
    """The time of the kernels of a part, with inputs that the second cache does not hold.

    None if there is no memory for them, or if every sample has waited for a busy host.
    """
    try:
        timing = _timed(parts, fused)
        if timing.is_sure:
            return timing.seconds
        reason = "the host is too busy"
    except torch.OutOfMemoryError as error:
        reason = str(error)
    log.info("%s is not measured: %s", fused.part.expressed.program.name, reason)
    return None


def _timed(parts: PartCompiler, fused: Fused) -> Timing:
    device = device_of(fused.part.nodes)
    with _disable_current_modes(), torch.no_grad():
        given, sizes = _inputs(parts, fused, device)
        size = sum(x.numel() * x.element_size() for x in given)
        room = 2 * parts.machine(device.type).memories[-2].size
        count = max(1, min(MOST_COPIES, int(room // max(size, 1))))
        calls: list[Callable[[], object]] = [launcher(fused.executable, given, sizes, device)]
        for _ in range(count - 1):
            other, _ = _inputs(parts, fused, device)
            calls.append(launcher(fused.executable, other, sizes, device))
        turn = cycle(calls)
        return timed(lambda: next(turn)(), device)


def _inputs(
    parts: PartCompiler, fused: Fused, device: torch.device
) -> tuple[list[torch.Tensor], Sizes]:
    """Random inputs of a part, and its sizes."""
    given, sizes = parts.examples(fused.part, device)
    return [randomised(x) for x in given], sizes
