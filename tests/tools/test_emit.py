"""Standalone files: they compile, test themselves, and notice when they are wrong."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.cli.programs import find_program
from blockbuster_fusion.errors import BadTarget, BlockbusterError, NoKernel
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.standalone import samples, scattered
from blockbuster_fusion.runtime.c.compiler import compiler
from blockbuster_fusion.tools import emit as emitting
from blockbuster_fusion.tools.emit import emit as emit_files
from helpers import lookup_programs
from helpers.together import TOGETHER


def emit(program: bb.ArrayProgram, **options: Any) -> str:
    """The text of a standalone file."""
    return emit_files(program, **options).source


WARNINGS = ["-Wall", "-Wextra", "-Werror"]
C = [*compiler(), "-std=gnu11"]
CPP = ["g++", "-x", "c++", "-std=gnu++17"]
HAS_CPP = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


def run_c(text: str, folder: Path, language: Sequence[str] = C) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.c").write_text(text)
    options = ["-O1", "-march=native", "-fopenmp", *WARNINGS, "-DBLOCKBUSTER_MAIN"]
    program = str(folder / "kernel")
    subprocess.run(
        [*language, *options, str(folder / "kernel.c"), "-o", program, "-lm"], check=True
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


def of_every_kind(X: Array, Y: Array, k: Array) -> dict[str, Array]:
    """Operators with helpers of their own, integers and truths."""
    o = bb.ops
    return {
        "a": o.where(X > Y, X // Y, X % Y) + o.sign(X),
        "b": o.maximum(X, Y) ** 2 + o.tanh(X) * o.exp(Y),
        "c": (k // 3) % 5 + o.maximum(k, 2),
        "d": (X > 0) & (Y < 1),
    }


@HAS_CPP
@pytest.mark.parametrize(
    ("program", "options"),
    [
        (bb.examples.attention(), {"dtype": "float16"}),
        (bb.examples.rmsnorm_swiglu(), {"dtype": "bfloat16", "snapshot": 0}),
        (bb.examples.causal_attention(), {}),
        (lookup_programs.traced("cross_entropy"), {}),
        (bb.trace(of_every_kind, X="M N", Y="M N", k=bb.array("M N", dtype="int64")), {}),
    ],
    ids=lambda given: given.name if isinstance(given, bb.ArrayProgram) else "",
)
def test_a_file_is_c_plus_plus_too(program: bb.ArrayProgram, options: dict, tmp_path: Path) -> None:
    done = run_c(emit(program, **options), tmp_path, CPP)
    assert done.stdout.endswith("ok\n"), done.stdout + done.stderr


PROGRAM = """
#include <stdio.h>
#include "attention.h"
#include "mlp.h"

int main(void) {
    const float Q[] = {1, 2, 3, 4, 5, 6}, KT[] = {1, 0, 0, 1}, VT[] = {2, 4, 1, 3};
    float O[6], C[6];
    if (run_attention(Q, KT, VT, O, 3, 2, 2, 2, 1)) return 1;
    if (run_matmul_relu(Q, KT, C, 3, 2, 2, 1)) return 2;
    for (int i = 0; i < 6; i++) printf("%.9g %.9g\\n", O[i], C[i]);
    return 0;
}
"""


@pytest.mark.parametrize("language", ["c", pytest.param("c++", marks=HAS_CPP)])
def test_files_are_linked_into_a_program(language: str, tmp_path: Path) -> None:
    for name, file in (("attention", "attention.c"), ("matmul-relu", "mlp.c")):
        assert main(["emit", name, "-o", str(tmp_path / file)]) == 0
        flags = ["-O1", "-march=native", "-fopenmp", *WARNINGS, "-c"]
        subprocess.run([*C, *flags, file], cwd=tmp_path, check=True)
    (tmp_path / "main.c").write_text(PROGRAM)
    flags = [*WARNINGS, "-fopenmp", "-x", language, "main.c", "-x", "none"]
    objects = ["attention.o", "mlp.o", "-lm", "-o", "program"]
    linker = C if language == "c" else ["g++"]
    subprocess.run([*linker, *flags, *objects], cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, check=True)
    found = np.array([line.split() for line in done.stdout.splitlines()], float).T
    Q, KT = np.arange(1.0, 7).reshape(3, 2), np.eye(2)
    VT = np.array([[2.0, 4], [1, 3]])
    weights = np.exp(Q @ KT.T * 2**-0.5)
    expected = (weights / weights.sum(-1, keepdims=True)) @ VT.T
    np.testing.assert_allclose(found[0], expected.ravel(), rtol=1e-6)
    np.testing.assert_allclose(found[1], Q.ravel(), rtol=1e-6)


def test_the_header_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "attention", "--size", "D=64,L=64", "--header"]) == 0
    printed = capsys.readouterr().out
    assert "Q[MM, 64]: float32, read" in printed
    assert "O[MM, 64]: float32, written" in printed
    assert "int run_attention(const float *Q, const float *KT, const float *VT," in printed
    file = tmp_path / "attention.c"
    assert main(["emit", "attention", "-o", str(file)]) == 0
    assert f"written to {file} and {tmp_path / 'attention.h'}" in capsys.readouterr().out
    assert main(["emit", "attention", "-o", str(tmp_path / "attention.h")]) == 1
    assert "name the C file" in capsys.readouterr().err


def test_known_heads_make_flash_attention() -> None:
    text = emit(bb.examples.attention(), sizes={"D": 64, "L": 64})
    nest = text.partition("The loop nest, whose names the code uses:")[2].partition("*/")[0]
    loops = [line.strip(" *") for line in nest.splitlines() if re.search(r"\b(for|grid) ", line)]
    assert loops == ["grid m in M.0:", "for n in N.0:"]


def test_a_wrong_kernel_is_noticed(tmp_path: Path) -> None:
    text = emit(bb.examples.matmul_relu())
    head, mark, test = text.partition("int main(")
    wrong = head + mark + test.replace("wanted[] = {", "wanted[] = {1e3 + ", 1)
    done = run_c(wrong, tmp_path)
    assert done.returncode == 1
    assert "WRONG" in done.stdout


@pytest.mark.parametrize("index", ["m", "n", "k"])
def test_a_kernel_that_reads_one_block_only_is_noticed(index: str, tmp_path: Path) -> None:
    text = emit(bb.examples.matmul_relu())
    wrong, count = re.subn(rf"\b{index} \* (BLOCK_\w+) \*", r"0 * \1 *", text)
    assert count == 2  # of the two arrays that have the axis
    done = run_c(wrong, tmp_path)
    assert done.returncode == 1
    assert "C: WRONG" in done.stdout


def test_places_all_over_an_array() -> None:
    places = scattered(10_000)
    assert len(set(places)) == len(places) >= 64
    assert (places[0], places[-1]) == (0, 9_999)
    assert places == sorted(places)
    assert scattered(3) == [0, 1, 2]
    assert scattered(0) == []


@pytest.mark.parametrize("size", ["D", "N", "L"])
def test_a_size_of_nothing(size: str, tmp_path: Path) -> None:
    done = run_c(emit(bb.examples.attention(), sizes={size: 0}), tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_file_is_written_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "int main(" in emit(bb.examples.rmsnorm_swiglu())


def test_the_header(tmp_path: Path) -> None:
    text = emit(bb.examples.matmul_relu())
    assert " matmul_relu.c -lm && ./a.out" in text
    nest = text.partition("The loop nest, whose names the code uses:")[2].partition("*/")[0]
    tile = re.search(r"(t\d+) \+= dot", nest)
    assert tile is not None
    assert f"/* {tile[1]} += dot" in text
    assert " 'my kernel.c' -lm" in emit(bb.examples.matmul_relu(), file="my kernel.c")
    file = tmp_path / "mine.c"
    assert main(["emit", "matmul-relu", "-o", str(file)]) == 0
    assert f" {file} -lm" in file.read_text()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")


def run_triton(text: str, folder: Path, interpreted: str) -> subprocess.CompletedProcess[str]:
    file = folder / "kernel.py"
    file.write_text(text)
    environment = {"TRITON_INTERPRET": interpreted, "PATH": "", "HOME": str(folder)}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True
    )


@LINUX
def test_a_triton_file_tests_itself(tmp_path: Path) -> None:
    text = emit(bb.examples.attention(), target="cuda", sizes={"D": 32, "L": 32})
    done = run_triton(text, tmp_path, interpreted="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")
    assert "blockbuster_fusion" not in text
    done = run_triton(text, tmp_path, interpreted="0")
    assert done.returncode == 2
    remedy = "run this on a machine with one, or with TRITON_INTERPRET=1"
    assert done.stderr == f"PyTorch finds no GPU here: {remedy}\n"


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["triton"] = None
from blockbuster_fusion.cli.main import main
raise SystemExit(main(["emit", "attention", "--target", "cuda"]))
"""


@LINUX
@pytest.mark.parametrize("case", ["any sizes", "split", "outer"])
def test_a_triton_file_launches_kernels_together(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In files too, a launch has the programs of all its kernels."""
    own = TOGETHER[case]
    schedule = replace(own.schedule, apart=True, together=True)
    sizes = own.lengths() if own.is_fixed else None
    chosen = emitting.choose
    monkeypatch.setattr(emitting, "choose", lambda r: chosen(replace(r, schedule=schedule)))
    text = emit(own.program(), target="cuda", sizes=sizes)
    assert "_together(" in text
    done = run_triton(text, tmp_path, interpreted="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ok\n")


def test_a_triton_file_is_written_without_torch_and_triton() -> None:
    """It is text: only whoever runs it needs the packages."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == emit(bb.examples.attention(), target="cuda")


CALLER = """
import attention, layernorm, lookup, torch

x = torch.randn(70, 2, 32)
Q, KT = x[:, 0], torch.randn(32, 90).T
VT = torch.randn(90, 32).T
found = attention.run_attention(Q, KT, VT)
torch.testing.assert_close(found, torch.softmax(Q @ KT.T * 32**-0.5, -1) @ VT.T)

X, g, b, W = torch.randn(50, 40), torch.randn(40), torch.randn(40), torch.randn(20, 40)
found = layernorm.run_norm_and_linear(X, g, b, W)
norm = torch.nn.functional.layer_norm(X, (40,), g, b)
torch.testing.assert_close(found, (norm, norm @ W.T), atol=1e-5, rtol=1e-5)

ids = torch.tensor([3, 0, 6])
table = torch.randn(7, 40)
torch.testing.assert_close(lookup.run_embedding(ids, table), table[ids])
for wrong in ((Q.double(), KT, VT), (Q[0], KT, VT), (Q, KT[:, :8], VT), (Q, KT[:8], VT)):
    try:
        attention.run_attention(*wrong)
    except (TypeError, ValueError) as error:
        print(error)
"""


def norm_and_linear(X: Array, g: Array, b: Array, W: Array) -> dict[str, Array]:
    y = bb.ops.layernorm(X, g, b)
    return {"Y": y, "Z": y @ W.T}


@LINUX
def test_a_triton_file_is_called_with_tensors(tmp_path: Path) -> None:
    """One function runs all kernels of a program, for tensors of any strides."""
    programs = {
        "attention": (bb.examples.attention(), {"sizes": {"D": 32, "L": 32}}),
        "layernorm": (bb.trace(norm_and_linear, X="M K", g="K", b="K", W="N K"), {}),
        "lookup": (lookup_programs.traced("embedding"), {}),
    }
    for name, (program, options) in programs.items():
        text = emit(program, target="cuda", **options)
        (tmp_path / f"{name}.py").write_text(text)
    done = run_triton(CALLER, tmp_path, interpreted="1")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    assert told[0] == "Q is torch.float64 (70, 32), and wanted is torch.float32 (MM, 32)"
    assert told[2:] == ["KT is 8 long where 32 is 32", "VT is 90 long where NN is 8"]


@LINUX
def test_bfloat16_is_not_interpreted(tmp_path: Path) -> None:
    text = emit(bb.examples.matmul_relu(), target="cuda", dtype="bfloat16")
    done = run_triton(text, tmp_path, interpreted="1")
    assert done.returncode == 0
    sentence = "Triton's interpreter computes bfloat16 wrongly: run this on a GPU"
    assert done.stdout == f"{sentence}\n"


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

def usual(x: "M N", eps=0.5, scale: float = 4.0):
    return x * scale + eps

def broken(x: "M N"):
    return x + missing
"""
LATER = """
from __future__ import annotations

def usual(x: "M N", eps=0.5, scale: float = 4.0):
    return x * scale + eps
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
        (["emit", "{}"], "write {}:function"),
        (["emit", "{}:"], "write {}:function"),
        (["emit", "{}:broken"], "line 20: NameError: name 'missing' is not defined"),
        (["emit", "flash"], "unknown example 'flash'"),
        (["emit", "atention"], "did you mean attention?"),
        (["emit", "attention", "--snapshot", "99"], "snapshot 99: there are 2, numbered from 1"),
        (["bench", "matmul-relu", "--snapshot", "9"], "snapshot 9: there is 1, numbered from 1"),
        (["emit", "attention", "--snapshot", "0"], "snapshot 0: they are numbered from 1"),
        (["emit", "attention", "--size", "ZZ=3"], "--size ZZ=3: unknown; known are D, DD"),
        (["emit", "attention", "--tile", "Z=3"], "tiles['Z']"),
        (["emit", "attention", "-o", "no/such/folder/f.c"], "No such file"),
        (["bench", "attention", "--size", "ZZ=3"], "--size ZZ=3: unknown; known"),
    ],
)
def test_bad_arguments_get_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "programs.py"
    file.write_text(PROGRAMS)
    assert main([argument.format(file) for argument in arguments]) == 1
    assert sentence.format(file) in capsys.readouterr().err


@pytest.mark.parametrize("text", [PROGRAMS, LATER])
def test_parameters_keep_their_defaults(text: str, tmp_path: Path) -> None:
    file = tmp_path / "programs.py"
    file.write_text(text)
    program = find_program(f"{file}:usual")
    assert [i.name for i in program.inputs] == ["x"]
    assert "x0*4.0" in str(program)
    assert "x0+0.5" in str(program)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\ndef f(:\n", "line 2: SyntaxError: invalid syntax"),
        ("\n\nimport no_such_module\n", "line 3: ModuleNotFoundError: No module named"),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit\n", "line 1: SystemExit"),
    ],
)
def test_a_file_that_cannot_be_read(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    assert main(["emit", f"{file}:f"]) == 1
    assert f"{file}, {sentence}" in capsys.readouterr().err


def test_what_no_file_can_have() -> None:
    with pytest.raises(BadTarget, match="for cpu"):
        emit(bb.examples.attention(), target="interpret")
    with pytest.raises(NoKernel, match=r"numpy\.sort is run by an executor"):
        emit(bb.trace(lambda x: bb.ops.sort(x) + 1, "M N"))
    assert issubclass(NoKernel, BlockbusterError)


def test_an_array_may_have_the_name_of_its_program() -> None:
    """The function that runs the kernel can call it, for all names of its arguments."""

    def x(x):
        return bb.ops.softmax(x)

    source = emit(bb.trace(x, x="M N"), target="cpu")
    command = [*C, "-xc", "-fsyntax-only", "-march=native", "-fopenmp", "-"]
    made = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
