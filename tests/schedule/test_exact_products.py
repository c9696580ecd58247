"""Predicted times of float32 products that are not rounded: no tensor core computes them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.work import Work

H200 = known()["h200"]
KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "exact_products_h200.json"
CASES = {case["case"]: case for case in json.loads(KEPT.read_text(encoding="utf-8"))["cases"]}
o = bb.ops

PROGRAMS: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "product": (lambda X, Y: X @ Y, ("M K", "K N")),
    "attention": (lambda Q, K, V: o.softmax(Q @ K.T * 0.125) @ V, ("M D", "N D", "N E")),
}


def choices(name: str, dtype: str) -> list[Choice]:
    function, specs = PROGRAMS[name]
    program, sizes = bb.trace(function, *specs), CASES[name]["sizes"]
    return choose(Request(program, target="cuda", sizes=sizes, dtype=dtype, capability=90))


def microseconds(choice: Choice) -> float:
    return 1e6 * Improver([choice], H200).seconds(choice, ())


def work_in(choice: Choice) -> Work:
    nest, tiles = choice.scheduled()
    return work_of(nest.kernels[0], Tiling(Extents(), tiles), "cuda")


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_near_what_was_measured(name: str) -> None:
    """They were those of tensor cores: 59 µs for 400, and 50 for 8800."""
    first, rows = choices(name, "float32")[0], CASES[name]["rows"]
    found = []
    for row in rows:
        tiles = {dim: row["tiles"].get(dim.name, tile) for dim, tile in first.tiles.items()}
        schedule = replace(first.schedule, warps=row["warps"], stages=row["stages"])
        found.append(microseconds(replace(first, tiles=tiles, schedule=schedule)))
    ratios = [row["microseconds"] / own for row, own in zip(rows, found, strict=True)]
    assert all(0.6 < ratio < 2.5 for ratio in ratios), ratios
    fastest = rows[found.index(min(found))]["microseconds"]
    assert fastest <= 1.3 * min(row["microseconds"] for row in rows)


@pytest.mark.parametrize("name", CASES)
def test_a_thread_has_few_accumulators(name: str) -> None:
    choice = Improver(choices(name, "float32"), H200).best(())[0]
    work = work_in(choice)
    assert work.is_exact
    assert work.is_chained == (name == "attention")
    assert work.accumulated / (32 * (choice.schedule.warps or 4)) <= 64


@pytest.mark.parametrize("name", CASES)
def test_products_of_16_bits_are_not_exact(name: str) -> None:
    assert not work_in(choices(name, "bfloat16")[0]).is_exact


def test_blocks_in_batches_cost_more() -> None:
    """A convolution's blocks were multiplied in batches and summed: 472 µs, predicted as 48."""
    sizes = {"B": 64, "M": 2048, "K": 16, "N": 1024}
    batched = bb.trace(lambda X, W: o.sum(X @ W, axis=0), "B M K", "B K N")
    whole = bb.trace(lambda X, W: X @ W, "M K", "K N")
    found = []
    for program, own in ((batched, sizes), (whole, {"M": 2048, "K": 1024, "N": 1024})):
        request = Request(program, target="cuda", sizes=own, dtype="bfloat16", capability=90)
        found.append(microseconds(Improver(choose(request), H200).best(())[0]))
    assert found[0] > 5 * found[1]
