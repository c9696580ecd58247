"""The configurations that benchmarks/gpu_alternatives.py measures: all that needs no GPU."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def alternatives(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_alternatives")


def test_cases_are_known(alternatives: ModuleType) -> None:
    names = {case.name for case in alternatives.CASES}
    assert {*alternatives.POINTS} <= names
    assert {*alternatives.UNITS} <= {*alternatives.POINTS}


def test_alternatives_differ_and_the_usual_choice_comes_first(alternatives: ModuleType) -> None:
    rows = alternatives.predicted("sum of all 16000000", 12)
    configs = [row["config"] for row in rows]
    assert len({*configs}) == len(configs) == 12
    assert any("split B/396" in config for config in configs)  # one that no search would try
    rows[0]["measured"], rows[1]["measured"] = 10.5, 9.5
    title, best, second, *rest = alternatives.told(rows)
    assert title.endswith("7.4 µs by the memory")
    assert "9.50 µs 0.77" in best
    assert "(chosen)" in second
    assert len(rest) == 10
