"""The tally of a run: figures worked out by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from blockbuster_fusion.cost.counters import Traffic
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD, Reduced
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import BlockReduce, Dot, Misc, Value
from blockbuster_fusion.ir.types import DType, Type
from helpers.graphs import array, item, k, m, matmul_relu, n
from helpers.interp_graphs import (
    Results,
    attention,
    causal,
    each,
    expression,
    flash_attention,
    gram,
    matmul,
    peeled,
)

EXTENTS = {"M": 7, "N": 6, "K": 5, "D": 9, "L": 8}


def traffic(graph: Graph, tiles: dict[str, int], dtype: type = np.float32) -> Traffic:
    """The tally of a run on zeros; the meter must agree."""
    arrays = []
    for port in range(len(graph.inputs)):
        shape = [EXTENTS[axis.name] for axis in graph.type_of_input(port).axes]
        arrays.append(np.zeros(shape, dtype))
    tally = interpret(graph, arrays, tiles).traffic
    names = {dim.name for dim in graph.dims}
    assert meter(graph, {a: e for a, e in EXTENTS.items() if a in names}, tiles) == tally
    return tally


F = 4  # bytes of a float32
A, B, C = 7 * 5 * F, 6 * 5 * F, 7 * 6 * F
MATMULS = [
    # tiles of M, N, K; how often A and B are loaded as a whole; blocks of K; elements live
    ((3, 4, 2), 2, 3, 3, (3 * 2 + 4 * 2 + 3 * 4) + 3 * 4),
    ((3, 4, 5), 1, 3, 1, 3 * 5 + 4 * 5 + 3 * 4),  # a block of A serves a whole row of blocks of C
    ((3, 6, 5), 1, 1, 1, 3 * 5 + 6 * 5 + 3 * 6),  # all of B stays
    ((3, 6, 2), 1, 3, 3, (3 * 2 + 6 * 2 + 3 * 6) + 3 * 6),
    ((7, 4, 2), 2, 1, 3, (7 * 2 + 4 * 2 + 7 * 4) + 7 * 4),
    ((7, 6, 5), 1, 1, 1, 7 * 5 + 6 * 5 + 7 * 6),
    ((99, 99, 2), 1, 1, 3, (7 * 2 + 6 * 2 + 7 * 6) + 7 * 6),
    ((1, 1, 1), 6, 7, 5, 4),
    ((7, 6, 4), 1, 1, 2, max(7 * 4 + 6 * 4 + 7 * 6, 7 * 1 + 6 * 1 + 2 * 7 * 6)),  # a tail of 1
]


@pytest.mark.parametrize(("sizes", "of_a", "of_b", "blocks", "live"), MATMULS)
def test_matmul(sizes: tuple[int, int, int], of_a: int, of_b: int, blocks: int, live: int) -> None:
    tally = traffic(matmul(), dict(zip("MNK", sizes, strict=True)))
    assert tally.by_buffer == {"A": (of_a * A, 0), "B": (of_b * B, 0), "C": (0, C)}
    assert tally.loaded == of_a * A + of_b * B
    assert tally.stored == C
    assert tally.flops == 2 * 7 * 6 * 5 + blocks * 7 * 6
    assert tally.peak_local == live * F


@pytest.mark.parametrize(("sizes", "of_a", "of_b", "blocks", "live"), MATMULS)
def test_matmul_with_its_products_in_memory(
    sizes: tuple[int, int, int], of_a: int, of_b: int, blocks: int, live: int
) -> None:
    tally = traffic(matmul(fused=False), dict(zip("MNK", sizes, strict=True)))
    assert tally.loaded == of_a * A + of_b * B + blocks * C
    assert tally.stored == blocks * C + C
    assert tally.by_buffer["C"] == (0, C)
    assert tally.flops == 2 * 7 * 6 * 5 + blocks * 7 * 6
    tile_m, tile_n, tile_k = (min(t, e) for t, e in zip(sizes, (7, 6, 5), strict=True))
    product = tile_m * tile_n
    reduction = product * min(blocks, 2)
    assert tally.peak_local == F * max((tile_m + tile_n) * tile_k + product, reduction)


def test_matmul_then_relu_through_memory() -> None:
    tally = traffic(matmul_relu(), {"M": 3, "N": 4, "K": 2})
    products, intermediate = (place for place in tally.by_buffer if place.startswith("%"))
    assert tally.by_buffer == {
        "A": (2 * A, 0),
        "B": (3 * B, 0),
        products: (3 * C, 3 * C),
        intermediate: (C, C),
        "C": (0, C),
    }


def test_bytes_are_those_of_the_declared_dtype() -> None:
    for dtype in (np.float16, np.float32, np.float64):  # the last computes in float64
        tally = traffic(matmul(dtype=DType.bfloat16), {"M": 7, "N": 6, "K": 5}, dtype)
        assert (tally.loaded, tally.stored) == ((A + B) // 2, C // 2)


def test_flash_attention() -> None:
    q, kt, vt, o = 7 * 9 * F, 6 * 9 * F, 8 * 6 * F, 7 * 8 * F
    tally = traffic(flash_attention(), {"M": 3, "N": 2, "D": 3, "L": 4})  # 3, 3, 3, 2 blocks
    assert tally.by_buffer == {
        "Q": (2 * 3 * q, 0),
        "KT": (3 * 2 * kt, 0),
        "VT": (3 * vt, 0),
        "O": (0, o),
    }
    tally = traffic(flash_attention(), {"M": 3, "N": 2})  # D and L in one block: the real one
    assert tally.by_buffer == {"Q": (q, 0), "KT": (3 * kt, 0), "VT": (3 * vt, 0), "O": (0, o)}
    step = 2 * 7 * 6 * 9 + 7 * 6 + 2 * 7 * 6 + 7 * 6 + 2 * 7 * 6 * 8  # dot, ⊕, exp·, row_sum, dot
    gathered = 3 * (7 + 7 * 8)  # three blocks of N come into both sums
    assert tally.flops == step + gathered + 7 + 7 * 8
    # the second step over N holds sums and products throughout; the loop over D also holds blocks
    # of Q, KT and scores; the rest also holds weights, a block of VT and the new terms
    sums, products, weights = 3, 3 * 8, 3 * 2
    inner, outer = 3 * 9 + 2 * 9 + weights, weights + 8 * 2 + sums + products
    assert tally.peak_local == F * (sums + products + max(inner, outer))


def test_fusion_saves_traffic() -> None:
    tiles = {"M": 3, "N": 2}
    unfused, fused = traffic(attention(), tiles), traffic(flash_attention(), tiles)
    assert fused.loaded < unfused.loaded
    assert fused.stored == 7 * 8 * F < unfused.stored


def test_a_list_made_anew_is_a_new_buffer() -> None:
    def row(g: Builder, x: Value, y: Value) -> Results:
        scratch = each(g, [k], arg(0) + arg(1), y, x)
        return [
            (
                g.map(
                    k, [scratch], [], lambda g, v: [(g.one(BlockReduce(k, ADD), v), Reduced(ADD))]
                )[0],
                None,
            )
        ]

    build = Builder()
    x, y = build.input("x", array(m)), build.input("y", array(k))
    build.output("z", build.map(m, [x], [y], row)[0])
    tally = traffic(build.build(), {"M": 3, "K": 5})
    scratch = next(place for place in tally.by_buffer if place.startswith("%"))
    assert tally.by_buffer == {
        "y": (5 * F, 0),  # the same block in every iteration
        "x": (7 * F, 0),
        scratch: (7 * 5 * F, 7 * 5 * F),
        "z": (0, 7 * F),
    }


def program(body: Callable[[Builder], None]) -> Graph:
    build = Builder()
    body(build)
    return build.build()


def test_items_are_loaded_and_stored_once_if_used() -> None:
    def body(g: Builder) -> None:
        x, y, z = (
            g.input(name, kind) for name, kind in (("x", array(m)), ("y", item(n)), ("z", item(k)))
        )
        g.output(
            "out",
            g.map(
                m, [x], [y, z], lambda g, x, y, z: [(expression(g, arg(0) + arg(1), x, y), None)]
            )[0],
        )
        g.output("y again", y)

    tally = traffic(program(body), {"M": 2})
    out = 7 * 6 * F
    assert tally.by_buffer == {
        "y": (6 * F, 0),
        "x": (7 * F, 0),
        "out": (0, out),
        "y again": (0, 6 * F),
    }
    assert tally.peak_local == (6 + 2 + 2 * 6) * F  # y is not counted again inside the map


def test_a_port_that_is_not_used_is_not_loaded() -> None:
    def inner(g: Builder, y: Value, x: Value, z: Value) -> Results:
        return [(expression(g, -arg(0), y), None)]

    def outer(g: Builder, x: Value, z: Value, y: Value) -> Results:
        return [(g.map(n, [y], [x, z], inner)[0], None)]

    def body(g: Builder) -> None:
        x, z, y = (g.input(name, array(dim)) for name, dim in (("x", m), ("z", m), ("y", n)))
        g.output("out", g.map(m, [x, z], [y], outer)[0])

    tally = traffic(program(body), {"M": 2, "N": 4})
    assert tally.by_buffer == {"y": (4 * 6 * F, 0), "out": (0, 4 * 6 * F)}
    assert tally.peak_local == 2 * 4 * F


def test_an_item_lives_from_its_first_use_to_its_last() -> None:
    def row(g: Builder, x: Value, y: Value) -> Results:
        a = expression(g, arg(0) + 1.0, x)  # x and a: 15 + 15 elements
        b = g.one(Dot(k), a, a)  # a and b: x is done with
        c = expression(g, arg(0) * 2.0, b)  # b and c: a is done with
        return [(expression(g, arg(0) + arg(1), y, c), None)]  # y only now: 18, 3 and the result

    def body(g: Builder) -> None:
        x, y = (
            g.input(name, Type((m.free,), (m.free, dim), DType.float32))
            for name, dim in (("x", k), ("y", n))
        )
        g.output("out", g.map(m, [x, y], [], row)[0])

    assert traffic(program(body), {"M": 3}).peak_local == (18 + 3 + 18) * F


def test_virtual_lists_cost_nothing() -> None:
    tally = traffic(causal(), {"M": 2, "N": 4})
    assert tally.by_buffer == {"X": (7 * 6 * F, 0), "Y": (0, 7 * 6 * F)}
    assert tally.flops == 2 * 7 * 6
    assert tally.peak_local == (2 + 4) * 8 + 2 * (2 * 4) * F  # positions are int64


def test_a_renamed_list_is_the_same_buffer() -> None:
    tally = traffic(gram(), {"M": 7, "P": 7, "K": 5})
    doubled = next(place for place in tally.by_buffer if place.startswith("%"))
    assert tally.by_buffer == {"X": (A, 0), doubled: (2 * A, A), "G": (0, 7 * 7 * F)}


def test_peeling_moves_nothing_more() -> None:
    for tile in (1, 2, 5):
        tally = traffic(peeled(), {"M": 3, "K": tile})
        assert tally.by_buffer == {"X": (A, 0), "Y": (0, A)}
        assert tally.flops == 7 * 5


def test_misc_operators_load_and_store_their_lists() -> None:
    def body(g: Builder) -> None:
        x = g.input("x", array(m, k))
        order = g.one(
            Misc("numpy", "argsort", (("axis", 1),), (array(m, k, dtype=DType.int64),)), x
        )
        g.output("top", each(g, [m, k], call("minimum", arg(0), 2), order))

    tally = traffic(program(body), {})
    order = next(place for place in tally.by_buffer if place.startswith("%"))
    assert tally.by_buffer == {"x": (A, 0), order: (2 * A, 2 * A), "top": (0, 2 * A)}


def test_what_is_not_run_costs_nothing() -> None:
    graph = matmul()
    for empty, stored in (("M", 0), ("N", 0), ("K", C)):
        extents = {"M": 7, "N": 6, "K": 5} | {empty: 0}
        shapes = [[extents["M"], extents["K"]], [extents["N"], extents["K"]]]
        tally = interpret(graph, [np.zeros(shape, np.float32) for shape in shapes]).traffic
        assert (tally.loaded, tally.stored, tally.flops) == (0, stored, 0)
        assert tally == meter(graph, extents)


def test_the_tally_is_readable() -> None:
    shown = str(traffic(matmul(), {"M": 3, "N": 4, "K": 2}))
    assert shown == "\n".join(
        [
            "       loaded  stored",
            "A         280       0",
            "B         360       0",
            "C           0     168",
            "bytes     640     168",
            "546 operations; at most 152 bytes live at a time",
        ]
    )
