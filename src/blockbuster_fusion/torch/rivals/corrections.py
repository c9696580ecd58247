"""Corrects predictions by measurements: of the kernels that a selection has chosen.

A selection takes what is predicted to be fast, so it finds the predictions that are wrong. Kernels
of a GPU are compiled before the first call anyway. Each is run a few times then. If one is slower
than it counted for, its time is kept, and the parts are selected again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

import torch
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.messages import log
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import Fused, Group
from blockbuster_fusion.torch.options import device_of
from blockbuster_fusion.torch.rivals.estimates import Estimates
from blockbuster_fusion.torch.rivals.timing import launcher, measured
from blockbuster_fusion.torch.rivals.weighing import MEASURED

MOST = 2
"""The number of times that parts are selected again."""
MOST_COPIES = 16
"""The number of inputs that calls take in turns, so that each comes from memory."""


def mispredicted(estimates: Estimates, parts: PartCompiler, groups: Sequence[Group]) -> bool:
    """Measures the chosen kernels; True if some are slower than they counted for.

    Their times are noted.
    """
    found = False
    seen: dict[int, Fused] = {}
    for fused in (g for g in groups if isinstance(g, Fused)):
        seen.setdefault(id(fused.executable), fused)
    for fused in seen.values():
        known = estimates.of(fused.part.nodes)
        if known.basis != "predicted":
            continue
        spent = _measured(parts, fused)
        if spent.device > known.seconds.device * known.error:
            told = (fused.part.expressed.program.name, spent, known.seconds)
            log.info("%s takes %s, not %s as predicted", *told)
            seconds = Seconds(spent.device, known.seconds.host)
            made = replace(known, seconds=seconds, basis="measured", error=MEASURED)
            estimates.note(fused.part.nodes, made)
            found = True
    return found


def _measured(parts: PartCompiler, fused: Fused) -> Seconds:
    """The time of the kernels of a part, with inputs that the second cache does not hold."""
    device = device_of(fused.part.nodes)
    with _disable_current_modes(), torch.no_grad():
        given, sizes = parts.examples(fused.part, device)
        size = sum(x.numel() * x.element_size() for x in given)
        room = 2 * parts.machine(device.type).memories[-2].size
        count = max(1, min(MOST_COPIES, int(room // max(size, 1))))
        calls: list[Callable[[], object]] = [launcher(fused.executable, given, sizes, device)]
        for _ in range(count - 1):
            other, _ = parts.examples(fused.part, device)
            calls.append(launcher(fused.executable, other, sizes, device))
        turn = cycle(calls)
        return measured(lambda: next(turn)(), device)
