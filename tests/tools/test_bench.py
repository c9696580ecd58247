"""Comparisons with PyTorch: checked first, then timed in turns."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.cli import bench as command
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import BadTarget
from blockbuster_fusion.tools import bench as bench_module
from blockbuster_fusion.tools.bench import OURS, bench, default_lengths, speed

SMALL = {"M": 40, "N": 30, "D": 16, "L": 16}


def test_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [word for name, n in SMALL.items() for word in ("--size", f"{name}={n}")]
    file = tmp_path / "result.json"
    arguments = ["--seconds", "0.01", "--threads", "1", "--json", str(file)]
    assert main(["bench", "attention", *sizes, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "attention on cpu, float32" in printed
    assert "1 thread, median of " in printed
    assert "ratios are noisy on a busy machine" in printed
    assert printed.count("than eager") + printed.count("as fast as eager") == 1
    assert f"torch {torch.__version__}" in printed
    kept = json.loads(file.read_text())
    assert {"date", "processor", "versions", "tiles", "sizes"} <= set(kept)
    assert {c["name"] for c in kept["contenders"]} >= {OURS, "eager"}
    assert all(c["error"] < 1e-5 for c in kept["contenders"])
    assert kept["threads"] == 1
    assert kept["rounds"] >= 5
    assert kept["snapshot"] >= 1
    for c in kept["contenders"]:
        low, high = c["quartiles"]
        assert 0 < low <= c["seconds"] <= high


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_numbers(dtype: str) -> None:
    result = bench(
        bb.examples.attention(), sizes=SMALL, dtype=dtype, seconds=0.01, with_compile=False
    )
    assert [c.name for c in result.contenders] == [OURS, "eager", "SDPA"]
    assert all(0 < c.error < 0.05 for c in result.contenders)


@pytest.mark.parametrize("name", ["attention", "causal-attention", "multi-head-attention"])
def test_attention_runs_against_the_function_that_people_call(name: str) -> None:
    """Written-out attention is no baseline: eager computes every score of a causal mask."""
    result = bench(bb.examples.find(name), sizes=SMALL, seconds=0.01, with_compile=False)
    sdpa = next(c for c in result.contenders if c.name == "SDPA")
    assert sdpa.error < 1e-5
    assert re.search("blockbuster is .* SDPA", str(result))


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "_there", lambda module: False)
    result = bench(bb.examples.attention(), sizes=SMALL, seconds=0.01)
    assert [c.name for c in result.contenders] == [OURS]
    assert result.contenders[0].error < 1e-5
    assert "PyTorch is not installed" in str(result)
    assert "noisy" not in str(result)


def test_speeds_in_words() -> None:
    assert speed(1.4, "eager") == "1.4 times as fast as eager"
    assert speed(0.58, "eager") == "1.7 times slower than eager"
    assert speed(1.02, "eager") == speed(0.99, "eager") == "as fast as eager"


@pytest.mark.parametrize(
    ("option", "number", "sentence"),
    [
        ("--threads", "0", "0 is not a positive whole number"),
        ("--threads", "-2", "-2 is not a positive whole number"),
        ("--seconds", "0", "0 is not a positive number of seconds"),
        ("--seconds", "-1", "-1 is not a positive number of seconds"),
        ("--seconds", "nan", "nan is not a positive number of seconds"),
    ],
)
def test_numbers_that_cannot_be(
    option: str, number: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "attention", option, number])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error == f"blockbuster: argument {option}: {sentence}; see `blockbuster bench --help`\n"


def test_where_json_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "bench", lambda *given, **named: pytest.fail("measured first"))
    assert main(["bench", "attention", "--json", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_sizes_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--size", "M=40000000", "--size", "K=40000000"]
    assert main(["bench", "matmul-relu", *sizes]) == 1
    assert "there is not enough memory for these sizes" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BadTarget, match="PyTorch finds no GPU here"):
        bb.compile(bb.examples.attention(), target="cuda")


def test_usual_lengths() -> None:
    found = default_lengths(bb.examples.grouped_query_attention(), "cpu", {"MM": 7})
    assert found == {"B": 2, "G": 2, "R": 2, "M": 7, "D": 64, "N": 512, "L": 64}


def test_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = {name: dict.fromkeys(sizes, 48) for name, sizes in bench_module.DEMO.items()}
    monkeypatch.setattr(bench_module, "DEMO", small)
    briefly = partial(bench_module.interleaved, seconds=0.01)
    monkeypatch.setattr(bench_module, "interleaved", lambda runs, wait, _: briefly(runs, wait))
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("What runs:") == 3
    assert len(re.findall(r"blockbuster is .* eager", printed)) >= 3
    assert printed.count("blockbuster is ") == printed.count("median of ")
