"""A user's first steps: things of the wrong kind get a sentence, values copy and pickle."""

import copy
import pickle

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadTile, InvalidGraph, WrongKind
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map, Node
from helpers.graphs import k


@pytest.mark.parametrize("function", ["show", "buffered", "verify", "fuse", "lower", "evaluate"])
def test_things_of_the_wrong_kind(function: str) -> None:
    given = bb.examples.attention() if function in ("show", "buffered", "verify") else 3
    arguments = (given, {}) if function == "evaluate" else (given,)
    named = "verify" if function == "fuse" else function
    with pytest.raises(WrongKind, match=f"^{named}: takes a"):
        getattr(bb, function)(*arguments)


def test_interpret_wants_a_block_program() -> None:
    with pytest.raises(WrongKind, match=r"lowered first, with bb\.lower"):
        bb.interpret(bb.examples.attention(), {})


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_programs_copy_and_pickle(copied) -> None:
    graph = bb.fuse(bb.examples.attention(), "paper").fused[-1]
    made = copied(graph)
    bb.verify(made)
    assert bb.to_text(made) == bb.to_text(graph)
    assert made.digest == graph.digest
    error = BadTile(name="K", problem="no")
    assert str(copied(error)) == str(error)


def test_a_map_that_contains_its_own_graph() -> None:
    nodes: dict[int, Node] = {}
    graph = Graph(nodes, [], [])
    nodes[0] = Node(Map(k, graph, (), ()), (), ())
    with pytest.raises(InvalidGraph, match="its body is a graph that it stands in"):
        bb.verify(graph)


def test_rules_are_applied_inside_a_program() -> None:
    """Ids stay unique, and dims are unified throughout."""
    applied = 0
    for name in ("attention", "layernorm-matmul", "rmsnorm-swiglu"):
        trace = bb.fuse(bb.examples.find(name), "paper").trace
        for steps in range(len(trace)):
            program = trace.program_after(steps)
            for path, graph in program.walk():
                for rule in bb.RULE_SETS["paper"]:
                    match = rule.match(graph)
                    if match is not None:
                        bb.verify(bb.apply(match, program, path))
                        applied += 1
    assert applied > 300


def test_dead_maps_are_dropped_before_fusing() -> None:
    def program(X):
        bb.ops.exp(X).sum()
        return {"Y": bb.ops.sin(X)}

    graph = bb.lower(bb.trace(program, X="M N"))
    dead = bb.lower(bb.trace(lambda X: {"Y": bb.ops.sin(X), "Z": bb.ops.exp(X)}, X="M N"))
    cut = Graph(dead.nodes, dead.inputs, dead.outputs[:1])
    assert bb.fuse(cut, "paper").fused[-1].digest == bb.fuse(graph, "paper").fused[-1].digest


def test_tiles_of_dims_that_are_unified_on_the_way() -> None:
    trace = bb.fuse(bb.examples.layernorm_matmul(), "paper").trace
    sizes = {"MM": 64, "KK": 64, "NN": 64}
    labels = sorted(d.label for d in trace.initial.dims if d.name == "K" and not d.is_free)
    for step in trace:
        assert step.traffic(sizes, dict.fromkeys(labels, 16)).loaded > 0


def test_misc_operators_run_once_whatever_is_fused() -> None:
    from blockbuster_fusion.host.executors import register_executor

    calls: list[str] = []

    def run(name, attributes, arrays):
        calls.append(name)
        return [arrays[0] * 2]

    register_executor("counting", run)
    fusion = bb.fuse(
        bb.trace(
            lambda Q, K, V: bb.ops.tanh(Q @ bb.ops.exp(bb.ops.misc("counting", "twice", K)).T) @ V,
            Q="M D",
            K="N D",
            V="N L",
        ),
        "paper",
    )
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape) for shape in ((6, 3), (4, 3), (4, 2))]
    for snapshot in fusion.fused:
        calls.clear()
        bb.interpret(snapshot, inputs, {"M": 2, "L": 1})
        assert calls == ["twice"]


def test_dims_of_one_name_are_one_object() -> None:
    assert pickle.loads(pickle.dumps(k)) is k
    assert copy.deepcopy(Dim(k.axis, 3)) is Dim(k.axis, 3)
