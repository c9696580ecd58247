"""Kernels for some ranges of a size, PyTorch's operators for others; all compiled at the start."""

import timeit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.runtime.ranges import Scale
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import compile_graph, compiled_graph
from blockbuster_fusion.torch.capture.sizes import SymbolSource
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.ranged import ranged_call
from blockbuster_fusion.torch.plan.tape import TensorTape
from blockbuster_fusion.torch.rivals import library, weighing
from blockbuster_fusion.torch.rivals.crossings import Crossing, divided
from blockbuster_fusion.torch.rivals.reasons import CALL
from helpers.compilations import counted_compilations
from helpers.torch_running import Watched

FAST, SLOW = Seconds(1e-12), Seconds(1.0)
COLUMNS = 24


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources compiled so far; nothing is known from before, and the machine is always one."""
    torch._dynamo.reset()
    return counted_compilations(monkeypatch)


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The graphs that were weighed so far."""
    found: list[object] = []
    weigh = compile_graph._weighed

    def counting(*given: Any) -> Any:
        found.append(given)
        return weigh(*given)

    monkeypatch.setattr(compile_graph, "_weighed", counting)
    return found


def pretend(monkeypatch: pytest.MonkeyPatch, is_fast: Callable[[int, int], bool]) -> None:
    """A library that is faster than any kernel for some rows and columns, and slow for others."""

    def timed(self: library.LibraryTimes, name: str, seen: Any, *_: Any) -> Seconds:
        return FAST if is_fast(*seen[0][0][0]) else SLOW

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)


def model(x: Tensor) -> Tensor:
    return x.exp() + 1


def numbers(rows: int, columns: int = COLUMNS, *, marked: bool = True) -> Tensor:
    """Random numbers, the number of rows of which changes; it is the only symbol."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns))
    if marked:
        torch._dynamo.mark_dynamic(x, 0)
    return x


def check(made: Callable[..., Any], rows: int, columns: int = COLUMNS) -> None:
    x = numbers(rows, columns)
    torch.testing.assert_close(made(x), model(x), rtol=2e-6, atol=0)


class Ran:
    """Counts the calls of plans, by the number of their kernels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: list[bool] = []
        call = ModelPlan.__call__

        def counted(plan: ModelPlan, *given: Any) -> list[Any]:
            self.kernels.append(any("Kernel" in type(s).__name__ for s in plan.steps))
            return call(plan, *given)

        monkeypatch.setattr(ModelPlan, "__call__", counted)

    def ran(self, made: Callable[..., Any], rows: int) -> bool:
        """True if kernels ran a call; the results are checked."""
        self.kernels.clear()
        check(made, rows)
        return any(self.kernels)


CASES = {
    "small": (lambda rows: rows > 100, [(64, True), (127, True), (128, False), (5000, False)]),
    "large": (lambda rows: rows < 100, [(5, False), (127, False), (128, True), (5000, True)]),
    "small and large": (
        lambda rows: 10 < rows < 100,
        [(2, True), (8, True), (9, False), (10, False), (127, False), (128, True), (129, True)],
    ),
    "medium": (
        lambda rows: not 10 < rows < 100,
        [(2, False), (8, False), (9, True), (10, True), (127, True), (128, False), (129, False)],
    ),
}
"""Where kernels win: the rows for which PyTorch is faster, and what runs calls of some rows."""


@pytest.mark.parametrize("case", CASES)
def test_kernels_run_where_they_win(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str], case: str
) -> None:
    is_fast, wanted = CASES[case]
    pretend(monkeypatch, lambda rows, _: is_fast(rows))
    made, ran = Watched(model, library="auto", threads=2), Ran(monkeypatch)
    first = ran.ran(made, 20)
    assert first == (not is_fast(20))
    assert len(made.graphs) == 1
    assert len(made.graphs[0].ranged) == (3 if case in ("medium", "small and large") else 2)
    count = len(compiled)
    assert count
    for _ in range(3):  # on a new tape, and again
        for rows, by_kernels in wanted:
            assert ran.ran(made, rows) == by_kernels, rows
    assert len(compiled) == count  # nothing was compiled in a later call
    assert len(made.graphs) == 1
    for graph in made.graphs[0].ranged:
        assert bool(graph.fused) == bool(graph.plan.tapes.values())
        assert all(isinstance(tape, TensorTape) for tape in graph.plan.tapes.values())


def test_an_explanation_names_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda rows, _: rows > 100)
    options = {"library": "auto", "threads": 2}
    found = bb.explain(model, numbers(20), options=options)
    symbol = found.graphs[0].plan.symbols[0].symbol
    (choice,) = found.library
    assert choice.sizes == f"{symbol} from 128"
    assert choice.elsewhere == (f"{symbol} up to 127",)
    assert choice.data()["sizes"] == choice.sizes
    assert choice.data()["kernels_for"] == [*choice.elsewhere]
    assert f"exp, add, {symbol} from 128: " in str(found)
    assert f"; kernels run it for {symbol} up to 127" in str(found)
    usual, other = found.report.sections
    assert (usual.title, usual.is_usual) == (f"{symbol} up to 127", True)
    assert (other.title, other.is_usual) == (f"{symbol} from 128", False)
    assert {row.kind for layers in usual.layers for row in layers.rows} == {"kernels"}
    assert {row.kind for layers in other.layers for row in layers.rows} == {"library"}
    for section in found.report.sections:  # each range is a whole by itself
        assert sum(layers.share for layers in section.layers) == pytest.approx(1)
    assert found.report.totals == usual.totals
    assert f"\n{symbol} from 128: " in str(found)
    assert found.coverage == 1
    (kernel,) = found.kernels
    assert {(x.kernel, x.sizes.partition(", ")[0]) for x in found.ranges} == {
        (kernel.name, f"{symbol} up to 127")
    }

    found = bb.explain(model, numbers(256), options=options)  # captured where PyTorch is faster
    assert not found.kernels
    assert found.coverage == 0
    assert [x.sizes for x in found.library] == [f"{symbol} from 128"]
    assert [x.sizes.partition(", ")[0] for x in found.ranges] == [f"{symbol} up to 127"]
    assert all("tiles" in x.config for x in found.ranges)


def test_kernels_of_ranges_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda rows, _: 10 < rows < 100)
    options = {"library": "auto", "threads": 2}
    found = bb.explain(model, numbers(20), options=options)
    names = {x.kernel for x in found.ranges}
    plans = [graph.plan for graph in found.graphs[0].ranged]
    stepped = {step.name for plan in plans for step in plan.steps if "exp_add" in step.name}
    assert names == {"exp_add", "exp_add_2"}
    assert stepped == names


def test_times_are_measured_in_the_range_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda rows, _: rows > 100)
    options = {"library": "auto", "threads": 2}
    found = bb.explain(model, numbers(20), options=options, measure=True)
    assert all(kernel.seconds for kernel in found.kernels)


def test_one_of_several_symbols_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda _, columns: columns > 100)
    made, ran = Watched(model, dynamic=True, library="auto", threads=2), Ran(monkeypatch)
    x = numbers(20, 30, marked=False)
    made(x)
    (graph,) = made.graphs
    assert graph.elsewhere is not None
    assert graph.elsewhere.scale.symbol.name == graph.plan.symbols[1].symbol
    for rows, columns, by_kernels in ((20, 30, True), (3000, 30, True), (20, 3000, False)):
        ran.kernels.clear()
        check(made, rows, columns)
        assert any(ran.kernels) == by_kernels


def test_losses_along_other_symbols_are_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is faster for many rows or many columns: no range of one is free of the other."""
    pretend(monkeypatch, lambda rows, columns: rows > 100 or columns > 100)
    made = Watched(model, dynamic=True, library="auto", threads=2)
    made(numbers(20, 30, marked=False))
    (graph,) = made.graphs
    assert graph.elsewhere is None
    assert not graph.fused
    assert all("predicted for " in str(choice) for choice in graph.library)
    assert not any(choice.sizes for choice in graph.library)


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_tuning_measures_later_sizes(monkeypatch: pytest.MonkeyPatch, mode: str | None) -> None:
    pretend(monkeypatch, lambda rows, columns: rows > 100 or columns > 100)
    options = {"library": "auto", "threads": 2, "seconds": 0.0}
    x = numbers(20, 30, marked=False)
    found = bb.explain(model, x, mode=mode, options=options, dynamic=True)
    wanted = "predicted for " if mode is None else "measured for "
    assert [wanted in choice.basis for choice in found.library] == [True]

    pretend(monkeypatch, lambda rows, _: rows > 100)
    found = bb.explain(model, numbers(20), mode=mode, options=options)
    assert [choice.sizes.partition(" ")[2] for choice in found.library] == ["from 128"]
    assert found.coverage == 1


def test_kernels_that_win_little_in_the_captured_call_run_where_they_win_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call of a plan costs 30 µs here, which kernels win for many rows only."""
    monkeypatch.setattr(weighing, "PLAN", {"cpu": 30e-6})

    def timed(self: library.LibraryTimes, name: str, seen: Any, *_: Any) -> Seconds:
        return Seconds(1e-6 * seen[0][0][0][0])

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)
    made, ran = Watched(model, library="auto", threads=2), Ran(monkeypatch)
    for rows, by_kernels in ((10, False), (5, False), (25, False), (26, True), (3000, True)):
        assert ran.ran(made, rows) == by_kernels, rows
    (choice,) = {(x.sizes, x.reason, x.elsewhere) for x in made.explanation.library}
    symbol = made.graphs[0].plan.symbols[0].symbol
    assert choice == (f"{symbol} up to 25", CALL, (f"{symbol} from 26",))


def test_a_part_is_listed_once_if_pytorch_always_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(self: library.LibraryTimes, name: str, seen: Any, *_: Any) -> Seconds:
        return FAST if "softmax" not in name or seen[0][0][0][0] > 100 else SLOW

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1), (x * x).sum()

    made, ran = Watched(two, library="auto", threads=2), Ran(monkeypatch)
    for rows in (20, 127, 128, 3000):
        x = numbers(rows)
        ran.kernels.clear()
        for found, exact in zip(made(x), two(x), strict=True):
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-6)
        assert any(ran.kernels) == (rows < 128)
    *always, sometimes = made.explanation.library
    assert {op for x in always for op in x.operators} == {"aten.mul.Tensor", "aten.sum.dim_IntList"}
    assert not any(x.sizes or x.elsewhere for x in always)
    assert sometimes.operators == ("aten._softmax.default",)
    assert sometimes.sizes
    assert sometimes.elsewhere


def test_an_exported_model_has_ranges(monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    pretend(monkeypatch, lambda rows, _: rows > 100)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(x)

    rows = torch.export.Dim("rows", min=2, max=5000)
    exported = torch.export.export(
        Model(), (numbers(20, marked=False),), dynamic_shapes=({0: rows},)
    )
    made, ran = bb.from_torch(exported, library="auto", threads=2), Ran(monkeypatch)
    count = len(compiled)
    for length, by_kernels in ((20, True), (127, True), (128, False), (5000, False)):
        assert ran.ran(made, length) == by_kernels
    assert len(compiled) == count
    (choice,) = made.explanation.library
    assert choice.sizes.endswith(" from 128")


def test_known_sizes_are_weighed_once(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str], weighed: list[object]
) -> None:
    pretend(monkeypatch, lambda rows, _: rows > 100)
    made = Watched(model, dynamic=False, library="auto", threads=2)
    for count, rows in enumerate((20, 400), start=1):
        made(numbers(rows, marked=False))
        assert len(weighed) == count
    assert [graph.elsewhere for graph in made.graphs] == [None, None]
    assert len(compiled) == 1


@pytest.mark.parametrize("is_fast", [True, False])
def test_one_choice_for_all_sizes_is_weighed_once(
    monkeypatch: pytest.MonkeyPatch, weighed: list[object], is_fast: bool
) -> None:
    pretend(monkeypatch, lambda *_: is_fast)
    made = Watched(model, library="auto", threads=2)
    check(made, 20)
    check(made, 3000)
    assert len(weighed) == len(made.graphs) == 1
    assert made.graphs[0].elsewhere is None
    assert bool(made.graphs[0].fused) != is_fast


def test_inputs_are_written_in_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda rows, _: rows > 100)

    def written(x: Tensor) -> Tensor:
        x.add_(1)
        return x.exp() + 1

    made = Watched(written, dynamic=True, library="auto", threads=2)
    for rows in (20, 127, 128, 1000):
        made.check(numbers(rows))
    assert made.graphs[0].elsewhere is not None


def test_each_plan_is_prepared_for_calls() -> None:
    """CUDA graphs are made of each plan, not of the lookup."""
    prepared: list[ModelPlan] = []

    class Graph(compiled_graph.CompiledGraph):
        def __init__(self, plan: Any, elsewhere: Any = None) -> None:
            self.plan, self.elsewhere = plan, elsewhere

    def prepare(plan: ModelPlan) -> Callable[..., Any]:
        prepared.append(plan)
        return lambda *_: plan

    scale = Scale(Symbol("n"), (1, 100), (0, 1), 0)
    source = SymbolSource("n", 0, None)
    others = compiled_graph.OtherRanges(scale, source, (Graph("large"),))
    call = Graph("small", others).call(prepare)
    assert prepared == ["small", "large"]
    assert [call(9), call(10)] == ["small", "large"]


# ---------------------------------------------------------------- the lookup


def test_the_range_of_a_call() -> None:
    scale = Scale(Symbol("n"), (1, 4, 16, 64, 256), (1, 0, 0, 2, 2), 1)
    calls = [lambda *_, name=name: name for name in ("home", "below", "above")]
    by_number = ranged_call(scale, SymbolSource("n", 0, None), calls)
    by_shape = ranged_call(scale, SymbolSource("n", 1, 0), calls)
    wanted = {1: "below", 2: "home", 31: "home", 32: "above", 10**6: "above"}
    for n, name in wanted.items():
        assert by_number(n) == name
        assert by_shape(None, torch.empty(n, 0)) == name
        assert name == calls[scale.numbers[scale.place(n)]]()


def test_a_lookup_takes_little_time() -> None:
    scale = Scale(Symbol("n"), (1, 100), (0, 1), 0)
    call = ranged_call(scale, SymbolSource("n", 0, None), [lambda *_: None] * 2)
    assert min(timeit.repeat(lambda: call(20), number=1000, repeat=5)) / 1000 < 5e-6


@pytest.mark.parametrize(
    ("wins", "others", "is_kept"),
    [
        (True, (16, 64, 256), (True, True, False)),
        (False, (16, 64, 256), (False, True, True)),
    ],
)
def test_crossings_that_others_keep(wins: bool, others: Any, is_kept: Any) -> None:
    """Kernels run a part where they win if their range does not reach beyond the crossing."""
    for sign in (1, -1):  # above the captured size, and below it
        lengths = (4, 16, 64, 256) if sign == 1 else (1024, 256, 64, 16)
        own = Crossing("n", lengths, 2, 1.0, wins)
        found = [
            own.is_kept(Crossing("n", lengths, lengths.index(n), 1.0, wins)) for n in others[::sign]
        ]
        assert tuple(found) == is_kept


def test_ranges_that_win_little_are_not_compiled() -> None:
    expected: Any = SimpleNamespace(lengths={"n": [4, 16, 64]}, hints={"n": 4})
    little, much = (Crossing("n", (4, 16, 64), 1, gain, wins=True) for gain in (1e-6, 1e-3))
    assert divided([], expected) is None
    assert divided([little, little], expected) is None
    found = divided([little, much], expected)
    assert found is not None
    assert [span.lengths for span in found.spans] == [(4,), (16, 64)]
    assert [span.usual for span in found.spans] == [4, 16]
