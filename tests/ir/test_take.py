"""The lookup among the operators: its type, its text, its listing, and programs that have one."""

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.trace import array as spec
from blockbuster_fusion.errors import IllTyped, InvalidGraph
from blockbuster_fusion.fusion.fuse import unit_dims
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import Iota, Node, Take
from blockbuster_fusion.ir.sizes import with_sizes
from blockbuster_fusion.ir.specialise import specialise
from blockbuster_fusion.ir.types import DType, Type
from helpers.graphs import K, M, array, item, k, m, n
from helpers.running import assert_computes

V = Axis("V", Symbol("VV"))
v, free = Dim(V), Dim(V).free


PLACES = np.array([4, 0, 0, 2, 1, 4, 3, 2])
TABLE = np.random.default_rng(5).standard_normal((5, 7))


def table(*items: Dim, dtype: DType = DType.float32) -> Type:
    return Type((free,), (free, *items), dtype)


def places(*dims: Dim, dtype: DType = DType.int64) -> Type:
    return item(*dims, dtype=dtype)


@pytest.mark.parametrize(
    ("where", "at", "dims"),
    [
        (table(k), places(m), (m, k)),
        (table(), places(m, n), (m, n)),
        (table(k), places(), (k,)),
        (table(), places(), ()),
        (table(k, m), places(n, k), (n, k, m)),  # k is an axis of both
        (table(m), places(m), (m,)),
    ],
)
def test_the_axes_of_the_places_come_first(where: Type, at: Type, dims: tuple[Dim, ...]) -> None:
    assert infer(Take(V), [where, at]) == (item(*dims),)


def test_any_list_over_the_axis_that_lies_in_memory_is_a_table() -> None:
    walked = Type((v,), (v, k), DType.bfloat16)
    assert infer(Take(V), [walked, places(m)]) == (item(m, k, dtype=DType.bfloat16),)
    alone = Dim(V, None, packed=False)
    assert infer(Take(V), [Type((alone,), (k,), DType.float32), places(m)]) == (item(m, k),)
    assert infer(Take(V), [table(k), places(m, dtype=DType.int32)]) == (item(m, k),)


@pytest.mark.parametrize(
    ("operands", "problem"),
    [
        ([table(k)], "takes a table and the places to look up, and has 1 operands"),
        ([item(k), places(m)], "the table [](K.0)float32 is no list over V, which has to lie in m"),
        ([array(m, k), places(n)], "the table [M.* K.*](M.* K.*)float32 is no list over V"),
        ([array(v, k), places(m)], "is a list over K.* as well: put it in a map over it"),
        ([Type((v,), (k,), DType.float32), places(m)], "one element for each block of V.0 only"),
        ([table(k), array(m, dtype=DType.int64)], "the places are a list, [M.*](M.*)int64: put i"),
        ([table(k), item(m)], "the places are float32, not int64 or int32: cast them"),
        ([table(k), places(v)], "the places [](V.0)int64 have the axis V themselves: rename the"),
        ([table(k), places(Dim(K, 1))], "the result would have the axis K twice, as K.1 and K.0"),
    ],
)
def test_operands_that_do_not_fit(operands: list[Type], problem: str) -> None:
    with pytest.raises(IllTyped) as error:
        infer(Take(V), operands)
    assert str(error.value).startswith("take along V: ")
    assert problem in str(error.value)


def test_positions_are_no_table() -> None:
    build = Builder()
    positions, at = build.one(Iota(free)), build.input("at", places(m))
    with pytest.raises(IllTyped, match="is virtual and lies nowhere: its elements are the places"):
        build.one(Take(V), positions, at)


def embedding() -> Graph:
    build = Builder()
    at, rows = build.input("ids", array(m, dtype=DType.int64)), build.input("W", array(v, k))
    made = build.nest([m, k], [rows, at], lambda g, rows, at: g.one(Take(V), rows, at))
    build.output("O", made, (M, K))
    return build.build()


def test_a_sound_program_and_one_whose_types_are_wrong() -> None:
    graph = embedding()
    bb.verify(graph)
    outer = graph.map(max(i for i, _ in graph.maps()))
    inner = outer.body.map(next(i for i, _ in outer.body.maps())).body
    (at,) = (i for i, node in inner.nodes.items() if isinstance(node.op, Take))
    node = inner[at]
    wrong = Graph({**inner.nodes, at: Node(node.op, node.inputs, (item(k, m),))}, inner.inputs, ())
    with pytest.raises(InvalidGraph, match=rf"node %{at} \(take along V\): its results have the"):
        bb.verify(wrong)


def test_the_listing() -> None:
    assert bb.show(embedding()) == (
        "forall m in range(M):\n"
        "    t1 = load(ids[m])\n"
        "    forall k in range(K):\n"
        "        t2 = take(W[:,k],t1)\n"
        "        store(t2,O[m,k])\n"
    )


def test_the_listing_of_a_table_that_is_computed() -> None:
    program = bb.trace(lambda x, y, at: (x @ y.T)[at], "V N", "K N", spec("M", dtype="int64"))
    assert "take(I2[:,k],t6)" in bb.show(bb.lower(program))


def test_text_reads_back() -> None:
    graph = embedding()
    text = bb.to_text(graph)
    assert "take(%4, %5) along V\n" in text
    again = bb.from_text(text)
    assert again.digest == graph.digest
    assert bb.to_text(again) == text
    with pytest.raises(bb.BlockbusterError, match="expected `along` and an axis after the operan"):
        bb.from_text(text.replace("along V", "over V.0"))


def test_the_digest_tells_axes_apart_and_not_names() -> None:
    def digest(names: str, along: int) -> str:
        """Of a square table, with its rows or its columns looked up."""
        axes = [Axis(name, 6) for name in names]
        dims = tuple(Dim(axis, None) for axis in axes)
        build = Builder()
        rows = build.input("T", Type(dims, dims, DType.float32))
        at, take = build.input("at", places()), Take(axes[along])
        loop = Dim(axes[1 - along])
        (made,) = build.map(loop, [rows], [at], lambda g, r, i: [(g.one(take, r, i), None)])
        build.output("O", made)
        return build.build().digest

    assert digest("AB", 0) == digest("CD", 0)
    assert digest("AB", 0) != digest("AB", 1)


def test_sizes_that_become_known() -> None:
    made = with_sizes(embedding(), {Symbol("VV"): 9})
    bb.verify(made)
    taken = [node.op for _, g in made.walk() for node in g.nodes.values()]
    assert [op.axis for op in taken if isinstance(op, Take)] == [Axis("V", 9)]


@pytest.mark.parametrize("unit", [("K",), ("M",), ("M", "K")])
def test_unit_dims(unit: tuple[str, ...]) -> None:
    program = bb.trace(lambda ids, W: W[ids], spec("M", dtype="int64"), "V K")
    graph = bb.lower(program)
    given = {"ids": PLACES, "W": TABLE}
    made = specialise(graph, unit_dims(graph, unit))
    bb.verify(made)
    assert not any(d.name in unit for d in made.loops)
    assert_computes(made, given, bb.evaluate(program, given))


def test_a_table_that_is_computed_stays_a_list() -> None:
    """Its loop stays, even where all other loops of the axis go."""
    program = bb.trace(lambda ids, W: (W @ W.T)[ids] + 1, spec("M", dtype="int64"), "V K")
    graph = bb.lower(program)
    given = {"ids": PLACES, "W": TABLE}
    made = specialise(graph, unit_dims(graph, ("M", "V", "V_1", "K")))
    bb.verify(made)
    assert {d.name for d in made.loops} == {"V"}
    assert_computes(made, given, bb.evaluate(program, given))


def test_unpacked_axes_of_all_kinds() -> None:
    """One place at a time, and one row of the table at a time."""
    program = bb.trace(
        lambda ids, W: W[ids] * 2, spec("H", "M", dtype="int64"), "V K", batch="H M V"
    )
    given = {"ids": PLACES.reshape(2, 4), "W": TABLE}
    graph = bb.lower(program)
    assert {d.name for d in graph.dims if not d.packed} == {"H", "M", "V"}
    assert_computes(graph, given, bb.evaluate(program, given))
