"""Programs as polynomials: equal programs are identical, and different ones are not."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, call, cast, const, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Elementwise, Map, Reduce, Value
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.safety.pivot.polynomials import MOST_TERMS, Atoms, Meaning, Poly, number
from helpers.graphs import K, M, N, array, heads, item, k, m

ZERO = number(0)


def names(atoms: Atoms) -> tuple[Poly, Poly, Poly]:
    """A matrix over M and K, a vector over K and one over M."""
    return (
        atoms.atom(("x",), frozenset({M, K})),
        atoms.atom(("w",), frozenset({K})),
        atoms.atom(("c",), frozenset({M})),
    )


def new() -> tuple[Atoms, Poly, Poly, Poly]:
    atoms = Atoms((M, K), (K,))
    return (atoms, *names(atoms))


def summed(atoms: Atoms, poly: Poly, dim: Dim = k) -> Poly:
    """The sum along an axis: inside blocks, then over the blocks."""
    return atoms.loop_sum(atoms.block_sum(poly, dim), dim)


def minus(a: Poly, b: Poly) -> Poly:
    return a + number(-1) * b


# ---------------------------------------------------------------- normal form


def test_normal_form() -> None:
    _, x, w, c = new()
    assert x + w == w + x
    assert x * w == w * x
    assert (x + w) * c == x * c + w * c
    assert (x + w) * (x + w) == x * x + number(2) * x * w + w * w
    assert minus(x, x) == ZERO
    assert x * ZERO == ZERO
    assert x != w
    assert x * x != x


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.integers(0, 2)), max_size=6))
def test_equal_means_identical(terms: list[tuple[int, int, int]]) -> None:
    """A polynomial added up in two orders, and its value at a point by Python's own arithmetic."""
    _, x, w, _ = new()
    polys = [
        number(factor) * product([x] * power_of_x) * product([w] * power_of_w)
        for factor, power_of_x, power_of_w in terms
    ]
    forward, backward = ZERO, ZERO
    for poly in polys:
        forward = forward + poly
    for poly in reversed(polys):
        backward = poly + backward
    assert forward == backward
    assert value(forward, {x: 3, w: 7}) == sum(f * 3**a * 7**b for f, a, b in terms)


def value(poly: Poly, at: dict[Poly, int]) -> Fraction:
    """The value of a polynomial where atoms are these numbers."""
    numbers = {next(iter(atom.terms))[0][0][0]: number for atom, number in at.items()}
    made = Fraction(0)
    for monomial, factor in poly.terms:
        for atom, power in monomial:
            factor *= numbers[atom] ** power
        made += factor
    return made


def product(polys: list[Poly]) -> Poly:
    made = number(1)
    for poly in polys:
        made = made * poly
    return made


def test_quotients() -> None:
    atoms, x, w, _ = new()
    half = atoms.expression(arg(0) / 2, [x])
    assert half + half == x
    assert atoms.expression(arg(0) / arg(1) * arg(1), [x, w]) == x
    inverse = atoms.expression(1 / (arg(0) + arg(1)), [x, w])
    assert inverse == atoms.expression(1 / (arg(1) + arg(0)), [x, w])
    assert inverse != atoms.expression(1 / (arg(1) - arg(0)), [x, w])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (arg(0) ** 2, arg(0) * arg(0)),
        (arg(0) ** 0, const(1)),
        (-(arg(0) - arg(1)), arg(1) - arg(0)),
        (cast(arg(0), DType.float32), arg(0)),
        (call("tanh", arg(0) + arg(1)), call("tanh", arg(1) + arg(0))),
        ((arg(0) + arg(1)) ** -0.5, (arg(1) + arg(0)) ** -0.5),
        (arg(0) * 0.5, arg(0) / 2),
        (arg(0) / size(K) * size(K), arg(0)),
    ],
)
def test_expressions_that_are_equal(one: Expr, other: Expr) -> None:
    atoms, x, w, _ = new()
    assert atoms.expression(one, [x, w]) == atoms.expression(other, [x, w])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call("tanh", arg(0)), arg(0)),
        (call("tanh", arg(0)), call("sin", arg(0))),
        (call("tanh", arg(0) + arg(1)), call("tanh", arg(0)) + call("tanh", arg(1))),
        (cast(arg(0), DType.int64), arg(0)),
        (cast(arg(0), DType.bool_), cast(arg(0), DType.int64)),
        (arg(0) ** -0.5, arg(0) ** 0.5),
        (arg(0) ** arg(1), arg(1) ** arg(0)),
        (call("where", arg(0) > 0, arg(0), arg(1)), call("where", arg(0) > 0, arg(1), arg(0))),
        (arg(0) / size(K), arg(0) / size(N)),
        (arg(0) * 0.1, arg(0) / 10),  # 0.1 is not a tenth
    ],
)
def test_expressions_that_differ(one: Expr, other: Expr) -> None:
    atoms, x, w, _ = new()
    assert atoms.expression(one, [x, w]) != atoms.expression(other, [x, w])


def test_a_known_extent_is_a_number() -> None:
    atoms = Atoms((), (Axis("A", 4),))
    assert atoms.extent(Axis("A", 4)) == number(4)
    assert atoms.extent(K) == atoms.extent(Axis("Q", K.extent))
    assert atoms.extent(K) != atoms.extent(N)


def test_large_products_are_taken_as_they_are() -> None:
    atoms, *_ = new()
    many = ZERO
    for i in range(MOST_TERMS // 2 + 1):
        many = many + atoms.atom(("many", i), frozenset({K}))
    assert len(atoms.product(many, many).terms) == 1
    assert atoms.product(many, many) == atoms.product(many, many)
    assert atoms.product(many, number(2)) == many + many


# ---------------------------------------------------------------- sums


def test_sums_are_linear() -> None:
    atoms, x, w, _ = new()
    both = summed(atoms, x + number(3) * w)
    assert both == summed(atoms, x) + number(3) * summed(atoms, w)


def test_what_does_not_vary_comes_out() -> None:
    atoms, x, w, c = new()
    assert summed(atoms, c * x) == c * summed(atoms, x)
    assert summed(atoms, c) == c * atoms.extent(K)
    assert summed(atoms, w * x) != w * summed(atoms, x)


def test_a_sum_has_no_axis() -> None:
    atoms, x, w, _ = new()
    assert summed(atoms, x).axes == {M}
    assert summed(atoms, w).axes == frozenset()
    assert atoms.block_sum(x, k).axes == {M, K}


def test_blocks_are_looked_through() -> None:
    """The sum along an axis is the same for every tile; a unit dim has one block."""
    atoms, x, w, _ = new()
    other = Dim(K, 1)
    for poly in (x, w, x * w, x * x, number(1)):
        assert summed(atoms, poly) == summed(atoms, poly, other)
        assert summed(atoms, poly) == atoms.block_sum(poly, k.as_unit)


def test_a_block_is_not_the_axis() -> None:
    atoms, x, *_ = new()
    part = atoms.block_sum(x, k)
    assert part != summed(atoms, x)
    assert part != atoms.block_sum(x, k.as_unit)


def test_an_unpacked_axis_is_summed_by_its_loop() -> None:
    atoms = Atoms((), (M,))
    y = atoms.atom(("y",), frozenset({M, heads.axis}))
    c = atoms.atom(("c",), frozenset({M}))
    assert atoms.loop_sum(c * y, heads) == c * atoms.loop_sum(y, heads)
    assert atoms.loop_sum(c, heads) == number(4) * c


def test_partial_sums_are_not_mixed_up() -> None:
    """Σ(Σx)² over blocks, the square of the sum, and Σx² are three things."""
    atoms, x, w, _ = new()
    part, whole = atoms.block_sum(x, k), summed(atoms, x)
    of_squares = atoms.loop_sum(part * part, k)
    assert of_squares not in (whole, whole * whole)
    assert of_squares != summed(atoms, x * x)
    assert atoms.loop_sum(part * atoms.block_sum(w, k), k) != whole * summed(atoms, w)
    assert atoms.loop_sum(part * x, k) != whole * x
    assert atoms.loop_sum(atoms.expression(call("tanh", arg(0)), [part]), k) != whole


def test_what_was_not_summed_in_the_block() -> None:
    """The blocks of x added up are not its sum, nor is a number of blocks an extent."""
    atoms, x, _, c = new()
    assert atoms.loop_sum(x, k) != summed(atoms, x)
    assert atoms.loop_sum(c, k) != c * atoms.extent(K)
    assert atoms.loop_sum(number(1), k) != atoms.extent(K)


def test_a_variance_feels_no_shift() -> None:
    atoms = Atoms((M, K), (K,))

    def variance(x: Poly) -> Poly:
        mean = [summed(atoms, poly) for poly in (x * x, x)]
        return atoms.expression(arg(0) / size(K) - (arg(1) / size(K)) ** 2, mean)

    x, p = atoms.summed, atoms.pivot
    assert variance(x + p) == variance(x)
    assert variance(x + x) != variance(x)
    assert summed(atoms, x + p) == summed(atoms, x) + p * atoms.extent(K)


@pytest.mark.parametrize(
    ("difference", "factor"),
    [
        (arg(1), "1.0"),
        (arg(1) * -3, "-3.0"),
        (arg(1) * size(K), "1.0*KK**1"),
        (arg(1) / size(K) * 2, "2.0*(KK**-1)"),
        (arg(1) * arg(1), None),
        (arg(1) * arg(0), None),
        (arg(1) + 1, None),
        (const(2.0), None),
        (const(0.0), None),
    ],
)
def test_multiples_of_the_pivot(difference: Expr, factor: str | None) -> None:
    atoms = Atoms((M, K), (K,))
    x, p = atoms.summed, atoms.pivot
    new = x + atoms.expression(difference, [x, p])
    found = atoms.multiple_of_pivot(new, x)
    assert (None if found is None else str(found)) == factor


# ---------------------------------------------------------------- whole graphs


def meaning(graph: Graph) -> Poly:
    """The polynomial of the output of a graph with one input."""
    atoms = Atoms((M, K), (K,))
    (found,) = Meaning(atoms, [((), Value(graph.inputs[0]))]).read(graph, [atoms.summed])
    return found


def felt(graph: Graph) -> Poly:
    """The change of the output if every loop reads shifted blocks of the input."""
    atoms = Atoms((M, K), (K,))
    x = Value(graph.inputs[0])
    uses = {
        ((loop,), user, inner): 1
        for loop, port in graph.uses(x)
        for user, inner in graph.map(loop).body.uses(Value(graph.map(loop).body.inputs[port]))
    }
    before = Meaning(atoms, [((), x)])
    (old,) = before.read(graph, [atoms.summed])
    (new,) = Meaning(atoms, [((), x)], uses, before).read(graph, [atoms.summed])
    return minus(new, old)


def row_program(expr: Expr, first: int = 0) -> Graph:
    """A row x of blocks over K: an expression of each block and of the sum of all.

    The loop that takes the sum starts at block `first`.
    """
    build = Builder()
    x = build.input("x", array(m, k).iterate(m))
    inner = Builder(build.ids)
    inner.output("", inner.one(BlockReduce(k, ADD), inner.input("", item(m, k))))
    total = build.one(Map(k, inner.build(), (True,), (Reduced(ADD),), first), x)
    op = Elementwise(expr)
    build.output("y", build.map(k, [x], [total], lambda g, *v: [(g.one(op, *v), None)])[0])
    return build.build()


CENTRED = arg(0) - arg(1) / size(K)


def test_a_centred_row_feels_no_shift() -> None:
    assert felt(row_program(CENTRED)) == ZERO
    assert meaning(row_program(CENTRED)) != ZERO


@pytest.mark.parametrize(
    "expr", [arg(0) + arg(1), arg(0) - arg(1), CENTRED * arg(0), CENTRED + call("tanh", arg(1))]
)
def test_other_rows_feel_it(expr: Expr) -> None:
    assert felt(row_program(expr)) != ZERO


def test_the_sum_of_a_peeled_loop_is_not_the_whole_sum() -> None:
    """Without its first block the sum is shifted by less than an extent of pivots."""
    assert felt(row_program(CENTRED, first=1)) != ZERO


def maxima() -> Graph:
    build = Builder()
    x = build.input("x", array(m, k).iterate(m))
    tops = build.map(k, [x], [], lambda g, x: [(g.one(BlockReduce(k, MAX), x), Reduced(MAX))])
    build.output("y", tops[0])
    return build.build()


def test_other_combiners_are_taken_as_they_are() -> None:
    ((monomial, factor),) = meaning(maxima()).terms
    assert factor == 1
    assert [atom.key[0] for atom, _ in monomial] == ["gathered"]
    assert felt(maxima()) != ZERO


def sums(*, fused: bool) -> Graph:
    """The sum of a row; `fused`: the loop adds up its results instead of stacking them."""
    build = Builder()
    x = build.input("x", array(m, k).iterate(m))
    mode = Reduced(ADD) if fused else None
    (made,) = build.map(k, [x], [], lambda g, x: [(g.one(BlockReduce(k, ADD), x), mode)])
    build.output("y", made if fused else build.one(Reduce(k, ADD), made))
    return build.build()


@pytest.mark.parametrize("fused", [True, False])
def test_lists_are_summed_as_loops_are(fused: bool) -> None:
    (((((atom, power),), factor)),) = meaning(sums(fused=fused)).terms
    assert (atom.key[:2], power, factor) == (("sum", K), 1, Fraction(1))


def test_what_is_not_shifted_is_not_read_again() -> None:
    graph, atoms = row_program(CENTRED), Atoms((M, K), (K,))
    cut = ((), Value(graph.inputs[0]))
    before = Meaning(atoms, [cut])
    (expected,) = before.read(graph, [atoms.summed])
    (again,) = Meaning(atoms, [cut], None, before).read(graph, [atoms.summed])
    assert again is expected
