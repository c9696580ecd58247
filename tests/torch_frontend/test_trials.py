"""Trials: kernels are measured where predictions do not decide."""

from typing import Any

import pytest
import torch
from torch import nn

import blockbuster_fusion as bb
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.floors import Floors
from blockbuster_fusion.torch.rivals import choose, library, trials
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.estimates import Estimates
from blockbuster_fusion.torch.rivals.trial_time import TrialTime
from blockbuster_fusion.torch.rivals.trials import Trials
from blockbuster_fusion.torch.rivals.tuning import Subject, Tuner


@pytest.mark.parametrize(
    ("ours", "limit", "basis", "wanted"),
    [
        (100e-6, 150e-6, "predicted", True),
        (100e-6, 250e-6, "predicted", False),  # it wins in any case
        (160e-6, 150e-6, "predicted", True),
        (310e-6, 150e-6, "predicted", False),  # it is too slow
        (100e-6, 150e-6, "measured", False),
        (10e-6, 15e-6, "predicted", False),  # not worth it
        (1.0, 1.5, "predicted", False),  # it would take long
    ],
)
def test_trials_are_for_doubt(ours: float, limit: float, basis: str, wanted: bool) -> None:
    estimate = Estimate(Seconds(ours), basis, error=2.0)
    assert Trials(Tuner(), "cpu", TrialTime()).is_wanted(estimate, ours, limit) is wanted
    assert not Trials(Tuner(), "cuda", TrialTime()).is_wanted(estimate, ours, limit)


def test_a_trial_that_fails_gives_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Subject:
        raise RuntimeError("no memory")

    left = TrialTime()
    (reason,) = Trials(Tuner(), "cpu", left).first([fails])
    assert reason == "their trial failed: RuntimeError: no memory"
    assert "not tried: RuntimeError: no memory" in caplog.text
    with pytest.raises(RuntimeError, match="no memory"):
        Trials(Tuner(), "cpu", left, strict=True).first([fails])
    left.left["cpu"] = 0.0
    assert not Trials(Tuner(), "cpu", left).has_time


def test_a_model_is_right_after_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part is in doubt; each program is tried once, and the time for trials ends."""
    tried: list[str] = []
    first = Tuner.first

    def noted(self: Tuner, subject):
        tried.append(subject.program.name)
        return first(self, subject)

    monkeypatch.setattr(trials, "LEAST", 0.0)
    monkeypatch.setattr(Tuner, "first", noted)
    monkeypatch.setattr("blockbuster_fusion.schedule.cost.ERRORS", {"cpu": (1e9, 1e9)})
    model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(3)))
    x = torch.randn(5, 64)
    with torch.no_grad():
        found = bb.compile(model.eval(), x, library="auto")(x)
        assert torch.allclose(found, model(x), atol=1e-5)
    assert tried
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize(("is_known", "proven"), [(False, True), (True, False)])
def test_a_plan_that_looks_up_no_measurements_is_not_proven(
    is_known: bool, proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without time for trials, parts that predictions rule out are not asked about."""
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1.0))
    monkeypatch.setattr(Trials, "has_time", False)
    monkeypatch.setattr(choose, "has_measurements", lambda machine: is_known)
    found = bb.plan(torch.exp, torch.randn(9, 24), options={"library": "auto"}).certificate
    assert found.proven is proven
    assert (choose.UNSEEN in found.caps) is is_known


def test_a_trial_that_spends_the_time_leaves_a_plan_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts that predictions rule out were looked at before, and are looked at again."""
    left, tried = [True], choose.Chooser.tried

    def spent(self: choose.Chooser, parts: Any) -> bool:
        found = tried(self, parts)
        left[0] &= not found
        return found

    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e-3))
    monkeypatch.setattr("blockbuster_fusion.schedule.cost.ERRORS", {"cpu": (1e9, 1e9)})
    monkeypatch.setattr(Trials, "has_time", property(lambda self: left[0]))
    monkeypatch.setattr(choose.Chooser, "tried", spent)
    monkeypatch.setattr(choose, "has_measurements", lambda machine: True)
    found = bb.plan(torch.exp, torch.randn(9, 24), options={"library": "auto"}).certificate
    assert not left[0]
    assert choose.UNSEEN not in found.caps


def test_a_plan_tells_why_a_trial_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch runs the part then, and it is not silent."""

    def fails(*_: object) -> object:
        raise RuntimeError("no memory")

    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e-3))
    monkeypatch.setattr("blockbuster_fusion.schedule.cost.ERRORS", {"cpu": (1e9, 1e9)})
    monkeypatch.setattr(Tuner, "first", fails)
    found = bb.explain(torch.exp, torch.randn(9, 24), options={"library": "auto"})
    (entry,) = found.library
    assert entry.obstacle == "their trial failed: RuntimeError: no memory"
    assert entry.obstacle in str(found)
    with pytest.raises(RuntimeError, match="no memory"):
        bb.explain(torch.exp, torch.randn(9, 24), options={"library": "auto", "strict": True})


@pytest.mark.parametrize(("measured", "wins"), [(0.8e-3, True), (1.1e-3, False)])
def test_kernels_that_are_predicted_a_little_slower_are_tried(
    measured: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch is faster by less than the error of the prediction: what is measured decides."""
    known: dict[str, Any] = {"basis": "predicted", "seconds": Seconds(1.2e-3), "error": 1.5}
    tried: list[int] = []

    def first(self: Trials, subjects: object) -> list[tuple[None, None]]:
        tried.append(1)
        known.update(basis="measured", seconds=Seconds(measured), error=1.02)
        return [(None, None)]

    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e-3))
    monkeypatch.setattr(Floors, "of", lambda *_: Seconds(1.1e-3))  # those of a CPU that was busy
    monkeypatch.setattr(Estimates, "of", lambda *_: Estimate(**known))
    monkeypatch.setattr(Estimates, "note", lambda *_: None)
    monkeypatch.setattr(Estimates, "measured", lambda *_: None)
    monkeypatch.setattr(Trials, "first", first)
    found = bb.explain(torch.exp, torch.randn(9, 24), options={"library": "auto"})
    assert tried == [1], "once"
    assert bool(found.kernels) is wins
