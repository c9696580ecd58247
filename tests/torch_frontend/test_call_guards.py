"""Calls of compiled code without torch.compile around it: what they depend on is still seen."""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from blockbuster_fusion.torch.model import CompiledModel


class Model(nn.Module):
    """A model whose result depends on much beside its first argument."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.randn(8))
        self.scale, self.options = 1.5, {"power": 2}
        self.config = SimpleNamespace(bias=0.25)

    def forward(
        self, x: Tensor, others: Any = (), *, mask: Tensor | None = None, gain: float = 1.0
    ) -> Tensor:
        y = torch.tanh(self.linear(x) * self.scale + self.shift) ** self.options["power"]
        y = self.dropout(y) + self.config.bias
        for other in others:
            y = y * other
        return y * gain if mask is None else (y * gain).masked_fill(mask, 0.0)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@contextmanager
def asked(made: CompiledModel) -> Iterator[list[Any]]:
    """The calls of torch.compile while the context is open."""
    compiled, calls = made.compiled, list[Any]()

    def counting(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return compiled(*arguments, **named)

    made.compiled = counting
    try:
        yield calls
    finally:
        made.compiled = compiled


def compiled(model: Callable[..., Any], *arguments: Any, **named: Any) -> CompiledModel:
    """A model that runs on kernels, whose calls like this one need no torch.compile."""
    made = CompiledModel(model, library="never")
    made(*arguments, **named)
    with asked(made) as calls:
        found = made(*arguments, **named)
    assert not calls
    assert made.explanation.kernels
    torch.testing.assert_close(found, model(*arguments, **named))
    return made


def given(*arguments: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return arguments, named


x, wide = numbers(3, 8), numbers(3, 16)
y, z = numbers(3, 8).cos(), numbers(3, 8).sin()
INPUTS: dict[str, Any] = {
    "more rows": given(numbers(5, 8), [numbers(5, 8)]),
    "another rank": given(numbers(2, 3, 8), [y]),
    "other strides": given(numbers(8, 3).t(), [y]),
    "steps in memory": given(wide[:, ::2], [y]),
    "broadcast in memory": given(numbers(1, 8).expand(3, 8), [y]),
    "negated": given(torch._neg_view(x), [y]),
    "another dtype": given(x, [y.double()]),
    "one more in a list": given(x, [y, z]),
    "an empty list": given(x, []),
    "a tuple": given(x, (y,)),
    "a number in a list": given(x, [3.0]),
    "no list": given(x),
    "the same tensor twice": given(x, [x]),
    "a name more": given(x, [y], mask=y > 0),
    "a number by name": given(x, [y], gain=2.0),
    "a list by name": given(x, others=[y]),
}


@pytest.mark.parametrize("change", INPUTS)
def test_other_inputs_are_seen(change: str) -> None:
    """None of these may run the code of the first call, and then the first call still does."""
    model = Model().eval()
    made = compiled(model, x, [y])
    arguments, named = INPUTS[change]
    with asked(made) as calls:
        torch.testing.assert_close(made(*arguments, **named), model(*arguments, **named))
    assert calls
    with asked(made) as calls:
        torch.testing.assert_close(made(x, [y]), model(x, [y]))
    assert not calls


def test_numbers_by_name_are_seen() -> None:
    model = Model().eval()
    made = compiled(model, x, gain=2.0, mask=None)
    for gain in (3.0, 2.0, 0.0, -1.5):
        torch.testing.assert_close(made(x, gain=gain, mask=None), model(x, gain=gain))
    torch.testing.assert_close(made(x, gain=2.0, mask=x > 0), model(x, gain=2.0, mask=x > 0))


def test_a_subclass_of_tensors_is_seen() -> None:
    class Shifted(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = super().__torch_function__(func, types, args, kwargs or {})
            return made + 1 if func is torch.tanh else made

    model = Model().eval()
    made = compiled(model, x)
    given = x.as_subclass(Shifted)
    torch.testing.assert_close(made(given), model(given))


def replaced_layer(model: Model) -> None:
    model.linear = nn.Linear(8, 8)


def replaced_weight(model: Model) -> None:
    model.linear.weight = nn.Parameter(torch.randn(8, 8))


def longer_weight(model: Model) -> None:
    model.linear = nn.Linear(8, 4)
    model.shift = torch.ones(4)


def swapped_memory(model: Model) -> None:
    model.linear.weight.data = torch.randn(8, 8)


def loaded(model: Model) -> None:
    model.load_state_dict({name: 2 * x for name, x in model.state_dict().items()})


def patched(model: Model) -> None:
    model.forward = lambda x: x * 2  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Model], Any]] = {
    "a parameter is written": lambda model: model.linear.weight.mul_(2),
    "a buffer is written": lambda model: model.shift.add_(1),
    "a buffer is replaced": lambda model: setattr(model, "shift", torch.ones(8)),
    "a buffer of another dtype": lambda model: setattr(model, "shift", torch.ones(8).double()),
    "a number": lambda model: setattr(model, "scale", 2.5),
    "a value in a mapping": lambda model: model.options.update(power=3),
    "an attribute of an attribute": lambda model: setattr(model.config, "bias", 1.0),
    **{
        change.__name__.replace("_", " "): change
        for change in (
            *(replaced_layer, replaced_weight, longer_weight, swapped_memory, loaded),
            patched,
        )
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_the_model_are_seen(change: str) -> None:
    model = Model().eval()
    made = compiled(model, x)
    before = made(x)
    CHANGES[change](model)
    for _ in range(3):
        torch.testing.assert_close(made(x), model(x))
    assert made(x).shape != before.shape or not torch.equal(made(x), before)


def test_training_is_seen() -> None:
    model = Model().eval()
    made = compiled(model, x)
    model.train()
    assert (made(x) == model.config.bias).any(), "some elements are dropped"
    model.eval()
    torch.testing.assert_close(made(x), model(x))


POWER = 2.0


def by_global(x: Tensor) -> Tensor:
    return torch.tanh(x * 3) * POWER


def test_globals_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(by_global, x)
    monkeypatch.setitem(globals(), "POWER", 5.0)
    torch.testing.assert_close(made(x), torch.tanh(x * 3) * 5)


def test_gradients_get_a_warning_and_none_are_made() -> None:
    made = compiled(Model().eval(), x)
    with torch.enable_grad():
        assert not made(x).requires_grad
        needing = x.clone().requires_grad_()
        with pytest.warns(UserWarning, match="a compiled model gives none"):
            assert not made(needing).requires_grad
        assert torch.is_grad_enabled()


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "autocasting": lambda: torch.autocast("cpu", torch.bfloat16),
    "gradients": torch.enable_grad,
    "none": nullcontext,
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_are_seen(mode: str) -> None:
    model = Model().eval()
    made = compiled(model, x)
    with MODES[mode]():
        found, wanted = made(x), model(x)
        coarse = 2 * torch.finfo(torch.bfloat16).eps if mode == "autocasting" else 1e-5
        torch.testing.assert_close(found, wanted.detach(), atol=coarse, rtol=coarse)
        assert found.is_inference() is wanted.is_inference()
    torch.testing.assert_close(made(x), model(x))


def test_default_dtypes_and_devices_are_seen() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.tanh(x) * torch.full((8,), 0.1)

    made = compiled(model, x)
    try:
        torch.set_default_dtype(torch.float64)
        assert made(x).dtype is model(x).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.tanh else made


def test_modes_that_change_functions_are_seen() -> None:
    made = compiled(by_global, x)
    with Doubling():
        found, wanted = made(x), by_global(x)
    torch.testing.assert_close(found, wanted)


def test_modes_that_watch_operators_see_them() -> None:
    model = Model().eval()
    made = compiled(model, x)
    with FlopCounterMode(display=False) as counted:
        made(x)
    assert counted.get_total_flops() == 2 * 3 * 8 * 8


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_recorded_calls_are_refused_as_by_torch_compile() -> None:
    """A recording would miss the kernels."""
    made = compiled(by_global, x)
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace"):
        torch.jit.trace(made.__call__, (x,))
    with pytest.raises(RuntimeError, match="symbolically trace"):
        make_fx(made)(x)


@pytest.mark.parametrize("is_used", [False, True])
def test_a_compiled_model_in_another_is_inlined(is_used: bool) -> None:
    model = Model().eval()
    made = compiled(model, x) if is_used else CompiledModel(model, library="never")
    outer = torch.compile(lambda x: made(x) * 2, backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(x), model(x) * 2)


def test_calls_that_torch_compile_watches_are_left_to_it() -> None:
    """Else it would compile what a plan does in Python."""
    made = compiled(Model().eval(), x)
    with asked(made) as calls:
        before = set_eval_frame(False)
        try:
            made(x)
        finally:
            set_eval_frame(before)
    assert calls


def test_torch_compile_can_be_told_to_run_eagerly() -> None:
    model = Model().eval()
    made = compiled(model, x)
    with torch.compiler.set_stance("force_eager"), asked(made) as calls:
        assert torch.equal(made(x), model(x))
    assert calls
    with asked(made) as calls:
        made(x)
    assert not calls


def test_a_reset_of_torch_compile_is_seen() -> None:
    model = Model().eval()
    made = compiled(model, x)
    torch._dynamo.reset()
    with asked(made) as calls:
        torch.testing.assert_close(made(x), model(x))
    assert calls, "it is compiled anew"
    with asked(made) as calls:
        made(x)
    assert not calls


class Shift:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.by


class Choosing(nn.Module):
    """Chooses by the identity of an object, which another may have after it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen = self.usual = Shift(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * 2 if self.chosen is self.usual else torch.sin(x) * 3


def test_guards_that_are_void_are_seen() -> None:
    """torch.compile gives up code when an object whose identity it knows is gone."""
    model = Choosing()
    made = compiled(model, x)
    assert made.frames[0].guards.cache_entry is not None
    entry = made.frames[0].guards
    gone = torch._dynamo.guards.DeletedGuardManagerWrapper("an object is gone")
    entry.extra_state.invalidate(entry.cache_entry, gone)
    with asked(made) as calls:
        torch.testing.assert_close(made(x), model(x))
    assert calls
    model.usual = Shift(1.0)
    gc.collect()
    torch.testing.assert_close(made(x), model(x))


def test_several_graphs_are_left_to_torch_compile() -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.tanh(x) * 2
        torch._dynamo.graph_break()
        return torch.sin(y) * 3

    made = CompiledModel(model, library="never")
    for _ in range(2):
        torch.testing.assert_close(made(x), model(x))
    assert len(made.graphs) == 2
    with asked(made) as calls:
        made(x)
    assert calls
    assert not made.frames


def test_results_that_are_functions_are_left_to_torch_compile() -> None:
    def model(x: Tensor) -> Any:
        y = torch.tanh(x) * 2
        return lambda: y + 1

    made = CompiledModel(model, library="never")
    for _ in range(2):
        torch.testing.assert_close(made(x)(), model(x)())


def test_effects_of_python_are_kept() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(torch.tanh(x) * 2)
            return self.seen[-1] + 1

    model = Counting()
    made = CompiledModel(model, library="never")
    for number in range(1, 4):
        made(x)
        assert model.calls == len(model.seen) == number


def test_writes_to_inputs_are_kept() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return torch.tanh(x * y) + 1

    made = CompiledModel(model, library="never")
    for same in (False, False, True, True, False):
        first, other = numbers(3, 8), numbers(3, 8)
        wanted = model(first, first if same else numbers(3, 8).exp())
        found = made(other, other if same else numbers(3, 8).exp())
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(other, first)


def test_sizes_that_change_share_code() -> None:
    model = Model().eval()
    made = CompiledModel(model, library="never", dynamic=True)
    made(numbers(5, 8))
    with asked(made) as calls:
        for rows in (6, 7, 30, 5, 6):
            torch.testing.assert_close(made(numbers(rows, 8)), model(numbers(rows, 8)))
    assert not calls
    with asked(made) as calls:
        torch.testing.assert_close(made(numbers(0, 8)), model(numbers(0, 8)))


def test_threads_share_a_model() -> None:
    model = Model().eval()
    made = compiled(model, x)
    rows = [numbers(3, 8) * n for n in range(32)]

    def run(given: Tensor) -> Tensor:
        with torch.no_grad():
            return made(given)

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(run, rows)]
    for given, result in zip(rows, found, strict=True):
        torch.testing.assert_close(result, model(given))
