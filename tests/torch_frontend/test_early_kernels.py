"""The option that says if kernels of a GPU start before the one before them has ended."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.options import Options
from helpers.offline import captured, offline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")
HASTY = replace(known()["h200"], early=0.6e-6)


def chosen(early: bool | None) -> list[Choice]:
    """The first choices of the parts of a softmax, for a GPU that is not here."""

    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    with offline(HASTY), torch.no_grad():
        (graph,) = captured(softmax, torch.empty(8, 40000, dtype=torch.bfloat16), runs=False)
        options = Options(target="cuda", library="never", strict=True, early=early)
        chooser = graph.chooser(options, HASTY)
        chooser.choose_kernels()
        parts = chooser.parts
        return [parts.choices(parts.program(nodes), "cuda")[0] for nodes in parts.taken]


def test_a_caller_decides_it() -> None:
    for given, early in ((None, True), (False, False), (True, True)):
        found = chosen(given)
        assert found
        assert {choice.schedule.early for choice in found} == {early}
        assert {x.early for choice in found for x in choice.scheduled()[0].launches} == {early}


@pytest.mark.parametrize("wrong", ["soon", 1])
def test_another_value_is_refused(wrong: object) -> None:
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(WrongKind, match="early as True or False"):
        backend(module, [torch.ones(2)], options={"early": wrong})
