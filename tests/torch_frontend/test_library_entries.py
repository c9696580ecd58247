"""The entries of `explain(…).library`: both times, the best configuration, and the reason."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import blockbuster_fusion as bb
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.floors import Floors
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.explain import Explanation
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals import choose, library, tuning
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.estimates import Estimates
from blockbuster_fusion.torch.rivals.reasons import (
    CALL,
    CLOSE,
    ELSEWHERE,
    WHOLE,
    reason_of,
    sentence,
    slower,
    too_long,
    with_error,
)
from blockbuster_fusion.torch.rivals.whole_model import WholeModel
from blockbuster_fusion.torch.to_array_program import Unexpressed

FAST = Seconds(1e-12)
BASES = ("predicted", "measured")
_FASTER = WholeModel.faster


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


SLOWER, LEAST = slower("predicted"), "even the least time of kernels, "


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> None:
    """Has each of PyTorch's operators take some seconds."""
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: seconds)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(24, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.first(x)) + 1).softmax(-1)


def explained(mode: str | None = None, **options: Any) -> Explanation:
    torch.manual_seed(0)
    given = {"library": "auto", **options}
    return bb.explain(Layers().eval(), torch.randn(9, 24), mode=mode, options=given)


def check_entries(found: Explanation, reasons: Sequence[str]) -> None:
    """Checks that each entry is whole, as data and as text."""
    assert found.library
    for entry in found.library:
        assert entry.basis in BASES
        assert entry.config
        assert entry.kernels.total() > 0
        assert entry.bound is not None
        assert entry.bound.total() <= entry.kernels.total()
        assert entry.reason.startswith(tuple(reasons))
        assert not entry.obstacle
        line = str(entry)
        assert line in str(found)
        for part in (entry.library, entry.kernels, entry.basis, entry.config, entry.bound):
            assert str(part) in line
        assert line.endswith(f"; {entry.reason}")
        data = entry.data()
        assert data["kernel_seconds"] == entry.kernels.total()
        assert data["library_seconds"] == entry.library.total()
        assert data["bound_seconds"] == entry.bound.total()
        for name in ("basis", "config", "reason", "obstacle"):
            assert data[name] == getattr(entry, name)
    written = found.data()["library"]
    assert written == [entry.data() for entry in found.library]
    json.dumps(written, allow_nan=False)


def test_a_part_whose_bound_loses_has_its_best_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST)
    found = explained()
    check_entries(found, [LEAST])
    assert not found.kernels


def test_an_exported_program_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST)
    program = torch.export.export(Layers().eval(), (torch.randn(9, 24),))
    check_entries(bb.explain(program, options={"library": "auto"}), [LEAST])


def test_compiling_does_not_look_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST)
    asked: list[object] = []
    candidates = PartCompiler.candidates

    def noted(self: PartCompiler, *given: Any) -> Any:
        asked.append(given)
        return candidates(self, *given)

    monkeypatch.setattr(PartCompiler, "candidates", noted)
    x = torch.randn(9, 24)
    compiled = bb.compile(Layers().eval(), x, library="auto")
    assert not asked
    entries = compiled.explanation.library
    assert {(entry.basis, entry.config) for entry in entries} == {("at least", "")}
    assert all(entry.reason.startswith(LEAST) for entry in entries)
    assert all(entry.kernels == entry.bound for entry in entries)
    torch._dynamo.reset()
    found = explained()
    assert asked
    assert [e.operators for e in found.library] == [e.operators for e in entries]


@pytest.mark.parametrize(("factor", "reason"), [(0.9, SLOWER), (1.01, with_error(CLOSE, 1.5))])
def test_a_part_that_is_weighed(
    factor: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch is faster than the prediction, or slower by less than its error."""
    ours = Estimate(Seconds(1e-3), "predicted", "tiles M=4", 1.5)
    pretend(monkeypatch, Seconds(1e-3 * factor))
    monkeypatch.setattr(choose.Chooser, "at_least", lambda *_: Estimate(FAST, "at least"))
    monkeypatch.setattr(Floors, "of", lambda *_: FAST)
    monkeypatch.setattr(Estimates, "of", lambda *_: ours)
    monkeypatch.setattr(choose.Chooser, "is_open", lambda *_: False)
    found = bb.explain(torch.exp, torch.randn(9, 24), options={"library": "auto"})
    check_entries(found, [reason])


@pytest.mark.parametrize(("basis", "wins"), [("measured", True), ("predicted", False)])
def test_a_measured_time_needs_no_margin(
    basis: str, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least time, with the error of predictions, is above PyTorch's; a measured one wins."""
    ours = Estimate(Seconds(0.9e-3), basis, "tiles M=4", 1.02 if basis == "measured" else 1.5)
    pretend(monkeypatch, Seconds(1e-3))
    monkeypatch.setattr(Floors, "of", lambda *_: Seconds(0.85e-3))
    monkeypatch.setattr(Estimates, "of", lambda *_: ours)
    monkeypatch.setattr(choose.Chooser, "is_open", lambda *_: False)
    found = bb.explain(torch.exp, torch.randn(9, 24), options={"library": "auto"})
    assert bool(found.kernels) is wins


def test_kernels_that_gain_less_than_a_call_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Estimate(Seconds(1e-7), "predicted", "tiles M=4", 1.5)
    pretend(monkeypatch, Seconds(2e-7))
    monkeypatch.setattr(choose.Chooser, "at_least", lambda *_: Estimate(FAST, "at least"))
    monkeypatch.setattr(Floors, "of", lambda *_: FAST)
    monkeypatch.setattr(Estimates, "of", lambda *_: ours)
    found = explained()
    check_entries(found, [CALL])
    assert len({entry.operators for entry in found.library}) == len(found.library), "each part once"


def test_a_model_that_is_slower_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Seconds(1e3))
    monkeypatch.setattr(WholeModel, "faster", _FASTER)
    monkeypatch.setattr(WholeModel, "times", lambda *_: [1.0, 2.0])
    found = explained()
    check_entries(found, [WHOLE])
    assert len({entry.operators for entry in found.library}) == len(found.library), "each part once"


def test_a_time_that_was_measured_before_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, FAST)
    kept = Estimate(Seconds(1e-3), "measured", "tiles M=4", 1.02)
    monkeypatch.setattr(Estimates, "_kept", lambda *_: kept)
    found = explained()
    check_entries(found, [slower("measured")])
    assert {entry.basis for entry in found.library} == {"measured"}


def test_a_measured_time_below_the_bound_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is that of a compilation, which does not look."""
    pretend(monkeypatch, FAST)
    kept = Estimate(Seconds(0.0), "measured", "tiles M=4", 1.0)
    monkeypatch.setattr(Estimates, "_kept", lambda *_: kept)
    found = explained()
    assert not found.kernels
    assert all(entry.reason.startswith(LEAST) for entry in found.library)


def test_tuning_measures_no_part_whose_bound_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("tuned")

    pretend(monkeypatch, FAST)
    monkeypatch.setattr(tuning.Tuner, "best", never)
    check_entries(explained("max-autotune-no-cudagraphs", strict=True), [LEAST])


def refusing(error: Exception) -> Callable[..., Any]:
    def refuse(*_: object) -> Any:
        raise error

    return refuse


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unexpressed(operator="aten.exp.default", reason="it has no row", node=None), "no row"),
        (RuntimeError("no tile fits\nand more"), "no tile fits"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_part_without_kernels_says_why(
    error: Exception, told: str, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, FAST)
    monkeypatch.setattr(PartCompiler, "choices", refusing(error))
    options = {"library": "auto", "strict": strict}
    found = bb.explain(torch.exp, torch.randn(9, 24), options=options)
    (entry,) = found.library
    assert told in entry.obstacle
    assert "\n" not in entry.obstacle
    assert entry.config == ""
    assert entry.kernels == entry.bound
    assert f"there are none: {entry.obstacle}" in str(found)
    assert found.data()["library"][0]["obstacle"] == entry.obstacle


def test_kernels_that_are_not_exact_have_no_time() -> None:
    none = Estimate(Seconds(float("inf")), "measured", obstacle="none is exact enough")
    entry = LibraryChoice(
        ("aten.exp.default",), "", FAST, none.seconds, none.basis, none.config, reason=SLOWER
    )
    assert entry.data()["kernel_seconds"] is None


def test_reasons_say_times_factors_and_sources() -> None:
    """The least time, the error and PyTorch's time; measured, or predicted."""

    def reason(least: float, kernels: float, basis: str, error: float) -> str:
        bound = Estimate(Seconds(least * 1e-6), "at least", "", 2.0)
        ours = Estimate(Seconds(kernels * 1e-6), basis, "tiles M=4", error)
        return reason_of(bound, ours, 90.9e-6, Seconds.total)

    assert reason(72.46, 101.9, "predicted", 2.0) == (
        "even the least time of kernels, 72.46 µs, times 2 for the error of predictions, "
        "is not below PyTorch's 90.9 µs"
    )
    assert too_long(95e-6, 1.0, 90.9e-6) == (
        "even the least time of kernels, 95 µs, is not below PyTorch's 90.9 µs"
    )
    assert reason(72.46, 101.9, "measured", 1.0) == "kernels were measured to be slower"
    assert reason(20.0, 101.9, "measured", 1.0) == "kernels were measured to be slower"
    assert reason(20.0, 101.9, "predicted", 2.0) == "kernels are predicted to be slower"
    assert reason(20.0, 80.0, "predicted", 1.5) == (
        "kernels may be faster, but by less than the error of their time (factor 1.5)"
    )
    assert reason(20.0, 30.0, "predicted", 1.5) == ELSEWHERE


def test_a_long_error_is_cut() -> None:
    assert sentence(RuntimeError("word " * 100)).endswith(" …")
    assert len(sentence(RuntimeError("word " * 100))) <= 202
