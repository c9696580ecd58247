"""A GPU that the package does not know: measured by a gauge, made a machine, and kept."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from blockbuster_fusion.cli.main import main
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.runtime import disk_cache
from blockbuster_fusion.torch import machines

if sys.platform != "linux":
    pytest.skip("Triton is for Linux alone", allow_module_level=True)

import triton

from blockbuster_fusion.runtime.triton import probe


@dataclass
class Properties:
    """The properties of an H200, under another name."""

    name: str = "NVIDIA X900"
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    total_memory: int = 150_000_000_000
    max_threads_per_multi_processor: int = 2048
    L2_cache_size: int = 52_428_800
    shared_memory_per_multiprocessor: int = 233_472


class FakeGauge:
    """Answers with the figures of an H200."""

    machine = known()["h200"]

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def free_bytes(self) -> int:
        return 140_000_000_000

    def clock(self) -> float:
        return self.machine.memories[0].each / 128

    def copied(self, size: int) -> float:
        self.asked.append(("copied", size))
        return self.machine.memories[2].total

    def copied_more(self, less: int, more: int) -> float:
        self.asked.append(("copied_more", less, more))
        return self.machine.memories[1].total

    def read_by_one(self, size: int) -> float:
        large = size > self.machine.memories[1].size
        return self.machine.memories[2 if large else 1].each

    def multiply_adds(self, dtype: str, processors: int) -> float:
        return self.machine.rates[f"vector.{dtype}"] * processors

    def products(self, dtype: str) -> float:
        return self.machine.rates[f"matrix.{dtype}"] * 132

    def operator(self) -> tuple[float, float]:
        return 7e-6 / 0.75, 1.8e-6

    def latency(self) -> float:
        return 2.5e-07


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakeGauge]:
    """A GPU under a name that no file has; the gauges that have measured it."""
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    made: list[FakeGauge] = []

    def gauge() -> FakeGauge:
        made.append(FakeGauge())
        return made[-1]

    monkeypatch.setattr(probe, "Gauge", gauge)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X900")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    machines._gpu.cache_clear()
    return made


def test_an_unknown_gpu_is_measured_once_and_kept(gpu: list[FakeGauge]) -> None:
    found = machines.machine_for("cuda")
    expected = known()["h200"]
    assert found.name == "NVIDIA X900"
    assert found.instructions == "sm_90"
    for field in ("processors", "programs", "latency"):
        assert getattr(found, field) == getattr(expected, field), field
    assert found.step == pytest.approx(expected.step)
    assert found.launch == pytest.approx(expected.launch)
    assert found.rates == pytest.approx(dict(expected.rates))
    for own, other in zip(found.memories, expected.memories, strict=True):
        assert (own.size, own.shared) == (other.size, other.shared)
        assert own.each == pytest.approx(other.each)
        assert own.total == pytest.approx(other.total, rel=0.01)
    machines._gpu.cache_clear()
    assert machines.machine_for("cuda") == found
    assert machines.this_gpu(measure=True) == found
    assert len(gpu) == 2, "the first time, and when it was asked for"


def test_arrays_fit_the_memories(gpu: list[FakeGauge]) -> None:
    machines.machine_for("cuda")
    asked = {name: sizes for name, *sizes in gpu[0].asked}
    (large,), (less, more) = asked["copied"], asked["copied_more"]
    assert large > 4 * Properties.L2_cache_size
    assert less < more
    assert 2 * more <= Properties.L2_cache_size, "both arrays of a copy"


def test_figures_that_are_out_of_order() -> None:
    """A second cache that seems slower than main memory is as fast; L2 may be unknown."""
    figures = probe.measured(FakeGauge(), 1 << 22, 20)
    odd = probe.Figures(**{**vars(figures), "l2": 1e10, "l2_each": 9e13})
    found = probe.gpu_machine(Properties(L2_cache_size=0), odd)
    shared, l2, main = found.memories
    assert l2.total == main.total
    assert l2.each <= l2.total
    assert l2.size == probe.USUAL_L2
    assert shared.total > l2.total


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_names_of_gpus(name: str, found: str | None) -> None:
    assert machines.known_gpu(name) == (known()[found] if found else None)


def test_the_command(gpu: list[FakeGauge], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "cuda"]) == 0
    printed = capsys.readouterr().out
    assert "NVIDIA X900 (measured " in printed
    assert "132, sm_90, full with 1056 programs" in printed
    assert main(["machine", "cuda", "--measure", "--json"]) == 0
    assert len(gpu) == 2
    assert main(["machine", "cuda", "--threads", "2"]) == 1
    assert "--threads is for this CPU alone" in capsys.readouterr().err


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machines.machine_for("cuda") == known()["h200"]
    assert main(["machine", "cuda", "--measure"]) == 1
    assert "PyTorch finds no GPU here" in capsys.readouterr().err


def test_the_kernels_compile_without_a_gpu() -> None:
    """For an H200: multiply-adds are fused, and reads of places pass the first cache by."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from blockbuster_fusion.runtime.triton import probe_kernels

    chase = {"places": "*i32", "out": "*i32", "steps": "i32"}
    fused = {"out": "*fp32", "steps": "i32", "BLOCK": "constexpr"}
    read = {"x": "*fp32", "out": "*fp32", "count": "i32", "steps": "i32", "BLOCK": "constexpr"}
    block = {"BLOCK": 1024}
    for kernel, signature, constants, said in (
        (probe_kernels._chase, chase, {}, "ld.global.cg"),
        (probe_kernels._multiply_add, fused, block, "fma.rn.f32"),
        (probe_kernels._read, read, block, "ld.global.cg"),
    ):
        source = ASTSource(kernel, signature, constants)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert said in made.asm["ptx"]


def test_a_chain_of_places_visits_all() -> None:
    from blockbuster_fusion.runtime.triton import probe_kernels

    places = probe_kernels.places("cpu", 1 << 10).tolist()
    at, seen = 0, set()
    for _ in places:
        seen.add(at)
        at = places[at]
    assert len(seen) == 1 << 10
    assert at == 0
