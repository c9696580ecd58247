"""Programs that the rules beyond the paper match, or nearly match."""

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, MAX, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Elementwise, Map, Misc, Reduce, Value
from blockbuster_fusion.ir.types import DType, Type
from helpers.contractions import rows
from helpers.graphs import K, M, N, array, heads, item, k, m, n
from helpers.rewriting import exhaust, lowered

SUM = Reduced(ADD)
EXP = call("exp", arg(0))
SQUARE = arg(0) ** 2
MINUS, TIMES = arg(0) - arg(1), arg(0) * arg(1)
whole_m, whole_n, whole_k = m.as_unit, n.as_unit, k.as_unit


def over(build: Builder, dim: Dim | None, expr: Expr, *operands: Value) -> Value:
    """`expr` of operands, in a loop where there is a dim."""
    dims = [] if dim is None else [dim]
    return build.nest(dims, operands, lambda g, *xs: g.one(Elementwise(expr), *xs))


def total(build: Builder, x: Value, along: Dim = k, loop: Dim | None = k) -> Value:
    """The sum of a list or block, with the reduction beside the loop."""
    dims = [] if loop is None else [loop]
    parts = build.nest(dims, [x], lambda g, x: g.one(BlockReduce(along, ADD), x))
    return parts if loop is None else build.one(Reduce(loop, ADD), parts)


# ---------------------------------------------------------------- extend_map_over_producers


def column(g: Builder, y: Value, u: Value, *more: Value) -> list[tuple[Value, Mode]]:
    """Σ u·y over K, times the other factors."""
    (made,) = g.map(k, [u, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), SUM)])
    for factor in more:
        made = g.one(Elementwise(TIMES), made, factor)
    return [(made, None)]


def exp_into_columns(*, again: bool = False, iterated: bool = False, peeled: bool = False) -> Graph:
    """Σ exp(x)·y for each column.

    `again`: exp(x) is a result as well; `iterated`: times a map over N of exp(x);
    `peeled`: the loop over columns starts at block 1, and the sum of exp(x) is a result as well.
    """
    build = Builder()
    x, y = build.input("X", array(k)), build.input("Y", array(n, k))

    def both(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        e = g.one(Elementwise(EXP), x)
        return [(e, None), (g.one(BlockReduce(k, ADD), e), SUM)]

    e, summed = build.map(k, [x], [], both)
    if peeled:
        inner = Builder(build.ids)
        ports = inner.input("", build.type(y).iterate(n)), inner.input("", build.type(e))
        ((made, _),) = column(inner, *ports)
        inner.output("", inner.one(BlockReduce(n, ADD), made))
        build.output("O", build.one(Map(n, inner.build(), (True, False), (SUM,), 1), y, e))
    elif iterated:
        (first,) = build.map(n, [y], [e], column)

        def second(g: Builder, y: Value, first: Value, e: Value) -> list[tuple[Value, Mode]]:
            return column(g, y, e, first)

        build.output("O", build.map(n, [y, first], [e], second)[0])
    else:
        build.output("O", build.map(n, [y], [e], column)[0])
    if again:
        build.output("E", e)
    build.output("S", summed)
    return build.build()


def summed_by_a_nested_loop() -> Graph:
    """A map over the same dim lies between the producer and the map."""
    build = Builder()
    x, y = build.input("X", array(k)), build.input("Y", array(n, k))
    e = over(build, k, EXP, x)

    def everything(g: Builder, y: Value, e: Value) -> list[tuple[Value, Mode]]:
        ((made, _),) = column(g, y, e)
        return [(g.one(BlockReduce(n, ADD), made), SUM)]

    (s,) = build.map(n, [y], [e], everything)
    build.output("O", build.map(n, [y], [e, s], column)[0])
    return build.build()


# ---------------------------------------------------------------- recompute_producer


def divided_by_its_sum() -> Graph:
    """exp(x) · 1/Σ exp(x)."""
    build = Builder()
    e = over(build, k, EXP, build.input("X", array(k)))
    inverse = build.one(Elementwise(1 / arg(0)), total(build, e))
    build.output("O", over(build, k, TIMES, e, inverse))
    return build.build()


def product_by_its_sum() -> Graph:
    """The list that is read twice is a product: the producer holds a dot."""

    def program(X: Array, Y: Array) -> Array:
        e = Y @ X
        return e * ops.exp(-e.sum())

    return lowered(program, X="K", Y="M K")


def exp_with_its_sum() -> Graph:
    """exp(x) / Σ exp(x), with the exponential and its sum made in one map."""
    build = Builder()

    def both(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        e = g.one(Elementwise(EXP), x)
        return [(e, None), (g.one(BlockReduce(k, ADD), e), SUM)]

    e, summed = build.map(k, [build.input("X", array(k))], [], both)
    build.output("O", over(build, k, arg(0) / arg(1), e, summed))
    return build.build()


def product_read_again() -> Graph:
    """e·Σe·p for a product p and e = tanh(p - Σp): a map that reads e again reads p as well."""

    def program(X: Array, Y: Array) -> Array:
        p = Y @ X
        e = ops.elementwise(lambda p, s: ops.tanh(p - s), p, p.sum())
        return ops.elementwise(lambda e, s, p: e * s * p, e, e.sum(), p)

    return exhaust(lowered(program, X="K", Y="M K"), *bb.RULE_SETS["paper"].local)


def weighted_many_times(factors: int) -> Graph:
    """A list times so many others in one loop, divided by its sum."""

    def program(X: Array, *others: Array) -> Array:
        e = X
        for other in others:
            e = e * other
        return e * ops.exp(-e.sum())

    graph = bb.lower(bb.trace(program, *["K"] * (1 + factors)))
    return exhaust(graph, *bb.RULE_SETS["paper"].local)


def sums_of_the_two_before(terms: int) -> Graph:
    """Each list is made of the two before it and of the sum of one: a copy would hold two more."""

    def program(X: Array) -> Array:
        before, last = X, ops.exp(X)
        for _ in range(terms):
            total = ops.tanh(last.sum())
            made = ops.elementwise(lambda a, b, s: ops.sin(a * s + b), last, before, total)
            before, last = last, made
        return last

    return lowered(program, X="K")


def running_sums_by_their_sum() -> Graph:
    """The list that is read twice is made of the results of several misc operators."""

    def program(X: Array) -> Array:
        e = ops.sort(X, axis=0)
        for factor in (2.0, 3.0, 4.0):
            e = e * ops.sort(X * factor, axis=0)
        return e * ops.exp(-e.sum())

    return lowered(program, X="M")


def one_after_the_other() -> Graph:
    return lowered(lambda X: ops.sin(ops.exp(X)), X="K")


def scaled_rows_by_column() -> Graph:
    """A list over M and K, each row by its sum, that is summed row by row and walked along K."""
    build = Builder()
    x = build.input("X", array(m, k))

    def scaled(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(over(g, k, TIMES, x, total(g, x)), None)]

    def row(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(BlockReduce(m, ADD), total(g, x)), SUM)]

    (e,) = build.map(m, [x], [], scaled)
    (s,) = build.map(m, [e], [], row)
    factor = build.one(Elementwise(EXP), build.one(Elementwise(-(arg(0) ** 2)), s))
    times = Elementwise(TIMES)
    build.output("O", build.nest([k, m], [e, factor], lambda g, *xs: g.one(times, *xs)))
    return build.build()


def whole_list_and_its_sum() -> Graph:
    """A list that is a result, and that the second map takes whole, with a function of its sum."""
    build = Builder()
    x, y = build.input("X", array(k)), build.input("Y", array(k))
    e = over(build, k, EXP, x)
    factor = build.one(Elementwise(call("tanh", arg(0))), total(build, e))

    def body(g: Builder, y: Value, e: Value, factor: Value) -> list[tuple[Value, Mode]]:
        (s,) = g.map(k, [e], [], lambda g, e: [(g.one(BlockReduce(k, ADD), e), SUM)])
        return [(g.one(Elementwise(arg(0) * arg(1) + arg(2)), y, s, factor), None)]

    build.output("O", build.map(k, [y], [e, factor], body)[0])
    build.output("E", e)
    return build.build()


# ---------------------------------------------------------------- rederive_list


def exp_and_weighted(g: Builder, x: Value, *weights: Value) -> list[tuple[Value, Mode]]:
    """exp(x) and exp(x) times the weights."""
    e = made = g.one(Elementwise(EXP), x)
    for w in weights:
        made = g.one(Elementwise(TIMES), made, w)
    return [(e, None), (made, None)]


def columns(g: Builder, y: Value, *lists: Value) -> list[tuple[Value, Mode]]:
    """The product of Σ u·y over K for each of some lists u."""
    made, *others = (column(g, y, each)[0][0] for each in lists)
    for other in others:
        made = g.one(Elementwise(TIMES), made, other)
    return [(made, None)]


def weighted_into_columns(*, source: bool = True, again: bool = False) -> Graph:
    """a = exp(x) and b = a·w, made in one map; for each column Σ b·y, and Σ a·y.

    `source`: the columns read a, which is a result otherwise; `again`: b is a result as well.
    """
    build = Builder()
    x, w = build.input("X", array(k)), build.input("w", array(k))
    y = build.input("Y", array(n, k))
    a, b = build.map(k, [x, w], [], exp_and_weighted)
    build.output("O", build.map(n, [y], [b, a] if source else [b], columns)[0])
    if not source:
        build.output("A", a)
    if again:
        build.output("B", b)
    return build.build()


def twice_weighted_into_columns(*, again: bool = False) -> Graph:
    """a = exp(x), b = a·w and c = b·w, made in one map; for each column Σ c·y and Σ b·y.

    The columns do not read a, from which both b and c come as well; `again`: they do, and b is a
    result as well, so that c alone can be made again.
    """
    build = Builder()
    x, w = build.input("X", array(k)), build.input("w", array(k))
    y = build.input("Y", array(n, k))

    def body(g: Builder, x: Value, w: Value) -> list[tuple[Value, Mode]]:
        a = g.one(Elementwise(EXP), x)
        b = g.one(Elementwise(TIMES), a, w)
        return [(a, None), (b, None), (g.one(Elementwise(TIMES), b, w), None)]

    a, b, c = build.map(k, [x, w], [], body)
    build.output("O", build.map(n, [y], [b, c, a] if again else [b, c], columns)[0])
    build.output("A", a)
    if again:
        build.output("B", b)
    return build.build()


def weighted_by_running_sums() -> Graph:
    """As above, with weights that misc operators make; a and the sum of b are results as well."""
    build = Builder()
    x, y = build.input("X", array(k)), build.input("Y", array(n, k))
    running = Misc("numpy", "cumsum", (("axis", 0),), (array(k),))
    weights = [build.one(running, build.input(name, array(k))) for name in ("v", "w")]

    def body(g: Builder, *operands: Value) -> list[tuple[Value, Mode]]:
        a, b = exp_and_weighted(g, *operands)
        return [a, b, (g.one(BlockReduce(k, ADD), b[0]), SUM)]

    a, b, summed = build.map(k, [x, *weights], [], body)
    build.output("O", build.map(n, [y], [b, a], columns)[0])
    build.output("A", a)
    build.output("S", summed)
    return build.build()


def weighted_by_all(*, walked: bool) -> Graph:
    """For each block of a list a the sum over all of a·b for b = a·w; `walked`: times b's block."""
    build = Builder()
    x, w = build.input("X", array(k)), build.input("w", array(k))
    a, b = build.map(k, [x, w], [], exp_and_weighted)

    def body(g: Builder, each: Value, a: Value, b: Value) -> list[tuple[Value, Mode]]:
        (s,) = g.map(k, [a, b], [], lambda g, *xs: [(g.one(Dot(k), *xs), SUM)])
        return [(g.one(Elementwise(TIMES), each, s), None)]

    build.output("O", build.map(k, [b if walked else x], [a, b], body)[0])
    return build.build()


# ---------------------------------------------------------------- swap_row_column_scale


def weighted(
    operation: Expr = TIMES, product: Expr = TIMES, *, dot: bool = True, again: bool = False
) -> Graph:
    """(X `operation` c) `product` w in each row, and then a matmul."""

    def apply(expr: Expr, a: Array, b: Array) -> Array:
        first, second = (a, b) if expr.args[0].value == 0 else (b, a)
        return {"mul": first * second, "div": first / second}[expr.op]

    def program(X: Array, c: Array, w: Array, Y: Array) -> dict[str, Array]:
        scaled = apply(operation, X, c[:, None])
        made = apply(product, scaled, w)
        results = {"O": made @ Y.T if dot else ops.exp(made)}
        return {**results, "S": scaled} if again else results

    specs = {"X": "M K", "c": "M", "w": "K", "Y": "N K"}
    return rows(program, **specs)


def weighted_item(*dots: str, product: Expr = TIMES) -> Graph:
    """(X·c)·w without loops, then dots over `dots`."""
    build = Builder()
    x = build.input("X", item(whole_m, whole_k))
    c, w = build.input("c", item(whole_m)), build.input("w", item(whole_k))
    made = build.one(Elementwise(product), build.one(Elementwise(TIMES), x, c), w)
    for name in dots:
        dim = {"M": whole_m, "K": whole_k}[name]
        y = build.input(f"Y{name}", item(whole_n, dim))
        build.output(f"O{name}", build.one(Dot(dim), made, y))
    if not dots:
        build.output("O", made, (M, K))
    return build.build()


def weighted_by_a_wider_list() -> Graph:
    """(x·c)·w for a list x of items without M, an item c over M, and a w over both."""
    build = Builder()
    x, c = build.input("X", array(k)), build.input("c", item(whole_m))
    w = build.input("w", Type((k.free,), (whole_m, k.free), DType.float32))
    y = build.input("Y", array(k))
    made = over(build, k, TIMES, over(build, k, TIMES, x, c), w)
    (o,) = build.map(k, [made, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), SUM)])
    build.output("O", o)
    return build.build()


def weighted_by_a_turned_list() -> Graph:
    """w·(x·c) for a w whose blocks are laid out the other way round."""
    build = Builder()
    x = build.input("X", Type((k.free,), (whole_m, k.free), DType.float32))
    w = build.input("w", Type((k.free,), (k.free, whole_m), DType.float32))
    c, y = build.input("c", item(whole_m)), build.input("Y", array(k))
    made = over(build, k, TIMES, w, over(build, k, TIMES, x, c))
    (o,) = build.map(k, [made, y], [], lambda g, *xs: [(g.one(Dot(k), *xs), SUM)])
    build.output("O", o)
    return build.build()


def large_whole_numbers_weighted() -> Graph:
    """(X·c)·w for whole numbers: X·w is too large for 32 bits, and X·c is no whole number."""

    def program(X: Array, c: Array, w: Array, Y: Array) -> Array:
        return (((X * 200_000_000) * c[:, None]) * w) @ Y.T

    specs = {"X": bb.array("M K", dtype="int32"), "w": bb.array("K", dtype="int32")}
    return rows(program, **specs, c="M", Y="N K")


# ---------------------------------------------------------------- interchange_loops


def column_sums(*, again: bool = False) -> Graph:
    """exp of a list row by row, then for each column the sum; `again`: the list is a result."""
    build = Builder()
    e = build.nest([m, k], [build.input("X", array(m, k))], lambda g, x: g.one(Elementwise(EXP), x))

    def summed(g: Builder, e: Value) -> list[tuple[Value, Mode]]:
        return [(g.map(m, [e], [], lambda g, e: [(g.one(BlockReduce(m, ADD), e), SUM)])[0], None)]

    build.output("O", build.map(k, [e], [], summed)[0])
    if again:
        build.output("E", e, (M, K))
    return build.build()


def columns_of_two(*, turned: bool) -> Graph:
    """A nest of two results, in their order or not, of which each column has one less the other."""
    build = Builder()

    def inner(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        return [(g.one(Elementwise(f), x), None) for f in (EXP, call("sin", arg(0)))]

    def outer(g: Builder, x: Value) -> list[tuple[Value, Mode]]:
        made = g.map(k, [x], [], inner)
        return [(v, None) for v in (made[::-1] if turned else made)]

    a, b = build.map(m, [build.input("X", array(m, k))], [], outer)
    build.output("O", build.nest([k, m], [a, b], lambda g, *xs: g.one(Elementwise(MINUS), *xs)))
    return build.build()


def rows_and_columns() -> Graph:
    """A list whose rows are summed, and whose columns are."""

    def program(X: Array) -> dict[str, Array]:
        e = ops.exp(X)
        return {"columns": e.sum(axis=0), "rows": e.sum(axis=1)}

    return lowered(program, X="M K")


def columns_of_itself() -> Graph:
    """Each column divided by its sum: one user of the list is reached by two paths."""
    build = Builder()
    e = build.nest([m, k], [build.input("X", array(m, k))], lambda g, x: g.one(Elementwise(EXP), x))

    def summed(g: Builder, e: Value) -> list[tuple[Value, Mode]]:
        return [(g.map(m, [e], [], lambda g, e: [(g.one(BlockReduce(m, ADD), e), SUM)])[0], None)]

    (s,) = build.map(k, [e], [], summed)
    divide = Elementwise(arg(0) / arg(1))
    build.output("O", build.nest([k, m], [e, s], lambda g, *xs: g.one(divide, *xs)))
    return build.build()


# ---------------------------------------------------------------- drop_softmax_shift


def shifted_softmax(
    *,
    shift: Expr = MINUS,
    inverse: bool = False,
    again: str = "",
    dtype: DType = DType.float32,
    square: bool = False,
) -> Graph:
    """exp(x - c) / Σ exp(x - c); or (x - c)² in place of the exponential.

    `again` names a value that is a result as well: shifted, e, parts or total.
    """
    build = Builder()
    x, c = build.input("X", array(k, dtype=dtype)), build.input("c", item())
    shifted = over(build, k, shift, x, c)
    e = over(build, k, SQUARE if square else EXP, shifted)
    parts = build.nest([k], [e], lambda g, x: g.one(BlockReduce(k, ADD), x))
    summed = build.one(Reduce(k, ADD), parts)
    if inverse:
        made = over(build, k, TIMES, e, build.one(Elementwise(1 / arg(0)), summed))
    else:
        made = over(build, k, arg(0) / arg(1), e, summed)
    build.output("O", made)
    values = {"shifted": shifted, "e": e, "total": summed}
    if again == "parts":
        build.output("A", build.one(Reduce(k, MAX), parts))
    elif again:
        build.output("A", values[again])
    return build.build()


def shifted_block(c: tuple[Dim, ...], f: Expr, *, divided: bool = True) -> Graph:
    """f(X - c) over its sum along K, or that sum, for one block X (M K)."""
    build = Builder()
    x, factor = build.input("X", item(whole_m, whole_k)), build.input("c", item(*c))
    e = over(build, None, f, over(build, None, MINUS, x, factor))
    summed = total(build, e, whole_k, None)
    build.output("O", over(build, None, arg(0) / arg(1), e, summed) if divided else summed)
    return build.build()


def outer_softmax() -> Graph:
    """Softmax of x + c for every pair of the two: the shift has an axis that the list lacks."""

    def program(x: Array, c: Array) -> Array:
        e = ops.exp(x[None, :] + c[:, None])
        return e / e.sum(-1, keepdims=True)

    return rows(program, x="N", c="M")


def softmax_of_truth_values() -> Graph:
    """Softmax of x + c where + means "or"."""

    def program(X: Array, c: Array) -> Array:
        e = ops.exp(X + c[:, None])
        return e / e.sum(-1, keepdims=True)

    return rows(program, X=bb.array("M N", dtype="bool"), c=bb.array("M", dtype="bool"))


# ---------------------------------------------------------------- expand_square_of_shift


def squares(
    *,
    shift: Expr = MINUS,
    square: Expr = SQUARE,
    again: str = "",
    inside: bool = False,
    first: int = 0,
) -> Graph:
    """Σ (x - c)², the sum beside its loop or `inside` it, from block `first` on.

    `again` names a value that is a result as well: shifted, squares, parts, or sum (of x).
    """
    build = Builder()
    x, c = build.input("X", array(k)), build.input("c", item())
    shifted = over(build, k, shift, x, c)
    squared = over(build, k, square, shifted)
    if again == "sum":
        build.output("A", total(build, x))
    if inside:
        body = Builder(build.ids)
        body.output("", body.one(BlockReduce(k, ADD), body.input("", item(k))))
        build.output("O", build.one(Map(k, body.build(), (True,), (SUM,), first), squared))
    else:
        parts = build.nest([k], [squared], lambda g, x: g.one(BlockReduce(k, ADD), x))
        build.output("O", build.one(Reduce(k, ADD), parts))
        if again == "parts":
            build.output("A", build.one(Reduce(k, MAX), parts))
    if again in ("shifted", "squares"):
        build.output("A", {"shifted": shifted, "squares": squared}[again])
    return build.build()


def squares_of_all_heads() -> Graph:
    """The sum over the heads of sums along K, which has one block."""
    build = Builder()
    x = build.input("X", Type((heads.free,), (whole_k,), DType.float32))
    shifted = over(build, heads, MINUS, x, build.input("c", item()))
    build.output("O", total(build, over(build, heads, SQUARE, shifted), whole_k, heads))
    return build.build()


def squares_of_each_block() -> Graph:
    """Block by block: the sums along M are of one block each, and are summed afterwards."""
    build = Builder()
    x, c = build.input("X", array(m)), build.input("c", item())

    def body(g: Builder, x: Value, c: Value) -> list[tuple[Value, Mode]]:
        squared = over(g, None, SQUARE, over(g, None, MINUS, x, c))
        return [(total(g, squared, m, None), SUM)]

    build.output("O", build.map(m, [x], [c], body)[0])
    return build.build()


def large_whole_numbers_squared() -> Graph:
    """Σ (x - c)² for whole numbers whose squares are too large for 32 bits."""

    def program(X: Array, c: Array) -> Array:
        return ops.square(X * 100_000 - c[:, None]).sum(axis=1)

    return rows(program, X=bb.array("M K", dtype="int32"), c="M")


def whole_numbers_shifted_and_squared() -> Graph:
    """Σ (x - c)² for real x and a whole c whose square is too large for 32 bits."""

    def program(X: Array, c: Array) -> Array:
        return ops.square(X - (c * 100_000)[:, None]).sum(axis=1)

    return rows(program, X="M K", c=bb.array("M", dtype="int32"))


def truth_values_squared() -> Graph:
    """Σ (x + c)² where + means "or"."""

    def program(X: Array, c: Array) -> Array:
        return ops.square(X + c[:, None]).sum(axis=1)

    return rows(program, X=bb.array("M K", dtype="bool"), c=bb.array("M", dtype="bool"))


def outer_squares() -> Graph:
    """For all pairs the tanh of Σ (x - c)²: the shift has an axis that the list lacks."""
    build = Builder()
    x = build.input("X", Type((k.free,), (whole_n, k.free), DType.float32))
    shifted = over(build, k, MINUS, x, build.input("c", item(whole_m, whole_n)))
    made = over(build, None, call("tanh", arg(0)), total(build, over(build, k, SQUARE, shifted)))
    build.output("O", made, (M, N))
    return build.build()


def two_pass_variance() -> Graph:
    def program(X: Array) -> Array:
        mean = X.sum(-1, keepdims=True) / ops.size(X, 1)
        return ops.square(X - mean).sum(axis=1)

    return rows(program, X="M K")
