"""The harness of the fuzzers: failures are found, shrunk, saved and counted."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fuzz.harness import Failure, fuzz, main


@dataclass(frozen=True)
class Numbers:
    """Cases are lists of numbers; some numbers are trouble."""

    name: str = "numbers"
    trouble: frozenset[int] = frozenset()

    def generate(self, seed: int) -> list[int]:
        return list(range(seed, seed + 4))

    def run(self, case: list[int]) -> Failure | None:
        if 13 in case and 13 in self.trouble:
            raise ValueError("thirteen\nof all numbers")
        if 29 in case and 29 in self.trouble:
            time.sleep(60)
        if 31 in case and 31 in self.trouble:
            os._exit(3)
        return Failure("wrong", "seven") if 7 in case and 7 in self.trouble else None

    def shrink(self, case: list[int]) -> Iterator[list[int]]:
        for i in range(len(case)):
            yield case[:i] + case[i + 1 :]

    def save(self, case: list[int]) -> str:
        return f"print({case})\n"


def test_all_is_well() -> None:
    summary = fuzz(Numbers(), range(10))
    assert summary.ok
    assert str(summary) == "numbers: 10 cases, 0 wrong, 0 crashes, 0 hangs (0 s)"


def test_failures_are_shrunk_and_saved(tmp_path: Path) -> None:
    summary = fuzz(Numbers(trouble=frozenset({7})), range(20), save=tmp_path)
    assert [found.seed for found in summary.found] == [4, 5, 6, 7]
    assert summary.count("wrong") == 4
    text = (tmp_path / "numbers_5.py").read_text(encoding="utf-8")
    assert text == "# numbers, seed 5: wrong, seven\nprint([7])\n"
    assert "      4  wrong: seven  (seeds 4, 5, 6, 7)" in str(summary)


def test_crashes_and_hangs() -> None:
    summary = fuzz(Numbers(trouble=frozenset({13, 29})), [13, 29], seconds=0.2, budget=0.1)
    assert [found.failure.kind for found in summary.found] == ["crash", "hang"]
    cause = summary.found[0].failure.cause
    assert cause == "ValueError in test_harness.py:run: thirteen"


def test_processes() -> None:
    """A process that dies is replaced; the others' results are the same as without processes."""
    fuzzer = Numbers(trouble=frozenset({7, 31}))
    summary = fuzz(fuzzer, [1, 7, 31, 40], jobs=2)
    assert summary.cases == 4
    assert {(f.seed, f.failure.kind) for f in summary.found} == {(7, "wrong"), (31, "crash")}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--count", "3", "--seed", "5", "--jobs", "0", "--save", str(tmp_path)]
    assert main(Numbers(), arguments) == 0
    assert main(Numbers(trouble=frozenset({7})), arguments) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("numbers: 3 cases, 0 wrong")
    assert printed[1].startswith("numbers: 3 cases, 3 wrong")
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"numbers_{seed}.py" for seed in (5, 6, 7)
    ]
