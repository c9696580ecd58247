"""Names and comments of generated code: a closed alphabet for all names in a program."""

import ast
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.ir.text import from_text
from blockbuster_fusion.naming import Scope, arithmetic, comment, word
from blockbuster_fusion.printers import reserved
from blockbuster_fusion.printers.c import lengths as c_lengths
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.c.prelude import HEADER
from blockbuster_fusion.printers.reserved import TRITON, C, kernel_name, outer_names
from blockbuster_fusion.printers.triton import names as triton_names
from blockbuster_fusion.printers.triton.helpers import HELPERS
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.safety.fuse import fuse
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.emit import emit

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
HOSTILE = [
    *("exp_avg", "load_factor", "sign_bit", "mod_scale", "take_x", "load_n"),
    *("linux", "unix", "div", "_Bool", "1a", "int", "class", "lambda", "NULL", "INT32_MAX"),
    *("", "_", "αβ", "日本", "a b", "x;}", "*/", '"""', "\\\n#include", "%s%n", "\u202e", "??/"),
    *("t1", "i1", "c1", "I1", "BLOCK_M", "buffers", "x", "m", "start_m", "first_n", "GROUP"),
    *("y1", "GOMP_parallel", "omp_get_thread_num", "size_t", "tl", "triton", "num_warps", "grid"),
    "x" * 100_000,
]


def program(name: str) -> bb.ArrayProgram:
    """A softmax and a product, whose names differ in characters that no identifier has."""
    traced = bb.trace(lambda x, y: {"O": bb.ops.softmax(x) @ y}, "M N", "N K")
    inputs = [
        replace(i, name=(name + mark) or " ")
        for i, mark in zip(traced.inputs, ("", "-"), strict=True)
    ]
    outputs = [replace(o, name=name or " ") for o in traced.outputs]
    return replace(traced, name=name, inputs=tuple(inputs), outputs=tuple(outputs))


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))
def test_a_name_is_an_identifier(name: str) -> None:
    for made in (word(name), kernel_name(name), Scope(C).claim(name), Scope(TRITON).claim(name)):
        assert IDENTIFIER.fullmatch(made)
        assert len(made) < 200
    assert Scope(C).claim(name) not in C
    assert Scope(TRITON).claim(name) not in TRITON
    assert kernel_name(name) not in C
    assert kernel_name(name) not in TRITON


@pytest.mark.parametrize("language", [C, TRITON], ids=["C", "Triton"])
def test_every_search_ends(language: reserved.Reserved) -> None:
    """Numbering a reserved name never gives another reserved name."""
    scope = Scope(language)
    names = [scope.claim(name) for name in sorted(language.names) for _ in range(3)]
    assert len(set(names)) == len(names)
    assert not language.names & set(names)


def test_many_names_are_distinct_and_told_in_linear_time() -> None:
    scope, tries = Scope(C), 0

    class Counted(set):
        def __contains__(self, name: object) -> bool:
            nonlocal tries
            tries += 1
            return super().__contains__(name)

    scope.taken = Counted()
    wanted = [f"é{i % 7}" for i in range(10_000)] + [f"__0_{i}" for i in range(10_000)]
    wanted += ["x" * 100_000] * 100
    made = [scope.claim(name) for name in wanted]
    assert len(set(made)) == len(made)
    assert tries < 5 * len(made)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))
def test_printed_kernels_have_identifiers_and_comments_only(name: str) -> None:
    traced = program(name)
    fused = fuse(bb.lower(traced)).snapshots[-1]
    nest = scheduled(fused, kernel_name(name), Schedule())
    for source in (print_c(nest, {}), print_triton(nest), emit(traced).source):
        assert source.isascii()
    ast.parse(print_triton(nest))
    code = re.sub(r"/\*.*?\*/", "", emit(traced).source, flags=re.DOTALL)
    assert "*/" not in code
    assert "\\\n" not in code


def test_a_program_runs_whatever_its_names() -> None:
    """Some names of arrays were never found a free variant of, and others the compiler refused."""
    traced = bb.trace(lambda *xs: {"O": sum(xs[1:], xs[0])}, *["M"] * len(HOSTILE))
    inputs = [replace(i, name=name) for i, name in zip(traced.inputs, HOSTILE, strict=True)]
    compiled = bb.compile(replace(traced, inputs=tuple(inputs)), threads=1)
    xs = [np.full(3, n, np.float32) for n in range(len(HOSTILE))]
    np.testing.assert_array_equal(compiled(*xs)[0], sum(xs))


@pytest.mark.parametrize("name", ["load_n", "linux", "div", "_Bool", "1a", "", "GOMP_sections"])
def test_a_kernel_may_have_any_name(name: str) -> None:
    x, y = np.eye(3, 4, dtype=np.float32), np.ones((4, 2), np.float32)
    compiled = bb.compile(program(name), threads=1)
    np.testing.assert_allclose(compiled(x, y)[0], np.ones((3, 2)), rtol=1e-6)


@pytest.mark.parametrize("axis", ["load_n", "linux", "div", "EOF", "i1", "t1"])
def test_axes_may_have_any_name(axis: str) -> None:
    compiled = bb.compile(lambda x: bb.ops.softmax(x), f"M {axis}", threads=1)
    np.testing.assert_allclose(compiled(np.zeros((2, 4), np.float32))[0], 0.25)


INJECTED = 'N; system("touch CANARY"); int y */ //'


def test_a_text_form_puts_no_code_into_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of axes, sizes, arrays and combiners of a text form were once printed as they are."""
    text = bb.to_text(bb.lower(bb.trace(lambda x: {"O": bb.ops.softmax(x)}, "M N")))
    quoted = '"' + INJECTED.replace('"', '\\"') + '"'
    text = re.sub(r"\bNN\b", quoted.replace("N;", "NN;"), text)
    text = re.sub(r"(?<![\w\"])N(?=[.\s\]])", quoted, text)
    hostile = from_text(text)
    monkeypatch.chdir(tmp_path)
    compiled = bb.compile(hostile, threads=1)
    np.testing.assert_allclose(compiled(np.zeros((2, 4), np.float32))[0], 0.25)
    assert not (tmp_path / "CANARY").exists()
    source = print_c(scheduled(hostile, "f", Schedule()), {})
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    assert not re.search(r"\b(system|touch)\b", code)


@pytest.mark.parametrize(
    "text",
    ["a */ b", '"""', "??/", "back\\", "line\nbreak", "é", "\x00", "/*/", "*" + "/" * 9, "%d"],
)
def test_a_comment_stays_one(text: str) -> None:
    made = comment(text)
    assert made.isascii()
    assert made.isprintable()
    for ending in ("*/", "/*", '"""', "??", "\\"):
        assert ending not in made


def test_every_name_of_a_kernel_is_its_own_or_reserved() -> None:
    """Names that printers write on their own account must be reserved."""
    traced = bb.trace(
        lambda q, k, v, i: {"O": bb.ops.take(bb.ops.softmax(q @ k.T) @ v, i, axis=0)},
        "M D", "N D", "N L", bb.array("P", dtype="int64"),
    )  # fmt: skip
    for source in (emit(traced).source, emit(program("x")).source):
        kernels = {kernel_name(traced.name), kernel_name("x")}
        for name in outer_names(re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)):
            plain = re.sub(r"^run_|_\d+$", "", name.removesuffix("_part"))
            assert name.startswith("_") or name in C or plain in kernels, name


def several() -> list[bb.ArrayProgram]:
    """Programs with every kind of statement."""
    o = bb.ops
    return [
        bb.examples.find("multi-head-attention"),
        bb.trace(lambda x: {"O": o.layernorm(x), "S": o.log(o.mean(x, -1))}, "M N"),
        bb.trace(lambda t, i: {"O": t[i] // 2 % 3}, "V D", bb.array("P", dtype="int64")),
        bb.trace(lambda x, w: {"O": o.maximum(x @ w, 0) ** 3 - o.tanh(x @ w)}, "M K:40", "K:40 N"),
        bb.trace(lambda x: {"O": x.sum(0), "A": x.max()}, "M N"),
        bb.examples.find("causal-attention"),
        bb.examples.find("sliding-window-attention"),
    ]


def handed_out(monkeypatch: pytest.MonkeyPatch, module: object) -> set[str]:
    """The names that scopes of a module give from now on."""
    names: set[str] = set()

    class Recording(Scope):
        def claim(self, wanted: str) -> str:
            made = super().claim(wanted)
            names.add(made)
            return made

    monkeypatch.setattr(module, "Scope", Recording)
    return names


def test_variables_of_kernels_in_c_are_handed_out_or_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A printer that has a new variable of its own must add it to those that are reserved."""
    names = handed_out(monkeypatch, c_lengths)
    for traced in several():
        for dtype in ("float32", "bfloat16"):
            chosen = choose(Request(traced, dtype=dtype))[0]
            nest, tiles = chosen.scheduled()
            source = re.sub(r"/\*.*?\*/", "", print_c(nest, tiles, dots="vector"), flags=re.DOTALL)
            first = min(source.index(f"void {k.name}_part(") for k in nest.kernels)
            known = {*names, *C.names, *(k.name for k in nest.kernels), "omp"}
            words = set(re.findall(r"\b[A-Za-z]\w*", re.sub(r"#pragma.*", "", source[first:])))
            assert not {w for w in words - known if C.avoided(w) == w}


def test_variables_of_triton_kernels_are_handed_out_or_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = handed_out(monkeypatch, triton_names)
    for traced in several():
        nest, _ = choose(Request(traced, target="cuda"))[0].scheduled()
        tree = ast.parse(print_triton(nest))
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and function.name not in HELPERS:
                used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
                own = {n for n in used if re.fullmatch(r"t\d+", n)}
                assert not used - own - names - TRITON.names


@pytest.mark.skipif(shutil.which("gcc") is None, reason="asks GCC for its macros")
def test_macros_of_this_machine_are_reserved() -> None:
    command = ["gcc", "-std=gnu11", "-fopenmp", "-dM", "-E", "-x", "c", "-"]
    headers = HEADER + "#include <stdio.h>\n"
    done = subprocess.run(command, input=headers, capture_output=True, text=True, check=True)
    names = {line.split()[1].partition("(")[0] for line in done.stdout.splitlines()}
    plain = {name for name in names if not name.startswith("_")}
    assert {name for name in plain if C.avoided(name) == name and name not in C} == set()


def test_arithmetic_is_all_that_is_evaluated() -> None:
    assert (
        arithmetic("max(sizes['n'] // 2, math.ceil(sizes['m'] / 3))", "sizes")({"n": 9, "m": 4})
        == 4
    )
    for text in (
        "__import__('os').system('true')",
        "sizes.__class__",
        "(lambda: 1)()",
        "[1 for _ in sizes]",
        "math.__loader__",
        "open('x')",
        "sizes['n'] if (y := 1) else 2",
        "1 +",
    ):
        with pytest.raises(NotExpressible, match="has no form"):
            arithmetic(text, "sizes")


EVALUATES = {
    "naming.py": "arithmetic, after a check of its syntax",
    "cli/programs.py": "the user's own file, which the command line names",
    "torch/from_array_program.py": "the text of torch_source, whose names are made by naming",
    "torch/call_text.py": "numbered names, numbers and quoted texts only",
    "torch/plan/steps.py": "numbered names only",
    "torch/plan/sized.py": "numbered names only",
    "torch/plan/tape_text.py": "numbered names and numbers only",
    "torch/plan/regions.py": "numbers only",
    "runtime/triton/modules.py": "the text of print_triton",
}


def test_source_is_evaluated_in_known_places_only() -> None:
    """Every call of exec, eval, compile and their like is listed here with its reason."""
    root = Path(bb.__file__).parent
    found: dict[str, set[str]] = {}
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = _evaluating(node)
            if called:
                found.setdefault(file.relative_to(root).as_posix(), set()).add(called)
    assert set(found) == set(EVALUATES), found


def _evaluating(node: ast.AST) -> str | None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
        loads = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "code", "codeop"}
        return next((n for n in names if n.partition(".")[0] in loads), None)
    if not isinstance(node, ast.Call):
        return None
    if any(k.arg == "shell" for k in node.keywords):
        return "shell"
    match node.func:
        case ast.Name(id="exec" | "eval" | "compile" | "__import__" as name):
            return None if name == "compile" and not isinstance(node.func, ast.Name) else name
        case ast.Attribute(value=ast.Name(id="os"), attr="system" | "popen" as name):
            return name
        case ast.Attribute(value=ast.Name(id="torch"), attr="load" as name):
            return name
        case ast.Attribute(attr="exec_module" as name):
            return name
    return None


def test_torch_programs_execute_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of inputs went into a Python function that was executed."""
    torch = pytest.importorskip("torch")
    from blockbuster_fusion.torch.from_array_program import torch_program

    monkeypatch.chdir(tmp_path)
    name = "x=__import__('os').system('touch CANARY')"
    made = torch_program(program(name))
    (out,) = made(torch.eye(3, 4), torch.ones(4, 2))
    assert out.shape == (3, 2)
    assert list(tmp_path.iterdir()) == []
