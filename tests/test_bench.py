"""Comparisons with PyTorch: checked first, then timed in turns."""

import json
from pathlib import Path

import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion import bench as bench_module
from blockbuster_fusion.bench import OURS, bench, default_lengths
from blockbuster_fusion.cli import main

SMALL = {"M": 40, "N": 30, "D": 16, "L": 16}


def test_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [word for name, n in SMALL.items() for word in ("--size", f"{name}={n}")]
    file = tmp_path / "result.json"
    arguments = ["--seconds", "0.01", "--threads", "1", "--json", str(file)]
    assert main(["bench", "attention", *sizes, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "attention on cpu, float32" in printed
    assert "x as long" in printed
    assert f"torch {torch.__version__}" in printed
    kept = json.loads(file.read_text())
    assert {"date", "processor", "versions", "tiles", "sizes"} <= set(kept)
    assert {c["name"] for c in kept["contenders"]} >= {OURS, "eager"}
    assert all(c["error"] < 1e-5 for c in kept["contenders"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_numbers(dtype: str) -> None:
    result = bench(
        bb.examples.attention(), sizes=SMALL, dtype=dtype, seconds=0.01, with_compile=False
    )
    assert [c.name for c in result.contenders] == [OURS, "eager"]
    assert all(0 < c.error < 0.05 for c in result.contenders)


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "_there", lambda module: False)
    result = bench(bb.examples.attention(), sizes=SMALL, seconds=0.01)
    assert [c.name for c in result.contenders] == [OURS]
    assert result.contenders[0].error < 1e-5
    assert "PyTorch is not installed" in str(result)
    assert result.ratio("eager") is None


def test_usual_lengths() -> None:
    found = default_lengths(bb.examples.grouped_query_attention(), "cpu", {"MM": 7})
    assert found == {"B": 2, "G": 2, "R": 2, "M": 7, "D": 64, "N": 512, "L": 64}


def test_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = {name: dict.fromkeys(sizes, 48) for name, sizes in bench_module.DEMO.items()}
    monkeypatch.setattr(bench_module, "DEMO", small)
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("What runs:") == 3
    assert printed.count("times as long") >= 3
