"""Arithmetic that is noted: C repeats it, and says for which integers it holds."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockbuster_fusion.nest.passes.cascade_sums import run_length
from blockbuster_fusion.runtime.c.kernels import loaded
from blockbuster_fusion.runtime.traced import SOURCE, Number, Trace, int_of


def blocks(a: Any, b: Any) -> Any:
    return -(-a // 16) * max(16, 1 << (b - 1).bit_length())


def kinds(a: Any, b: Any) -> Any:
    if a % 16 == 0 and b > 3:
        return a * b + 7
    return a - 2 * b if a <= b else b - a


def ordered(a: Any, b: Any) -> Any:
    return sum(x * n for n, x in enumerate(sorted((a, b, 12), reverse=True)))


def counted(a: Any, b: Any) -> Any:
    return run_length(a, 8) + len(range(b % 3)) + math.prod([a, b, 2])


FUNCTIONS = (blocks, kinds, ordered, counted)
LIBRARY = loaded(SOURCE)
sizes = st.integers(0, 300)


def repeated(trace: Trace, result: Any, a: int, b: int) -> int | None:
    """The result for other integers, by C; None if a guard does not hold."""
    code = (ctypes.c_int64 * (3 * len(trace.code)))(*(x for each in trace.code for x in each))
    made = (ctypes.c_int64 * (len(trace.code) + 1))()
    holds = LIBRARY.traced(code, ctypes.c_int64(len(trace.code)), (ctypes.c_int64 * 2)(a, b), made)
    if not holds:
        return None
    return made[result.register] if isinstance(result, Number) else result


@pytest.mark.parametrize("function", FUNCTIONS)
@given(first=st.tuples(sizes, sizes), others=st.lists(st.tuples(sizes, sizes), max_size=20))
def test_c_gives_what_python_gives(
    function: Callable[[Any, Any], Any],
    first: tuple[int, int],
    others: list[tuple[int, int]],
) -> None:
    trace = Trace()
    result = function(trace.given(0, first[0]), trace.given(1, first[1]))
    assert int_of(result) == function(*first)
    assert repeated(trace, result, *first) == function(*first)
    for a, b in others:
        assert repeated(trace, result, a, b) in (None, function(a, b))


def test_negative_numbers_are_rounded_down() -> None:
    trace = Trace()
    a, b = trace.given(0, -7), trace.given(1, 3)
    quotient, rest = a // b, a % b
    for x, y in ((-7, 3), (7, -3), (-8, 4), (0, 5), (8, 3)):
        assert repeated(trace, quotient, x, y) == x // y
        assert repeated(trace, rest, x, y) == x % y


def test_a_number_that_is_used_as_an_index_is_fixed() -> None:
    trace = Trace()
    n = trace.given(0, 3)
    assert [*range(n)] == [0, 1, 2]
    assert repeated(trace, n, 3, 0) == 3
    assert repeated(trace, n, 4, 0) is None
