"""Times of PyTorch's operators on a GPU: inputs come from memory, as those of kernels do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.rivals import library
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
