"""Measuring short calls on a CPU that other programs use too, and on a GPU with a busy host."""

from dataclasses import dataclass

import pytest
import torch

from blockbuster_fusion.torch.rivals import timing

CPU, GPU = torch.device("cpu"), torch.device("cuda")
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
    assert timing.timed(clock.call, CPU).seconds.total() == pytest.approx(clock.seconds)
    assert clock.calls == 2


def test_a_process_waits_for_some_seconds_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(float("inf"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(timing.time, "process_time", lambda: clock.running)
    for _ in range(20):
        timing.timed(clock.call, CPU)
    least = 20 * clock.waited * (timing.SAMPLES + 4)
    assert clock.now < least + timing.ALL_PATIENCE + timing.PATIENCE


@dataclass
class Device:
    """A GPU whose clock the host shares: it runs what is queued, one after the other."""

    queued: float
    """The seconds in which the host queues a call."""
    seconds: float = 1e-5
    """Those in which the GPU runs it."""
    synchronises: bool = False
    busy: float = 0.0
    """The number of samples during which the host takes 100 times as long."""
    now: float = 0.0
    ends: float = 0.0
    """The time at which the GPU has run all that is queued."""
    sleeps: int = 0

    def call(self) -> None:
        self.now += self.queued * (100 if self.sleeps <= self.busy else 1)
        self.ends = max(self.now, self.ends) + self.seconds
        if self.synchronises:
            self.synchronize()

    def synchronize(self) -> None:
        self.now = max(self.now, self.ends)

    def sleep(self, cycles: int) -> None:
        self.sleeps += 1
        self.ends = max(self.now, self.ends) + cycles / 2e9

    def event(self) -> "Event":
        return Event(self)


@dataclass
class Event:
    device: Device
    at: float = 0.0

    def record(self) -> None:
        self.at = max(self.device.now, self.device.ends)

    def query(self) -> bool:
        return self.at <= self.device.now

    def elapsed_time(self, other: "Event") -> float:
        return 1e3 * (other.at - self.at)


def timed_on(device: Device, monkeypatch: pytest.MonkeyPatch) -> timing.Timing:
    monkeypatch.setattr(timing.time, "perf_counter", lambda: device.now)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", device.synchronize)
    monkeypatch.setattr(timing.torch.cuda, "_sleep", device.sleep)
    monkeypatch.setattr(timing, "_event", device.event)
    return timing.timed(device.call, GPU)


@pytest.mark.parametrize(
    ("queued", "busy"), [(1e-6, 0), (4e-5, 0), (1e-6, 3), (4e-5, 1), (3e-4, 0)]
)
def test_the_time_of_a_gpu_is_not_that_of_a_busy_host(
    queued: float, busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = timed_on(Device(queued, busy=busy), monkeypatch)
    assert found.seconds.device == pytest.approx(1e-5)
    assert found.seconds.host == pytest.approx(queued)
    assert found.is_sure


@pytest.mark.parametrize(
    "device", [Device(1e-4, synchronises=True), Device(1e-3, busy=float("inf"))]
)
def test_what_waits_in_each_sample_is_not_sure(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = timed_on(device, monkeypatch)
    assert not found.is_sure
    assert found.seconds.device >= 0.99e-5
    assert device.sleeps <= 5, "a GPU is not kept asleep for ever"
