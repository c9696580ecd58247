"""Floors: no price of a part that a selection asks for is below."""

from unittest.mock import patch

import pytest
import torch
from torch.nn.functional import linear

from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.floors import Floors
from blockbuster_fusion.select.fusers import Offer
from blockbuster_fusion.select.units import contracted
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals.fusers import KernelFuser
from helpers.effort import FULL
from helpers.machines import FOUR_CORES
from helpers.offline import Captured, captured, offline
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
    model = ZOO[name]
    attention = "sdpa" if "sdpa" in model.kinds else "eager"
    with torch.no_grad():
        graphs = captured(model.build(torch.float32, attention), **model.inputs())
    assert check_prices(graphs, target) > 10


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("rows", [1, 16])
def test_no_price_of_large_weights_is_below_the_floor(rows: int, target: str) -> None:
    """One row reads them as fast as a kernel without products does."""
    shapes = ((rows, 8192), (16384, 8192))
    given = (torch.empty(shape, dtype=torch.bfloat16) for shape in shapes)
    graphs = captured(lambda x, w: linear(x, w).relu(), *given, runs=False)
    assert check_prices(graphs, target) > 1


def check_prices(graphs: list[Captured], target: str) -> int:
    """How many candidates were priced, none of them below its floor."""
    machine, offered = MACHINES[target], KernelFuser.offer
    priced: list[tuple[list[str], Seconds, Seconds]] = []

    def watched(fuser: KernelFuser, part: int) -> Offer | None:
        offer = offered(fuser, part)
        if offer is not None:
            names = [node.name for node in fuser.of(part)]
            priced.append((names, fuser.floors.of(part), offer.seconds))
        return offer

    with offline(machine), patch.object(KernelFuser, "offer", watched):
        for graph in graphs:
            options = Options(target=target, library="never", candidates=CANDIDATES)
            graph.chooser(options, machine).choose_kernels()
    below = [
        (names, floor, price)
        for names, floor, price in priced
        if floor.device > price.device * (1 + SLACK) or floor.host > price.host * (1 + SLACK)
    ]
    assert below == []
    return len(priced)


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
