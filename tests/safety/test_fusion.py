"""Fusing gives safe programs, and keeps the programs that the rules made."""

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.safety.fuse import SafeFusion
from blockbuster_fusion.safety.pipeline import make_safe

NAMES = [
    "attention",
    "layernorm-matmul",
    "softmax",
    "matmul-relu",
    "decoder-layer",
    "rmsnorm-swiglu",
]


def safe_fusion(name: str) -> SafeFusion:
    fusion = bb.fuse(bb.examples.find(name))
    assert isinstance(fusion, SafeFusion)
    return fusion


@pytest.mark.parametrize("name", NAMES)
def test_snapshots_are_what_the_pass_makes_of_fused_programs(name: str) -> None:
    fusion = safe_fusion(name)
    assert len(fusion.snapshots) == len(fusion.fused) == len(fusion.safety)
    for snapshot, raw, made in zip(fusion.snapshots, fusion.fused, fusion.safety, strict=True):
        assert snapshot is made.graph
        assert snapshot.digest == make_safe(raw).graph.digest
        bb.verify(snapshot)


def test_snapshots_are_made_once() -> None:
    fusion = safe_fusion("attention")
    assert "safety" not in fusion.__dict__
    assert fusion.snapshots[0] is fusion.snapshots[0]


def test_fused_programs_are_raw() -> None:
    fusion = safe_fusion("attention")
    assert "row_max" not in bb.show(fusion.fused[-1])
    assert "row_max" in bb.show(fusion.snapshots[-1])
    x = np.float32(np.full((2, 3), 40.0))
    inputs = {"Q": x, "KT": x, "VT": np.ones((4, 2), np.float32)}
    assert not np.isfinite(bb.interpret(fusion.fused[-1], inputs)["O"]).any()
    np.testing.assert_allclose(bb.interpret(fusion.snapshots[-1], inputs)["O"], 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_without_safety_snapshots_are_raw(name: str) -> None:
    fusion = bb.fuse(bb.examples.find(name), safe=False)
    assert not isinstance(fusion, SafeFusion)
    assert list(fusion.snapshots) == list(fusion.fused)
    if name not in ("matmul-relu", "rmsnorm-swiglu"):
        assert fusion.snapshots[-1].digest != safe_fusion(name).snapshots[-1].digest


def test_rules_that_need_safety_do_not_fire_without_it() -> None:
    """A softmax with its maximum subtracted keeps that where nobody else sees to it."""
    program = bb.examples.safe_softmax_attention()
    fired, not_fired = (
        {step.rule for step in bb.fuse(program, safe=safe).trace} for safe in (True, False)
    )
    assert "drop_softmax_shift" in fired
    assert "drop_softmax_shift" not in not_fired


def test_choices_have_places_and_reasons() -> None:
    for name in NAMES:
        fusion = safe_fusion(name)
        for raw, made in zip(fusion.fused, fusion.safety, strict=True):
            for choice in made.choices:
                assert choice.kind in ("exponent", "pivot", "native")
                assert choice.node in raw.at(choice.path).nodes
                assert choice.reason
                assert bool(choice.shared) == (choice.kind != "native")
                assert str(choice).startswith("/".join(f"%{i}" for i in choice.path))
                assert str(choice).endswith(choice.reason)


def test_choices() -> None:
    kinds = {
        name: [(c.kind, c.shared, c.axis) for c in safe_fusion(name).safety[-1].choices]
        for name in NAMES
    }
    assert kinds["attention"] == [("exponent", "row", "N")]
    assert kinds["softmax"] == [("exponent", "row", "N")]
    assert kinds["layernorm-matmul"] == [("pivot", "row", "K")]
    assert kinds["matmul-relu"] == []
    assert kinds["decoder-layer"] == [("exponent", "row", "M_1")]  # its keys' axis
    assert kinds["rmsnorm-swiglu"] == [("native", "", "")]


def test_a_vector_shares_one_exponent_in_a_block() -> None:
    """The block has no other axis."""
    fusion = bb.fuse(bb.trace(bb.ops.softmax, x="N"))
    assert isinstance(fusion, SafeFusion)
    assert [c.shared for c in fusion.safety[-1].choices] == ["block"]


@pytest.mark.parametrize("name", ["attention", "softmax", "layernorm-qkv"])
def test_the_trace_and_the_reasons_are_about_raw_programs(name: str) -> None:
    fusion = safe_fusion(name)
    steps = fusion.trace.snapshots
    programs = [fusion.trace.program_after(step) for step in steps]
    assert [p.digest for p in programs] == [p.digest for p in fusion.fused]
    for number, graph in enumerate(fusion.fused):
        reasons = [str(reason) for reason in fusion.why_not(number)]
        assert reasons == [str(reason) for reason in fusion.why_not(graph)]
        assert len(reasons) == len(bb.buffered(graph))


def test_alternatives_are_safe() -> None:
    fusion = safe_fusion("safe-softmax-attention")
    x = np.float32(np.full((2, 3), 40.0))
    inputs = {"Q": x, "KT": x, "VT": np.ones((4, 2), np.float32)}
    for graph in fusion.alternatives:
        np.testing.assert_allclose(bb.interpret(graph, inputs)["O"], 1.0)
