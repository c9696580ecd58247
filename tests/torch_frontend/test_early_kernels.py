"""The option that says if kernels of a GPU start before the one before them has ended."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.options import Options
from helpers.offline import captured, offline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")
HASTY = replace(known()["h200"], early=0.6e-6)


def parts_of(early: bool | None) -> PartCompiler:
    """The parts of a softmax, for a GPU that is not here."""

    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    with offline(HASTY), torch.no_grad():
        (graph,) = captured(softmax, torch.empty(8, 40000, dtype=torch.bfloat16), runs=False)
        options = Options(target="cuda", library="never", strict=True, early=early)
        chooser = graph.chooser(options, HASTY)
        chooser.choose_kernels()
        return chooser.parts


def chosen(early: bool | None) -> list[Choice]:
    """The first choices of these parts."""
    parts = parts_of(early)
    with offline(HASTY):
        return [parts.choices(parts.program(nodes), "cuda")[0] for nodes in parts.taken]


def test_a_caller_decides_it() -> None:
    for given, early in ((None, True), (False, False), (True, True)):
        found = chosen(given)
        assert found
        assert {choice.schedule.early for choice in found} == {early}
        assert {x.early for choice in found for x in choice.scheduled()[0].launches} == {early}


def test_a_plan_does_not_overrule_the_caller() -> None:
    (usual,) = chosen(None)
    assert usual.config.schedule.early
    parts = parts_of(False)
    (nodes,) = parts.taken
    with offline(HASTY):
        part = parts.program(nodes)
        planned = SimpleNamespace(config=usual.config, others=[usual.config], divisions=())
        parts.planned = {part.nodes: planned}
        found = [*parts.candidates(part, "cuda").choices]
        found += parts.planned_elsewhere(part, "cuda").choices
    assert not any(choice.schedule.early for choice in found)


@pytest.mark.parametrize("wrong", ["soon", 1])
def test_another_value_is_refused(wrong: object) -> None:
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(WrongKind, match="early as True or False"):
        backend(module, [torch.ones(2)], options={"early": wrong})
