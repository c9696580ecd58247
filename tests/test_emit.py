"""Standalone files: they compile, test themselves, and notice when they are wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli import main
from blockbuster_fusion.codegen.standalone import samples
from blockbuster_fusion.emit import emit
from blockbuster_fusion.errors import BadTarget, BlockbusterError, NoKernel
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.programs import find_program
from blockbuster_fusion.runtime.cc import compiler


def run_c(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.c").write_text(text)
    options = ["-O1", "-march=native", "-std=gnu11", "-fopenmp", "-Wall", "-Werror"]
    program = str(folder / "kernel")
    subprocess.run(
        [*compiler(), *options, str(folder / "kernel.c"), "-o", program, "-lm"], check=True
    )
    return subprocess.run([program, "2"], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("attention", {"sizes": {"D": 64, "L": 64}}),
        ("multi-head-attention", {"dtype": "float16"}),
        ("rmsnorm-swiglu", {"dtype": "bfloat16", "snapshot": 0}),
        ("layernorm-qkv", {"tiles": {"M": 32}}),
    ],
)
def test_a_c_file_tests_itself(name: str, options: dict, tmp_path: Path) -> None:
    text = emit(find_program(name), **options)
    done = run_c(text, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
    assert bb.examples.find(name).name in text.splitlines()[1]
    assert "forall m in range(M):" in text


def test_a_wrong_kernel_is_noticed(tmp_path: Path) -> None:
    text = emit(bb.examples.matmul_relu())
    head, mark, test = text.partition("int main(")
    wrong = head + mark + test.replace("wanted[] = {", "wanted[] = {1e3 + ", 1)
    done = run_c(wrong, tmp_path)
    assert done.returncode == 1
    assert "WRONG" in done.stdout


def test_a_triton_file_tests_itself(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    text = emit(bb.examples.attention(), target="cuda", sizes={"D": 32, "L": 32})
    file = tmp_path / "attention.py"
    file.write_text(text)
    environment = {"TRITON_INTERPRET": "1", "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
    assert "blockbuster_fusion" not in text


def test_samples_can_be_made_again() -> None:
    first = samples(0, (3,), DType.float32)
    assert first.tolist() == samples(0, (5,), DType.float32)[:3].tolist()
    assert samples(1, (3,), DType.float32).tolist() != first.tolist()
    assert samples(0, (1000,), DType.int32).min() == -3
    assert set(samples(0, (50,), DType.bool_).tolist()) == {True, False}


PROGRAMS = """
import blockbuster_fusion as bb

def scaled(Q: "M D", K: "N D"):
    return (Q @ K.T) * 2

def ready():
    return bb.examples.matmul_relu()

def bare(Q, K):
    return Q @ K.T

def nothing():
    return 3
"""


def test_functions_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "programs.py"
    file.write_text(PROGRAMS)
    assert main(["emit", f"{file}:scaled", "-o", str(tmp_path / "out.c")]) == 0
    assert "written to" in capsys.readouterr().out
    assert run_c((tmp_path / "out.c").read_text(), tmp_path).returncode == 0
    assert find_program(f"{file}:ready").name == "matmul_relu"
    assert main(["emit", f"{file}:ready", "--size", "KK=64", "--tile", "M=32"]) == 0
    assert "int main(" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["emit", "{}:bare"], "say which axes Q has, as in Q: 'M D'"),
        (["emit", "{}:nothing"], "must return an array program, not a int"),
        (["emit", "{}:missing"], "has no function missing"),
        (["emit", "no-such.py:f"], "there is no such file"),
        (["emit", "flash"], "unknown example 'flash'"),
        (["emit", "attention", "--snapshot", "9"], "takes one of 0 to 1"),
        (["emit", "attention", "--snapshot", "0"], "counted from 1"),
        (["emit", "attention", "--size", "ZZ=3"], "extent ZZ: unknown"),
        (["emit", "attention", "--tile", "Z=3"], "tiles['Z']"),
        (["emit", "attention", "-o", "no/such/folder/f.c"], "No such file"),
        (["bench", "attention", "--size", "ZZ=3"], "the program's sizes are"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "programs.py"
    file.write_text(PROGRAMS)
    assert main([argument.format(file) for argument in arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_what_no_file_can_have() -> None:
    with pytest.raises(BadTarget, match="for cpu"):
        emit(bb.examples.attention(), target="interpret")
    with pytest.raises(NoKernel, match=r"numpy\.sort is run by an executor"):
        emit(bb.trace(lambda x: bb.ops.sort(x) + 1, "M N"))
    assert issubclass(NoKernel, BlockbusterError)
