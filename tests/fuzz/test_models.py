"""Random models over the whole operator table, compiled, against eager and float64."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from blockbuster_fusion.torch.table.row import TABLE
from fuzz.harness import fuzz
from fuzz.models.fuzzer import Models, smaller
from fuzz.models.judge import compared
from fuzz.models.maker import Maker, runs
from fuzz.models.operators import EXTRA, add_line
from fuzz.models.program import Given, Kind, Line, Program, Role

FIRST, MODELS = 0, 16
LONG = int(os.environ.get("BLOCKBUSTER_FUZZ", "1000"))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + MODELS))
def test_random_models(seed: int) -> None:
    fuzzer = Models()
    failure = fuzzer.run(fuzzer.generate(seed))
    assert failure is None, failure.detail


@pytest.mark.long
def test_many_random_models() -> None:
    summary = fuzz(Models(), range(10_000, 10_000 + LONG), jobs=os.cpu_count() or 1, progress=True)
    assert summary.ok, summary


@pytest.mark.parametrize("row", [*TABLE, *EXTRA])
def test_every_row_of_the_table_has_a_generator(row: str) -> None:
    for seed in range(40):
        m = Maker(seed)
        for dtype in (m.floats, torch.int64, torch.bool):
            m.add_given((4, 4), dtype)
            m.add_given((4,), dtype)
            m.add_given((2, 4, 4), dtype)
        if add_line(m, row):
            return
    pytest.fail(f"no line for {row}: give it a recipe in tests/fuzz/models/operators.py")


def test_a_model_is_made_again_from_its_seed() -> None:
    fuzzer = Models()
    assert [fuzzer.generate(seed) for seed in range(20)] == [*map(fuzzer.generate, range(20))]


def test_smaller_models_run() -> None:
    case = Models().generate(3)
    found = [*smaller(case.program)]
    assert found
    assert all(map(runs, found))


def test_a_saved_model_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = Models().save(Models().generate(5001))
    exec(compile(text, "<saved>", "exec"), {})
    assert "result 0: " in capsys.readouterr().out


# ---------------------------------------------------------------- the judge

PROGRAM = Program(
    (
        Given("g0", Role.INPUT, 1, (3, 4), torch.float32),
        Given("g1", Role.BUFFER, 2, (4,), torch.float32),
    ),
    (
        Line("v0 = g0 * 2 + g1", ("v0",), Kind.COMPUTE, "mul"),
        Line("v1 = v0.t()", ("v1",), Kind.VIEW, "t"),
        Line("v2 = torch.softmax(v0, -1)", ("v2",), Kind.COMPUTE, "softmax"),
        Line("g1.add_(1)", (), Kind.WRITE, "write"),
    ),
    ("v0", "v1", "v2"),
)

Change = Callable[[list[Tensor]], list[Tensor]]


def spoilt(change: Change) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend that runs eagerly and then does something to the results."""

    def backend(module: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        return lambda *given: tuple(change([*module(*given)]))

    return backend


FAULTS: dict[str, Change] = {
    "dtype": lambda r: [r[0], r[1], r[2].double()],
    "shape": lambda r: [r[0], r[1], r[2][None]],
    "strides": lambda r: [r[0], r[1], r[2].t().contiguous().t()],
    "aliasing": lambda r: [r[0], r[0].clone().t(), r[2]],
    "value": lambda r: [r[0], r[1], r[2] * (1 + 1e-5)],
    "class": lambda r: [r[0], r[1], r[2] / 0],
}


def test_the_judge_has_no_complaint_about_eager() -> None:
    assert compared(PROGRAM, spoilt(lambda results: results), None) == []


@pytest.mark.parametrize("kind", FAULTS)
def test_the_judge_finds(kind: str) -> None:
    assert kind in {c.kind for c in compared(PROGRAM, spoilt(FAULTS[kind]), None)}


def test_the_judge_sees_what_is_left_in_buffers() -> None:
    def forgetful(module: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        return lambda *given: module(*[x.clone() for x in given])

    names = [c.text.partition(":")[0] for c in compared(PROGRAM, forgetful, None)]
    assert "g1" in names


DIVIDED = Program(
    (
        Given("g0", Role.INPUT, 1, (8, 4), torch.float32),
        Given("g1", Role.INPUT, 2, (4, 3), torch.float32),
        Given("g2", Role.INPUT, 3, (), torch.int64, most=1),
    ),
    (
        Line("v0 = g0 / g2", ("v0",), Kind.COMPUTE, "aten.div"),
        Line("v1 = v0 @ g1", ("v1",), Kind.COMPUTE, "aten.mm"),
        Line("v2 = v0 - v0", ("v2",), Kind.COMPUTE, "aten.sub"),
    ),
    ("v1", "v2"),
)


def test_the_judge_knows_that_factors_move_past_sums() -> None:
    """A sum of infinities is NaN, and the sum itself divided by 0 is not."""

    def infinite(results: list[Tensor]) -> list[Tensor]:
        return [torch.where(x.isnan(), torch.inf, x) for x in results]

    product, difference = (replace(DIVIDED, results=(r,)).needed() for r in DIVIDED.results)
    assert compared(product, spoilt(infinite), None) == []
    assert {c.kind for c in compared(difference, spoilt(infinite), None)} == {"class"}
