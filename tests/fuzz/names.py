"""Hostile names, texts and traces: none is executed, and each refusal is a sentence.

A case is a text form, a saved trace or an array program. Pieces of C, Python and shell replace its
names, and characters are changed. It is read, verified, and printed as C and Triton.
The printed code has known words and numbers only, and its comments end where they should.

Run it with `PYTHONPATH=tests python -m fuzz.names --count 20000 --jobs 2`.
"""

import ast
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadText, BlockbusterError
from blockbuster_fusion.fusion.trace import Trace
from blockbuster_fusion.ir.text.scanner import quote
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.runtime.c.compiler import compiler
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.emit import emit
from fuzz.harness import Failure, main

CANARY = Path(tempfile.gettempdir()) / "blockbuster-canary"
_TOUCH = f"touch {CANARY}"
PIECES = (
    *('";system("' + _TOUCH + '");//', f'*/ system("{_TOUCH}"); /*', f"$({_TOUCH})"),
    *(
        f"`{_TOUCH}`",
        f"__import__('os').system('{_TOUCH}')",
        f"x=__import__('os').popen('{_TOUCH}')",
    ),
    *("\n#include </etc/passwd>\n", "#define MIN(a,b) a", '_Pragma("omp parallel")', "\\\n", "??/"),
    *(
        "%s%n%x",
        "{0.__class__}",
        "{canary}",
        '"""',
        "'''",
        "*/",
        "/*",
        "//",
        "\x00",
        "\r",
        "\u2028",
    ),
    *("\u202egnirts", "\u200b", "é", "日本", "𝔘", "ﬁ", "\ud800", "int", "for", "lambda", "linux"),
    *("div", "exp_x", "load_x", "NAN", "t1", "i1", "I1", "BLOCK_M", "_Bool", "__builtins__", "tl"),
    *("", " ", "1a", "a b", "a;b", "a,b", "a=b", "a]", "x" * 3000, "-" * 3000, "size(M)", "axis"),
    *("program", "input", "%1", "yield", "inf", "nan", "-1", "1e999", "99999999999999999999"),
)
"""Names, and parts of names, that would do harm in C, Python, a shell or a listing."""

_WATCHED = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn")
_C_MARKS = re.compile(r"[\s{}()\[\];,.<>=!&|+\-*/%?:^~#]*")
_C_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*(?:[eE][-+]\d+f?)?|\"[^\"\n]*\"", re.ASCII)
_C_LINE = re.compile(
    r"\s*#\s*(include <\w+\.h>|define \w+|pragma |if|elif|else|endif|ifdef|ifndef)"
)


@dataclass(frozen=True)
class Case:
    """A text form, a trace as JSON, or the names of an array program and the code to write."""

    kind: str
    text: str
    compiles: bool = False


class _Watch:
    """Records events that start a process while generated code is made."""

    seen: ClassVar[list[str]] = []
    active = False

    @classmethod
    def hook(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if cls.active and event in _WATCHED:
            cls.seen.append(event)


@cache
def _watching() -> None:
    sys.addaudithook(_Watch.hook)


@contextmanager
def nothing_executed() -> Iterator[None]:
    """AssertionError where something was executed."""
    _watching()
    _Watch.seen.clear()
    _Watch.active = True
    try:
        yield
    finally:
        _Watch.active = False
        assert not _Watch.seen, f"executed: {_Watch.seen}"
        assert not CANARY.exists(), "executed: the canary is there"


@cache
def _starts() -> tuple[str, ...]:
    """Text forms to begin with: small programs, before and after fusion."""
    o = bb.ops
    programs = [
        bb.trace(lambda x: {"O": o.softmax(x)}, "M N"),
        bb.trace(lambda x, y: {"O": o.relu(x @ y)}, "M K", "K N"),
        bb.trace(lambda q, k, v: {"O": o.softmax(q @ k.T) @ v}, "M D", "N D", "N L"),
        bb.trace(lambda x, b: {"O": o.layernorm(x + b), "S": x * 2}, "B M N:8", "N", batch="B"),
        bb.trace(lambda t, i: {"O": o.exp(t[i])}, "V D", bb.array("P", dtype="int64")),
    ]
    texts = [bb.to_text(bb.lower(program)) for program in programs]
    return (*texts, *(bb.to_text(bb.fuse(bb.lower(p)).snapshots[-1]) for p in programs[:4]))


@cache
def _traces() -> tuple[str, ...]:
    o = bb.ops
    programs = [
        bb.trace(lambda x: {"O": o.softmax(x)}, "M N"),
        bb.trace(lambda x, y: {"O": o.relu(x @ y)}, "M K", "K N"),
    ]
    return tuple(json.dumps(bb.fuse(bb.lower(p)).trace.to_json()) for p in programs)


def hostile(rng: random.Random) -> str:
    """A name."""
    pieces = [rng.choice(PIECES) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return rng.choice(("", "", "x", "M")) + "".join(pieces)


_NAMED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\b[A-Z]{1,2}\b(?=[.\s\])=])')


def renamed(text: str, rng: random.Random) -> str:
    """A text form in which some names stand for others, each for one everywhere."""
    found = sorted(set(_NAMED.findall(text)))
    chosen = {name: quote(hostile(rng)) for name in found if rng.random() < 0.5}
    return _NAMED.sub(lambda match: chosen.get(match[0], match[0]), text)


def mutated(text: str, rng: random.Random) -> str:
    """A text with something dropped, doubled, moved, replaced or put in."""
    at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    lines = text.split("\n")
    row, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(8):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + rng.choice("(){}[]%.,:=\"'\\*/-0179xtMKe #\n\x00é") + text[at:]
        case 2:
            return text[:at] + rng.choice(PIECES) + text[at:]
        case 3:
            lines.insert(row, lines[row])
        case 4:
            del lines[row]
        case 5:
            lines[row], lines[other] = lines[other], lines[row]
        case 6:
            lines[row] = re.sub(r"\d+", lambda _: str(rng.choice((0, 1, 2, 7, 10**9))), lines[row])
        case 7:
            return text[: min(at + 200, end)] + text[end:]
    return "\n".join(lines)


def changed_json(data: Any, rng: random.Random) -> Any:
    """Plain data in which one thing is something else."""
    if rng.random() < 0.3 or not isinstance(data, list | dict) or not data:
        odd: list[Any] = [None, -1, 10**30, 1e308, "", hostile(rng), [], {}, [[]], True, {"a": {}}]
        return rng.choice(odd)
    key = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
    made = dict(data) if isinstance(data, dict) else list(data)
    made[key] = changed_json(data[key], rng)
    return made


class Names:
    """Hostile names, texts and traces."""

    name = "names"

    def generate(self, seed: int) -> Case:
        rng = random.Random(seed)
        way = rng.random()
        if way < 0.05:
            kind = rng.choice(("C", "Triton", "PyTorch"))
            return Case(kind, json.dumps([hostile(rng) for _ in range(4)]), rng.random() < 0.1)
        if way < 0.15:
            data: Any = json.loads(rng.choice(_traces()))
            if rng.random() < 0.5:
                data["initial"] = renamed(data["initial"], rng)
            for _ in range(rng.choice((0, 1, 1, 2))):
                data = changed_json(data, rng)
            return Case("trace", json.dumps(data))
        text = rng.choice(_starts())
        if rng.random() < 0.7:
            text = renamed(text, rng)
        for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
            text = mutated(text, rng)
        return Case("text", text, compiles=rng.random() < 0.02)

    def run(self, case: Case) -> Failure | None:
        with nothing_executed():
            sources = _sources(case)
        for source in sources:
            problem = trouble(source)
            if problem is not None:
                return Failure("wrong", problem, source)
        is_c = bool(sources) and "import triton" not in sources[0]
        return _refused(sources[0]) if case.compiles and is_c else None

    def shrink(self, case: Case) -> Iterator[Case]:
        if case.kind != "text":
            return
        lines = case.text.split("\n")
        for size in (8, 4, 2, 1):
            for at in range(0, len(lines), size):
                yield replace(case, text="\n".join([*lines[:at], *lines[at + size :]]))

    def save(self, case: Case) -> str:
        return (
            "from fuzz.names import Case, Names\n\n"
            f"CASE = Case({case.kind!r}, {case.text!a}, {case.compiles})\n"
            "print(Names().run(CASE))\n"
        )


# ---------------------------------------------------------------------- generated code


def _sources(case: Case) -> list[str]:
    """The code that is made of a case; none where it is refused with a sentence."""
    try:
        if case.kind in ("C", "Triton", "PyTorch"):
            return _of_program(case.kind, json.loads(case.text))
        if case.kind == "trace":
            trace = Trace.from_json(json.loads(case.text))
            return _of_graph(trace.program_after(len(trace)))
        graph = bb.from_text(case.text)
        verify(graph)
        return _of_graph(graph)
    except BlockbusterError as error:
        refusal = error
    sentence = str(refusal)
    assert sentence.strip(), f"{type(refusal).__name__} without a sentence"
    assert not isinstance(refusal, BadText) or sentence.startswith("line ")
    return []


def _of_graph(graph: bb.Graph) -> list[str]:
    text = bb.to_text(graph)
    assert bb.to_text(bb.from_text(text)) == text
    bb.show(graph)
    made: list[Nest] = [scheduled(graph, "f", Schedule(grid=grid)) for grid in ("outer", "all")]
    return [print_c(made[0], {}), print_triton(made[1])]


def _of_program(kind: str, names: list[str]) -> list[str]:
    """An array program, and the files that are written of it."""
    traced = bb.trace(lambda x, y: {"O": bb.ops.softmax(x @ y)}, "M K", "K N")
    inputs = [replace(i, name=name) for i, name in zip(traced.inputs, names, strict=False)]
    outputs = [replace(o, name=names[2]) for o in traced.outputs]
    program = replace(traced, name=names[3], inputs=tuple(inputs), outputs=tuple(outputs))
    if kind == "PyTorch":
        from blockbuster_fusion.torch.from_array_program import torch_source

        return [f"import triton\n{torch_source(program)}"]
    made = emit(program, target="cpu" if kind == "C" else "cuda", file=f"{names[0]}.c")
    return [made.source, made.header] if made.header else [made.source]


# ------------------------------------------------------------------- checks of generated code


def trouble(source: str) -> str | None:
    """A fault of a generated text, or None."""
    if not source.isascii():
        return "characters beyond ASCII"
    return _python_trouble(source) if "import triton" in source else _c_trouble(source)


_FIXED = ("#include", "#pragma GCC diagnostic")
"""The lines with texts of the printer's own."""


def _c_trouble(source: str) -> str | None:
    if "\\\n" in source or "??" in source:
        return "a line that goes on, or a trigraph"
    code = re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL)
    if "*/" in code or "/*" in code or "//" in code:
        return "a comment that does not end where it should"
    kept = []
    for line in code.splitlines():
        if "#" in line and not _C_LINE.match(line):
            return f"a line for the preprocessor: {line[:80]}"
        kept.append("" if line.lstrip().startswith(_FIXED) else line)
    code = "\n".join(kept)
    for string in re.findall(r'"[^"\n]*"', code):
        if not re.fullmatch(r'"(C|[\w %.\\:,()+]*)"', string):
            return f"a string: {string[:80]}"
    words = _C_TOKEN.findall(code)
    rest = _C_TOKEN.sub(" ", code)
    if not _C_MARKS.fullmatch(rest):
        return f"characters that C has no use for: {sorted(set(rest))}"
    called = {"system", "popen", "execl", "execv", "fork", "touch", "passwd"} & set(words)
    return f"the words {called}" if called else None


_PYTHON_NODES = (ast.Import, ast.ImportFrom)


def _python_trouble(source: str) -> str | None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id.startswith("__") and node.id != "__name__":
            return f"the name {node.id}"
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            return f"the attribute {node.attr}"
        if isinstance(node, _PYTHON_NODES):
            names = {alias.name.partition(".")[0] for alias in node.names}
            if not names <= {"triton", "torch", "sys", "libdevice"}:
                return f"an import of {names}"
        if isinstance(node, ast.Lambda | ast.ClassDef | ast.Global | ast.Await):
            return f"a {type(node).__name__}"
    return None


def _refused(source: str) -> Failure | None:
    """The sentence of the real compiler about code that it does not take."""
    command = [*compiler(), "-fsyntax-only", "-std=gnu11", "-fopenmp", "-x", "c", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if CANARY.exists():
        return Failure("wrong", "executed: the canary is there", source)
    if done.returncode:
        return Failure(
            "wrong", f"refused by C: {done.stderr.splitlines()[:1]}", done.stderr + source
        )
    return None


if __name__ == "__main__":
    sys.exit(main(Names()))
