"""The paper's examples, step for step."""

from pathlib import Path

import numpy as np
import pytest

import blockbuster_fusion as bb
from helpers.listing import canonical
from helpers.running import assert_computes, inputs_for, ragged_tiles

PAPER = Path(__file__).parent.parent / "golden" / "paper"
SNAPSHOT = "snapshot"

TRACES = {
    "attention": [1] * 6 + [4, 3, 1, 1, 1, 1, 9, 3, 3, SNAPSHOT, (6, "L", "a"), 1, SNAPSHOT],
    "layernorm-matmul": [1] * 7
    + [4, 5, 3, 3, 1, 1, 1, 1, 1, 2, 3, 3, 2, SNAPSHOT, (6, "N", "b"), 2, SNAPSHOT],
    "rmsnorm-swiglu": [1] * 8
    + [8, 4, 4, 3, 1, 1, 1, 1, 1, 1, 3, 3, 2, 3, SNAPSHOT]
    + [(6, "N", "a"), 1, SNAPSHOT, (6, "K", "b"), 2, SNAPSHOT],
}


def rules_fired(fusion: bb.Fusion) -> list[object]:
    """Rule numbers in order; extensions with their dim and variant; snapshots between."""
    fired: list[object] = []
    for step in fusion.trace:
        extension = (step.number, str(step.dim), step.variant)
        fired.append(extension if step.number == 6 else step.number)
        fired += [SNAPSHOT] * (step.index in fusion.trace.snapshots)
    return fired


@pytest.mark.parametrize("name", TRACES)
def test_rules_fire_in_the_papers_order(name: str) -> None:
    fusion = bb.fuse(bb.lower(bb.examples.find(name)), rules="paper")
    assert rules_fired(fusion) == TRACES[name]
    assert [step.index for step in fusion.trace] == list(range(1, len(fusion.trace) + 1))


@pytest.mark.parametrize(("name", "count"), [("attention", 17), ("layernorm-matmul", 22)])
def test_dims_of_the_maps_that_are_fused(name: str, count: int) -> None:
    """The order of dims within a run of rules 1 and 2 is free; how many there are is not."""
    fusion = bb.fuse(bb.lower(bb.examples.find(name)), "paper")
    fused = [str(step.dim) for step in fusion.trace if step.number in (1, 2, 3)]
    expected = {
        "attention": {"M": 6, "N": 6, "L": 1, "D": 1},
        "layernorm-matmul": {"M": 7, "K": 8, "N": 4},
    }[name]
    assert {dim: fused.count(dim) for dim in set(fused)} == expected
    assert len(fusion.trace) == count


@pytest.mark.parametrize("name", TRACES)
def test_final_listing_is_the_papers(name: str) -> None:
    final = bb.fuse(bb.lower(bb.examples.find(name)), "paper").fused[-1]
    paper = (PAPER / f"{name.replace('-', '_')}.txt").read_text()
    assert canonical(bb.show(final)) == canonical(paper)


@pytest.mark.parametrize("name", TRACES)
def test_final_listing(name: str, golden) -> None:
    golden(bb.show(bb.fuse(bb.lower(bb.examples.find(name)), "paper").fused[-1]))


@pytest.mark.parametrize("name", [*TRACES, "matmul-relu"])
def test_no_interior_buffered_edge_is_left(name: str) -> None:
    assert bb.buffered(bb.fuse(bb.lower(bb.examples.find(name)), "paper").fused[-1]) == []


NUMPY = {
    "matmul-relu": lambda A, BT: np.maximum(A @ BT.T, 0),
    "attention": lambda Q, KT, VT: _softmax(Q @ KT.T / np.sqrt(Q.shape[1])) @ VT.T,
    "layernorm-matmul": lambda X, YT: (
        ((X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True)) @ YT.T
    ),
    "rmsnorm-swiglu": lambda X, WT, VT, UT: _swiglu(
        X / np.sqrt((X**2).sum(1, keepdims=True)), WT, VT, UT
    ),
}


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _swiglu(x: np.ndarray, w: np.ndarray, v: np.ndarray, u: np.ndarray) -> np.ndarray:
    gate = x @ w.T
    return (gate / (1 + np.exp(-gate)) * (x @ v.T)) @ u.T


@pytest.mark.parametrize("name", NUMPY)
def test_every_step_computes_what_numpy_does(name: str) -> None:
    program = bb.examples.find(name)
    graph = bb.lower(program)
    fusion = bb.fuse(graph, "paper")
    inputs = inputs_for(program)
    (output,) = (out.name for out in program.outputs)
    expected = {output: NUMPY[name](**inputs)}
    tiles = ragged_tiles(graph)
    assert_computes(graph, inputs, expected, tiles)
    for step in fusion.trace:
        bb.verify(step.after)
        assert_computes(step.after, inputs, expected, tiles)
        assert step.before.digest != step.after.digest


def test_names_of_the_steps() -> None:
    first = bb.fuse(bb.lower(bb.examples.attention()), "paper").trace[0]
    assert (first.rule, first.number, str(first.dim), first.path) == (
        "fuse_consecutive_maps",
        1,
        "M",
        (),
    )
    assert str(first) == "step 1: rule 1, fuse_consecutive_maps [M]"


def test_inner_steps_have_a_path() -> None:
    fusion = bb.fuse(bb.lower(bb.examples.attention()), "paper")
    depths = [len(step.path) for step in fusion.trace]
    assert depths == [0] * 6 + [1] * 6 + [2, 2, 2] + [1, 2]
