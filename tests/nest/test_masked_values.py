"""Transfer functions of abstract values, each against numbers that the operands stand for."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from blockbuster_fusion.ir.combiner import ADD, MAX, MIN
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, arg, cast
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.masked_values import (
    ANY,
    FALSE,
    MASKED,
    MINUS_INFINITY,
    ONE,
    SCORE_LIMIT,
    SIZE,
    TRANSFER,
    TRUE,
    ZERO,
    Abstract,
    Interval,
    Kept,
    applied,
    assumption,
    contracted,
    join,
    number,
    reduced,
)
from blockbuster_fusion.nest.nest import Tile

TRIES = 1000
ACCUMULATOR = Tile("a", (), DType.float32)
TRUTH = Tile("b", (), DType.bool_)
LOGICAL = ("not_", "or_", "and_")


def some_interval(r: random.Random) -> Interval:
    ends = sorted(r.choice([-1, 1]) * 10 ** r.uniform(-6, 19) for _ in range(2))
    if r.random() < 0.3:
        ends[1] = -(10 ** r.uniform(math.log10(-MASKED), 37))
    low = r.choice([-math.inf, ends[1], min(ends[0], ends[1])])
    return Interval(low, ends[1])


def some_number(r: random.Random) -> Abstract:
    known = [ZERO, ONE, SIZE, MINUS_INFINITY, ANY, Kept(ACCUMULATOR)]
    running = [Kept(ACCUMULATOR, least) for least in (-math.inf, -3.4e38, -1.0, 0.0)]
    return r.choice([*known, *running, *(some_interval(r) for _ in range(6))])


def some_truth(r: random.Random) -> Abstract:
    return r.choice([FALSE, TRUE, ANY, Kept(TRUTH)])


def operands(op: str, r: random.Random) -> list[Abstract]:
    arity = FUNCTIONS[op].arity
    if op in LOGICAL or (op in ("maximum", "minimum") and r.random() < 0.3):
        return [some_truth(r) for _ in range(arity)]
    found = [some_number(r) for _ in range(arity)]
    if op == "where" or (op == "mul" and r.random() < 0.2):
        found[0] = some_truth(r)
    return found


def accumulators(found: Sequence[Abstract], r: random.Random, above: float) -> dict[Tile, float]:
    """Numbers for the accumulators that operands are, each where it can be."""
    least = max([x.least for x in found if isinstance(x, Kept) and x.least is not None] + [above])
    least = max(least, -SCORE_LIMIT / 2 if above > -math.inf else -1e30)
    return {ACCUMULATOR: r.uniform(least, max(least, 1e3)), TRUTH: r.random() < 0.5}


def member(value: Abstract, held: dict[Tile, float], r: random.Random, is_truth: bool) -> float:
    """A number that an abstract value stands for."""
    match value:
        case Interval():
            low = value.low if math.isfinite(value.low) else value.high - 10 ** r.uniform(0, 37)
            inside = value.high if value.high == -math.inf else r.uniform(low, value.high)
            return r.choice([value.low, value.high, min(max(inside, value.low), value.high)])
        case Kept():
            return held[value.tile]
    if value is not ANY:
        return value is TRUE
    return r.random() < 0.5 if is_truth else r.choice([-1, 1]) * 10 ** r.uniform(-9, 19)


def holds(value: Abstract, found: float, held: dict[Tile, float]) -> bool:
    match value:
        case Interval():
            with np.errstate(over="ignore"):
                return bool(np.float32(value.low) <= found <= np.float32(value.high))
        case Kept():
            return bool(np.float32(found) == np.float32(held[value.tile]))
    return value is ANY or bool(found) == (value is TRUE)


@pytest.mark.parametrize("op", TRANSFER)
def test_a_result_is_one_of_those_that_are_expected(op: str) -> None:
    r = random.Random(op)
    expr = Expr(op, tuple(map(arg, range(FUNCTIONS[op].arity))))
    known = 0
    for _ in range(TRIES):
        given = operands(op, r)
        needed = assumption(op, given)
        held = accumulators(given, r, -math.inf if needed is None else -SCORE_LIMIT)
        is_truth = [op in LOGICAL or FALSE in given or TRUE in given or Kept(TRUTH) in given] * 3
        if op in ("where", "mul"):
            is_truth = [True, False, False] if op == "where" else [False] * 2
        members = [member(x, held, r, t) for x, t in zip(given, is_truth, strict=False)]
        single = [x if isinstance(x, bool) else np.float32(x) for x in members]
        with np.errstate(all="ignore"):
            found = FUNCTIONS[op].numpy(*single)
        expected = applied(expr, given)
        known += expected is not ANY
        assert holds(expected, found, held), (op, given, members, expected, found)
    assert known


@pytest.mark.parametrize("dtype", [DType.float32, DType.float16, DType.int64, DType.bool_])
def test_casts(dtype: DType) -> None:
    r = random.Random(str(dtype))
    kinds = {DType.float16: np.float16, DType.int64: np.int64, DType.bool_: np.bool_}
    for _ in range(TRIES):
        given = r.choice([some_number(r), some_truth(r)])
        held = accumulators([given], r, -math.inf)
        value = member(given, held, r, isinstance(given, Kept) and given.tile is TRUTH)
        with np.errstate(all="ignore"):
            found = np.asarray(value).astype(kinds.get(dtype, np.float32))[()]
        assert holds(applied(cast(arg(0), dtype), [given]), found, held)


def test_joins_are_least_upper_bounds() -> None:
    r = random.Random(0)
    for _ in range(TRIES):
        a, b = some_number(r), some_number(r)
        both = join(a, b)
        assert both == join(b, a)
        assert join(a, a) == a
        assert join(both, a) == both == join(both, b)
        held = accumulators([a, b], r, -math.inf)
        for one in (a, b):
            assert holds(both, np.float32(member(one, held, r, False)), held)


@pytest.mark.parametrize("combiner", [ADD, MAX, MIN], ids=str)
def test_reductions(combiner) -> None:
    r = random.Random(str(combiner))
    reduce = {"add": np.sum, "max": np.max, "min": np.min}[combiner.name]
    for _ in range(TRIES // 10):
        given = some_number(r)
        held = accumulators([given], r, -math.inf)
        row = np.array([member(given, held, r, False) for _ in range(5)], np.float32)
        with np.errstate(all="ignore"):
            assert holds(reduced(combiner, given), reduce(row), held)


def test_contractions_with_zeros_keep_the_accumulator() -> None:
    kept = Kept(ACCUMULATOR)
    assert contracted(kept, ZERO, ANY) == contracted(kept, ANY, ZERO) == kept
    assert contracted(kept, ONE, ANY) is ANY


def test_numbers() -> None:
    assert number(True) is TRUE
    assert number(0.0) == ZERO
    assert number(-math.inf) == MINUS_INFINITY
    assert number(math.inf) is ANY
    assert number(math.nan) is ANY
    masked = number(-3.4028235e38)
    assert isinstance(masked, Interval)
    assert masked.is_masked
