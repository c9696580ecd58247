"""Models that `bb.compile` calls themselves, because nothing is faster."""

import gc
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import blockbuster_fusion as bb
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import model as torch_model
from blockbuster_fusion.torch.model import CompiledModel
from blockbuster_fusion.torch.rivals import library, weighing
from blockbuster_fusion.torch.rivals.whole_model import WholeModel


class Activated(nn.Module):
    """A linear layer and an activation; eager calls are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.eager_calls = 0

    def forward(
        self, x: torch.Tensor, more: Any = (), *, scale: torch.Tensor | float | None = None
    ) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.eager_calls += 1
        for other in more:
            x = x + other
        made = torch.relu(self.linear(x))
        return made if scale is None else made * scale


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def have_library_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(seconds))


def calls_of(made: CompiledModel, *given: Any, **named: Any) -> tuple[int, int]:
    """The calls of torch.compile and of the plain model in one call."""
    compiled, model, counts = made.compiled, made.model, [0]
    assert isinstance(model, Activated)

    def counting(*arguments: Any, **named: Any) -> Any:
        counts[0] += 1
        return compiled(*arguments, **named)

    made.compiled, before = counting, model.eager_calls
    try:
        made(*given, **named)
    finally:
        made.compiled = compiled
    return counts[0], model.eager_calls - before


def test_a_model_that_nothing_beats_is_called_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    have_library_take(1e-12, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    made = bb.compile(model, x, library="auto")
    assert calls_of(made, x) == (0, 1)
    torch.testing.assert_close(made(x), model(x), rtol=0, atol=0)
    assert made.explanation.library


def test_kernels_that_win_run(monkeypatch: pytest.MonkeyPatch) -> None:
    have_library_take(1.0, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    made = bb.compile(model, x, library="auto", time_model=False)
    assert calls_of(made, x) == (0, 0), "compiled code runs without torch.compile"
    assert made.explanation.kernels


def test_another_form_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    have_library_take(1e-12, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    made = bb.compile(model, x, library="auto", dynamic=False)
    longer = torch.randn(5, 8)
    assert calls_of(made, longer) == (1, 0), "it is compiled first"
    assert calls_of(made, longer) == (0, 1)
    assert calls_of(made, x) == (0, 1)
    double = model.double(), longer.double()
    assert calls_of(made, double[1])[0] == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), {"scale": torch.ones(8)}),
        (([torch.ones(8), 2.0],), {"scale": None}),
        ((), {"more": (torch.ones(3, 8),), "scale": 2.0}),
    ],
)
def test_arguments_of_other_kinds_have_forms(
    given: tuple[Any, ...], named: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    have_library_take(1e-12, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    made = bb.compile(model, x, *given, library="auto", **named)
    for _ in range(3):
        assert calls_of(made, x, *given, **named) == (0, 1)
    assert calls_of(made, x)[0] == 1


def test_arguments_without_a_form_have_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured graph runs, without torch.compile around it."""
    have_library_take(1e-12, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    more = deque([torch.ones(8)])
    made = bb.compile(model, x, more, library="auto")
    assert calls_of(made, x, more) == (0, 0)
    torch.testing.assert_close(made(x, more), model(x, more))
    more.append(2.0)
    assert calls_of(made, x, more) == (1, 0)
    torch.testing.assert_close(made(x, more), model(x, more))


def test_sizes_that_one_graph_serves_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size is looked up by torch.compile once, and then the model is called."""
    have_library_take(1e-12, monkeypatch)
    model = Activated().eval()
    made = bb.compile(model, torch.randn(5, 8), library="auto", dynamic=True)
    sizes = (6, 7, 9)
    assert [calls_of(made, torch.randn(n, 8)) for n in sizes] == [(1, 0)] * 3
    assert [calls_of(made, torch.randn(n, 8)) for n in (*sizes, *sizes)] == [(0, 1)] * 6
    assert len(made.graphs) == 1


def test_kernels_for_some_sizes_and_the_model_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model, small, large = Activated().eval(), torch.randn(3, 8), torch.randn(64, 8)
    have_library_take(1e-12, monkeypatch)
    made = bb.compile(model, small, library="auto", dynamic=False, time_model=False)
    have_library_take(1.0, monkeypatch)
    assert calls_of(made, large) == (1, 0)
    for _ in range(3):
        assert calls_of(made, large) == (0, 0)
        assert calls_of(made, small) == (0, 1)
    torch.testing.assert_close(made(large), model(large))


def test_forms_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    have_library_take(1e-12, monkeypatch)
    monkeypatch.setattr(torch_model, "MOST_FORMS", 4)
    model = Activated().eval()
    made = bb.compile(model, torch.randn(5, 8), library="auto", dynamic=True)
    for n in range(6, 20):
        made(torch.randn(n, 8))
    assert len(made.left_alone) == 4
    assert calls_of(made, torch.randn(19, 8)) == (0, 1)
    assert calls_of(made, torch.randn(6, 8)) == (1, 0)


def test_changes_of_the_model_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    have_library_take(1e-12, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    made = bb.compile(model, x, library="auto")
    made(x)
    model.linear = nn.Linear(8, 4)
    assert made(x).shape == (3, 4)


def test_a_gain_must_be_more_than_the_guards_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that save 5 µs of 1 ms run by torch.compile's backend, but not by bb.compile."""
    have_library_take(1.0, monkeypatch)
    times = [1e-3, 1e-3 - 5e-6]
    monkeypatch.setattr(WholeModel, "times", lambda *_: times)
    model, x = Activated().eval(), torch.randn(3, 8)
    made = bb.compile(model, x, library="auto")
    assert calls_of(made, x) == (0, 1)
    torch._dynamo.reset()
    monkeypatch.setattr(weighing, "GUARDED", 0.0)
    monkeypatch.setattr(weighing, "GUARD", 0.0)
    made = bb.compile(model, x, library="auto")
    assert calls_of(made, x) == (0, 0)


def test_gradients_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    have_library_take(1e-12, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    with torch.enable_grad():
        with pytest.warns(UserWarning, match="a compiled model gives none"):
            made = bb.compile(model, x.requires_grad_(), library="auto")
        assert calls_of(made, x) == (0, 1)
        assert not made(x).requires_grad


def test_many_models_of_one_class_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile has a limit of 8 for the code of one function."""
    have_library_take(1.0, monkeypatch)
    x = torch.randn(3, 8)
    for _ in range(10):
        made = bb.compile(Activated().eval(), x, library="auto", time_model=False)
        assert made.explanation.kernels


def test_options_may_be_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    have_library_take(1e-12, monkeypatch)
    model, x = Activated().eval(), torch.randn(3, 8)
    options = {"mode": "max-autotune-no-cudagraphs", "seconds": 0, "library": "auto"}
    made = bb.compile(model, x, options=options)
    torch.testing.assert_close(made(x), model(x))
    compiled = torch.compile(model, backend="blockbuster", options=options)
    torch.testing.assert_close(compiled(x), model(x))


def test_wrong_options_are_refused_before_anything_is_captured() -> None:
    with pytest.raises(WrongKind, match="takes a mode of"):
        bb.compile(Activated().eval(), torch.randn(3, 8), mode="fastest")


@pytest.mark.parametrize("library", ["auto", "never"])
def test_a_model_goes_with_what_was_compiled_of_it(library: str) -> None:
    """Nothing of PyTorch or of ours keeps it, nor its weights: memory of a GPU is scarce."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    compiled = bb.compile(model, torch.randn(4, 8), library=library)
    compiled(torch.randn(4, 8))
    held = [weakref.ref(x) for x in (model, compiled)]
    del model, compiled
    gc.collect()
    assert [x() for x in held] == [None, None]


def test_a_compiled_model_is_freed_without_the_collector() -> None:
    compiled = bb.compile(lambda x: x.relu(), torch.randn(4, 8), library="auto")
    for _ in range(3):
        compiled(torch.randn(4, 8))
    held = weakref.ref(compiled)
    gc.disable()
    try:
        del compiled
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_arguments_without_a_form_are_taken() -> None:
    """A nested tensor has no shape, and an array of NumPy is compared element by element."""
    several = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    double = CompiledModel(lambda x: x * 2, library="auto")
    made = double(several)
    assert all(torch.equal(x, 2 * y) for x, y in zip(made.unbind(), several.unbind(), strict=True))

    def cast(x: torch.Tensor, kind: object) -> torch.Tensor:
        return x.to(kind) if isinstance(kind, torch.dtype) else x + torch.as_tensor(kind)

    x = torch.randn(2)
    compiled = bb.compile(cast, x, torch.float64, library="auto")
    for _ in range(3):
        assert torch.equal(compiled(x, torch.float64), x.double())
    number = np.array([1.0, 2.0])
    assert torch.allclose(compiled(x, number), x + torch.as_tensor(number))
