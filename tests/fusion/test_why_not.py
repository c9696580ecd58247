"""Reasons for an intermediate list, as data and as sentences, and measured alternatives."""

import re
from functools import cache

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.fusion.pareto import alternatives, unit_sets
from blockbuster_fusion.rules.peel_first import PeelFirst
from helpers.rewriting import fire
from helpers.running import symbols


@cache
def fused(name: str, rules: str) -> bb.Fusion:
    """An example, fused."""
    return bb.fuse(bb.examples.find(name), rules)


def test_nothing_left_needs_no_reason() -> None:
    assert bb.fuse(bb.examples.attention(), rules="extended").why_not() == []


def test_self_attention_says_what_stands_in_the_way(golden) -> None:
    fusion = bb.fuse(bb.examples.self_attention(), rules="extended")
    golden("\n".join(str(reason) for reason in fusion.why_not()) + "\n")


def test_every_edge_that_is_left_has_a_reason() -> None:
    for name in bb.examples.EXAMPLES:
        for rules in ("paper", "extended"):
            fusion = fused(name, rules)
            for number, snapshot in enumerate(fusion.fused):
                reasons = fusion.why_not(number)
                assert [reason.edge for reason in reasons] == bb.buffered(snapshot)
                assert all(reason.refusals or reason.barrier for reason in reasons[-1:])


def softmax_of_product(X: Array, W: Array) -> Array:
    return bb.ops.softmax(X @ W.T)


def table_of_products(ids: Array, W: Array, U: Array) -> Array:
    return (W @ U.T)[ids] * 2


def test_reasons_have_the_names_of_the_listing(golden) -> None:
    """Softmax waits for its sum, a norm after a matmul for its mean, a lookup for its table."""
    programs = {
        "softmax": bb.fuse(bb.examples.softmax(), "paper"),
        "softmax of a product": bb.fuse(bb.trace(softmax_of_product, X="M K", W="N K")),
        "post-norm-linear": bb.fuse(bb.examples.post_norm_linear(), "paper"),
        "lookup": bb.fuse(
            bb.trace(table_of_products, ids=bb.array("S", dtype="int64"), W="V D", U="E D")
        ),
    }
    texts = []
    for name, fusion in programs.items():
        texts += [f"# {name}", bb.show(fusion.fused[fusion.most_fused])]
        texts += [str(reason) for reason in fusion.why_not()]
    golden("\n".join(texts) + "\n")


@pytest.mark.parametrize("rules", ["paper", "extended"])
def test_every_reason_is_in_terms_of_the_program(rules: str) -> None:
    """Each name in a reason is one of the listing, each statement stands in it."""
    for name in bb.examples.EXAMPLES:
        fusion = fused(name, rules)
        for number, graph in enumerate(fusion.fused):
            listing = bb.show(graph)
            for reason in fusion.why_not(number):
                assert reason.causes or reason.barrier, f"{name}: {reason}"
                told = "\n".join((reason.title, *reason.causes, reason.barrier))
                assert "%" not in told
                for word in re.findall(r"\b[tI]\d+R?\b", told):
                    assert re.search(rf"\b{word}\b", listing), f"{name}: {word} in {told}"
                for statement in re.findall(r"t\d+ \+?= \w+\([^ ]*\)", told):
                    assert statement.rstrip(")") in listing, f"{name}: {statement}"


def test_names_of_the_program_made_safe() -> None:
    fusion = bb.fuse(bb.examples.decoder_layer())
    safe = fusion.snapshots[fusion.most_fused]
    stored = {e.value: e for e in bb.buffered(safe)}
    listing = bb.show(safe)
    for reason in fusion.why_not(shown=safe):
        name = reason.title.partition(",")[0]
        assert reason.edge.value in stored
        assert re.search(rf"store\(t\d+,{name}\[", listing), name


def test_refusals_name_rule_and_guard() -> None:
    (reason,) = bb.fuse(bb.examples.softmax(), "paper").why_not()
    assert ("fuse_consecutive_maps", 1, "only_direct_edges") in [
        (r.rule, r.number, r.guard) for r in reason.refusals
    ]
    assert "rules='extended', which compute such a list again" in reason.remedy


def test_alternatives_are_measured() -> None:
    graph = bb.lower(bb.examples.rmsnorm_swiglu_residual())
    sizes = dict.fromkeys(["MM", "DD", "KK"], 256)
    rows = alternatives(graph, "extended", sizes, {})
    assert len(unit_sets(graph)) == 8
    assert {row.unit for row in rows} == set(unit_sets(graph))
    assert any(row.best and row.edges == 0 and row.flops <= 1.25 for row in rows)
    assert not all(row.best for row in rows)


@pytest.mark.parametrize("rules", ["paper", "extended"])
def test_unit_dims_that_are_suggested_help(rules: str) -> None:
    """Following the remedy of an edge leaves fewer edges than there were at best."""
    suggested: set[str] = set()
    for name in bb.examples.EXAMPLES:
        fusion = fused(name, rules)
        for unit in {reason.unit for reason in fusion.why_not()} - {()}:
            tried = bb.fuse(bb.examples.find(name), rules, unit=unit)
            assert fewest_edges(tried) < fewest_edges(fusion), (name, unit)
            suggested.add(name)
    assert {"post-norm-linear", "language-model-head", "decoder-layer"} <= suggested


def test_unit_dims_that_do_not_help_are_not_suggested() -> None:
    """A block for all of D would leave another list in memory in place of this one."""
    program = bb.examples.linear_attention()
    (reason,) = bb.fuse(program, "paper").why_not()
    assert [d.name for d in reason.edge.type.lists] == ["D"]
    assert (reason.unit, "unit=" in reason.remedy) == ((), False)
    assert fewest_edges(bb.fuse(program, "paper", unit="D")) == 1


def test_unit_dims_are_not_suggested_for_a_peeled_loop() -> None:
    first = bb.fuse(bb.examples.attention(), "paper").fused[0]
    peeled = fire(PeelFirst(), first, dim="L")
    found = [(str(r.edge.type.lists[0]), r.unit) for r in bb.fuse(peeled, "paper").why_not()]
    assert found == [("N", ("N",)), ("L", ())]


BARRIER = {"decoder-layer": 3, "self-attention": 2}
"""Edges that a rename keeps in memory for every choice of unit dims."""


@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_unit_dims_leave_nothing_but_renames(name: str) -> None:
    """With one block along every axis but the rows, and hardly any work is done twice."""
    graph = bb.lower(bb.examples.find(name))
    rows = {out.axes[-2].name for out in graph.outputs if len(out.axes) > 1}
    unit = {d.name for d in graph.dims if d.packed and not d.is_free} - rows
    fusion = bb.fuse(graph, unit=unit)
    least = fewest_edges(fusion)
    assert least == BARRIER.get(name, 0)
    best = [snapshot for snapshot in fusion.fused if len(bb.buffered(snapshot)) == least]
    sizes = dict.fromkeys(symbols(graph), 256)
    flops = min(bb.meter(snapshot, sizes).flops for snapshot in best)
    assert flops <= 1.25 * bb.meter(graph, sizes).flops


def fewest_edges(fusion: bb.Fusion) -> int:
    return min(len(bb.buffered(snapshot)) for snapshot in fusion.fused)


def test_every_program_with_unit_dims_is_shown_and_explained() -> None:
    """For every set of unit dims: a listing, and for each edge that is left a reason."""
    for name in ("self-attention", "decoder-layer", "layernorm-qkv"):
        graph = bb.lower(bb.examples.find(name))
        for unit in unit_sets(graph):
            fusion = bb.fuse(graph, unit=unit)
            for snapshot in (fusion.fused[-1], fusion.snapshots[-1]):
                assert bb.show(snapshot)
            for reason in fusion.why_not(-1):
                assert reason.refusals or reason.barrier, f"{name}, {unit}: {reason}"


def test_the_snapshot_with_the_fewest_edges_is_explained() -> None:
    fusion = bb.fuse(bb.examples.find("parallel-attention-ffn"))
    counts = [len(bb.buffered(graph)) for graph in fusion.fused]
    assert counts[fusion.most_fused] == min(counts) == len(fusion.why_not())
    assert fusion.most_fused != len(counts) - 1


def test_alternatives_are_safe() -> None:
    fusion = bb.fuse(bb.examples.find("safe-softmax-attention"))
    rng = np.random.default_rng(0)
    inputs = {key: rng.standard_normal((7, 7)).astype(np.float32) for key in ("Q", "KT", "VT")}
    inputs["Q"] *= 1e4
    assert fusion.base is not None
    for graph in (*fusion.alternatives, *fusion.base.snapshots):
        assert np.isfinite(bb.interpret(graph, inputs, {"N": 3})["O"]).all()
