"""`blockbuster plan`, as a user runs it."""

from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.plans import programs
from blockbuster_fusion.plans.plan import Plan
from helpers.machines import FOUR_CORES

MODEL = """\
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6), nn.ReLU()).eval(), (torch.ones(3, 8),)


def wrong():
    return nn.Linear(3, 3)


def scores(Q: "M D", K: "N D"):
    return Q @ K.T
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "model.py"
    found.write_text(MODEL, encoding="utf-8")
    return found


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "this_cpu", lambda: FOUR_CORES)


def test_plan_of_an_example(capsys: pytest.CaptureFixture[str], golden) -> None:
    sizes = "M=64,D=32,E=48"
    assert main(["plan", "self-attention", "--size", sizes, "--why"]) == 0
    golden(capsys.readouterr().out)


def test_plan_of_a_function(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"{file}:scores", "--size", "M=8,N=8", "--size", "D=4"]) == 0
    assert "1  scores  1 kernel, snapshot 1  256 B" in capsys.readouterr().out


def test_plan_of_a_model(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "plan.json"
    assert main(["plan", f"{file}:make", "--why", "-o", str(saved)]) == 0
    printed = capsys.readouterr().out
    assert "stored between steps:" in printed
    assert "it is a result of the model" in printed
    assert printed.endswith(f"saved to {saved}\n")
    plan = Plan.load(saved)
    assert str(plan) in printed
    assert [name for s in plan.steps for name in s.operators.values()] == [
        "aten.native_layer_norm.default",
        "aten.addmm.default",
        "aten.relu.default",
    ]
    assert str(tmp_path) not in saved.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "{file}:make", "--size", "M=3"], "plan: --size is for programs"),
        (["plan", "{file}:wrong"], "it must return an array program"),
        (["plan", "{file}:none"], "has no function none"),
        (["plan", "softmax", "--size", "Q=3"], "--size Q=3: unknown"),
        (["plan", "softmax", "-o", "nowhere/plan.json"], "nowhere/plan.json"),
        (["fuse", "{file}:make"], "it must return an array program, not a tuple"),
    ],
)
def test_complaints(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([x.replace("{file}", str(file)) for x in arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_the_command_is_bb_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "softmax", "--size", "M=8,N=8"]) == 0
    plan = bb.plan(bb.examples.find("softmax"), sizes={"M": 8, "N": 8})
    assert capsys.readouterr().out == f"{plan}\n"
