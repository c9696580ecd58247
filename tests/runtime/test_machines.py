"""The machine at hand: measured, kept, and printed."""

from pathlib import Path

import pytest

from blockbuster_fusion.cli.main import main
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.runtime import disk_cache, machines
from blockbuster_fusion.runtime.c import probe


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
    folder.mkdir()
    for text in ("{", "[]", other.to_json()):
        file = machines.kept_file(2)
        assert file is not None
        file.write_text(text)
        assert machines.this_cpu(2) is other


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
        (["h20"], "machine h20: unknown; known are a100, h100, h200"),
        (["h200", "--measure"], "for this CPU alone"),
        (["--threads", "0"], "give 1 or more"),
        (["missing.toml"], "missing.toml"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", *arguments]) == 1
    assert said in capsys.readouterr().err
