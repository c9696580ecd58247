"""Times of PyTorch's operators on a GPU: inputs come from memory, as those of kernels do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.runtime.tuning_database import database
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import takes_positions
from blockbuster_fusion.torch.rivals import library, timing
from blockbuster_fusion.torch.rivals.library import MOST_COPIES, LibraryTimes

CUDA, H200 = torch.device("cuda"), known()["h200"]


def times(rows: int, width: int) -> tuple[LibraryTimes, Node]:
    """A product of rows with a transposed weight."""
    given = torch.zeros(1, rows), torch.zeros(width, rows)
    graph = make_fx(lambda x, w: x @ w.t(), tracing_mode="fake")(*given)
    weight = [n for n in graph.graph.nodes if n.op == "placeholder"][1]
    analysis = Analysis(graph, frozenset([weight]))
    return LibraryTimes(analysis), analysis.operators[-1]


@pytest.mark.parametrize(
    ("rows", "width", "copies"),
    [(16, 16, 1), (512, 600, MOST_COPIES), (1024, 2048, 13), (4096, 8192, 1), (5000, 3000, 2)],
)
def test_inputs_are_as_many_as_the_cache_does_not_hold(
    rows: int, width: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "machine_for", lambda target: H200)
    made, product = times(rows, width)
    assert made.copies_of_inputs(product.all_input_nodes, CUDA) == copies
    assert made.copies_of_inputs(product.all_input_nodes, torch.device("cpu")) == 1
    assert made.copies_of_inputs(product.all_input_nodes[:1], CUDA) == 1


def test_views_count_by_the_memory_that_they_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a view has all of its memory."""
    monkeypatch.setattr(library, "machine_for", lambda target: H200)
    graph = make_fx(lambda x: x.sum(), tracing_mode="fake")(torch.empty(16, 10**6)[:, :100])
    analysis = Analysis(graph, frozenset())
    (total,) = analysis.operators
    assert LibraryTimes(analysis).copies_of_inputs(total.all_input_nodes, CUDA) == 2


def test_calls_take_other_inputs_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, product = times(8, 4)
    seen: list[tuple[int, ...]] = []

    def timed(self: Any, name: str, key: Any, call: Callable[[], Any], device: Any) -> Seconds:
        run = call()
        for _ in range(6):
            run()
        return Seconds(0.0)

    def noted(*operands: torch.Tensor) -> None:
        seen.append(tuple(x.data_ptr() for x in operands))

    monkeypatch.setattr(LibraryTimes, "copies_of_inputs", lambda *_: 3)
    monkeypatch.setattr(LibraryTimes, "_timed", timed)
    product.target = noted
    made.operator(product)
    for own in zip(*seen, strict=True):
        assert len(set(own)) == 3
        assert own[:3] == own[3:]


def test_probabilities_are_timed_with_numbers_between_0_and_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU ends the process where the operator finds others; a CPU raises an error."""
    filled: list[bool] = []

    def randomised(x: Tensor, *, is_probability: bool = False) -> Tensor:
        timing.fill_randomly(x, is_probability=is_probability)
        filled.append(is_probability)
        return x

    monkeypatch.setattr(library, "randomised", randomised)
    given = torch.rand(40, 30), torch.rand(40, 30)
    graph = make_fx(lambda x, y: F.binary_cross_entropy(x, y), tracing_mode="fake")(*given)
    analysis = Analysis(graph, frozenset())
    (loss,) = analysis.operators
    assert LibraryTimes(analysis).operator(loss).device > 0
    assert filled == [True, True]


def test_times_that_were_measured_in_another_way_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BLOCKBUSTER_DATABASE", str(tmp_path / "kept.sqlite3"))
    made, product = times(8, 4)
    made.operator(product)
    (kept,) = database().libraries()
    assert ("method", str(library.METHOD)) in kept.versions
    monkeypatch.setattr(library, "_KNOWN", {})
    monkeypatch.setattr(library, "METHOD", library.METHOD + 1)
    times(8, 4)[0].operator(product)
    assert len(database().libraries()) == 2


POSITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scatter": lambda x, i: x.scatter(1, i, 2.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i, x),
    "index_add": lambda x, i: x.index_add(1, i[:1, 0], x),
    "index_copy": lambda x, i: x.index_copy(1, i[:1, 0], x),
    "index_fill": lambda x, i: x.index_fill(1, i[:1, 0], 2.0),
    "gather": lambda x, i: x.gather(1, i),
    "index": lambda x, i: x[:, i[:1, 0]],
    "embedding_bag": lambda x, i: F.embedding_bag(i[:1], x[:1]),
    "nll_loss": lambda x, i: F.nll_loss(x, i[:, 0]),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_those_of_an_element(name: str) -> None:
    """Of an axis of one element, 0 alone: a GPU ends the process where it finds others."""
    given = torch.rand(4, 1), torch.zeros(4, 1, dtype=torch.long)
    graph = make_fx(POSITIONS[name], tracing_mode="fake")(*given)
    analysis = Analysis(graph, frozenset())
    (lookup,) = (node for node in analysis.operators if takes_positions(node.target))
    assert LibraryTimes(analysis).operator(lookup).device > 0
