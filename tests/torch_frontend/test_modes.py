"""Modes of torch.compile: plans replayed as graphs, here with graphs that only look like CUDA's."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockbuster_fusion as bb
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.plan import cuda_graph as torch_replay
from blockbuster_fusion.torch.plan.cuda_graph import ReplayedPlan, obstacle
from blockbuster_fusion.torch.rivals.library import LibraryTimes
from helpers.torch_running import Watched

generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class FakeGraphs:
    """Graphs on the CPU: capturing computes nothing that lasts, replaying fills the results."""

    def __init__(self, *written: Tensor, fails: bool = False) -> None:
        self.written, self.fails = written, fails
        self.captures = self.replays = 0

    def captured(self, run: Callable[[], list[Any]]) -> tuple[Callable[[], None], list[Any]]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captures += 1
        before = [x.clone() for x in self.written]
        results = run()
        for x, old in zip(self.written, before, strict=True):
            x.copy_(old)

        def replay() -> None:
            self.replays += 1
            for x, made in zip(results, run(), strict=True):
                x.copy_(made)

        return replay, results

    def follow(self) -> bool:
        return True


def compiled(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], graphs: FakeGraphs
) -> Callable[..., Any]:
    def replayed(plan: Any) -> Any:
        assert obstacle(plan, "cpu") is None
        return ReplayedPlan(plan, graphs, torch.device("cpu"))

    monkeypatch.setattr("blockbuster_fusion.torch.backend.replayed", replayed)
    made = torch.compile(function, backend="blockbuster", mode="reduce-overhead")
    return torch.no_grad()(made)


def test_plans_for_ranges_of_sizes_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is faster for some sizes, and kernels are for fewer rows and for more."""

    def timed(self: LibraryTimes, name: str, seen: Any, *_: Any) -> Seconds:
        return Seconds(1e-12 if 10 < seen[0][0][0][0] < 100 else 1.0)

    monkeypatch.setattr(LibraryTimes, "_timed", timed)
    monkeypatch.setenv("BLOCKBUSTER_LIBRARY", "auto")
    graphs = FakeGraphs()
    made = compiled(monkeypatch, lambda x: x.exp() + 1, graphs)
    for rows, captures in ((20, 0), (4, 1), (300, 2)):
        x = numbers(rows, 8)
        torch._dynamo.mark_dynamic(x, 0)
        for _ in range(4):
            torch.testing.assert_close(made(x), x.exp() + 1)
        assert graphs.captures == captures
    assert graphs.replays == 4


def test_the_third_call_captures_and_then_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4)).eval()
    graphs = FakeGraphs()
    made = compiled(monkeypatch, layer, graphs)
    kept, x = [], numbers(3, 8)
    for call in range(6):
        x.copy_(numbers(3, 8))
        kept.append((made(x), layer(x)))
        assert graphs.captures == (call > 1)
    assert graphs.replays == 4
    for found, wanted in kept:  # the results of one call stay when there is another
        torch.testing.assert_close(found, wanted)


def test_an_input_that_moves_is_copied_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, graphs = nn.Linear(8, 4).eval(), FakeGraphs()
    made = compiled(monkeypatch, layer, graphs)
    inputs = [numbers(3, 8) for _ in range(12)]
    for call, x in enumerate([inputs[0]] * 4 + inputs):
        torch.testing.assert_close(made(x), layer(x))
        assert graphs.captures == (call > 1) + (call > 6)  # read in place, then copied


def test_weights_are_looked_up_by_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(8, 4).eval()
    graphs = FakeGraphs()
    made = compiled(monkeypatch, layer, graphs)
    for call in range(12):
        x = numbers(3, 8)
        torch.testing.assert_close(made(x), layer(x))
        with torch.no_grad():
            layer.weight.mul_(0.5)
        if call == 5:
            layer.weight.data = numbers(4, 8)
    assert graphs.captures == 2


def test_inputs_that_are_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(1, at, new * 2)
        return (cache @ new.transpose(-1, -2)).softmax(1)

    own = numbers(2, 6, 4)
    eager, graphs = own.clone(), FakeGraphs(own)
    made = compiled(monkeypatch, written, graphs)
    for step in range(6):
        new, at = numbers(2, 1, 4), torch.tensor([step])
        torch.testing.assert_close(made(own, new, at), written(eager, new, at))
        torch.testing.assert_close(own, eager)
    assert graphs.captures == 1
    other = numbers(2, 6, 4)
    wanted = written(other.clone(), new, at)
    torch.testing.assert_close(made(other, new, at), wanted)


def test_inputs_lie_as_they_like(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).softmax(-1), x.t()

    graphs = FakeGraphs()
    made = compiled(monkeypatch, scaled, graphs)
    for _ in range(4):
        wide = numbers(5, 12)
        for x in (numbers(5, 6), numbers(6, 5).t(), wide[:, ::2], numbers(1, 6).expand(5, 6)):
            for y, wanted in zip(made(x), scaled(x), strict=True):
                torch.testing.assert_close(y, wanted)
                assert y.stride() == wanted.stride()
            assert made(x)[1].data_ptr() == x.data_ptr()


def test_few_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_replay, "MOST_GRAPHS", 2)
    graphs = FakeGraphs()
    made = compiled(monkeypatch, lambda x: x.softmax(-1), graphs)
    for length in (2, 3, 4, 5) * 4:
        x = numbers(3, length)
        torch.testing.assert_close(made(x), x.softmax(-1))


def test_what_cannot_be_captured_runs_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(monkeypatch, lambda x: x.softmax(-1), FakeGraphs(fails=True))
    for _ in range(5):
        x = numbers(3, 4)
        torch.testing.assert_close(made(x), x.softmax(-1))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.softmax(-1) + torch.rand(4), "is random"),
        (lambda x: x.softmax(-1).cumsum(-1), None),
    ],
    ids=["random", "cumsum"],
)
def test_why_a_graph_cannot_hold_a_plan(function: Callable[..., Any], reason: str | None) -> None:
    made = Watched(function, threads=1)
    made(numbers(3, 4))
    (graph,) = made.graphs
    found = obstacle(graph.plan, "cpu")
    assert found is None if reason is None else reason in str(found)
    assert "runs on cpu" in str(obstacle(graph.plan)) or reason is not None
    assert made.explanation.unreplayed == []


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_on_a_cpu_modes_change_nothing(mode: str) -> None:
    x = numbers(3, 4)
    made = bb.compile(lambda x: x.softmax(-1), x, mode=mode)
    for _ in range(4):
        torch.testing.assert_close(made(x), x.softmax(-1))
    (graph,) = made.graphs
    assert torch_replay.replayed(graph.plan) is graph.plan
