"""Stored arrays keep their names from step to step of a page, and in its kernels."""

import re

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.explorer.array_names import ArrayNames
from blockbuster_fusion.explorer.collect import program_data
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.step_words import step_words
from blockbuster_fusion.explorer.steps import array_names
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import listed
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.tools.bench import default_lengths

SIZES = {"M": 256, "N": 256, "D": 64, "L": 64}


def arrays(names: ArrayNames, graph: Graph) -> set[str]:
    return {name for line in names.listed(graph).lines for name in re.findall(r"\bI\d+\b", line)}


@pytest.mark.parametrize("name", list(bb.examples.EXAMPLES))
def test_a_name_is_given_once(name: str) -> None:
    """Joins take arrays away and bring none; an array that is gone leaves its number unused."""
    trace = bb.fuse(bb.examples.find(name)).trace
    names = array_names(trace)
    before, gone = arrays(names, trace.initial), set[str]()
    assert names.listed(trace.initial).lines == listed(trace.initial).lines
    for step in trace:
        after = arrays(names, step.after)
        assert len(after) == len(arrays(ArrayNames(), step.after)), step
        assert not after & gone, step
        if step.rule.startswith("fuse_"):
            assert after <= before, step
        gone |= before - after
        before = after


@pytest.mark.parametrize("name", list(bb.examples.EXAMPLES))
def test_a_listing_differs_by_the_numbers_of_arrays_alone(name: str) -> None:
    trace = bb.fuse(bb.examples.find(name)).trace
    names = array_names(trace)
    for step in trace:
        own, named = listed(step.after), names.listed(step.after)
        plain = [[re.sub(r"\bI\d+", "I", line) for line in x.lines] for x in (own, named)]
        assert plain[0] == plain[1]
        assert own.nodes == named.nodes


def test_prose_and_listing_agree() -> None:
    """An array that is said to be stored no more is in no later listing."""
    program = bb.examples.find("attention")
    trace = bb.fuse(program).trace
    names, sizes = array_names(trace), Sizes(default_lengths(program, "cpu", {}))
    said = dict[str, int]()
    for step in trace:
        _, sentences = step_words(step, sizes, names.listed(step.before))
        for text in sentences:
            found = re.match(r"(I\d+) is not stored any more", text)
            said |= {found[1]: step.index} if found else {}
        assert not said.keys() & arrays(names, step.after), step
    assert said["I6"] == 4
    assert said["I4"] == len(trace)


def test_kernels_have_the_names_of_the_page() -> None:
    data = program_data(bb.examples.find("attention"), SIZES, times=False)
    by_id = {moment["id"]: moment for moment in data["moments"]}
    for moment in by_id.values():
        if moment["group"] == "snapshot-1" and "text" in moment:
            found = {*re.findall(r"\bI\d+(?=\b|_)", moment["text"])}
            drawn = data["frames"][moment["frame"]]["makers"]
            assert "I4" in found, moment["id"]
            assert {name for name in drawn if name.startswith("I")} <= found, moment["id"]
    (reason,) = next(each for each in data["snapshots"] if each.get("number") == 1)["reasons"]
    assert reason["title"].startswith("I4, from")


def test_an_array_of_the_program_may_be_called_like_one_of_the_listing() -> None:
    def program(I2):
        return {"I1": bb.ops.softmax(bb.ops.exp(I2) @ I2.T)}

    graph = bb.lower(bb.trace(program, I2="M N"))
    own = array_names(bb.fuse(graph).trace)
    assert own.listed(graph).lines == listed(graph).lines
    assert not {*own.known.values()} & {"I1", "I2"}
    text = own.rewritten("store(t1, I1); load(I2_ptr); I3 = 0", graph)
    assert text == "store(t1, I1); load(I2_ptr); I3 = 0"


def test_significands_have_the_name_of_what_they_replace() -> None:
    """A pair is stored where exponentials were: the exponents alone are a new array."""
    fusion = bb.fuse(bb.examples.find("attention"))
    graph = fusion.fused[0]
    safe = make_safe(graph).graph
    names = array_names(fusion.trace)
    lines = names.across(graph, safe).listed(safe).lines
    assert [line.strip() for line in lines if "store(" in line and ",I" in line] == [
        "store(t6,I11[m,n])",
        "store(t7,I4[m,n])",
    ]
