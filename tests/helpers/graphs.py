"""Small block programs that several tests use."""

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, Combiner, Reduced
from blockbuster_fusion.ir.expr import arg, call, cast, const, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Iota,
    Join,
    Map,
    Misc,
    Pick,
    Reduce,
    Rename,
    Take,
    Value,
)
from blockbuster_fusion.ir.types import DType, Type

M, N, K = (Axis(name, Symbol(name * 2)) for name in "MNK")
P, H = Axis("P", Symbol("MM")), Axis("H", 4)
m, n, k, heads = Dim(M), Dim(N), Dim(K), Dim(H, 0, packed=False)

ONLINE = Combiner(
    "online",
    (float("-inf"), 0.0),
    (
        call("maximum", arg(0), arg(2)),
        arg(1) * call("exp", arg(0) - call("maximum", arg(0), arg(2)))
        + arg(3) * call("exp", arg(2) - call("maximum", arg(0), arg(2))),
    ),
)
"""The running maximum and sum of an online softmax."""


def array(*dims: Dim, dtype: DType = DType.float32) -> Type:
    """A list over the free dims of items with the same axes."""
    free = tuple(dim.free for dim in dims)
    return Type(free, tuple(dim for dim in free if dim.packed), dtype)


def item(*dims: Dim, dtype: DType = DType.float32) -> Type:
    """An item in local memory."""
    return Type((), dims, dtype)


def matmul_relu() -> Graph:
    """relu(A·Bᵀ), with the matmul and the relu in maps of their own."""
    build = Builder()
    left, right = build.input("A", array(m, k)), build.input("B", array(n, k))

    def column(g: Builder, block: Value, row: Value) -> list[tuple[Value, None]]:
        (products,) = g.map(k, [row, block], [], lambda g, x, y: [(g.one(Dot(k), x, y), None)])
        return [(g.one(Reduce(k, ADD), products), None)]

    def relu(g: Builder, row: Value) -> list[tuple[Value, None]]:
        expr = call("maximum", arg(0), 0.0)
        return [(g.map(n, [row], [], lambda g, x: [(g.one(Elementwise(expr), x), None)])[0], None)]

    (product,) = build.map(
        m, [left], [right], lambda g, x, y: [(g.map(n, [y], [x], column)[0], None)]
    )
    (result,) = build.map(m, [product], [], relu)
    build.output("C", result, (M, N))
    return build.build()


def every_operator() -> Graph:
    """A program without much sense that has every operator and every mode."""
    build = Builder()
    x = build.input("X", array(heads, m, k, dtype=DType.bfloat16))
    y = build.input('Y "odd"\n', array(n, k))
    mask = build.one(Iota(m))

    def scores(g: Builder, x: Value, at: Value, y: Value) -> list[tuple[Value, Reduced | None]]:
        def over_k(g: Builder, x: Value, y: Value) -> list[tuple[Value, Reduced | None]]:
            scaled = g.one(Elementwise(cast(arg(0), DType.float32) * size(K) ** -0.5), x)
            dot = g.one(Dot(k), scaled, y)
            return [(dot, Reduced(ADD)), (g.one(BlockReduce(k, MAX), scaled), None)]

        def over_n(g: Builder, y: Value, x: Value, at: Value) -> list[tuple[Value, Reduced | None]]:
            total, maxima = g.map(k, [x, y], [], over_k)
            (best,) = g.map(k, [maxima], [], lambda g, v: [(v, Reduced(MAX))])
            masked = call("where", arg(0) < const(3), arg(1) - arg(2), float("-inf"))
            score = g.one(Elementwise(masked), at, total, best)
            rows = g.one(BlockReduce(n, MAX), score)
            sums = g.one(BlockReduce(n, ADD), score)
            online = (Reduced(ONLINE, 0), Reduced(ONLINE, 1))
            return [(score, None), (rows, online[0]), (sums, online[1]), (rows, Reduced(ANY))]

        score, best, total, _ = g.map(n, [y], [x, at], over_n)
        normal = call("exp", arg(0) - arg(1)) / arg(2)
        (weights,) = g.map(
            n, [score], [best, total], lambda g, *v: [(g.one(Elementwise(normal), *v), None)]
        )
        return [(weights, None), (total, None)]

    def over_heads(g: Builder, x: Value, y: Value, at: Value) -> list[tuple[Value, None]]:
        weights, totals = g.map(m, [x, at], [y], scores)
        return [(weights, None), (totals, None)]

    weights, totals = build.map(heads, [x], [y, mask], over_heads)
    attributes = (("dim", -1), ("nested key", (1, (2.5, None, True), ())), ("text", 'a "b"\n\\'))
    kinds = (array(heads, m, n), array(heads, m, dtype=DType.int64))
    sort = build.add(Misc("aten", "sort.default", attributes, kinds), weights, totals)
    renamed = build.one(Rename(M, P), sort[0])
    build.output("sorted", renamed, (P, H, N))
    build.output("order", sort[1])
    build.output("peeled", _peeled(build, totals))
    build.output("looked up", _looked_up(build, y), (M, K))
    return build.build()


def _looked_up(build: Builder, table: Value) -> Value:
    """Rows of a table, at places that are an input."""
    places = build.input("places", array(m, dtype=DType.int64))
    take = Take(N)
    return build.nest([m, k], [table, places], lambda g, table, at: g.one(take, table, at))


def _peeled(build: Builder, totals: Value) -> Value:
    """exp of every block over M, the first one outside the loop."""

    def rows(g: Builder, row: Value) -> list[tuple[Value, None]]:
        double = Elementwise(call("exp", arg(0)))
        first = g.one(double, g.one(Pick(m, 0), row))
        inner = Builder(g.ids)
        inner.output("", inner.one(double, inner.input("", item(m))))
        loop = Map(m, inner.build(), (True,), (None,), first=1)
        return [(g.one(Join(m), first, g.one(loop, row)), None)]

    (made,) = build.map(heads, [totals], [], rows)
    return made
