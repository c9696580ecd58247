"""Predicted times choose good kernels for sums across rows on a GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.schedule import Schedule

H200 = known()["h200"]
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "column_sums_h200.json"
"""Measured times of blocks of rows and columns; parts are folded by a second kernel."""
CASES = json.loads(RESULTS.read_text(encoding="utf-8"))
SLOWER = 1.05
"""The factor by which the first one by prediction may be slower than the fastest."""
LEAST = 0.85
"""The least share of a measured time that is predicted: nothing looks much faster than it is."""


def predictions(case: dict[str, Any]) -> list[tuple[float, float]]:
    """The predicted and the measured microseconds of each configuration."""
    sizes = {"M": case["M"], "N": case["N"]}
    program = bb.trace(lambda X: bb.ops.sum(X, 0), "M N")
    made: list[tuple[float, float]] = []
    for row in case["configs"]:
        split = {"M": row["parts"]} if row["parts"] > 1 else {}
        schedule = Schedule(split=split, stages=row["stages"], warps=row["warps"])
        tiles = {"M.0": row["rows"], "N.0": row["columns"], "N.1": 32}
        given = Config(0, tiles, schedule)
        request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", config=given)
        (choice, *_) = choose(request)
        made.append((Improver([choice], H200).seconds(choice, ()) * 1e6, row["measured"]))
    return made


@pytest.mark.parametrize("case", CASES, ids=[f"{case['M']}x{case['N']}" for case in CASES])
def test_predictions_rank_measured_sums(case: dict[str, Any]) -> None:
    found = predictions(case)
    _, first = min(found)
    assert first <= SLOWER * min(measured for _, measured in found)
    assert all(predicted >= LEAST * measured for predicted, measured in found)
