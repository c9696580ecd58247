"""Block programs that the interpreter's tests run, built by hand."""

from collections.abc import Sequence

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import Scalar, arg, as_expr, call, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Iota,
    Join,
    Map,
    Pick,
    Reduce,
    Rename,
    Value,
)
from blockbuster_fusion.ir.types import DType
from helpers.graphs import K, M, N, P, array, heads, item, k, m, n

D, L = (Axis(name, Symbol(name * 2)) for name in "DL")
d, l, p = Dim(D), Dim(L), Dim(P)  # noqa: E741 (the paper's names)

Results = list[tuple[Value, Mode]]

SCALED_EXP = call("exp", arg(0) * size(D) ** -0.5)


def expression(g: Builder, expr: Scalar, *operands: Value) -> Value:
    """An elementwise operator."""
    return g.one(Elementwise(as_expr(expr)), *operands)


def each(g: Builder, dims: Sequence[Dim], expr: Scalar, *lists: Value) -> Value:
    """An expression of lists, in one map per dim."""
    if not dims:
        return expression(g, expr, *lists)
    iterated = [v for v in lists if g.type(v).list_dim(dims[0])]
    whole = [v for v in lists if v not in iterated]
    ports = [*iterated, *whole]

    def body(g: Builder, *values: Value) -> Results:
        return [(each(g, dims[1:], expr, *(values[ports.index(v)] for v in lists)), None)]

    return g.map(dims[0], iterated, whole, body)[0]


def matmul(*, fused: bool = True, dtype: DType = DType.float32) -> Graph:
    """A·Bᵀ; `fused`: the products are added up where they are made."""
    build = Builder()
    left = build.input("A", array(m, k, dtype=dtype))
    right = build.input("B", array(n, k, dtype=dtype))
    mode = Reduced(ADD) if fused else None

    def column(g: Builder, block: Value, row: Value) -> Results:
        (made,) = g.map(k, [row, block], [], lambda g, x, y: [(g.one(Dot(k), x, y), mode)])
        return [(made if fused else g.one(Reduce(k, ADD), made), None)]

    (product,) = build.map(
        m, [left], [right], lambda g, x, y: [(g.map(n, [y], [x], column)[0], None)]
    )
    build.output("C", product, (M, N))
    return build.build()


def batched_matmul() -> Graph:
    """A matmul per head: the head's dim is unpacked. The result is laid out (M, H, N)."""
    build = Builder()
    left, right = build.input("A", array(heads, m, k)), build.input("B", array(heads, n, k))

    def column(g: Builder, block: Value, row: Value) -> Results:
        return [
            (
                g.map(k, [row, block], [], lambda g, x, y: [(g.one(Dot(k), x, y), Reduced(ADD))])[
                    0
                ],
                None,
            )
        ]

    def rows(g: Builder, x: Value, y: Value) -> Results:
        return [
            (g.map(m, [x], [y], lambda g, x, y: [(g.map(n, [y], [x], column)[0], None)])[0], None)
        ]

    (product,) = build.map(heads, [left, right], [], rows)
    build.output("C", product, (M, heads.axis, N))
    return build.build()


def row_sums(combiner: Combiner = ADD, dtype: DType = DType.float32) -> Graph:
    """X reduced over K, block by block and then over the blocks."""
    build = Builder()
    x = build.input("X", array(m, k, dtype=dtype))

    def row(g: Builder, x: Value) -> Results:
        (parts,) = g.map(k, [x], [], lambda g, x: [(g.one(BlockReduce(k, combiner), x), None)])
        return [(g.one(Reduce(k, combiner), parts), None)]

    build.output("S", build.map(m, [x], [], row)[0])
    return build.build()


def attention() -> Graph:
    """The paper's Example 1 as it starts: seven maps over M."""
    build = Builder()
    q, kt, vt = (
        build.input(name, array(*dims))
        for name, dims in (("Q", (m, d)), ("KT", (n, d)), ("VT", (l, n)))
    )

    def product(q: Value, t: Value, over: Dim, column: Dim) -> Value:
        def columns(g: Builder, t: Value, q: Value) -> Results:
            (made,) = g.map(over, [q, t], [], lambda g, x, y: [(g.one(Dot(over), x, y), None)])
            return [(g.one(Reduce(over, ADD), made), None)]

        return build.map(
            m, [q], [t], lambda g, q, t: [(g.map(column, [t], [q], columns)[0], None)]
        )[0]

    def sums(g: Builder, x: Value) -> Results:
        (parts,) = g.map(n, [x], [], lambda g, x: [(g.one(BlockReduce(n, ADD), x), None)])
        return [(g.one(Reduce(n, ADD), parts), None)]

    weights = each(build, (m, n), SCALED_EXP, product(q, kt, d, n))
    inverse = each(build, (m,), 1.0 / arg(0), build.map(m, [weights], [], sums)[0])
    normal = each(build, (m, n), arg(0) * arg(1), weights, inverse)
    build.output("O", product(normal, vt, n, l), (M, L))
    return build.build()


def flash_attention() -> Graph:
    """The paper's Example 1 as it ends: one map over M, nothing buffered inside."""
    build = Builder()
    q, kt, vt = (
        build.input(name, array(*dims))
        for name, dims in (("Q", (m, d)), ("KT", (n, d)), ("VT", (l, n)))
    )

    def step(g: Builder, kt: Value, vt: Value, q: Value) -> Results:
        (scores,) = g.map(d, [q, kt], [], lambda g, x, y: [(g.one(Dot(d), x, y), Reduced(ADD))])
        weights = expression(g, SCALED_EXP, scores)
        sums, products = g.one(BlockReduce(n, ADD), weights), g.one(Dot(n), weights, vt)
        return [(sums, Reduced(ADD)), (products, Reduced(ADD))]

    def column(g: Builder, vt: Value, q: Value, kt: Value) -> Results:
        sums, products = g.map(n, [kt, vt], [q], step)
        return [(expression(g, arg(0) * arg(1), products, expression(g, 1.0 / arg(0), sums)), None)]

    (made,) = build.map(
        m, [q], [kt, vt], lambda g, q, kt, vt: [(g.map(l, [vt], [q, kt], column)[0], None)]
    )
    build.output("O", made, (M, L))
    return build.build()


_MAX = call("maximum", arg(0), arg(3))
RESCALED = Combiner(
    "rescaled",
    (float("-inf"), 0.0, 0.0),
    (
        _MAX,
        *(
            arg(i) * call("exp", arg(0) - _MAX) + arg(3 + i) * call("exp", arg(3) - _MAX)
            for i in (1, 2)
        ),
    ),
)
"""A running maximum, and two sums that are rescaled by it."""


def safe_attention() -> Graph:
    """softmax(X)·V over N with the running maximum, the sum and the products as one tuple."""
    build = Builder()
    x, v = build.input("X", array(m, n)), build.input("V", array(n, l))

    def step(g: Builder, x: Value, v: Value) -> Results:
        top = g.one(BlockReduce(n, MAX), x)
        weights = expression(g, call("exp", arg(0) - arg(1)), x, top)
        made = (top, g.one(BlockReduce(n, ADD), weights), g.one(Dot(n), weights, v))
        return [(value, Reduced(RESCALED, i)) for i, value in enumerate(made)]

    def column(g: Builder, v: Value, x: Value) -> Results:
        top, total, products = g.map(n, [x, v], [], step)
        logsumexp = expression(g, arg(0) + call("log", arg(1)), top, total)
        return [(expression(g, arg(0) / arg(1), products, total), None), (logsumexp, Reduced(ANY))]

    made, logsumexp = build.map(
        m, [x], [v], lambda g, x, v: [(r, None) for r in g.map(l, [v], [x], column)]
    )
    build.output("O", made, (M, L))
    build.output("logsumexp", logsumexp)
    return build.build()


def peeled() -> Graph:
    """2·X, the first block over K outside the loop."""
    build = Builder()
    x = build.input("X", array(m, k))
    double = Elementwise(arg(0) * 2.0)

    def row(g: Builder, x: Value) -> Results:
        first = g.one(double, g.one(Pick(k, 0), x))
        inner = Builder(g.ids)
        inner.output("", inner.one(double, inner.input("", item(m, k))))
        rest = g.one(Map(k, inner.build(), (True,), (None,), first=1), x)
        return [(g.one(Join(k), first, rest), None)]

    build.output("Y", build.map(m, [x], [], row)[0], (M, K))
    return build.build()


def gram() -> Graph:
    """f(X)·f(X)ᵀ with f doubling: M is renamed to P, for the result would have it twice."""
    build = Builder()
    x = build.input("X", array(m, k))
    doubled = each(build, (m, k), arg(0) * 2.0, x)
    other = build.one(Rename(M, P), doubled)

    def column(g: Builder, y: Value, x: Value) -> Results:
        (made,) = g.map(k, [x, y], [], lambda g, x, y: [(g.one(Dot(k), x, y), Reduced(ADD))])
        return [(made, None)]

    (made,) = build.map(
        m, [doubled], [other], lambda g, x, y: [(g.map(p, [y], [x], column)[0], None)]
    )
    build.output("G", made, (M, P))
    return build.build()


def causal() -> Graph:
    """X where the column is not after the row, and minus infinity elsewhere."""
    build = Builder()
    x = build.input("X", array(m, n))
    rows, columns = build.one(Iota(m)), build.one(Iota(n.free))
    mask = call("where", arg(1) <= arg(0), arg(2), float("-inf"))
    build.output("Y", each(build, (m, n), mask, rows, columns, x), (M, N))
    return build.build()
