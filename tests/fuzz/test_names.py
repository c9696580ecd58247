"""The fuzzer of names: a seeded part of its cases, and planted defects that it finds."""

import os
import re
from collections import Counter

import pytest

from blockbuster_fusion.naming import Scope
from blockbuster_fusion.printers.c import kernel_text as c_text
from blockbuster_fusion.printers.c import layout as c_layout
from blockbuster_fusion.printers.c import lengths as c_lengths
from fuzz.harness import fuzz
from fuzz.names import Case, Names, _sources, trouble

LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "5000"))
FIRST, TEXTS = 70_000, 60


def test_hostile_texts() -> None:
    summary = fuzz(Names(), range(FIRST, FIRST + TEXTS))
    assert summary.ok, summary


@pytest.mark.long
def test_many_hostile_texts() -> None:
    summary = fuzz(Names(), range(100_000, 100_000 + LONG), jobs=os.cpu_count() or 1, progress=True)
    assert summary.ok, summary


def test_a_seed_gives_one_case() -> None:
    cases = [Names().generate(seed) for seed in range(400)]
    assert cases[:20] == [Names().generate(seed) for seed in range(20)]
    assert Counter(case.kind for case in cases).keys() == {
        "text",
        "trace",
        "C",
        "Triton",
        "PyTorch",
    }
    assert any(case.compiles for case in cases)


def test_code_from_outside_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With names or comments as they come, cases fail."""

    class Plain(Scope):
        def claim(self, wanted: str) -> str:
            return wanted

    text = '[x; system("touch y")'
    case = Case("text", next(_renamed(text)))
    assert not [trouble(source) for source in _sources(case) if trouble(source)]
    with monkeypatch.context() as patch:
        patch.setattr(c_lengths, "Scope", Plain)
        patch.setattr(c_layout, "word", lambda name: name)
        assert trouble(_sources(case)[0]) is not None
    with monkeypatch.context() as patch:
        patch.setattr(c_text, "comment", lambda text: f"{text} */ x")
        assert "does not end where it should" in str(trouble(_sources(case)[0]))


def _renamed(name: str):
    import blockbuster_fusion as bb
    from blockbuster_fusion.ir.text.scanner import quote

    text = bb.to_text(bb.lower(bb.trace(lambda x: {"O": bb.ops.softmax(x)}, "M N")))
    yield re.sub(r"\bN\b(?=[.\s\]])", lambda _: quote(name), text)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("int é;", "beyond ASCII"),
        ("int a; /* b */ c */", "does not end"),
        ("int a; \\\nint b;", "goes on"),
        ("#error x", "preprocessor"),
        ('char *a = "; touch $(x)";', "a string"),
        ("int a = system(b);", "the words"),
        ("int a @ b;", "no use"),
        ("import triton\nimport os", "an import"),
        ("import triton\nx = y.__class__", "the attribute"),
        ("import triton\nx = __import__", "the name"),
    ],
)
def test_what_generated_code_may_not_have(source: str, problem: str) -> None:
    assert problem in str(trouble(source))
