"""Steps and snapshots in words: by the names of operators and lists, at given sizes."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.explorer.operator_words import operator_name
from blockbuster_fusion.explorer.safety_words import COSTS, NOTES, SafetyWords
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.snapshot_words import snapshot_words
from blockbuster_fusion.explorer.step_words import step_words
from blockbuster_fusion.ir.listing import labels, listed
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pipeline import SAFETY_PASSES, make_safe
from blockbuster_fusion.tools.bench import default_lengths

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
    sizes = Sizes(default_lengths(program, "cpu", {}))
    for step in fusion.trace:
        short, said = step_words(step, sizes, listed(step.before))
        assert "`" in short or step.rule == "peel_first_iteration"
        assert "an input" not in short
        assert all(text.endswith(".") and "{" not in text for text in said)
    for graph in fusion.fused:
        said = list(snapshot_words(fusion.initial, graph, fusion.trace, sizes, labels(graph)))
        assert all(text.endswith(".") and "  " not in text for text in said)


def test_a_join_names_the_list_that_goes() -> None:
    for step in bb.fuse(bb.examples.find("attention")).trace:
        _, (_, *lists) = step_words(step, Sizes(SIZES), listed(step.before))
        fewer = len(bb.buffered(step.before)) - len(step.buffered)
        gone = [text for text in lists if "local memory" in text]
        if "fuse" in step.rule:
            assert len(gone) == fewer, step
        known = set(labels(step.before).names.values())
        assert all(text.split()[0] in known for text in gone)


def test_an_extension_says_what_it_repeats() -> None:
    extension = bb.fuse(bb.examples.find("attention"), rules="paper").trace[15]
    assert extension.rule == "extend_map"
    _, said = step_words(extension, Sizes(SIZES), listed(extension.before))
    assert said[-1].startswith("L has one block at these sizes, so nothing is repeated.")
    _, said = step_words(extension, Sizes(SIZES | {"L": 129}), listed(extension.before))
    assert said[-1].startswith("L has 3 blocks at these sizes: what was moved is computed for each")


@pytest.mark.parametrize(
    ("name", "rule", "said"),
    [
        ("attention", "swap_scale_dot", "The factor, the result of `1/x`, is complete only after"),
        ("layernorm-matmul", "swap_shift_dot", "The shift, the result of `-x/KK`, is complete"),
    ],
)
def test_a_swap_says_what_the_product_had_to_wait_for(name: str, rule: str, said: str) -> None:
    trace = bb.fuse(bb.examples.find(name)).trace
    step = next(step for step in trace if step.rule == rule)
    _, (text, *_) = step_words(step, Sizes(SIZES | {"K": 256}), listed(step.before))
    assert said in text
    assert f"a loop over {step.dim}, so `dot` had to wait" in text


def test_a_factor_that_is_given_completes_no_loop() -> None:
    trace = bb.fuse(bb.trace(_scaled, X="M K", c="M", Y="N K")).trace
    step = next(step for step in trace if step.rule == "swap_scale_dot")
    _, (text, *_) = step_words(step, Sizes({"M": 64, "K": 64, "N": 64}), listed(step.before))
    assert text.endswith("The product `dot` need not wait for the factor any more.")


def _scaled(X, c, Y):
    return (X * c[:, None]) @ Y.T


def test_snapshots_say_what_is_left() -> None:
    fusion = bb.fuse(bb.examples.find("attention"))
    first, last = (
        " ".join(
            snapshot_words(fusion.initial, graph, fusion.trace[:index], Sizes(SIZES), labels(graph))
        )
        for graph, index in zip(fusion.fused, fusion.trace.snapshots, strict=True)
    )
    assert "Of 7 outermost loops 1 is left, with 4 inside." in first
    assert "and between operators I1." in first
    assert "moved" not in first
    assert "the inputs Q, KT and VT and the output O, and nothing else." in last
    assert "D and L have one block at these sizes: their loops run once." in last
    assert "Work was moved into the loop over L (1 block), and is done once for each" in last


@pytest.mark.parametrize("name", list(bb.examples.EXAMPLES))
def test_safety_passes_are_told_by_their_effect(name: str) -> None:
    """Decisions are sentences about operators of the program before the pass."""
    for graph in bb.fuse(bb.examples.find(name)).fused:
        made: list[tuple[str, Safe]] = []
        make_safe(graph, lambda name, after, made=made: made.append((name, after)))
        before, known = graph, 0
        for each, after in made:
            words = SafetyWords(each, before, after.graph, after.choices[known:])
            if after.graph is not before:
                assert words.short()
                assert not words.short().startswith(each)
            for text in words.decisions():
                assert text[-1] == "."
                assert ": " not in text
            before, known = after.graph, len(after.choices)


def test_a_maximum_runs_where_a_loop_sums() -> None:
    def words(**options) -> str:
        graph = bb.fuse(bb.examples.find("attention"), **options).fused[-1]
        return SafetyWords("pairs", graph, (safe := make_safe(graph)).graph, safe.choices).short()

    assert words() == "running maximum for `exp` (online softmax)"
    assert words(unit=["N"]) == "maximum for `exp`"


def test_a_list_of_exponents_is_an_edge_only_where_it_is_stored() -> None:
    first, last = bb.fuse(bb.examples.find("attention")).fused
    words = [
        SafetyWords("pairs", graph, make_safe(graph).graph, ()).costs() for graph in (first, last)
    ]
    assert words[0].endswith("a list of exponents beside it: 1 more buffered edge.")
    assert words[1] == COSTS["pairs"]


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("attention", "As written, `exp` may overflow: no maximum is subtracted before it."),
        ("safe-softmax-attention", ""),
        ("layernorm-matmul", ""),
    ],
)
def test_a_program_as_written_tells_what_is_made_safe_later(name: str, may: str) -> None:
    moments = bb.explore(bb.examples.find(name), times=False).data["moments"]
    told = moments[0]["safe"]
    assert told["may"] == may
    assert {key for key, _ in told["moments"]} == {
        moment["id"] for moment in moments if moment.get("stage") == "safety"
    }
    rest = bb.explore(bb.examples.find("matmul-relu"), times=False).data["moments"]
    assert "safe" not in rest[0]


def test_every_safety_pass_has_its_words() -> None:
    names = {each.name for each in SAFETY_PASSES}
    assert names == set(NOTES) == set(COSTS)


def test_a_docstring_is_the_note() -> None:
    def scores(Q, K):
        """Scores of queries and keys."""
        return Q @ K.T

    assert bb.explore(scores, Q="M D", K="N D", times=False).data["note"] == scores.__doc__
    assert bb.explore(bb.trace(scores, Q="M D", K="N D"), times=False).data["note"] == ""
    assert bb.examples.about("attention").startswith("Example 1")
    assert bb.examples.about("none.py:scores") == ""


def test_the_default_has_a_reason() -> None:
    softmax = bb.explore(lambda X: bb.ops.softmax(X), X="M N", times=False).data
    open_lengths = "for 512 elements along each axis whose length the program does not fix"
    assert any(open_lengths in text for text in softmax["chosen_why"])
    fixed = bb.explore(lambda X: bb.ops.softmax(X), X="M:64 N:64", times=False).data
    assert fixed["chosen_why"] == ["Of all snapshots it has the least estimated time."]


def test_figures_are_for_the_tiles_that_run() -> None:
    graph = bb.lower(bb.examples.find("matmul-relu"))
    lengths = dict.fromkeys((dim.name for dim in graph.dims), 256)
    usual, wide = Sizes(lengths), Sizes(lengths, {"M.0": 128, "N.0": 256})
    rows, columns = (next(d for d in graph.dims if d.label == x) for x in ("M.0", "N.0"))
    assert usual.words(graph) == "blocks of 64"
    assert wide.words(graph) == "blocks of 128 along M, as it runs"
    assert Sizes(lengths, {"N.0": 256}).words(graph) == "one block of each axis, as it runs"
    assert [usual.blocks(graph, dim) for dim in (rows, columns)] == [4, 4]
    assert [wide.blocks(graph, dim) for dim in (rows, columns)] == [2, 1]
    assert wide.traffic(graph).loaded < usual.traffic(graph).loaded
