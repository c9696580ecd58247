"""The numeric fuzzer: a seeded part of its programs, repeatable seeds and shrinking."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.harness import Failure, fuzz
from fuzz.numeric import Numeric, Program
from helpers.effort import part

SHORT = part(60)
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "5000"))


def test_a_seed_gives_one_program() -> None:
    """Programs of all kinds, each of them the same again."""
    programs = [Numeric().generate(seed) for seed in range(60)]
    assert programs[:5] == [Numeric().generate(seed) for seed in range(5)]
    kinds = {statement.kind for program in programs for statement in program.statements}
    assert kinds >= {
        *("layernorm", "rmsnorm", "softmax", "log_softmax", "logsumexp", "matmul", "residual"),
        *("variance", "exp", "quotient", "shift by columns", "shift by a number", "scale by rows"),
    }
    assert {program.dtype for program in programs} >= {"float32", "bfloat16"}
    assert any(len(names) > 1 for program in programs for names in program.cases)


class Softmaxes(Numeric):
    """Programs in which a softmax counts as a failure."""

    def run(self, case: Program) -> Failure | None:
        kinds = [statement.kind for statement in case.statements]
        return Failure("wrong", "a softmax") if "softmax" in kinds else None


def test_failures_are_shrunk_to_files_that_run(tmp_path: Path) -> None:
    """Of each program with a softmax the softmax alone is left; the file judges it."""
    summary = fuzz(Softmaxes(), range(40), save=tmp_path)
    assert summary.cases == 40
    assert len(summary.found) > 5
    for found in summary.found:
        assert found.text.count("    v") == 1, found.text
    file = tmp_path / f"numeric_{summary.found[0].seed}.py"
    path = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert run.stdout.startswith("inputs ")
    assert run.stdout.splitlines()[-1].startswith("ok: as exact as the careful program")


def test_the_first_programs() -> None:
    summary = fuzz(Numeric(), range(SHORT))
    assert summary.ok, summary


@pytest.mark.long
def test_thousands_of_programs(tmp_path: Path) -> None:
    summary = fuzz(
        Numeric(),
        range(SHORT, SHORT + LONG),
        jobs=os.cpu_count() or 1,
        save=tmp_path,
        progress=True,
    )
    print(summary)
    assert summary.ok, f"{summary}\nsaved in {tmp_path}"
