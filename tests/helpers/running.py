"""Running programs in tests: inputs, tiles, and comparing with the whole-array oracle."""

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.axis import Symbol


def sizes_for(program: ArrayProgram, extents: dict[str, int]) -> dict[str, int]:
    """The size of every axis: given, fixed, or some small number that is different for each."""
    sizes: dict[str, int] = {}
    for given in program.inputs:
        for axis in given.type.axes:
            known = axis.extent if isinstance(axis.extent, int) else None
            sizes.setdefault(axis.name, extents.get(axis.name, known or 5 + len(sizes)))
    return sizes


def inputs_for(program: ArrayProgram, seed: int = 0, **extents: int) -> dict[str, np.ndarray]:
    """Random float64 inputs, no two axes of one length."""
    sizes = sizes_for(program, extents)
    rng = np.random.default_rng(seed)
    return {
        given.name: rng.standard_normal([sizes[axis.name] for axis in given.type.axes])
        for given in program.inputs
    }


def ragged_tiles(graph: bb.Graph) -> dict[str, int]:
    """Tiles of 2, 3 and 4 in turn: several blocks of every axis, the last one shorter."""
    labels = sorted(d.label for d in graph.dims if d.packed and not d.is_free)
    return {label: 2 + at % 3 for at, label in enumerate(labels)}


def assert_computes(
    graph: bb.Graph, inputs: dict, expected: dict, tiles: dict | None = None
) -> None:
    """The program's outputs equal the expected ones, to rounding in float64."""
    known = {d.label for d in graph.dims}
    tiles = {k: v for k, v in (tiles or ragged_tiles(graph)).items() if k in known}
    outputs = bb.interpret(graph, inputs, tiles)
    for name, wanted in expected.items():
        scale = np.abs(wanted).max(initial=1.0)
        np.testing.assert_allclose(outputs[name], wanted, rtol=0, atol=1e-11 * scale)


def symbols(graph: bb.Graph) -> set[str]:
    """The symbolic sizes of a program."""
    extents = {d.axis.extent for d in graph.dims}
    return {e.name for e in extents if isinstance(e, Symbol)}
