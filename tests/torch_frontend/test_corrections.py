"""Kernels of a GPU are measured once they are chosen, and lose again if they are slower."""

import sys
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.cost import ERRORS, Seconds
from blockbuster_fusion.torch.compile_graph import _copied, compile_graph
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.groups import Fused
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals import corrections
from blockbuster_fusion.torch.rivals.choose import Chooser
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.weighing import Weighing
from helpers.offline import Captured, captured, offline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")
H200 = known()["h200"]
OPTIONS = Options(target="cuda", library="auto", strict=True)
ERROR = ERRORS["cuda"][False]


@pytest.fixture(scope="module")
def softmax() -> Captured:
    def model(x: Tensor) -> Tensor:
        return x.softmax(-1)

    (made,) = captured(model, torch.empty(4096, 4096, dtype=torch.bfloat16), runs=False)
    return made


def predicted(graph: Captured) -> float:
    """The predicted seconds of one kernel for a whole graph."""
    with offline(H200):
        chooser = graph.chooser(OPTIONS, H200)
        return chooser.estimates.of(chooser.parts.analysis.operators).seconds.device


def compiled(graph: Captured, *, library: float, kernels: float) -> tuple[CompiledGraph, int]:
    """A graph compiled for a GPU that is not here, and the number of selections.

    Given are the seconds of each of PyTorch's operators, and the measured ones of each kernel.
    """
    choose, selections = Chooser.choose, list[Chooser]()

    def counted(chooser: Chooser) -> None:
        selections.append(chooser)
        choose(chooser)

    with offline(H200), ExitStack() as stack:
        for owner, name, made in (
            (PartCompiler, "try_out", lambda *_: None),
            (corrections, "_measured", lambda *_: Seconds(kernels)),
            (LibraryTimes, "operator", lambda *_: Seconds(library)),
            (Chooser, "choose", counted),
        ):
            stack.enter_context(patch.object(owner, name, made))
        weighing = Weighing(called=graph.called, replayed=True)
        made = compile_graph(_copied(graph.module), graph.static, OPTIONS, weighing)
    return made, len(selections)


def kernels_of(graph: CompiledGraph) -> int:
    return sum(isinstance(group, Fused) for group in graph.groups)


def test_kernels_that_win_by_less_than_the_error_are_tried(softmax: Captured) -> None:
    expected = predicted(softmax)
    graph, selections = compiled(softmax, library=expected * 1.1, kernels=expected)
    assert ERROR > 1.1
    assert (kernels_of(graph), selections) == (1, 1)


def test_kernels_that_were_tried_lose_if_they_are_slower(softmax: Captured) -> None:
    expected = predicted(softmax)
    graph, selections = compiled(softmax, library=expected * 1.1, kernels=expected * 1.12)
    assert (kernels_of(graph), selections) == (0, 2)


def test_kernels_that_win_all_the_same_stay(softmax: Captured) -> None:
    """They are slower than predicted, but faster than PyTorch's operators."""
    expected = predicted(softmax)
    graph, _ = compiled(softmax, library=expected * 2, kernels=expected * 1.5)
    assert kernels_of(graph) == 1


def test_kernels_that_win_by_next_to_nothing_are_not_tried(softmax: Captured) -> None:
    expected = predicted(softmax)
    graph, selections = compiled(softmax, library=expected * 1.02, kernels=expected)
    assert (kernels_of(graph), selections) == (0, 1)


def test_what_was_measured_is_told(softmax: Captured) -> None:
    expected = predicted(softmax)
    graph, _ = compiled(softmax, library=expected * 2, kernels=expected * 1.5)
    (choice,) = graph.weighed
    assert choice.basis == "measured"
    assert choice.kernels.device == pytest.approx(expected * 1.5)
