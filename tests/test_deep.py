"""Deep, long and wide programs compile, in work that grows no faster than n·log n."""

import cProfile
import math
import pstats
import sys
from collections.abc import Callable

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.fusion.cut import LARGEST
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.schedule.schedule import scheduled
from helpers.deep_programs import chain, doubled, nested, outputs, products, unary_chain

Maker = Callable[[int], bb.ArrayProgram]

DEEPER_THAN_PYTHON = sys.getrecursionlimit() + 200
NESTED_PARENTHESES = 60
"""Far less than a Python parser (200) and a C compiler (256 in clang) take."""


def depth(text: str) -> int:
    """The number of parentheses that stand inside one another in a line."""
    deepest = 0
    for line in text.splitlines():
        now = 0
        for letter in line:
            now += (letter in "([") - (letter in ")]")
            deepest = max(deepest, now)
    return deepest


def generated(program: bb.ArrayProgram) -> tuple[bb.Graph, str]:
    """The chosen program and its C."""
    choice = choose(Request(program))[0]
    nest, tiles = choice.scheduled()
    assert max(sum(1 for _ in kernel.statements) for kernel in nest.kernels) <= 3 * LARGEST
    return choice.graph, print_c(nest, tiles)


def work(make: Maker, size: int) -> int:
    """The function calls that it takes to compile a program, the C compiler apart."""
    profile = cProfile.Profile()
    program = make(size)
    profile.enable()
    generated(program)
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "size"),
    [(chain, 150), (unary_chain, 150), (nested, 250), (outputs, 70), (products, 40)],
)
def test_work_grows_no_faster_than_n_log_n(make: Maker, size: int) -> None:
    work(make, size // 4)  # fills the caches
    small, large = work(make, size), work(make, 3 * size)
    assert large / small <= 1.1 * 3 * math.log(3 * size) / math.log(size)


@pytest.mark.parametrize("make", [unary_chain, nested])
def test_depth_is_no_matter_of_recursion(make: Maker) -> None:
    program = make(DEEPER_THAN_PYTHON)
    graph, text = generated(program)
    assert depth(text) <= NESTED_PARENTHESES
    repr(program)
    bb.verify(bb.from_text(bb.to_text(graph)))
    assert bb.show(graph)
    source = print_triton(scheduled(graph))
    assert depth(source) <= NESTED_PARENTHESES
    compile(source, "kernel", "exec")


def test_shared_parts_are_not_written_out() -> None:
    _, text = generated(doubled(200))
    assert len(text) < 200_000


def expected(make: Maker, size: int, x: np.ndarray) -> np.ndarray:
    """The same by NumPy."""
    y = x
    if make is unary_chain:
        for at in range(size):
            y = np.sin(y) if at % 2 else y * np.float32(0.5)
    elif make is chain:
        for _ in range(size // 2):
            y = np.tanh(y) + x
    else:
        for at in range(size):
            y = -y if at % 3 else y * np.float32(0.5) + x
    return y


@pytest.mark.parametrize("make", [chain, unary_chain, nested])
def test_what_was_cut_computes_the_same(make: Maker) -> None:
    x = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
    made = bb.compile(make(300))(x)["O"]
    exact = expected(make, 300, x.astype(np.float64))
    own = np.linalg.norm(expected(make, 300, x) - exact)
    floor = 4 * np.finfo(np.float32).eps * np.linalg.norm(exact)
    assert np.linalg.norm(made - exact) <= max(2 * own, floor)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "size"),
    [(chain, 10_000), (unary_chain, 10_000), (nested, 2000), (outputs, 500), (products, 500)],
)
def test_the_full_sizes_compile(make: Maker, size: int) -> None:
    generated(make(size))
