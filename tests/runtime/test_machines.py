"""The machine at hand: measured, kept, and printed."""

from pathlib import Path

import pytest

from blockbuster_fusion.cli.main import main
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.runtime import disk_cache, machines
from blockbuster_fusion.runtime.c import probe
from blockbuster_fusion.runtime.c.topology import Cache, Topology, topology


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "SECONDS", 1e-3)
    monkeypatch.setattr(probe, "RUNS", 2)
    return tmp_path / "cache"


def test_a_cpu_is_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = machines.this_cpu(1)
    assert first.processors == 1
    assert first.memories[-1].name == "main"
    assert first.rate("float32") > first.rate("float64") > 1e8
    measured: list[int] = []

    def again(count: int) -> Machine:
        measured.append(count)
        return first

    monkeypatch.setattr(machines, "probe_cpu", again)
    assert machines.this_cpu(1) == first
    assert measured == []
    machines.this_cpu(1, measure=True)
    assert measured == [1]


def test_a_file_that_is_broken_or_of_another_cpu_is_measured_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = known()["h200"]
    monkeypatch.setattr(machines, "probe_cpu", lambda count: other)
    monkeypatch.setattr(machines, "usable_threads", lambda threads: threads)
    folder.mkdir()
    for text in ("{", "[]", other.to_json()):
        file = machines.kept_file("cpu-2")
        assert file is not None
        file.write_text(text)
        assert machines.this_cpu(2) is other


def test_a_core_that_has_two_threads_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of each thread of the caches is half of the core's."""
    monkeypatch.setattr(probe, "cpu_name", lambda: "one core")
    kib = 1 << 10
    caches = (Cache("L1", 32 * kib, 32 * kib, False), Cache("L2", 512 * kib, 512 * kib, True))
    here = Topology((frozenset({0, 1}),), caches)
    monkeypatch.setattr(probe, "topology", lambda threads: here)
    monkeypatch.setattr(probe, "_peak", lambda library, dtype, lanes, threads: 4e9)
    monkeypatch.setattr(probe, "_bandwidth", lambda library, size, threads: 1e9)
    found = probe.probe_cpu(2)
    assert found.rate("float32") == 8e9
    assert [memory.size for memory in found.memories[:2]] == [16 * kib, 512 * kib]
    assert found.memories[0].shared is False
    monkeypatch.setattr(machines, "topology", lambda: here)
    assert machines.usable_threads() == 1
    assert machines.usable_threads(2) == 2


def test_threads_have_rates_of_their_own() -> None:
    """The rate of a thread is about the same while another computes, or less if they share."""
    library = probe._library()
    alone, beside = (probe._peak(library, "float32", 4, threads) for threads in (1, 2))
    assert 0.1 * alone < beside < 4 * alone


def test_main_memory_is_measured_beyond_all_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(probe, "_installed", lambda: 1 << 40)
    monkeypatch.setattr(probe, "_bandwidth", lambda library, size, threads: sizes.append(size) or 1)
    for last in (1 << 20, 32 << 20, 1 << 30):
        probe._main(None, last, 4)  # type: ignore[arg-type]
        assert sizes.pop() == sizes.pop() >= 2 * last


def test_without_openmp_there_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Topology((frozenset({0}), frozenset({1})), ())
    monkeypatch.setattr(machines, "topology", lambda: here)
    monkeypatch.setattr(machines, "has_openmp", lambda: False)
    assert machines.usable_threads() == machines.usable_threads(2) == 1


def test_more_threads_than_cpus_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch may have more threads than there are CPUs: they take turns."""
    from blockbuster_fusion.torch import machines as torch_machines

    monkeypatch.setattr(torch_machines, "this_cpu", lambda threads: threads)
    torch_machines._cpu.cache_clear()
    cpus = topology().cpus
    assert torch_machines.machine_for("cpu", cpus + 7) == cpus
    torch_machines._cpu.cache_clear()


def test_another_machine_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "H200"]) == 0
    assert "NVIDIA H200" in capsys.readouterr().out
    assert main(["machine", "h100", "--json"]) == 0
    file = tmp_path / "own.json"
    file.write_text(capsys.readouterr().out)
    assert machines.machine_named(str(file)) == known()["h100"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["h20"], "machine h20: unknown; known are cpu, cuda, a100, h100, h200"),
        (["h200", "--measure"], "for this CPU or GPU alone"),
        (["h200", "--threads", "2"], "--threads is for this CPU alone"),
        (["--threads", "100000"], "100000 threads are asked for, and the process may use"),
        (["--threads", "0"], "0 threads are asked for"),
        (["missing.toml"], "missing.toml"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", *arguments]) == 1
    assert said in capsys.readouterr().err
