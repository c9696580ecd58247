"""The configurations that benchmarks/gpu_alternatives.py measures: all that needs no GPU."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def alternatives(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_alternatives")


def words(alternatives: ModuleType, rows: Iterable[dict[str, Any]]) -> list[str]:
    """The configurations of some rows in words."""
    return [str(alternatives.Config.from_data(row["config"])) for row in rows]


def test_cases_are_known(alternatives: ModuleType) -> None:
    names = {case.name for case in alternatives.CASES}
    assert {part.case for part in alternatives.ALL.values()} <= names


def test_alternatives_differ_and_the_usual_choice_comes_first(alternatives: ModuleType) -> None:
    rows = alternatives.predicted("sum of all 16000000", 12)
    configs = words(alternatives, rows)
    assert len({*configs}) == len(configs) == 12
    assert any("split B/528" in config for config in configs)  # one that no search would try
    rows[0]["measured"], rows[1]["measured"] = 10.5, 9.5
    title, best, second, *rest = alternatives.told(rows)
    assert title.endswith("7.4 µs by the memory")
    assert "9.50 µs 0.77" in best
    assert "(chosen)" in second
    assert len(rest) == 10


def test_a_program_among_several_has_points_of_its_own(alternatives: ModuleType) -> None:
    first, *rows = alternatives.predicted("SwiGLU: down, 1x1024", 40)
    assert first["bytes"] == 2 * (1024 * 2816 + 2816 + 1024 + 1024)
    configs = words(alternatives, rows)
    assert any(
        "tiles B.0=4096, M.0=1; all grid; launched early; warps 4; stages 1" in c for c in configs
    )


def test_a_point_may_take_another_snapshot(alternatives: ModuleType) -> None:
    rows = alternatives.predicted("SwiGLU: up, 16x1024", 8)
    first, second, *_ = words(alternatives, rows)
    assert "prologue apart" in first
    assert second.startswith("snapshot 2; tiles B.0=16, M.0=256, N.0=32; all grid")
