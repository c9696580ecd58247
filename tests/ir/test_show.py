"""Programs as listings: the paper's own, and one for each thing that a program may contain."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, ANY, MAX, MIN, MUL, Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr, arg, call, cast, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Iota,
    Join,
    Map,
    Misc,
    Op,
    Pick,
    Reduce,
    Rename,
    Value,
)
from blockbuster_fusion.ir.paper_names import ItemText, write
from blockbuster_fusion.ir.types import DType, Type
from helpers.listing import canonical

Golden = Callable[[str], None]
Outputs = Sequence[tuple[Value, Mode]]

PAPER = Path(__file__).parents[1] / "golden" / "paper"
M, N, K, D, L = (Axis(name, Symbol(2 * name)) for name in "MNKDL")
m, n, k, d, l = (Dim(axis) for axis in (M, N, K, D, L))  # noqa: E741
FLOAT = DType.float32
SUM = Reduced(ADD)
EXP = Elementwise(call("exp", arg(0)))
PRODUCT = Elementwise(arg(0) * arg(1))
X, Y = arg(0), arg(1)


def block(*dims: Dim) -> Type:
    """An array over the axes of `dims`, blocked along all of them."""
    free = tuple(dim.free for dim in dims)
    return Type(free, free, FLOAT)


def paper(name: str) -> str:
    return (PAPER / f"{name}.txt").read_text(encoding="utf-8")


def over(dim: Dim, op: Op) -> Callable[[Builder, Value], Outputs]:
    """A body that applies an operator to each element of a list over `dim`."""

    def body(b: Builder, x: Value) -> Outputs:
        return [(b.map(dim, [x], [], lambda b, x: [(b.one(op, x), None)])[0], None)]

    return body


def single(body: Callable[[Builder, Value], Value], mode: Mode = None) -> Graph:
    """A map over M with one input X and one output Y."""
    b = Builder()
    x = b.input("X", block(m))
    (y,) = b.map(m, [x], [], lambda b, x: [(body(b, x), mode)])
    b.output("Y", y)
    return b.build()


# ------------------------------------------------------------- the paper's programs


def relu_of_product(*, fused: bool) -> Graph:
    b = Builder()
    whole = Dim(K)  # blocked along one dim only, so that the contraction is inside the block
    a = b.input("A", Type((m.free,), (m.free, whole), FLOAT))
    c = b.input("B", Type((n.free,), (whole, n.free), FLOAT))
    relu = Elementwise(call("maximum", X, 0.0))

    def product(b: Builder, bn: Value, am: Value) -> Outputs:
        made = b.one(Dot(whole), am, bn)
        return [(b.one(relu, made) if fused else made, None)]

    def row(b: Builder, am: Value, c: Value) -> Outputs:
        return [(b.map(n, [c], [am], product)[0], None)]

    (made,) = b.map(m, [a], [c], row)
    if not fused:
        (made,) = b.map(m, [made], [], over(n, relu))
    b.output("C", made, (M, N))
    return b.build()


@pytest.mark.parametrize("name", ["fused", "unfused"])
def test_matmul_relu_is_the_papers(name: str) -> None:
    expected = re.sub(r"RELU\((\w+)\)", r"maximum(\1,0)", paper(f"matmul_relu_{name}"))
    assert canonical(show(relu_of_product(fused=name == "fused"))) == canonical(expected)


def test_matmul_relu_unfused(golden: Golden) -> None:
    golden(show(relu_of_product(fused=False)))


def inverse_root() -> Expr:
    return call("pow", size(D), -0.5)


def attention() -> Graph:
    b = Builder()
    q, kt, vt = b.input("Q", block(m, d)), b.input("KT", block(n, d)), b.input("VT", block(l, n))

    def key(b: Builder, kt: Value, vt: Value, q: Value) -> Outputs:
        (s,) = b.map(d, [q, kt], [], lambda b, q, kt: [(b.one(Dot(d), q, kt), SUM)])
        e = b.one(Elementwise(call("exp", X * inverse_root())), s)
        return [(b.one(BlockReduce(n, ADD), e), SUM), (b.one(Dot(n), e, vt), SUM)]

    def column(b: Builder, vt: Value, q: Value, kt: Value) -> Outputs:
        total, product = b.map(n, [kt, vt], [q], key)
        return [(b.one(PRODUCT, product, b.one(Elementwise(1 / X), total)), None)]

    def row(b: Builder, q: Value, kt: Value, vt: Value) -> Outputs:
        return [(b.map(l, [vt], [q, kt], column)[0], None)]

    (o,) = b.map(m, [q], [kt, vt], row)
    b.output("O", o, (M, L))
    return b.build()


def test_attention_is_the_papers_to_the_letter() -> None:
    assert show(attention()) == paper("attention").expandtabs(4)


def attention_with_m_maps_fused() -> Graph:
    b = Builder()
    q, kt, vt = b.input("Q", block(m, d)), b.input("KT", block(n, d)), b.input("VT", block(l, n))

    def listed(dim: Dim, op: Op, b: Builder, x: Value, *whole: Value) -> Value:
        return b.map(dim, [x], whole, lambda b, x, *w: [(b.one(op, x, *w), None)])[0]

    def product(dim: Dim, b: Builder, x: Value, y: Value) -> Value:
        (p,) = b.map(dim, [x, y], [], lambda b, x, y: [(b.one(Dot(dim), x, y), None)])
        return b.one(Reduce(dim, ADD), p)

    def row(b: Builder, q: Value, kt: Value, vt: Value) -> Outputs:
        (s,) = b.map(n, [kt], [q], lambda b, kt, q: [(product(d, b, q, kt), None)])
        e = listed(n, EXP, b, listed(n, Elementwise(X * inverse_root()), b, s))
        total = b.one(Reduce(n, ADD), listed(n, BlockReduce(n, ADD), b, e))
        p = listed(n, PRODUCT, b, e, b.one(Elementwise(1 / X), total))
        (o,) = b.map(l, [vt], [p], lambda b, vt, p: [(product(n, b, p, vt), None)])
        return [(o, None)]

    (o,) = b.map(m, [q], [kt, vt], row)
    b.output("O", o, (M, L))
    return b.build()


def test_attention_with_its_buffers_is_the_papers_to_the_letter() -> None:
    expected = paper("attention_fused_m_maps").expandtabs(4)
    assert show(attention_with_m_maps_fused()) == expected


def layernorm_matmul() -> Graph:
    b = Builder()
    x, yt = b.input("X", block(m, k)), b.input("YT", block(n, k))
    row_sum = BlockReduce(k, ADD)

    def sums(b: Builder, x: Value, yt: Value) -> Outputs:
        square = b.one(Elementwise(call("pow", X, 2)), x)
        made = [b.one(row_sum, x), b.one(row_sum, square), b.one(row_sum, yt)]
        return [*((s, SUM) for s in made), (b.one(Dot(k), x, yt), SUM)]

    def column(b: Builder, yt: Value, x: Value) -> Outputs:
        s1, s2, s3, p = b.map(k, [x, yt], [], sums)
        mean = b.one(Elementwise(-X / size(K)), s1)
        deviation = call("pow", X / size(K) - call("pow", Y, 2), -0.5)
        scale = b.one(Elementwise(deviation), s2, mean)
        shifted = b.one(Elementwise(X + Y), b.one(PRODUCT, mean, s3), p)
        return [(b.one(PRODUCT, shifted, scale), None)]

    def row(b: Builder, x: Value, yt: Value) -> Outputs:
        return [(b.map(n, [yt], [x], column)[0], None)]

    (z,) = b.map(m, [x], [yt], row)
    b.output("Z", z, (M, N))
    return b.build()


def rmsnorm_swiglu() -> Graph:
    b = Builder()
    x, wt, vt, ut = (
        b.input(name, block(*dims))
        for name, dims in {"X": (m, d), "WT": (k, d), "VT": (k, d), "UT": (n, k)}.items()
    )

    def sums(b: Builder, x: Value, wt: Value, vt: Value) -> Outputs:
        square = b.one(Elementwise(call("pow", X, 2)), x)
        made = [b.one(BlockReduce(d, ADD), square), b.one(Dot(d), x, wt), b.one(Dot(d), x, vt)]
        return [(s, SUM) for s in made]

    def hidden(b: Builder, wt: Value, vt: Value, ut: Value, x: Value) -> Outputs:
        square, gate, value = b.map(d, [x, wt, vt], [], sums)
        scale = b.one(Elementwise(1 / call("sqrt", X)), square)
        swish = Elementwise(X / (1 + call("exp", -X)))
        gate = b.one(swish, b.one(PRODUCT, gate, scale))
        product = b.one(PRODUCT, gate, b.one(PRODUCT, value, scale))
        return [(b.one(Dot(k), product, ut), SUM)]

    def column(b: Builder, ut: Value, x: Value, wt: Value, vt: Value) -> Outputs:
        return [(b.map(k, [wt, vt, ut], [x], hidden)[0], None)]

    def row(b: Builder, x: Value, wt: Value, vt: Value, ut: Value) -> Outputs:
        return [(b.map(n, [ut], [x, wt, vt], column)[0], None)]

    (o,) = b.map(m, [x], [wt, vt, ut], row)
    b.output("O", o, (M, N))
    return b.build()


@pytest.mark.parametrize("program", [attention, layernorm_matmul, rmsnorm_swiglu])
def test_fused_examples_are_the_papers(program: Callable[[], Graph]) -> None:
    assert canonical(show(program())) == canonical(paper(program.__name__))


def test_lock(golden: Golden) -> None:
    golden(show(attention(), reductions="lock"))


def test_lock_around_a_reduction_of_a_buffer() -> None:
    b = Builder()
    b.output("Y", b.one(Reduce(m, ADD), b.input("X", block(m))))
    assert show(b.build(), reductions="lock") == (
        "forall m in range(M):\n"
        "    t1 = load(X[m])\n"
        "    with lock:\n"
        "        t2 += t1\n"
        "store(t2,Y)\n"
    )


def test_unknown_form_of_reductions() -> None:
    with pytest.raises(ValueError, match="reductions='tree'"):
        show(attention(), reductions="tree")


# ---------------------------------------------------------------- loops and indices


def test_indices_follow_the_arrays_axes() -> None:
    b = Builder()
    x = b.input("X", block(n, m))
    (y,) = b.map(
        m,
        [x],
        [],
        lambda b, x: [(b.map(n, [x], [], lambda b, x: [(b.one(EXP, x), None)])[0], None)],
    )
    b.output("Y", y, (N, M))
    assert show(b.build()) == (
        "forall m in range(M):\n"
        "    forall n in range(N):\n"
        "        t1 = load(X[n,m])\n"
        "        t2 = exp(t1)\n"
        "        store(t2,Y[n,m])\n"
    )


def test_item_is_loaded_outside_of_the_loops_that_take_it_whole_and_not_if_unused() -> None:
    b = Builder()
    x, c, unused = b.input("X", block(m, k)), b.input("C", block(m)), b.input("U", block(m))

    def row(b: Builder, x: Value, c: Value, unused: Value) -> Outputs:
        def inner(b: Builder, x: Value, c: Value, unused: Value) -> Outputs:
            return [(b.one(PRODUCT, x, c), None)]

        return [(b.map(k, [x], [c, unused], inner)[0], None)]

    (y,) = b.map(m, [x, c, unused], [], row)
    b.output("Y", y)
    assert show(b.build()) == (
        "forall m in range(M):\n"
        "    t1 = load(C[m])\n"
        "    forall k in range(K):\n"
        "        t2 = load(X[m,k])\n"
        "        t3 = row_scale(t2,t1)\n"
        "        store(t3,Y[m,k])\n"
    )


def test_several_dims_of_an_axis(golden: Golden) -> None:
    """A buffer over K.1 inside a loop over K.0, which is inside a loop over K.2."""
    first, second, third = Dim(K, 0), Dim(K, 1), Dim(K, 2)
    b = Builder()
    x, v = b.input("X", block(m, k)), b.input("V", block(k))

    def walk(b: Builder, x: Value) -> Outputs:
        (p,) = b.map(second, [x], [], lambda b, x: [(b.one(EXP, x), None)])
        (s,) = b.map(second, [p], [], lambda b, x: [(b.one(BlockReduce(second, ADD), x), SUM)])
        return [(s, None)]

    (sums,) = b.map(m, [x], [], walk)

    def inside(b: Builder, v: Value, whole: Value, sums: Value) -> Outputs:
        (t,) = b.map(first, [whole], [], lambda b, w: [(b.one(BlockReduce(first, ADD), w), SUM)])
        (u,) = b.map(m, [sums], [t], lambda b, s, t: [(b.one(PRODUCT, s, t), None)])
        return [(b.one(PRODUCT, v, t), None), (u, None)]

    scaled, spread = b.map(third, [v], [v, sums], inside)
    b.output("Y", scaled)
    b.output("Z", spread)
    golden(show(b.build()))


def test_nested_loops_over_one_dim() -> None:
    b = Builder()
    x = b.input("X", block(k))

    def inside(b: Builder, x: Value, whole: Value) -> Outputs:
        (s,) = b.map(k, [whole], [], lambda b, w: [(b.one(BlockReduce(k, ADD), w), SUM)])
        return [(b.one(PRODUCT, x, s), None)]

    b.output("Y", b.map(k, [x], [x], inside)[0])
    assert show(b.build()) == (
        "forall k in range(K):\n"
        "    for k2 in range(K):\n"
        "        t1 = load(X[k2])\n"
        "        t2 += sum(t1)\n"
        "    t3 = load(X[k])\n"
        "    t4 = t3*t2\n"
        "    store(t4,Y[k])\n"
    )


def peeled(b: Builder, x: Value, op: Op) -> tuple[Value, Value]:
    """The first element of a list over K and the list of the others, after `op`."""
    first = b.one(op, b.one(Pick(k, 0), x))
    inner = Builder(b.ids)
    inner.output("", inner.one(op, inner.input("", b.type(x).iterate(k))))
    rest = b.one(Map(k, inner.build(), (True,), (None,), first=1), x)
    return first, rest


def test_peeled_map_and_join() -> None:
    b = Builder()
    x = b.input("X", block(k))
    b.output("Y", b.one(Join(k), *peeled(b, x, EXP)))
    assert show(b.build()) == (
        "t1 = load(X[0])\n"
        "t2 = exp(t1)\n"
        "store(t2,Y[0])\n"
        "forall k in range(1,K):\n"
        "    t3 = load(X[k])\n"
        "    t4 = exp(t3)\n"
        "    store(t4,Y[k])\n"
    )


def test_join_of_lists_in_a_buffer(golden: Golden) -> None:
    """The joined list is interior; its first element is a list as well, built in place."""
    b = Builder()
    x = b.input("X", block(k, m))

    (first,) = b.map(m, [b.one(Pick(k, 0), x)], [], lambda b, x: [(b.one(EXP, x), None)])
    inner = Builder(b.ids)
    ((made, _),) = over(m, EXP)(inner, inner.input("", b.type(x).iterate(k)))
    inner.output("", made)
    rest = b.one(Map(k, inner.build(), (True,), (None,), first=1), x)
    joined = b.one(Join(k), first, rest)
    b.output("Y", b.map(k, [joined], [], over(m, EXP))[0])
    golden(show(b.build()))


def test_join_that_cannot_be_built_in_place() -> None:
    b = Builder()
    x = b.input("X", Type((k,), (k,), FLOAT))
    first = b.one(Pick(k, 0), x)
    b.output("Y", b.one(Join(k), first, x))
    assert show(b.build()) == "t1 = load(X[0])\nY = join(t1,X)\n"


def test_reduction_of_a_peeled_list_starts_where_the_list_does() -> None:
    b = Builder()
    _, rest = peeled(b, b.input("X", block(k)), EXP)
    b.output("Y", b.one(Reduce(k, ADD), rest))
    assert "for k in range(1,K):\n    t5 = load(I1[k])\n    t6 += t5\n" in show(b.build())


# -------------------------------------------------------------------- accumulation


@pytest.mark.parametrize(
    ("combiner", "line"),
    [
        (ADD, "t2 += exp(t1)"),
        (MUL, "t2 *= exp(t1)"),
        (MAX, "t2 = max(t2,exp(t1))"),
        (MIN, "t2 = min(t2,exp(t1))"),
        (ANY, "t2 = any(t2,exp(t1))"),
    ],
)
def test_simple_combiners(combiner: Combiner, line: str) -> None:
    shown = show(single(lambda b, x: b.one(EXP, x), Reduced(combiner)))
    assert shown.splitlines() == [
        "for m in range(M):",
        "    t1 = load(X[m])",
        f"    {line}",
        "store(t2,Y)",
    ]


def test_combiner_with_a_formula_of_its_own() -> None:
    log_sum = Combiner("log_sum", (0.0,), (call("log", call("exp", X) + call("exp", Y)),))
    shown = show(single(lambda b, x: b.one(EXP, x), Reduced(log_sum)))
    assert "    t2 = exp(t1)\n    t3 = log(exp(t3)+exp(t2))\n" in shown


def online_softmax() -> Combiner:
    """A running maximum, and a sum that is rescaled by it."""
    top = call("maximum", arg(0), arg(2))
    rescaled = arg(1) * call("exp", arg(0) - top) + arg(3) * call("exp", arg(2) - top)
    return Combiner("online_softmax", (float("-inf"), 0.0), (top, rescaled))


def softmax_sums() -> Graph:
    b = Builder()
    x = b.input("X", block(m, n))
    combiner = online_softmax()

    def column(b: Builder, x: Value) -> Outputs:
        top = b.one(BlockReduce(n, MAX), x)
        total = b.one(BlockReduce(n, ADD), b.one(Elementwise(call("exp", X - Y)), x, top))
        return [(top, Reduced(combiner, 0)), (total, Reduced(combiner, 1))]

    def row(b: Builder, x: Value) -> Outputs:
        return [(value, None) for value in b.map(n, [x], [], column)]

    top, total = b.map(m, [x], [], row)
    b.output("T", top)
    b.output("S", total)
    return b.build()


def test_tuple_combiner(golden: Golden) -> None:
    golden(show(softmax_sums()))


def test_tuple_combiner_under_a_lock(golden: Golden) -> None:
    golden(show(softmax_sums(), reductions="lock"))


def test_reduction_of_two_lists_at_once(golden: Golden) -> None:
    b = Builder()
    t, s = b.input("T", block(m)), b.input("S", block(m))
    top, total = b.add(Reduce(m, online_softmax()), t, s)
    b.output("A", top)
    b.output("B", total)
    golden(show(b.build()))


def test_accumulated_value_that_is_used_otherwise_has_a_name() -> None:
    b = Builder()
    x = b.input("X", block(m))

    def body(b: Builder, x: Value) -> Outputs:
        e = b.one(EXP, x)
        return [(e, SUM), (e, None), (x, SUM)]

    for name, value in zip("ABC", b.map(m, [x], [], body), strict=True):
        b.output(name, value)
    assert show(b.build()) == (
        "for m in range(M):\n"
        "    t1 = load(X[m])\n"
        "    t2 += t1\n"
        "    t3 = exp(t1)\n"
        "    store(t3,B[m])\n"
        "    t4 += t3\n"
        "store(t4,A)\n"
        "store(t2,C)\n"
    )


# ------------------------------------------------------- structural operators, outputs


def test_iota() -> None:
    b = Builder()
    x, positions = b.input("X", block(m, n)), b.one(Iota(n))

    def row(b: Builder, x: Value, positions: Value) -> Outputs:
        masked = Elementwise(call("where", call("lt", Y, size(N)), X, 0.0))
        body = b.map(n, [x, positions], [], lambda b, x, i: [(b.one(masked, x, i), None)])
        return [(body[0], None)]

    b.output("Y", b.map(m, [x], [positions], row)[0])
    assert show(b.build()) == (
        "forall m in range(M):\n"
        "    forall n in range(N):\n"
        "        t1 = load(X[m,n])\n"
        "        t2 = index(n)\n"
        "        t3 = where(t2<NN,t1,0.0)\n"
        "        store(t3,Y[m,n])\n"
    )


def test_rename_is_an_alias(golden: Golden) -> None:
    """Self-products of the rows of exp(X): one buffer under two names."""
    rows = Axis("R", M.extent)
    r = Dim(rows)
    b = Builder()
    x = b.input("X", block(m, k))

    (e,) = b.map(m, [x], [], over(k, EXP))
    renamed = b.one(Rename(M, rows), e)

    def row(b: Builder, e: Value, renamed: Value) -> Outputs:
        def column(b: Builder, renamed: Value, e: Value) -> Outputs:
            free = b.map(k, [e, renamed], [], lambda b, x, y: [(b.one(Dot(k), x, y), SUM)])
            return [(free[0], None)]

        return [(b.map(r, [renamed], [e], column)[0], None)]

    # the rename frees K as well, so the product's loop is the one over the free list
    b.output("Y", b.map(m, [e], [renamed], row)[0])
    golden(show(b.build()))


def test_rename_inside_a_map() -> None:
    other = Axis("J", K.extent)
    b = Builder()
    x = b.input("X", block(m, k))

    def row(b: Builder, x: Value) -> Outputs:
        renamed = b.one(Rename(K, other), x)
        (y,) = b.map(Dim(other), [renamed], [], lambda b, x: [(b.one(EXP, x), None)])
        return [(y, None)]

    b.output("Y", b.map(m, [x], [], row)[0])
    assert show(b.build()) == (
        "forall m in range(M):\n"
        "    XR = rename(X[m,:], K->J)\n"
        "    forall j in range(J):\n"
        "        t1 = load(XR[j])\n"
        "        t2 = exp(t1)\n"
        "        store(t2,Y[m,j])\n"
    )


def test_misc(golden: Golden) -> None:
    """Between maps, inside a map, with two results, with an item, and with axes turned."""
    b = Builder()
    x = b.input("X", block(m, k))

    def over_k(b: Builder, x: Value) -> Outputs:
        (y,) = b.map(k, [x], [], lambda b, x: [(b.one(EXP, x), None)])
        row = b.one(Misc("numpy", "cumsum", (), (Type((k.free,), (m, k.free), FLOAT),)), y)
        return [(y, None), (row, None)]

    e, running = b.map(m, [x], [], over_k)
    sort = Misc("numpy", "sort", (("axis", 1), ("kind", "stable")), (block(m, k),))
    b.output("SORTED", b.one(sort, e))
    both = Misc("numpy.linalg", "split", (), (block(m, k), Type((), (), FLOAT)), ((K, M),))
    buffer, number = b.add(both, running)
    scale = Elementwise(X * Y)

    def row(b: Builder, x: Value, number: Value) -> Outputs:
        body = b.map(k, [x], [number], lambda b, x, y: [(b.one(scale, x, y), None)])
        return [(body[0], None)]

    b.output("SCALED", b.map(m, [buffer], [number], row)[0], (M, K))
    b.output("NUMBER", number)
    golden(show(b.build()))


def test_scalar_items_go_in_and_out() -> None:
    b = Builder()
    x, s = b.input("X", block(m)), b.input("s", Type((), (), FLOAT))
    (y,) = b.map(m, [x], [s], lambda b, x, s: [(b.one(Elementwise(X + Y), x, s), None)])
    (total,) = b.map(m, [y], [], lambda b, y: [(b.one(BlockReduce(m, ADD), y), SUM)])
    b.output("Y", y)
    b.output("total", b.one(PRODUCT, total, s))
    assert show(b.build()) == (
        "t1 = load(s)\n"
        "forall m in range(M):\n"
        "    t2 = load(X[m])\n"
        "    t3 = t2+t1\n"
        "    store(t3,Y[m])\n"
        "for m in range(M):\n"
        "    t4 = load(Y[m])\n"
        "    t5 += sum(t4)\n"
        "t6 = t5*t1\n"
        "store(t6,total)\n"
    )


def test_outputs_that_are_inputs_or_one_another() -> None:
    b = Builder()
    x, s = b.input("X", block(m, n)), b.input("s", Type((), (), FLOAT))
    (y,) = b.map(
        m,
        [x],
        [],
        lambda b, x: [(b.map(n, [x], [], lambda b, x: [(b.one(EXP, x), None)])[0], None)],
    )
    for name, value, axes in (
        ("A", x, (M, N)),
        ("AT", x, (N, M)),
        ("B", s, ()),
        ("C", y, (M, N)),
        ("D", y, (M, N)),
    ):
        b.output(name, value, axes)
    assert show(b.build()) == (
        "A = copy(X)\n"
        "AT = transpose(X)\n"
        "t1 = load(s)\n"
        "store(t1,B)\n"
        "forall m in range(M):\n"
        "    forall n in range(N):\n"
        "        t2 = load(X[m,n])\n"
        "        t3 = exp(t2)\n"
        "        store(t3,C[m,n])\n"
        "D = copy(C)\n"
    )


def test_whole_list_stacked_by_a_map() -> None:
    b = Builder()
    x, y = b.input("X", block(m)), b.input("Y", block(n))
    (z,) = b.map(m, [x], [y], lambda b, x, y: [(y, None)])
    b.output("Z", z)
    assert show(b.build()) == "forall m in range(M):\n    Z[m,:] = copy(Y)\n"


# ------------------------------------------------------------------------- names


def test_inputs_keep_their_names() -> None:
    b = Builder()
    inputs = [b.input(name, block(m)) for name in ("t1", "I1", "m", "load", "lambda", "a.b")]

    def body(b: Builder, *items: Value) -> Outputs:
        total = items[0]
        for item in items[1:]:
            total = b.one(Elementwise(X + Y), total, item)
        return [(total, None)]

    (s,) = b.map(m, inputs, [], body)
    b.output("t3", b.map(m, [s], [], lambda b, x: [(b.one(EXP, x), None)])[0])
    assert show(b.build()) == (
        "forall m2 in range(M2):\n"
        "    t2 = load(t1[m2])\n"
        "    t4 = load(I1[m2])\n"
        "    t5 = add(t2,t4)\n"
        "    t6 = load(m[m2])\n"
        "    t7 = add(t5,t6)\n"
        "    t8 = load(load[m2])\n"
        "    t9 = add(t7,t8)\n"
        "    t10 = load(lambda[m2])\n"
        "    t11 = add(t9,t10)\n"
        "    t12 = load(a_b[m2])\n"
        "    t13 = add(t11,t12)\n"
        "    store(t13,I2[m2])\n"
        "forall m2 in range(M2):\n"
        "    t14 = load(I2[m2])\n"
        "    t15 = exp(t14)\n"
        "    store(t15,t3[m2])\n"
    )


@pytest.mark.parametrize(
    ("axis", "head"),
    [
        (Axis("For", 8), "forall for2 in range(For2):"),
        (Axis("MAX", 8), "forall max2 in range(MAX2):"),
        (Axis("batch", 8), "forall batch in range(BATCH):"),
        (Axis("0", 8), "forall x02 in range(X02):"),
        (Axis("seq.len", 8), "forall seq_len in range(SEQ_LEN):"),
        (Axis("X", 8), "forall x2 in range(X2):"),
    ],
)
def test_loop_variables_do_not_clash(axis: Axis, head: str) -> None:
    b = Builder()
    x, x0 = b.input("X", block(Dim(axis))), b.input("X0", block(Dim(axis)))
    (y,) = b.map(Dim(axis), [x, x0], [], lambda b, x, y: [(b.one(PRODUCT, x, y), None)])
    b.output("Y", y)
    assert show(b.build()).splitlines()[0] == head


def test_bound_does_not_clash_with_a_size_in_an_expression() -> None:
    axis = Axis("S", Symbol("S"))
    b = Builder()
    x = b.input("X", block(Dim(axis)))
    scaled = Elementwise(X / size(axis))
    b.output("Y", b.map(Dim(axis), [x], [], lambda b, x: [(b.one(scaled, x), None)])[0])
    assert "forall s2 in range(S2):" in show(b.build())
    assert "t2 = t1/S\n" in show(b.build())


def test_repeated_and_missing_names_of_inputs_and_outputs() -> None:
    b = Builder()
    inputs = [b.input(name, block(m)) for name in ("X", "X", "X2", "")]
    for name, value in zip(("X", "", "Y"), inputs, strict=False):
        b.output(name, value)
    assert show(b.build()) == "X5 = copy(X)\nO = copy(X3)\nY = copy(X2)\n"


# --------------------------------------------------------------- functional operators

a_mk, a_km = ItemText("a", (M, K)), ItemText("a", (K, M))
a_mnk = ItemText("a", (M, N, K))
c_m, c_k, c_n = ItemText("c", (M,)), ItemText("c", (K,)), ItemText("c", (N,))
scalar, b_mk, b_nk = ItemText("s", ()), ItemText("b", (M, K)), ItemText("b", (N, K))
times, plus, minus, divided = (Elementwise(e) for e in (X * Y, X + Y, X - Y, X / Y))


@pytest.mark.parametrize(
    ("op", "operands", "text", "axes"),
    [
        (times, (a_mk, b_mk), "mul(a,b)", (M, K)),
        (times, (a_km, b_mk), "mul(a,b.T)", (K, M)),
        (plus, (a_mk, b_mk), "add(a,b)", (M, K)),
        (plus, (c_m, c_m._replace(text="b")), "add(c,b)", (M,)),
        (minus, (a_mk, b_mk), "a-b", (M, K)),
        (minus, (a_km, b_mk), "a-b.T", (K, M)),
        (times, (a_mk, c_m), "row_scale(a,c)", (M, K)),
        (times, (c_m, a_mk), "row_scale(a,c)", (M, K)),
        (times, (c_k, a_mk), "col_scale(a,c)", (M, K)),
        (divided, (a_mk, c_m), "row_scale(a,1/c)", (M, K)),
        (divided, (a_mk, c_k), "col_scale(a,1/c)", (M, K)),
        (divided, (c_m, a_mk), "c/a", (M, K)),
        (plus, (a_mk, c_m), "row_shift(a,c)", (M, K)),
        (minus, (a_mk, c_m), "row_shift(a,-c)", (M, K)),
        (minus, (a_mk, c_k), "col_shift(a,-c)", (M, K)),
        (times, (a_mnk, c_m), "row_scale(a,c)", (M, N, K)),
        (times, (a_mnk, c_n), "a*c", (M, N, K)),
        (times, (a_mk, b_nk), "a*b.T", (M, K, N)),
        (times, (c_m, c_n._replace(text="b")), "outer(c,b)", (M, N)),
        (divided, (c_m, c_n._replace(text="b")), "outer(c,1/b)", (M, N)),
        (plus, (c_m, c_n._replace(text="b")), "outer_add(c,b)", (M, N)),
        (times, (a_mk, scalar), "a*s", (M, K)),
        (Elementwise(X * X), (a_mk,), "a*a", (M, K)),
        (Elementwise(call("maximum", X, Y)), (c_k, a_mk), "maximum(c,a)", (M, K)),
        (Elementwise(cast(X, DType.float16)), (a_mk,), "float16(a)", (M, K)),
        (Elementwise(arg(0) * 0 + 1), (scalar,), "s*0+1", ()),
        (BlockReduce(k, ADD), (a_mk,), "row_sum(a)", (M,)),
        (BlockReduce(k, ADD), (a_km,), "col_sum(a)", (M,)),
        (BlockReduce(k, MAX), (a_mk,), "row_max(a)", (M,)),
        (BlockReduce(k, MUL), (c_k,), "prod(c)", ()),
        (BlockReduce(n, MIN), (a_mnk,), "min(a,axis=1)", (M, K)),
        (Dot(k), (a_mk, b_nk), "dot(a,b)", (M, N)),
        (Dot(k), (a_km, b_nk), "dot(a.T,b)", (M, N)),
        (Dot(k), (b_nk, a_km), "dot(b,a.T)", (N, M)),
        (Dot(k), (a_mk, c_k), "dot(a,c)", (M,)),
        (Dot(n), (a_mnk, c_n), 'dot(a,c,axis="N")', (M, K)),
    ],
)
def test_words(op: Op, operands: tuple[ItemText, ...], text: str, axes: tuple[Axis, ...]) -> None:
    assert isinstance(op, Elementwise | BlockReduce | Dot)
    assert write(op, operands) == ItemText(text, axes)


def test_words_follow_the_loops_where_the_operands_leave_it_open() -> None:
    n_vector = ItemText("b", (N,))
    at_most = Elementwise(call("le", X, Y))
    assert write(at_most, (n_vector, c_m), (M, N)) == ItemText("b<=c", (M, N))
    assert write(times, (n_vector, c_m), (M, N)) == ItemText("outer(c,b)", (M, N))
    assert write(divided, (n_vector, c_m), (M, N)) == ItemText("outer(b,1/c)", (N, M))
    assert write(times, (a_mk, b_nk), (M, N, K)) == ItemText("a*b", (M, N, K))


def test_rows_and_columns_are_those_of_the_listing(golden: Golden) -> None:
    """c*x is typed (K,M) and reads as (M,K): so the sum over K is a row_sum, also from a buffer."""
    b = Builder()
    x, c = b.input("X", block(m, k)), b.input("C", block(k))

    def scaled(b: Builder, x: Value, c: Value) -> Outputs:
        product = b.map(k, [c, x], [], lambda b, c, x: [(b.one(PRODUCT, c, x), None)])
        return [(product[0], None)]

    (y,) = b.map(m, [x], [c], scaled)

    def total(b: Builder, y: Value) -> Outputs:
        return [(b.map(k, [y], [], lambda b, y: [(b.one(BlockReduce(k, ADD), y), SUM)])[0], None)]

    b.output("Y", b.map(m, [y], [], total)[0])
    golden(show(b.build()))


# ----------------------------------------------------------------------- size


def test_long_chains_do_not_recurse() -> None:
    b = Builder()
    x = b.input("X", Type((), (m,), FLOAT))
    for _ in range(5000):
        x = b.one(EXP, x)
    b.output("Y", x)
    assert show(b.build()).splitlines()[-2:] == ["t5001 = exp(t5000)", "store(t5001,Y)"]
