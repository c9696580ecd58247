"""Measuring short calls on a CPU that other programs use too."""

from dataclasses import dataclass

import pytest
import torch

from blockbuster_fusion.torch.rivals import timing

CPU = torch.device("cpu")
RUNNING = timing.RUNNING


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "RUNNING", RUNNING)
    monkeypatch.setattr(timing, "_left", [timing.ALL_PATIENCE])


@dataclass
class Clock:
    """The time, and that in which the process was running; calls take what they are told to."""

    disturbed: float
    """The number of calls that wait for other programs."""
    seconds: float = 3e-4
    waited: float = 3e-2
    now: float = 0.0
    running: float = 0.0
    calls: int = 0

    def call(self) -> None:
        self.calls += 1
        self.now += self.waited if self.calls <= self.disturbed else self.seconds
        self.running += 0.5 * self.waited if self.calls <= self.disturbed else self.seconds


@pytest.mark.parametrize(
    ("disturbed", "found"), [(0, 3e-4), (1, 3e-4), (12, 3e-4), (30, 3e-4), (float("inf"), 3e-2)]
)
def test_samples_are_taken_until_one_has_not_waited(
    disturbed: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(disturbed)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(timing.time, "process_time", lambda: clock.running)
    timed = timing.timed(clock.call, CPU)
    assert timed.seconds.total() == pytest.approx(found)
    assert timed.is_sure is (disturbed < float("inf"))
    assert clock.now < timing.PATIENCE + 6 * clock.waited, "in the end, it is measured as it is"


def test_a_long_call_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0, seconds=2 * timing.LONG)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(timing.time, "process_time", lambda: clock.running)
    assert timing.measured(clock.call, CPU).total() == pytest.approx(clock.seconds)
    assert clock.calls == 2


def test_a_process_waits_for_some_seconds_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(float("inf"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(timing.time, "process_time", lambda: clock.running)
    for _ in range(20):
        timing.measured(clock.call, CPU)
    least = 20 * clock.waited * (timing.SAMPLES + 4)
    assert clock.now < least + timing.ALL_PATIENCE + timing.PATIENCE
