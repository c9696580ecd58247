"""Outputs that are written into an input, at places that are data."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.array.data import program_data, program_from_data
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import BadInput, InvalidGraph, InvalidNest, PlaceOutside
from blockbuster_fusion.ir.digest import compute_digest
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Into, Output
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Store
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.schedule.schedule import scheduled
from blockbuster_fusion.tools.check.judge import relative_error
from blockbuster_fusion.torch.from_array_program import torch_program
from helpers.placed_programs import LENGTH, PLACED, inputs_of

EXACT = {"float32": 4e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def narrow(x: np.ndarray) -> np.ndarray:
    """The numbers as float32, and places as they are."""
    return x.astype(np.float32) if x.dtype == np.float64 else x


@pytest.mark.parametrize("name", PLACED)
def test_every_snapshot_means_the_same(name: str) -> None:
    program = PLACED[name]()
    given = inputs_of(program)
    exact = bb.evaluate(program, given)
    places = np.moveaxis(exact["O"] != given["cache"], _along(program), 0)
    used = places.reshape(LENGTH, -1).any(1)
    assert used.sum() >= given["at"].shape[-1] if given["at"].ndim else used.sum() == 1
    for graph in bb.fuse(bb.lower(program)).alternatives:
        made = bb.interpret(graph, given)
        for out in exact:
            np.testing.assert_allclose(made[out], exact[out], rtol=1e-12, atol=1e-12)


def _along(program: ArrayProgram) -> int:
    """The position of the cache along which rows are placed."""
    into = program.outputs[0].into
    assert into is not None
    return program.inputs[into.base].type.axes.index(into.axis)


@pytest.mark.sweep(2, reason="programs and dtypes in turn")
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("name", PLACED)
def test_written_in_place(name: str, dtype: str) -> None:
    program = PLACED[name]()
    given = inputs_of(program)
    exact = bb.evaluate(program, given)
    kind = getattr(torch, dtype)
    tensors = {
        n: torch.from_numpy(np.array(x)).to(kind if x.dtype == np.float64 else None)
        for n, x in given.items()
    }
    made = bb.compile(program, dtype=DType(dtype))(**tensors)
    assert made["O"].data_ptr() == tensors["cache"].data_ptr()
    found = {n: made[n].double().numpy() for n in exact}
    assert relative_error(found, exact) < 4 * EXACT[dtype]


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize("place", [LENGTH, -LENGTH - 1, 2**62])
def test_a_place_outside_is_an_index_error(name: str, place: int) -> None:
    program = PLACED[name]()
    given = {n: narrow(x) for n, x in inputs_of(program).items()}
    given["at"].reshape(-1)[1] = place
    with pytest.raises(PlaceOutside, match="at a place outside of its array"):
        bb.compile(program)(**given)
    with pytest.raises(BadInput):
        bb.interpret(bb.lower(program), given)


def test_listing() -> None:
    program = PLACED["rows"]()
    nest = scheduled(bb.fuse(bb.lower(program)).snapshots[-1], "rows")
    assert " at t" in show_nest(nest)
    assert " into cache along " in str(program)
    again = nest_from_text(nest_to_text(nest))
    assert show_nest(again) == show_nest(nest)


def test_text() -> None:
    for make in PLACED.values():
        graph = bb.lower(make())
        text = bb.to_text(graph)
        again = bb.from_text(text)
        assert bb.to_text(again) == text
        assert again.digest == graph.digest
        outputs = [Output(out.name, out.value, out.axes) for out in graph.outputs]
        plain = Graph(graph.nodes, graph.inputs, outputs)
        assert compute_digest(plain) != compute_digest(graph)


def test_refusals_of_graphs() -> None:
    graph = bb.lower(PLACED["rows"]())
    out = graph.outputs[0]
    assert out.into is not None
    names = {graph.input(i).name: n for n, i in enumerate(graph.inputs)}

    def refused(into: Into) -> str:
        outputs = [replace(out, into=into), *graph.outputs[1:]]
        with pytest.raises(InvalidGraph) as error:
            verify(Graph(graph.nodes, graph.inputs, outputs))
        return str(error.value)

    assert "is read as well" in refused(replace(out.into, base=names["x"]))
    assert "not whole numbers" in refused(replace(out.into, index=names["c"]))
    other = next(a for a in graph.type(out.value).axes if a is not out.into.axis)
    assert "axes" in refused(replace(out.into, axis=other))


def test_refusals_of_nests() -> None:
    nest = scheduled(bb.fuse(bb.lower(PLACED["given"]())).snapshots[-1], "given")
    (kernel,) = nest.kernels
    store = next(s for s in kernel.statements if isinstance(s, Store))
    assert store.places is not None
    wrong = replace(store, places=replace(store.places, dtype=DType.float32))
    body = tuple(wrong if s is store else s for s in kernel.body)
    with pytest.raises(InvalidNest):
        verify_nest(replace(kernel, body=body))


@pytest.mark.parametrize("name", PLACED)
def test_programs_as_data_and_as_PyTorch(name: str) -> None:
    program = PLACED[name]()
    assert program_from_data(json.loads(json.dumps(program_data(program)))) == program
    given = inputs_of(program)
    exact = bb.evaluate(program, given)
    made = torch_program(program)(*(torch.from_numpy(np.array(x)) for x in given.values()))
    for x, out in zip(made, exact.values(), strict=True):
        np.testing.assert_allclose(x.numpy(), out, rtol=1e-12, atol=1e-12)
