"""Programs in which a scale or shift feeds a dot, for rules 4, 5 and 8."""

from collections.abc import Callable

from blockbuster_fusion import Graph, verify
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.ops import Dot, Elementwise, Value
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_map_reduce import FuseMapReduce
from blockbuster_fusion.rules.fuse_sibling_maps import FuseSiblingMaps
from helpers.graphs import M, N, array, item, k, m, n
from helpers.rewriting import exhaust, fire, lowered

DEPTHS = {0: "K", 1: "N K", 2: "L N K"}
"""The axes of Y, and so how many maps are around the dot."""


def rows(function: Callable[..., object], **specs: object) -> Graph:
    """A program whose maps over M are one map, with everything inside it unfused."""
    graph = lowered(function, **specs)
    while len(over_m := [i for i, op in graph.maps() if op.dim.name == "M"]) > 1:
        assert len(over_m) == len(list(graph.maps()))
        rules = (FuseConsecutiveMaps(), FuseSiblingMaps())
        rule = next(r for r in rules if r.match(graph, dim="M"))
        graph = fire(rule, graph, dim="M")
    return graph


def before_a_dot(
    operation: Callable[[Array, Array], Array],
    *,
    depth: int = 1,
    right: bool = False,
    inside: bool = False,
) -> Graph:
    """`operation(X, c)` · Y for X (M K), c (M) and a Y of more axes.

    `right`: X is the right operand; `inside`: the sum is in the loop over K, not beside it.
    """

    def program(X: Array, c: Array, Y: Array) -> Array:
        moved = operation(X, c[:, None])
        if depth == 0:
            return Y @ moved.T if right else moved @ Y
        product = Y @ moved.T if right else moved @ Y.swapaxes(-1, -2)
        order = {(1, False): (0, 1), (1, True): (1, 0), (2, False): (1, 0, 2), (2, True): (2, 0, 1)}
        return product.transpose(*order[depth, right])

    graph = rows(program, X="M K", c="M", Y=DEPTHS[depth])
    return exhaust(graph, FuseMapReduce()) if inside else graph


def on_items(
    expr: Expr, *, mapped: bool = False, right: bool = False, c: tuple[Dim, ...] = (m,)
) -> Graph:
    """`expr` of X (M K) and c, · Y (N K), with no loop over K; `mapped`: Y is a list over N."""
    build = Builder()
    x, factor = build.input("X", item(m, k)), build.input("c", item(*c))
    y = build.input("Y", Type((n.free,), (n.free, k), DType.float32) if mapped else item(n, k))
    moved = build.one(Elementwise(expr), x, factor)

    def dot(g: Builder, y: Value, moved: Value) -> Value:
        return g.one(Dot(k), *((y, moved) if right else (moved, y)))

    if mapped:
        (made,) = build.map(n, [y], [moved], lambda g, y, x: [(dot(g, y, x), None)])
    else:
        made = dot(build, y, moved)
    build.output("O", made, (M, N))
    return build.build()


def in_rows(body: Callable[[Builder, Value, Value], list[Value]], *names: str) -> Graph:
    """A program that applies `body` to each row's list of blocks over K and its item c."""
    build = Builder()
    x, c = build.input("X", array(m, k)), build.input("c", array(m))
    made = build.map(m, [x, c], [], lambda g, *xs: [(v, None) for v in body(g, *xs)])
    for name, value in zip(names, made, strict=True):
        build.output(name, value)
    graph = build.build()
    verify(graph)
    return graph


def over_k(g: Builder, expr: Expr, row: Value, *items: Value) -> Value:
    """`expr` of each block of a row, and of items."""
    (made,) = g.map(k, [row], items, lambda g, *xs: [(g.one(Elementwise(expr), *xs), None)])
    return made
