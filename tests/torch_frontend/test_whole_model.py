"""Compiled models that are timed as a whole: what is slower than the captured model is given up."""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import blockbuster_fusion as bb
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.backend import options_from
from blockbuster_fusion.torch.rivals import library, whole_model
from blockbuster_fusion.torch.rivals.reasons import WHOLE
from blockbuster_fusion.torch.rivals.weighing import ALL
from blockbuster_fusion.torch.rivals.whole_model import Attempt, WholeModel, busy

Times = Callable[[Sequence[Any]], list[float]]


@pytest.fixture(autouse=True)
def _slow_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels win every part, so that only the time of the whole decides."""
    torch._dynamo.reset()
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e3))


def pretend(monkeypatch: pytest.MonkeyPatch, times: Times) -> list[int]:
    """Has `times` say how long calls take; the list grows with each question."""
    asked: list[int] = []

    def answer(self: WholeModel, calls: Sequence[Any], seconds: float) -> list[float]:
        asked.append(len(calls))
        return times(calls)

    monkeypatch.setattr(WholeModel, "times", answer)
    return asked


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 16), nn.Linear(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).softmax(-1)


def compiled(
    mode: str | None = None, seconds: float = 0.0, **options: Any
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(9, 24)
    with torch.no_grad():
        made = bb.compile(model, x, mode=mode, library="auto", seconds=seconds, **options)
        return made, made(x), model(x)


def test_a_faster_model_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, lambda calls: [2.0, 1.0])
    made, found, wanted = compiled()
    assert asked == [2]
    assert made.explanation.coverage == 1.0
    torch.testing.assert_close(found, wanted)


def test_a_slower_model_runs_as_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda calls: [1.0, 2.0])
    made, found, wanted = compiled()
    explanation = made.explanation
    assert explanation.coverage == 0.0
    assert explanation.library
    assert {choice.reason for choice in explanation.library} == {WHOLE}
    assert torch.equal(found, wanted)  # PyTorch's own operators


def test_an_equal_model_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda calls: [1.0, 1.005])
    assert compiled()[0].explanation.coverage == 1.0


@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_a_model_that_must_not_be_run_is_not_timed(
    mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend(monkeypatch, lambda calls: [1.0, 2.0])
    made, found, wanted = compiled(mode, time_model=False)
    assert not asked
    assert made.explanation.coverage == 1.0
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("given", [0, None, "no"])
def test_timing_is_on_or_off(given: object) -> None:
    with pytest.raises(WrongKind, match=r"time_model as True or False.*leave it out for True"):
        options_from(None, {"time_model": given})


def test_tuning_gives_up_kinds_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kind that is tried loses, the others win."""
    answers = iter([[2.0, 1.0]])
    asked = pretend(monkeypatch, lambda calls: next(answers, [1.0, 1.0]))
    made, found, wanted = compiled("max-autotune-no-cudagraphs", 5.0)
    assert len(asked) >= 2
    torch.testing.assert_close(found, wanted)
    every, _, _ = compiled("max-autotune-no-cudagraphs", 5.0)
    assert parts_of(made) != parts_of(every)


def parts_of(made: Any) -> list[tuple[str, ...]]:
    """The operators of each kernel."""
    return [kernel.operators for kernel in made.explanation.kernels]


def test_a_fault_keeps_what_was_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(calls: Sequence[Any]) -> list[float]:
        raise RuntimeError("no memory")

    pretend(monkeypatch, fails)
    assert compiled()[0].explanation.coverage == 1.0
    assert "not timed as a whole: RuntimeError: no memory" in caplog.text


class Advancing(nn.Module):
    """Writes to a parameter and to a cache, at a place that advances with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(7), requires_grad=False)
        self.register_buffer("cache", torch.zeros(3, 7))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.add_(1.0)
        self.cache.index_copy_(0, self.place, x[:1])
        self.place.add_(1)
        return (x + self.cache.sum() + self.weight).softmax(-1)


def test_state_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Timing calls the model often; what it writes to is as after one call, and in range."""
    model, x = Advancing().eval(), torch.randn(5, 7)
    torch.manual_seed(3)
    with torch.no_grad():
        bb.compile(model, x, library="auto")
    after = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(2))
    assert model.weight.tolist() == [1.0] * 7
    assert model.place == 1
    assert torch.equal(model.cache, torch.stack([x[0], *torch.zeros(2, 7)]))
    assert "not timed" not in caplog.text


def ran_in(model: nn.Module, call: Callable[[], Any]) -> bool:
    """True if a call runs the model's own Python."""
    code, seen = type(model).forward.__code__, []

    def note(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code is code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return any(seen)


@pytest.mark.parametrize(
    ("compile_model", "is_itself"),
    [
        (lambda model, x: bb.compile(model, x, library="auto"), True),
        (lambda model, x: torch.compile(model, backend="blockbuster")(x), False),
    ],
    ids=["bb.compile", "torch.compile"],
)
def test_the_rival_is_what_would_run(
    compile_model: Callable[..., Any], is_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bb.compile calls the user's module where nothing is faster, torch.compile the graph."""
    monkeypatch.setenv("BLOCKBUSTER_LIBRARY", "auto")
    model, x, found = Model().eval(), torch.randn(9, 24), []

    def times(self: WholeModel, calls: Sequence[Any], seconds: float) -> list[float]:
        found.append([ran_in(model, lambda call=call: call(*self.examples)) for call in calls])
        with torch.no_grad():
            torch.testing.assert_close(calls[0](*self.examples)[0].shape, x.shape[1:])
        return [1.0, 2.0]

    monkeypatch.setattr(WholeModel, "times", times)
    with torch.no_grad():
        compile_model(model, x)
    assert found == [[is_itself, False]]


class Counting(Model):
    """Changes itself in Python, which is no operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(super().forward(x))
        return self.seen[-1] * 2


def test_effects_of_python_happen_once() -> None:
    model = Counting().eval()
    noted: list[int] = []
    hooked = Model().eval()
    hooked.register_forward_hook(lambda module, given, made: noted.append(1))
    with torch.no_grad():
        bb.compile(model, torch.randn(9, 24), library="auto")
        bb.compile(hooked, torch.randn(9, 24), library="auto")
    assert model.calls == len(model.seen) == len(noted) == 1


def test_a_part_of_a_call_is_timed_as_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model itself would run the other graphs too."""

    class Broken(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(x * 2).softmax(0)
            torch._dynamo.graph_break()
            return super().forward(y)

    model, found = Broken().eval(), []

    def times(self: WholeModel, calls: Sequence[Any], seconds: float) -> list[float]:
        found.append(self.plain)
        return [1.0, 2.0]

    monkeypatch.setattr(WholeModel, "times", times)
    with torch.no_grad():
        bb.compile(model, torch.randn(9, 24), library="auto")
    assert found == [None, None]


def untimed(function: Callable[..., Any], *inputs: Any, **options: Any) -> str:
    """The reason why a model is not timed."""
    reasons: list[str] = []

    class Noted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reasons.append(record.getMessage())

    log, noted = logging.getLogger("blockbuster_fusion"), Noted(logging.DEBUG)
    level = log.level
    log.addHandler(noted)
    log.setLevel(logging.DEBUG)
    try:
        with torch.no_grad():
            torch.compile(function, backend="blockbuster", options={"library": "auto", **options})(
                *inputs
            )
    finally:
        log.removeHandler(noted)
        log.setLevel(level)
    return " ".join(x for x in reasons if "not timed" in x)


def test_random_models_are_not_timed() -> None:
    """Other threads draw numbers from the same generator."""
    found = untimed(lambda x: x.softmax(-1) + torch.rand(4), torch.ones(3, 4))
    assert "random" in found


def test_inputs_that_share_memory_are_not_timed() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return (x + y).softmax(-1)

    room = torch.zeros(6, 4)
    found = untimed(function, room[:4], room[2:])
    assert "share memory" in found or "are not known" in found
    torch.testing.assert_close(room[0], torch.ones(4))


def test_one_call_does_not_decide_for_other_sizes() -> None:
    x = torch.ones(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    assert "sizes change" in untimed(lambda x: x.softmax(-1) * 2, x)


def test_slow_models_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_model, "SLOW", 0.0)
    assert "so long" in untimed(lambda x: x.softmax(-1) * 2, torch.ones(3, 4))


def test_strict_raises_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(calls: Sequence[Any]) -> list[float]:
        raise RuntimeError("no memory")

    pretend(monkeypatch, fails)
    with pytest.raises(Exception, match="no memory"):
        untimed(lambda x: x.softmax(-1) * 2, torch.ones(3, 4), strict=True)


def test_real_times_are_positive() -> None:
    module = torch.fx.symbolic_trace(lambda x, n: x)
    whole = WholeModel(module, [torch.ones(3), 2], lambda given_up: None)
    fast, slow = whole.times((lambda x, n: x, lambda x, n: [x * n for _ in range(200)]), 0.01)
    assert 0 < fast < slow


def test_the_host_is_busy_before_a_call() -> None:
    start = time.perf_counter()
    assert busy(2e-3, lambda x: x + 1)(1) == 2
    assert time.perf_counter() - start >= 2e-3


def test_operators_with_effects_are_not_called_again() -> None:
    with torch.library._scoped_library("blockbuster_test", "FRAGMENT") as made:
        made.define("noted(Tensor x) -> Tensor")
        calls: list[int] = []
        made.impl("noted", lambda x: (calls.append(1), x + 1)[1], "CPU")
        made.impl("noted", lambda x: torch.empty_like(x), "Meta")
        noted = torch.ops.blockbuster_test.noted
        with torch.no_grad():
            run = torch.compile(
                lambda x: noted(x.exp() * 2).sin() * 3,
                backend="blockbuster",
                options={"library": "auto"},
            )
            run(torch.ones(4, 5))
        assert len(calls) == 1


@pytest.mark.parametrize(
    ("times", "winner"),
    [((3.0, 1.0, 2.0), "kernels"), ((3.0, 2.0, 1.0), "plain"), ((1.0, 2.0, 2.0), "captured")],
)
def test_replayed_models_have_two_rivals(
    times: tuple[float, ...], winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CUDA graphs, PyTorch's operators are replayed too; or nothing is, if that is faster."""
    asked = pretend(monkeypatch, lambda calls: [*times])
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    inputs = module.graph.find_nodes(op="placeholder")
    analysis = SimpleNamespace(module=module)
    graph = SimpleNamespace(gains=True, won={"kind": 1.0}, analysis=analysis, inputs=inputs)
    calls = {"kernels": object(), "plain": object(), "captured": module.forward}

    def compiled(given_up: frozenset[str]) -> Attempt:
        assert given_up == ALL
        return Attempt(calls["plain"], [graph], given_up)

    whole = WholeModel(module, [torch.ones(2)], compiled, replays=True)
    found = whole.faster(Attempt(calls["kernels"], [graph]), tunes=False)
    assert asked == [3]
    assert found.call == calls[winner]
