"""Floors: no price of a part that a selection asks for is below."""

from unittest.mock import patch

import pytest
import torch

from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.floors import Floors
from blockbuster_fusion.select.fusers import Offer
from blockbuster_fusion.select.units import contracted
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals.fusers import KernelFuser
from helpers.effort import FULL
from helpers.machines import FOUR_CORES
from helpers.offline import captured, offline
from helpers.operator_graphs import ROWS, WIDTH, Drawn
from helpers.zoo import ARCHITECTURES, ZOO

pytestmark = pytest.mark.filterwarnings("ignore:.*lru_cache:UserWarning")  # of transformers' own

MACHINES = {"cpu": FOUR_CORES, "cuda": known()["h200"]}
MODELS = [x.name for x in ARCHITECTURES] if FULL else ["llama"]
SLACK = 1e-9
CANDIDATES = 24 if FULL else 4
"""The sets of operators that are priced, beside single units."""


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("name", MODELS)
def test_no_price_is_below_the_floor(name: str, target: str) -> None:
    model, machine = ZOO[name], MACHINES[target]
    attention = "sdpa" if "sdpa" in model.kinds else "eager"
    priced: list[tuple[list[str], Seconds, Seconds]] = []
    offered = KernelFuser.offer

    def watched(fuser: KernelFuser, part: int) -> Offer | None:
        offer = offered(fuser, part)
        if offer is not None:
            names = [node.name for node in fuser.of(part)]
            priced.append((names, fuser.floors.of(part), offer.seconds))
        return offer

    with torch.no_grad():
        graphs = captured(model.build(torch.float32, attention), **model.inputs())
    with offline(machine), patch.object(KernelFuser, "offer", watched):
        for graph in graphs:
            options = Options(target=target, library="never", candidates=CANDIDATES)
            graph.chooser(options, machine).choose_kernels()
    assert len(priced) > 10
    below = [
        (names, floor, price)
        for names, floor, price in priced
        if floor.device > price.device * (1 + SLACK) or floor.host > price.host * (1 + SLACK)
    ]
    assert below == []


def test_a_part_moves_each_array_once() -> None:
    drawn = Drawn()
    drawn.product("a", "x", "w")
    drawn.pointwise("b", "a", "x")
    drawn.pointwise("c", "a", "b", is_output=True)
    units = contracted(drawn.operators)
    floors, array = Floors(units, FOUR_CORES), ROWS * WIDTH * 4
    first, rest = (1 << n for n in range(2))
    assert [len(own) for own in units.members] == [1, 2]
    assert floors.moved(first) == 3 * array  # x, w, and a
    assert floors.moved(rest) == 3 * array  # a, x, and c
    assert floors.moved(first | rest) == 3 * array  # x, w, and c
    assert floors.of(first | rest).device < (floors.of(first) + floors.of(rest)).device
