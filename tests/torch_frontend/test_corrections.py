"""Kernels of a GPU are measured once they are chosen, and lose again if they are slower."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.runtime.tuning_database import Record
from blockbuster_fusion.schedule.cost import ERRORS, Seconds
from blockbuster_fusion.search_job import forecast
from blockbuster_fusion.torch import compile_graph as compile_graph_module
from blockbuster_fusion.torch.compile_graph import _copied, compile_graph
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.groups import Fused, Group, Library
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.part_choices import PartChoices
from blockbuster_fusion.torch.rivals import corrections
from blockbuster_fusion.torch.rivals.choose import Chooser
from blockbuster_fusion.torch.rivals.corrections import MOST, Checked
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from blockbuster_fusion.torch.rivals.timing import Timing
from blockbuster_fusion.torch.rivals.trials import Trials
from blockbuster_fusion.torch.rivals.weighing import Weighing
from blockbuster_fusion.torch.to_array_program import PartProgram
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


def compiled(
    graph: Captured,
    *,
    library: float | Callable[[LibraryTimes, Node], Seconds],
    kernels: float | None,
) -> tuple[CompiledGraph, int]:
    """A graph compiled for a GPU that is not here, and the number of selections.

    Given are the seconds of each of PyTorch's operators, and the measured ones of each kernel; with
    None, kernels are measured.
    """
    operator = library if callable(library) else lambda *_: Seconds(library)
    choose, selections = Chooser.choose, list[Chooser]()

    def counted(chooser: Chooser) -> None:
        selections.append(chooser)
        choose(chooser)

    with offline(H200), ExitStack() as stack:
        for owner, name, made in (
            (PartCompiler, "try_out", lambda *_: None),
            (LibraryTimes, "operator", operator),
            (Chooser, "choose", counted),
        ):
            stack.enter_context(patch.object(owner, name, made))
        if kernels is not None:
            timing = Timing(Seconds(kernels), is_sure=True)
            stack.enter_context(patch.object(corrections, "_timed", lambda *_: timing))
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


def refused(*_: object) -> Timing:
    raise torch.OutOfMemoryError("no room")


def busy(*_: object) -> Timing:
    return Timing(Seconds(1.0), is_sure=False)


@pytest.mark.parametrize("timed", [refused, busy])
@pytest.mark.parametrize(("gain", "bases"), [(1.1, []), (1.4, ["predicted"])])
def test_kernels_that_cannot_be_measured_count_with_the_error_of_predictions(
    softmax: Captured, timed: Callable[..., Timing], gain: float, bases: list[str]
) -> None:
    expected = predicted(softmax)
    assert 1.1 < ERROR < 1.4
    with patch.object(corrections, "_timed", timed):
        graph, _ = compiled(softmax, library=expected * gain, kernels=None)
    assert [choice.basis for choice in graph.weighed] == bases


def test_kernels_that_cannot_be_measured_take_no_others_along() -> None:
    """The large one may win by less than the error of predictions; the small one surely wins."""

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1), y.softmax(-1)

    given = [torch.empty(rows, 4096, dtype=torch.bfloat16) for rows in (16384, 2048)]
    (graph,) = captured(model, *given, runs=False)
    with offline(H200):
        chooser = graph.chooser(OPTIONS, H200)
        operators = chooser.parts.analysis.operators
        times = {n.name: chooser.estimates.of([n]).seconds.device for n in operators}
    large, small = sorted(times, key=times.__getitem__, reverse=True)
    library = {large: times[large] * 1.1, small: times[small] * 2}

    def timed(parts: PartCompiler, fused: Fused) -> Timing:
        (node,) = fused.part.nodes
        return refused() if node.name == large else Timing(Seconds(times[small]), is_sure=True)

    def operator(_: LibraryTimes, node: Node) -> Seconds:
        return Seconds(library[node.name])

    with patch.object(corrections, "_timed", timed):
        made, _ = compiled(graph, library=operator, kernels=None)
    assert [node.name for x in made.groups if isinstance(x, Fused) for node in x.part.nodes] == [
        small
    ]


def test_parts_that_differ_now_are_all_measured() -> None:
    """One reads a conversion that PyTorch makes; its twin, which won as the same, computes it."""

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        wide = x.float()
        return wide.softmax(-1), wide.cumsum(0), y.float().softmax(-1)

    given = [torch.empty(4096, 4096, dtype=torch.bfloat16) for _ in range(2)]
    (graph,) = captured(model, *given, runs=False)
    measured: set[int] = set()

    def timed(parts: PartCompiler, fused: Fused) -> Timing:
        measured.add(id(fused.executable))
        is_wide = all(dtype is DType.float32 for dtype in fused.part.storage.values())
        return Timing(Seconds(60e-6 if is_wide else 150e-6), is_sure=True)

    def operator(_: LibraryTimes, node: Node) -> Seconds:
        return Seconds(2e-4 if "softmax" in node.name else 5e-6)

    with patch.object(corrections, "_timed", timed):
        made, _ = compiled(graph, library=operator, kernels=None)
    kernels = {id(x.executable) for x in made.groups if isinstance(x, Fused)}
    assert len(kernels) == 2
    assert kernels <= measured


def three_readers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A cheap conversion whose readers compute it anew, or read it where PyTorch has made it."""
    wide = x.float()
    return wide.softmax(-1), wide.sum(0) + 1, wide * y


def two_readers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    gate = (x * 0.5 + 1).sigmoid()
    return gate.sum(-1), (gate * y).relu(), gate


def two_softmaxes(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A cheap conversion that both kernels compute anew."""
    wide = x.float()
    return wide.softmax(-1), wide.softmax(0)


@pytest.mark.parametrize("model", [three_readers, two_readers, two_softmaxes])
@pytest.mark.parametrize("library", [16e-6, 20e-6, 30e-6])
@pytest.mark.parametrize("slower", [0.8, 1.5, 3.0, 50.0])
def test_no_graph_is_slower_than_the_captured_one_as_measured(
    model: Callable[..., Any], library: float, slower: float
) -> None:
    """Parts were selected that computed a conversion anew, and what was measured read it.

    So times were noted that no selection asked for; and PyTorch's operators were no contender.
    """
    given = [torch.empty(4096, 4096, dtype=torch.bfloat16) for _ in range(2)]
    (graph,) = captured(model, *given, runs=False)
    spent: dict[int, float] = {}

    def timed(parts: PartCompiler, fused: Fused) -> Timing:
        part = fused.part
        made = forecast(parts.choices(part, "cuda")[0], parts.sizes(part), H200)
        spent[id(fused.executable)] = made.seconds.device * slower
        return Timing(Seconds(spent[id(fused.executable)]), is_sure=True)

    found: list[Checked] = []

    def noted(chooser: Chooser, groups: Sequence[Group]) -> Checked:
        found.append(corrections.checked(chooser, groups))
        return found[-1]

    with (
        patch.object(corrections, "_timed", timed),
        patch.object(compile_graph_module, "checked", noted),
    ):
        made, _ = compiled(graph, library=library, kernels=None)
    kernels = sum(spent[id(x.executable)] for x in made.groups if isinstance(x, Fused))
    left = sum(isinstance(x, Library) for x in made.groups)
    whole = sum(node.op == "call_function" for node in graph.module.graph.nodes)
    assert [x.captured for x in found] == pytest.approx([library * whole] * len(found))
    fastest = min(library * whole, *(x.seconds for x in found))
    assert kernels + library * left == pytest.approx(fastest)


@pytest.mark.parametrize(("worse", "kernels"), [(1.3, 1), (0.9, 2)])
def test_a_selection_that_turns_out_slower_is_not_taken(worse: float, kernels: int) -> None:
    """One kernel is slower than predicted, so that two are chosen; they may be slower still."""

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        weights = x.softmax(-1)
        return weights, weights * 2

    (graph,) = captured(model, torch.empty(512, 4096, dtype=torch.bfloat16), runs=False)
    with offline(H200):
        chooser = graph.chooser(OPTIONS, H200)
        operators = chooser.parts.analysis.operators
        one, *two = (chooser.estimates.of(x).seconds.device for x in (operators, *zip(operators)))
    slow = 4 * (one + sum(two))

    def timed(parts: PartCompiler, fused: Fused) -> Timing:
        is_whole = len(fused.part.nodes) == len(operators)
        return Timing(Seconds(slow if is_whole else worse * slow / 2), is_sure=True)

    with patch.object(corrections, "_timed", timed):
        made, _ = compiled(graph, library=10 * slow, kernels=None)
    assert kernels_of(made) == kernels


@pytest.fixture(scope="module")
def product() -> Captured:
    given = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((512, 1024), (1024, 4096)))
    (made,) = captured(torch.matmul, *given, runs=False)
    return made


@pytest.mark.parametrize(("most", "kernels"), [(1, 1), (0, 0)])
def test_kernels_with_products_are_tried_in_small_graphs_alone(
    product: Captured, most: int, kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take long to compile."""
    monkeypatch.setattr(compile_graph_module, "FEW_OPERATORS", most)
    expected = predicted(product)
    graph, selections = compiled(product, library=expected * 1.1, kernels=expected)
    assert ERRORS["cuda"][True] > 1.1
    assert (kernels_of(graph), selections) == (kernels, 1)


@pytest.mark.parametrize(("most", "selections"), [(100, MOST + 1), (0, 2)])
def test_large_graphs_are_selected_again_once(
    most: int, selections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each choice is slower than it counted for, but PyTorch's operators are slower still."""
    monkeypatch.setattr(compile_graph_module, "FEW_OPERATORS", most)
    monkeypatch.setattr(compile_graph_module, "checked", lambda *_: Checked(1.0, 1.0, 2.0))
    (graph,) = captured(lambda x: x.softmax(-1), torch.empty(64, 64), runs=False)
    expected = predicted(graph)
    assert compiled(graph, library=expected * 2, kernels=expected)[1] == selections


def test_a_second_selection_looks_no_closer(softmax: Captured) -> None:
    """Times that were measured for this model are none that were kept before."""
    looked: list[bool] = []
    closer = Chooser.looks_closer

    def noted(chooser: Chooser) -> bool:
        looked.append(closer(chooser))
        return looked[-1]

    expected = predicted(softmax)
    with patch.object(Chooser, "looks_closer", noted), patch.object(Trials, "has_time", False):
        _, selections = compiled(softmax, library=expected * 1.1, kernels=expected * 1.12)
    assert selections == 2
    assert looked
    assert not any(looked)


@pytest.mark.parametrize("is_own", [False, True])
def test_only_the_users_own_measurements_have_a_selection_look_closer(
    softmax: Captured, is_own: bool
) -> None:
    """Those of a seed are of common parts: what predictions rule out is not looked up for them."""
    looked: list[bool] = []
    closer = Chooser.looks_closer
    expected = predicted(softmax)

    def noted(chooser: Chooser) -> bool:
        looked.append(closer(chooser))
        return looked[-1]

    def record(parts: PartChoices, part: PartProgram, target: str) -> Record:
        config = parts.choices(part, target)[0].config.data()
        return Record(config, expected, expected, expected, 0.0, 0.0, 1)

    with ExitStack() as stack:
        for owner, name, made in (
            (Chooser, "looks_closer", noted),
            (Trials, "has_time", False),
            (PartChoices, "record", record),
            (PartChoices, "is_measured_here", lambda *_: is_own),
        ):
            stack.enter_context(patch.object(owner, name, made))
        graph, _ = compiled(softmax, library=expected * 2, kernels=expected)
    assert kernels_of(graph) == 1
    assert [choice.basis for choice in graph.weighed] == ["measured"]
    assert any(looked) is is_own
