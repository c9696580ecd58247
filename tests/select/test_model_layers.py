"""The layers of whole models: the cheapest parts are those of an integer program.

Models are captured, described and contracted as for compiling; nothing is compiled.
"""

from dataclasses import dataclass
from functools import cache

import pytest
import torch

from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.candidates import Window, windows
from blockbuster_fusion.select.floors import Floors
from blockbuster_fusion.select.partition import Partitioner
from blockbuster_fusion.select.units import Units
from blockbuster_fusion.torch.options import Options
from helpers.effort import FULL
from helpers.integer_program import cheapest_value
from helpers.machines import FOUR_CORES
from helpers.offline import Captured, captured
from helpers.structured_costs import FlooredCosts, joined
from helpers.zoo import ARCHITECTURES, ZOO

pytestmark = pytest.mark.filterwarnings("ignore:.*lru_cache:UserWarning")  # of transformers' own

MACHINES = {"cpu": FOUR_CORES, "cuda": known()["h200"]}
FEW = ("llama", "gpt2", "bert", "gemma2", "vit")
MODELS = [architecture.name for architecture in ARCHITECTURES] if FULL else [*FEW]
NONE = Seconds(1e-6, 1e-6)
"""The cost of an operator that no kernel computes."""


@dataclass(frozen=True)
class Problem:
    """The units of a graph on a machine, and their windows."""

    units: Units
    windows: list[Window]
    floors: Floors

    def floor(self, window: Window, part: int) -> Seconds:
        whole = part << window.first
        is_misc = self.units.is_misc((whole & -whole).bit_length() - 1)
        return NONE if is_misc else self.floors.of(whole)


@cache
def graphs(name: str) -> list[Captured]:
    model = ZOO[name]
    attention = "sdpa" if "sdpa" in model.kinds else "eager"
    with torch.no_grad():
        return captured(model.build(torch.float32, attention), **model.inputs())


def problem(graph: Captured, target: str, machine: Machine) -> Problem:
    chooser = graph.chooser(Options(target=target), machine)
    units, kernels = chooser.problem(())
    return Problem(units, windows(units), kernels.floors)


@pytest.mark.sweep(3, reason="other models in one solver")
@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_an_integer_program(name: str, target: str) -> None:
    for graph in graphs(name):
        found = problem(graph, target, MACHINES[target])
        costs = FlooredCosts(found.floor)
        order = found.units.order.in_order
        partitioner = Partitioner(found.windows, costs.price, costs.price, order=order)
        best = partitioner.cheapest([1 << n for n in range(len(found.units.members))])
        is_cut = any(window.is_cut for window in found.windows)
        is_narrow = any("ideals" in cap for cap in best.certificate.caps)
        assert best.certificate.proven or is_cut or is_narrow, best.certificate
        assert found.units.order.is_partition(best.parts)
        _, kept = joined(found.units, found.windows, costs)
        wanted = cheapest_value(found.units.order, kept)
        assert best.certificate.bound <= wanted * (1 + 1e-8)
        assert best.certificate.value >= wanted * (1 - 1e-8)
        if best.certificate.proven:
            assert best.certificate.value == pytest.approx(wanted, rel=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_equal_windows_have_equal_floors(name: str) -> None:
    """All that the floors of candidates depend on is in the digests of windows."""
    for graph in graphs(name):
        found = problem(graph, "cuda", MACHINES["cuda"])
        seen: dict[str, Window] = {}
        for window in found.windows:
            first = seen.setdefault(window.digest, window)
            for part in window.candidates:
                assert found.floor(window, part) == found.floor(first, part)
