"""Lookups in kernels: fused with their surroundings, exact in every dtype, on ragged blocks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.trace import array
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import InvalidNest, PlaceOutside
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Compute, For, Kernel, Load, Lookup
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.triton.kernel import kernels_in_triton, print_triton
from blockbuster_fusion.schedule.defaults import unit_axes
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.effort import crossed
from helpers.lookup_programs import FORMS, inputs_of, traced

RAGGED = ({"S": 45, "V": 37, "D": 21, "E": 19, "L": 2, "R": 6}, {"S": 1, "V": 70, "D": 3, "L": 5})
EXACT = {"float32": 2e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def chosen(name: str, **options: object) -> Kernel:
    """The kernel that is chosen by default, if it is one."""
    nest, _ = choose(Request(traced(name), **options))[0].scheduled()  # type: ignore[arg-type]
    (kernel,) = nest.steps
    assert isinstance(kernel, Kernel)
    return kernel


ONE = sorted(set(FORMS) - {"computed_table"})


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name: str, target: str) -> None:
    kernel = chosen(name, target=target)
    assert any(isinstance(s, Lookup) for s in kernel.statements)


def test_what_is_known_of_the_width_is_read_once() -> None:
    """A row of the table is a block, and each is looked up once."""
    for name in ("embedding_and_norm", "three_embeddings"):
        program = traced(name, D=768)
        assert unit_axes(bb.lower(program), "cpu") == ("D",)
        nest, _ = choose(Request(program))[0].scheduled()
        (kernel,) = nest.kernels
        assert not any(isinstance(s, For) for s in kernel.statements)
    assert unit_axes(bb.lower(traced("embedding", D=768)), "cpu") == ("D",)


@pytest.mark.parametrize(("name", "dtype"), crossed([*FORMS], [*EXACT]))
def test_as_exact_as_the_dtype(name: str, dtype: str) -> None:
    """In blocks of 8, whose last ones are shorter, and as compiled by default."""
    for batched in (False, True) if "P" in FORMS[name].__annotations__ else (False,):
        program = traced(name, batched)
        small = {d.name: 8 for d in bb.lower(program).dims if d.packed and not d.is_free}
        for tiles in (small, None) if dtype == "float32" else (small,):
            kernel = bb.compile(program, tiles=tiles, dtype=dtype, threads=2)
            for extents in RAGGED:
                assert error_of(kernel, program, dtype, {**extents, "B": 3}) <= EXACT[dtype]


def error_of(
    kernel: bb.Executable, program: bb.ArrayProgram, dtype: str, extents: dict[str, int]
) -> float:
    given = {n: torch.from_numpy(x) for n, x in inputs_of(program, **extents).items()}
    given = {
        n: x.to(getattr(torch, dtype)) if x.is_floating_point() else x for n, x in given.items()
    }
    exact = {n: (x.double() if x.is_floating_point() else x).numpy() for n, x in given.items()}
    made = {n: x.double().numpy() for n, x in kernel(**given).items()}
    return relative_error(made, bb.evaluate(program, exact))


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_tables_of_whole_numbers(dtype: str) -> None:
    """And places in 32 bits, some of them computed."""
    program = bb.trace(
        lambda ids, table: table[ids + 1], array("S", dtype="int32"), array("V", "D", dtype=dtype)
    )
    table = np.random.default_rng(0).integers(0, 2, (9, 21)).astype(dtype)
    ids = np.array([0, 3, 7, 7, 1], np.int32)
    np.testing.assert_array_equal(bb.compile(program)(ids, table)[0], table[ids + 1])


def test_one_place_at_a_time() -> None:
    """Of axes that are walked one index at a time, on either side."""
    program = bb.trace(
        lambda ids, X: ops.take_along_axis(X, ids, 2) * 2,
        *(array("B", "H", "R", dtype="int64"), "B H V"),
        batch="B H R V",
    )
    assert not any(d.packed for d in bb.lower(program).dims)
    X = np.random.default_rng(1).standard_normal((2, 3, 7)).astype(np.float32)
    ids = np.random.default_rng(2).integers(0, 7, (2, 3, 5))
    np.testing.assert_array_equal(bb.compile(program)(ids, X)[0], np.take_along_axis(X, ids, 2) * 2)


def test_strided_tables_are_read_where_they_lie() -> None:
    kernel = bb.compile(traced("embedding"))
    table = np.random.default_rng(3).standard_normal((40, 90)).astype(np.float32)
    ids = np.array([3, 0, 39, 5])
    for view in (table.T, table[::3], table[:, 1::2]):
        at = ids % len(view)
        np.testing.assert_array_equal(kernel(at, view)[0], view[at])
    np.testing.assert_array_equal(kernel(ids[::2], table)[0], table[ids[::2]])


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(grid="outer")])
def test_every_snapshot_keeps_the_rules(schedule: Schedule) -> None:
    for name in FORMS:
        graph = bb.lower(traced(name))
        for snapshot in bb.fuse(graph).snapshots:
            nest = scheduled(snapshot, name, schedule)
            verify_nest(nest)
            assert "take" in print_c(nest, {})
            compile(print_triton(nest), name, "exec")


# ------------------------------------------------------------- places outside of the table


@pytest.mark.sweep(3)
@pytest.mark.parametrize("place", [-1, 37, 10**7, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("name", sorted(set(FORMS) - {"columns"}))
def test_a_place_outside_is_an_index_error(name: str, place: int) -> None:
    """Any thread raises it, also at the end of a ragged block; the next call is right."""
    program = traced(name)
    kernel = bb.compile(program, tiles={"S": 8}, threads=2)
    given = {
        n: x.astype(np.float32) if x.dtype == np.float64 else x
        for n, x in inputs_of(program, **RAGGED[0]).items()
    }
    exact = kernel(**given)
    for where in (0, 8, -1):
        wrong = {n: x.copy() for n, x in given.items()}
        next(x for x in wrong.values() if x.dtype == np.int64).flat[where] = place
        with pytest.raises(PlaceOutside, match="at a place outside of its array"):
            kernel(**wrong)
    assert issubclass(PlaceOutside, IndexError)
    for n, x in kernel(**given).items():
        np.testing.assert_array_equal(x, exact[n])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_place_outside_where_places_are_walked_one_by_one(dtype: str) -> None:
    program = bb.trace(
        lambda ids, X: ops.take_along_axis(X, ids, 1) * 2,
        *(array("B", "R", dtype="int64"), array("B", "V", dtype=dtype)),
        batch="B R V",
    )
    kernel = bb.compile(program)
    X = torch.ones(2, 7, dtype=getattr(torch, dtype))
    assert kernel(torch.tensor([[6], [0]]), X)[0].tolist() == [[2], [2]]
    for place in (7, -1, 2**40):
        with pytest.raises(IndexError):
            kernel(torch.tensor([[6], [place]]), X)


def test_nothing_is_looked_up_in_an_empty_table() -> None:
    kernel = bb.compile(traced("embedding"))
    with pytest.raises(IndexError):
        kernel(np.array([0]), np.zeros((0, 3), np.float32))


def test_torch_compile_tells_of_a_place_outside() -> None:
    bb.register_backend()
    compiled = torch.compile(
        lambda table, ids: torch.nn.functional.embedding(ids, table) * 2, backend="blockbuster"
    )
    table = torch.randn(5, 6)
    with torch.no_grad():
        assert torch.equal(compiled(table, torch.tensor([4])), table[4:] * 2)
        with pytest.raises(IndexError):
            compiled(table, torch.tensor([10**7]))


# ---------------------------------------------------------------- the order of loads and lookups


def test_listing(golden: Callable[[str], None]) -> None:
    golden(show_nest(chosen("embedding_and_norm")))


def test_c_reads_rows_in_one_piece_wherever_the_vectors_run() -> None:
    """Along a row, one after the other; along the places, a band of rows at once."""
    text = bb.compile(traced("embedding_and_norm", D=64)).source
    assert "if (on_axis(t3[i1], VV, &astray))" in text
    assert "load_float_float(t4 + i1 * d_row, 0, W + t3[i1] * W_V, 0, W_D, 1, 64);" in text
    text = bb.compile(traced("embedding_and_projection", D=64)).source
    assert (
        "take_float_float_int64_t(t2, s_row, W, VV, t1, W_V, W_D, 0, 64, s_len, &astray);" in text
    )


def test_triton_masks_what_it_looks_up(golden: Callable[[str], None]) -> None:
    nest, _ = choose(Request(traced("embedding_and_norm", D=64), target="cuda"))[0].scheduled()
    golden("\n\n\n".join(kernels_in_triton(nest)[2]))


def test_narrow_tables_are_widened_as_they_are_read() -> None:
    kernel = chosen("embedding_and_norm", dtype="bfloat16")
    looked_up = [s for s in kernel.statements if isinstance(s, Lookup)]
    assert looked_up
    assert all(s.source.buffer.dtype is DType.bfloat16 for s in looked_up)
    assert all(s.tile.dtype is DType.float32 for s in looked_up)
    computed = [s for s in kernel.statements if isinstance(s, Compute)]
    assert not any(s.expr.op == "cast" for s in computed)


def test_places_are_loaded_once_and_lookups_follow_them() -> None:
    """Places do not vary over the width, so their loads leave that loop; lookups stay."""
    kernel = chosen("three_embeddings")
    outside = [s for s in kernel.body if isinstance(s, Load)]
    assert {"ids", "kinds"} <= {s.source.buffer.name for s in outside}
    (inside, *_) = [s for s in kernel.body if isinstance(s, For)]
    names = [s.source.buffer.name for s in inside.body if isinstance(s, Lookup)]
    assert names == ["W", "T"]


def test_what_nobody_varies_is_looked_up_before_the_loop() -> None:
    kernel = chosen("cross_entropy")
    loops = [s for s in kernel.statements if isinstance(s, For)]
    assert loops
    assert not any(isinstance(s, Lookup) for loop in loops for s in loop.body)


def test_the_same_places_of_a_table_are_looked_up_once() -> None:
    program = bb.trace(lambda ids, W: W[ids] * ops.exp(W[ids]), array("S", dtype="int64"), "V D")
    nest, _ = choose(Request(program))[0].scheduled()
    assert len([s for k in nest.kernels for s in k.statements if isinstance(s, Lookup)]) == 1


def test_the_rules_of_lookups() -> None:
    places = array("S", dtype="int64")
    program = bb.trace(lambda ids, W, P: W[ids] + P, places, "V D", "S D")
    nest, _ = choose(Request(program, schedule=Schedule(grid="all")))[0].scheduled()
    (kernel,) = nest.kernels
    statement = next(s for s in kernel.body if isinstance(s, Lookup))
    ids, rows = (s for s in kernel.body if isinstance(s, Load))
    assert statement.places is ids.tile

    def also(wrong: Lookup) -> Kernel:
        at = kernel.body.index(rows) + 1
        return replace(kernel, body=(*kernel.body[:at], wrong, *kernel.body[at:]))

    verify_nest(also(replace(statement)))
    with pytest.raises(InvalidNest, match="W is not whole along D"):
        verify_nest(also(replace(statement, axis=1)))
    with pytest.raises(InvalidNest, match="the tile has the axes"):
        verify_nest(also(replace(statement, tile=ids.tile)))
    with pytest.raises(InvalidNest, match=r"the places t\d+ are float32, not whole numbers"):
        verify_nest(also(replace(statement, places=rows.tile)))
    with pytest.raises(InvalidNest, match="is read before it is written"):
        verify_nest(also(replace(statement, places=replace(ids.tile))))
