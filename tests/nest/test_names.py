"""Names of nests: a name of the block program's listing stands for the same value."""

import re

import pytest

from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.lower import lower_to_nest
from blockbuster_fusion.nest.nest import Kernel, tiles
from blockbuster_fusion.nest.passes.cascade_sums import cascade_sums
from blockbuster_fusion.tools.examples import EXAMPLES, find

LOADS = re.compile(r"(\w+)(?:\([\w,]*\):\w+)? = load\((\w+)")
STORES = re.compile(r"store\((\w+), ?(\w+)")


@pytest.mark.sweep(5, reason="other examples by the same passes")
@pytest.mark.parametrize("grid", ["all", "outer", "one"])
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_name_of_the_listing_holds_the_same_block(name: str, grid: str) -> None:
    for choice in choose(Request(find(name), target="cpu")):
        listing = re.sub(r"\b(I\d+)R\b", r"\1", show(choice.graph))  # nothing moves in a rename
        nest = show_nest(lower_to_nest(choice.graph, grid=grid))
        listed = set(re.findall(r"\bt\d+\b", listing))
        for pattern in (LOADS, STORES):
            moved = {(tile, array) for tile, array in pattern.findall(nest) if tile in listed}
            assert moved <= set(pattern.findall(listing))
        assert any(tile in listed for tile, _ in STORES.findall(nest))


def test_names_of_passes_are_beyond_the_listing_s() -> None:
    graph = choose(Request(find("attention"), snapshot=1))[0].graph
    largest = max(int(number) for number in re.findall(r"\bt(\d+)\b", show(graph)))
    (kernel,) = lower_to_nest(graph).kernels
    made = names_of(cascade_sums(kernel)) - names_of(kernel)
    assert made
    assert min(int(name[1:]) for name in made) > largest


@pytest.mark.sweep(3, reason="other examples by the same passes")
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_tiles_have_names_of_their_own(name: str) -> None:
    for target in ("cpu", "cuda"):
        for choice in choose(Request(find(name), target=target)):
            for kernel in choice.scheduled()[0].kernels:
                found = {tile for statement in kernel.statements for tile in tiles(statement)}
                assert len(found) == len(names_of(kernel))


def test_parts_of_a_combiner_have_the_listing_s_names() -> None:
    """The new maximum of online softmax, and what rescales the sums so far."""
    graph = choose(Request(find("attention"), snapshot=1))[0].graph
    listing, nest = show(graph), show_nest(lower_to_nest(graph))
    for text in ("maximum(t11,t6)", "exp(t11-t14)"):
        (listed,) = re.findall(rf"(t\d+) = {re.escape(text)}", listing)
        assert re.findall(rf"(t\d+)\(M\):float32 = {re.escape(text)}", nest) == [listed]


def names_of(kernel: Kernel) -> set[str]:
    return {tile.name for statement in kernel.statements for tile in tiles(statement)}
