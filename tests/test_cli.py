"""The command line, as a user runs it."""

from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import cli
from blockbuster_fusion.cli import main
from blockbuster_fusion.errors import WrongKind


@pytest.mark.parametrize("name", ["attention", "layernorm-matmul", "rmsnorm-swiglu", "matmul-relu"])
def test_trace_prints_every_step(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", name]) == 0
    printed = capsys.readouterr().out
    steps = bb.fuse(bb.examples.find(name), "paper").trace
    assert all(f"{step}, " in printed for step in steps)
    assert printed.count("forall m in range(M):") >= len(steps)


def test_trace_matmul_relu(capsys: pytest.CaptureFixture[str], golden) -> None:
    assert main(["trace", "matmul-relu", "--size", "MM=100", "--tile", "M=32"]) == 0
    golden(capsys.readouterr().out)


def test_trace_saved_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "a.json")
    assert main(["trace", "attention", "--steps", "last", "--save", file]) == 0
    saved = capsys.readouterr().out
    assert main(["trace", "--load", file, "--steps", "last"]) == 0
    loaded = capsys.readouterr().out
    assert saved.split("initial")[1].replace(f"saved to {file}\n", "") == loaded.split("initial")[1]


def test_table(capsys: pytest.CaptureFixture[str], golden) -> None:
    assert main(["table"]) == 0
    golden(capsys.readouterr().out)


def test_fuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "softmax", "--rules", "paper"]) == 0
    printed = capsys.readouterr().out
    assert "snapshot 1, 1 interior buffered edges" in printed
    assert "left in global memory:" in printed
    assert main(["fuse", "softmax", "--unit", "N"]) == 0
    assert "snapshot 1, 0 interior buffered edges" in capsys.readouterr().out


def test_pareto(capsys: pytest.CaptureFixture[str], golden) -> None:
    assert main(["fuse", "rmsnorm-swiglu-residual", "--pareto", "--size", "MM=256"]) == 0
    golden(capsys.readouterr().out)


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "Example 1" in capsys.readouterr().out
    assert main(["show", "matmul-relu"]) == 0
    assert "for k in range(K):" in capsys.readouterr().out
    assert main(["show", "matmul-relu", "--lock"]) == 0
    assert "with lock:" in capsys.readouterr().out
    assert main(["show", "matmul-relu", "--text"]) == 0
    text = capsys.readouterr().out
    assert bb.from_text(text).digest == bb.lower(bb.examples.matmul_relu()).digest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trace", "flash"], "unknown example 'flash': try one of"),
        (["trace"], "name an example, or a saved trace with --load"),
        (["trace", "attention", "--load", "x"], "name an example, or a saved trace with --load"),
        (["trace", "--load", "missing.json"], "missing.json: cannot be read"),
        (["trace", "attention", "--size", "MM"], "--size MM: write it as NAME=NUMBER"),
        (["trace", "attention", "--size", "ZZ=3"], "the program's sizes are DD, LL, MM, NN"),
        (["trace", "attention", "--tile", "Q=3"], "tiles['Q']"),
        (["trace", "attention", "--tile", "M=0"], "--tile M=0: write it as NAME=NUMBER, with a"),
        (["emit", "attention", "--tile", "M=-1"], "with a positive whole number"),
        (["trace", "softmx"], "unknown example 'softmx': did you mean softmax?"),
        (["fuse", "attention", "--unit", "Q"], "unit Q: there is no such dim"),
        (["fuse", "multi-head-attention", "--unit", "H"], "its blocks have one element"),
        (["fuse", "attention", "--size", "MM=8"], "--size goes with --pareto only"),
        (["fuse", "attention", "--pareto", "--raw"], "--raw does not go with --pareto"),
        (["trace", "attention", "--save", "no/such/folder/f.json"], "No such file"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert sentence in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "trace" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0


@pytest.mark.parametrize("command", ["emit", "bench"])
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    assert f"    blockbuster {command} attention" in printed
    assert 'def scores(Q: "M D", K: "N D"):' in printed
    assert "counted from 1" in printed
    assert "(default: cpu)" in printed


@pytest.mark.parametrize("command", ["list", "demo", "table"])
def test_interrupted(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, f"_{command}", interrupted)
    assert main([command]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", ["tiles", "sizes"])
def test_options_that_are_no_mappings(option: str) -> None:
    with pytest.raises(WrongKind, match=f"compile: takes {option} by name, not 5; write {option}="):
        bb.compile(bb.examples.attention(), **{option: 5})
