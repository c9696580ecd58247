"""Expressions and combiners: equality, and the cost of large ones."""

import math

import pytest

from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import Expr, arg, call, const
from blockbuster_fusion.ir.expr_dtypes import result_dtype
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Reduce
from blockbuster_fusion.ir.types import DType
from helpers.graphs import array, k


def test_a_shared_expression_is_not_written_out() -> None:
    expr = arg(0)
    for _ in range(200):
        expr = expr * expr
    assert str(expr) == "an expression of 201 parts"
    assert str(arg(0) * arg(10**12)) == "x0*x1000000000000"


def test_equal_numbers_of_different_kinds_are_told_apart() -> None:
    assert len({const(v) for v in (0, 0.0, -0.0, False)}) == 4
    assert const(math.nan) is const(float("nan"))
    identities = [(0,), (0.0,), (-0.0,), (False,)]
    assert len({Combiner("c", identity, (arg(0),)) for identity in identities}) == 4
    assert Combiner("c", (math.nan,), (arg(0),)) is Combiner("c", (float("nan"),), (arg(0),))


def test_the_digest_sees_identities() -> None:
    def reduced(identity: float) -> Graph:
        build = Builder()
        largest = Combiner("largest", (identity,), (call("maximum", arg(0), arg(1)),))
        build.output("y", build.one(Reduce(k, largest), build.input("x", array(k))))
        return build.build()

    assert reduced(0.0).digest == reduced(0.0).digest
    assert reduced(0.0).digest != reduced(-math.inf).digest


@pytest.mark.parametrize(
    ("expr", "dtype"),
    [
        (arg(0) * 2, DType.int64),
        (1 - arg(0), DType.int64),
        (arg(0) * 0.5, DType.float32),
        (arg(0) & True, DType.bool_),
        (call("where", arg(0), arg(0), False), DType.bool_),
        (call("maximum", arg(0), arg(0)), DType.bool_),
    ],
)
def test_numbers_that_meet_a_mask(expr: Expr, dtype: DType) -> None:
    assert result_dtype(expr, [DType.bool_]) is dtype
