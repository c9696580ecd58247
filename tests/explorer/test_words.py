"""Steps and snapshots in words: by the names of operators and lists, at given sizes."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.explorer.operator_words import operator_name
from blockbuster_fusion.explorer.snapshot_words import snapshot_words
from blockbuster_fusion.explorer.step_words import step_words
from blockbuster_fusion.ir.listing import labels

SIZES = {"M": 256, "N": 256, "D": 64, "L": 64}


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("t5 += row_sum(t4)", "row_sum"),
        ("t4 = exp(t3*(DD**-0.5))", "exp"),
        ("t8 = 1/t5", "1/x"),
        ("t8 = exp(t5)+exp(t6)*t5", "exp(x)+exp(y)*x"),
        ("t1,t2 = f(t3,t4)", "f"),
        ("t1 = (t2+t3)*(t2-t3)*(t4+1.00000001)", "(x+y)*(x-y)*(z+1.0000…"),
    ],
)
def test_operators_have_names(statement: str, name: str) -> None:
    assert operator_name(statement) == name


@pytest.mark.parametrize("name", list(bb.examples.EXAMPLES))
def test_every_step_names_its_operators(name: str) -> None:
    program = bb.examples.find(name)
    fusion = bb.fuse(program)
    sizes = {str(dim.axis.extent): 128 for dim in bb.lower(program).dims}
    for step in fusion.trace:
        short, said = step_words(step, sizes)
        assert "`" in short or step.rule == "peel_first_iteration"
        assert "an input" not in short
        assert all(text.endswith(".") and "{" not in text for text in said)


def test_a_join_names_the_list_that_goes() -> None:
    for step in bb.fuse(bb.examples.find("attention")).trace:
        _, (_, *lists) = step_words(step, SIZES)
        fewer = len(bb.buffered(step.before)) - len(step.buffered)
        gone = [text for text in lists if "local memory" in text]
        if "fuse" in step.rule:
            assert len(gone) == fewer, step
        known = set(labels(step.before).names.values())
        assert all(text.split()[0] in known for text in gone)


def test_an_extension_says_what_it_repeats() -> None:
    extension = bb.fuse(bb.examples.find("attention"), rules="paper").trace[15]
    assert extension.rule == "extend_map"
    _, said = step_words(extension, SIZES)
    assert said[-1].startswith("L has one block at these sizes, so nothing is repeated.")
    _, said = step_words(extension, SIZES | {"L": 129})
    assert said[-1].startswith("L has 3 blocks at these sizes: what was moved is computed for each")


def test_snapshots_say_what_is_left() -> None:
    fusion = bb.fuse(bb.examples.find("attention"))
    first, last = (
        " ".join(snapshot_words(fusion.initial, graph, fusion.trace[:index], SIZES))
        for graph, index in zip(fusion.fused, fusion.trace.snapshots, strict=True)
    )
    assert "Of 7 outermost loops 1 is left, with 4 inside." in first
    assert "and between operators I1." in first
    assert "moved" not in first
    assert "the inputs Q, KT and VT and the output O, and nothing else." in last
    assert "D and L have one block at these sizes: their loops run once." in last
    assert "With several blocks of it, that work is done for each of them." in last
