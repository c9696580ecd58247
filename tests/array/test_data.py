"""Array programs as plain data: what JSON holds is read back exactly."""

import json
from functools import reduce
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.data import program_data, program_from_data
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import BadData


def through_json(program: ArrayProgram) -> ArrayProgram:
    return program_from_data(json.loads(json.dumps(program_data(program), allow_nan=False)))


@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_examples_are_read_back(name: str) -> None:
    program = bb.examples.find(name)
    again = through_json(program)
    assert again == program
    assert bb.lower(again).digest == bb.lower(program).digest


def test_numbers_keep_their_kinds() -> None:
    """JSON has no infinity; and 1, 1.0 and True are three things."""

    def masked(X, keep):  # type: ignore[no-untyped-def]
        return bb.ops.where(keep > 0, X * 1 + 1.0 - -0.0, -float("inf"))

    program = bb.trace(masked, "M N:64", "M N:64")
    again = through_json(program)
    assert again == program
    assert str(again) == str(program)
    assert "inf" in str(program)


def test_batches_and_combiners_are_read_back() -> None:
    def largest(X):  # type: ignore[no-untyped-def]
        return bb.ops.max(X, axis=-1)

    program = bb.trace(largest, "B M N", batch="B")
    assert program.batch
    assert through_json(program) == program


def test_an_expression_of_any_depth_stays_small() -> None:
    """Its parts are shared, so that written out it would be exponentially long."""

    def deep(t):  # type: ignore[no-untyped-def]
        return reduce(lambda y, _: y * y + t, range(1000), t)

    program = bb.trace(lambda X: bb.ops.elementwise(deep, X), "M")
    assert through_json(program) == program
    assert len(json.dumps(program_data(program))) < 100_000


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("axes"),
        lambda data: data.__setitem__("axes", [["M"]]),
        lambda data: data.__setitem__("inputs", [["X", [[-1], "float32"]]]),
        lambda data: data.__setitem__("inputs", [["X", [[0], "float31"]]]),
        lambda data: data.__setitem__("exprs", [["exp", [7], None]]),
        lambda data: data.__setitem__("operators", 3),
        lambda data: data.__setitem__("outputs", [["Y"]]),
    ],
)
def test_damaged_data_gets_a_sentence(damage: Any) -> None:
    data = program_data(bb.examples.find("softmax"))
    damage(data)
    with pytest.raises(BadData, match="the data is damaged"):
        program_from_data(data)
