"""Sizes that change from call to call: kernels by ranges of them, all compiled at the start."""

from typing import Any

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes
from blockbuster_fusion.torch.plan.tape import TensorTape
from blockbuster_fusion.torch.rivals import library
from helpers.compilations import counted_compilations
from helpers.torch_running import Watched


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources compiled so far; nothing is known from before, and the machine is always one."""
    return counted_compilations(monkeypatch)


def model(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts: a softmax along an axis of any length, and a sum over everything."""
    return x.softmax(-1), (x * x).sum()


def numbers(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns))


def check(found: tuple[Tensor, Tensor], x: Tensor) -> None:
    for y, exact in zip(found, model(x.double()), strict=True):
        torch.testing.assert_close(y.double(), exact, rtol=2e-5, atol=1e-7)


def programs(made: Watched) -> list[Any]:
    """The compiled programs of all parts, for all ranges."""
    return [p for g in made.graphs for f in g.fused for p in f.executable.runner.programs]


def test_no_later_call_compiles_anything(sources: list[str]) -> None:
    made = Watched(model, dynamic=True, threads=2)
    for first in (numbers(16, 20), numbers(1, 20), numbers(16, 1)):  # a graph each
        check(made(first), first)
    assert len(programs(made)) > sum(len(g.fused) for g in made.graphs)
    count = len(sources)
    for rows, columns in ((2, 2), (17, 17), (2, 1000), (5000, 3), (1, 5000), (1000, 1), (16, 16)):
        x = numbers(rows, columns)
        for _ in range(3):  # on a new tape, and again
            check(made(x), x)
    assert len(made.graphs) == 3
    assert len(sources) == count


def test_each_range_has_a_tape_and_no_more() -> None:
    made = Watched(lambda x: (x * x).sum(), dynamic=True, threads=2)
    lengths = (16, 17, 20, 5000, 6000, 7000, 18)
    for length in lengths:
        x = numbers(length, 8)
        torch.testing.assert_close(made(x), (x * x).sum())
    (graph,) = made.graphs
    tapes = graph.plan.tapes.values()
    assert all(isinstance(tape, TensorTape) for tape in tapes)
    assert len(tapes) == 2
    assert len(programs(made)) >= 2


def test_an_explanation_shows_the_ranges() -> None:
    options = {"threads": 2, "apart": (("_softmax", "sum_1"),)}
    made = bb.explain(model, numbers(16, 16), dynamic=True, options=options)
    assert {x.kernel for x in made.ranges} <= {k.name for k in made.kernels}
    assert any("split" in x.config for x in made.ranges)
    assert any(" up to " in x.sizes for x in made.ranges)
    for x in made.ranges:
        assert f"  {x}" in str(made).splitlines()
    assert len(made.data()["ranges"]) == len(made.ranges) > 1


def test_known_sizes_have_no_ranges(sources: list[str]) -> None:
    made = bb.explain(model, numbers(16, 16), dynamic=False)
    assert made.ranges == []
    assert len(sources) == len(made.graphs[0].fused)


def test_ranges_stay_within_the_bounds_of_a_model() -> None:
    x = numbers(16, 8)
    for most, several in ((64, False), (5000, True)):
        rows = torch.export.Dim("rows", min=4, max=most)
        exported = torch.export.export(Sum(), (x,), dynamic_shapes=({0: rows},))
        made = bb.from_torch(exported, threads=2)
        assert bool(made.explanation.ranges) == several
        for length in (4, 16, most):
            y = numbers(length, 8)
            torch.testing.assert_close(made(y), (y * y).sum())


class Sum(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum()


def test_expected_lengths_are_powers_within_bounds() -> None:
    made = Watched(lambda x: x.exp(), dynamic=True)
    x = numbers(20, 6)
    torch._dynamo.mark_dynamic(x, 0, min=3, max=300)
    made(x)
    expected = ExpectedSizes(made.graphs[0].analysis)
    rows, columns = expected.lengths.values()
    assert rows == [4, 20, 64, 256]  # 16 is near 20
    assert columns[-6:] == [16, 64, 256, 1024, 4096, 16384]
    size = Size(2, (*expected.lengths,))
    assert expected.captured(size) == 2 * 20 * 6
    assert expected.shortest(size) == 2 * 4 * columns[0]
    assert [length(size) for length in expected.longest][:2] == [2 * 256 * 16384, 2 * 64 * 4096]


# ---------------------------------------------------------------- kernels or PyTorch's operators


def test_sizes_that_no_call_can_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's operators refuse all sizes but the captured ones."""
    monkeypatch.setattr(library.LibraryTimes, "_timed", refusing)
    made = Watched(lambda x: x.exp() + 1, dynamic=True, library="auto", threads=2)
    x = numbers(20, 20)
    torch.testing.assert_close(made(x), x.exp() + 1)
    assert made.explanation.kernels


def refusing(self: library.LibraryTimes, name: str, seen: Any, *_: Any) -> Seconds:
    if seen[0][0][0][0] != 20:
        raise RuntimeError("shapes do not match")
    return Seconds(1.0)
