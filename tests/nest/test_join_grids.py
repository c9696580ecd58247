"""Kernels that share a launch: which ones do, in which order, and what is refused."""

from dataclasses import replace

import pytest

from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import InvalidNest
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Clear, Grids, Launchable, Nest
from blockbuster_fusion.nest.passes.join_grids import MOST_KERNELS, join_grids
from blockbuster_fusion.nest.passes.merge_kernels import MOST_STATEMENTS
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.schedule.schedule import Schedule
from helpers.together import TOGETHER, Together


def launches(nest: Nest) -> list[list[str]]:
    """The names of the kernels of each launch."""
    return [[kernel.name for kernel in launched.kernels] for launched in nest.launches]


def joined(case: Together) -> Nest:
    nest = join_grids(case.nest())
    verify_nest(nest)
    return nest


def test_independent_kernels_share_a_launch() -> None:
    nest = joined(TOGETHER["queries, keys, values"])
    assert launches(nest) == [["several_1", "several_2", "several_3"]]
    (grids,) = nest.steps
    assert isinstance(grids, Grids)
    assert grids.name == "several_1_together"
    assert [b.name for b in grids.global_buffers] == ["X", "B0", "O0", "B1", "O1", "B2", "O2"]


def test_second_kernels_of_split_sums_share_a_launch() -> None:
    """Each comes after its first kernel, though another first kernel was written down after it."""
    made = launches(joined(TOGETHER["split"]))
    assert made == [
        ["several_1_parts", "several_2_parts", "several_3_parts"],
        ["several_1", "several_2", "several_3"],
    ]


def test_buffers_are_cleared_before_what_is_added_to_them() -> None:
    nest = joined(TOGETHER["added"])
    kinds = ["clear" if isinstance(step, Clear) else "launch" for step in nest.steps]
    assert kinds == ["clear", "clear", "launch", "launch"]


def test_products_and_streams_have_launches_of_their_own() -> None:
    made = joined(TOGETHER["products and streams"]).launches
    assert [launched.multiplies for launched in made] == [True, False]
    assert [len(launched.kernels) for launched in made] == [2, 2]


COPIES = """
M = Axis(Symbol("MM"))
M0 = Dim(M)
m = Index(M0)
X = Buffer([BufferAxis(M0)], float32)
Y = Buffer([BufferAxis(M0)], float32)
Z = Buffer([BufferAxis(M0)], float32)
V = Buffer([BufferAxis(M0)], float32)
t1 = Tile([M0[m]], float32)
Nest("copies", [
    Kernel("reads_x", [m], [Load(t1, X[M0[m]]), Store(Y[M0[m]], t1)]),
    Kernel("reads_y", [m], [Load(t1, Y[M0[m]]), Store(Z[M0[m]], t1)]),
    Kernel("reads_x_too", [m], [Load(t1, X[M0[m]]), Store(V[M0[m]], t1)]),
    Kernel("writes_x", [m], [Fill(t1, 1.0), Store(X[M0[m]], t1)]),
    Kernel("writes_y", [m], [Fill(t1, 2.0), Store(Y[M0[m]], t1)]),
    Kernel("writes_y_again", [m], [Fill(t1, 3.0), Store(Y[M0[m]], t1)]),
], [X], [View(X, [M]), View(Y, [M]), View(Z, [M]), View(V, [M])])
"""


def test_kernels_wait_for_what_they_read_and_for_readers_of_what_they_write() -> None:
    nest = join_grids(nest_from_text(COPIES))
    verify_nest(nest)
    assert launches(nest) == [
        ["reads_x", "reads_x_too"],
        ["reads_y", "writes_x"],
        ["writes_y"],
        ["writes_y_again"],
    ]


def test_programs_that_take_turns_stay_alone() -> None:
    nest = TOGETHER["queries, keys, values"].nest()
    first = replace(nest.kernels[0], programs=4)
    nest = replace(nest, steps=(first, *nest.steps[1:]))
    assert launches(join_grids(nest)) == [["several_1"], ["several_2", "several_3"]]


def test_a_launch_has_so_many_kernels() -> None:
    case = Together(("vector",) * (MOST_KERNELS + 1))
    assert [len(x) for x in launches(joined(case))] == [MOST_KERNELS, 1]


def test_a_launch_has_so_many_statements() -> None:
    """Triton compiles a launch as a whole, and takes a second for so many."""
    nest = TOGETHER["queries, keys, values"].nest()
    many = sum(1 for _ in nest.kernels[0].statements)
    first = replace(nest.kernels[0], body=nest.kernels[0].body * (MOST_STATEMENTS // many))
    nest = replace(nest, steps=(first, *nest.steps[1:]))
    assert launches(join_grids(nest)) == [["several_1"], ["several_2", "several_3"]]


def test_kernels_that_meet_are_refused() -> None:
    first, second = TOGETHER["split"].nest().kernels[:2]
    nest = TOGETHER["split"].nest()
    bad = replace(nest, steps=(Grids("bad", (first, second)),))
    with pytest.raises(InvalidNest, match=r"several_1_parts and several_1 write what the other"):
        verify_nest(bad)
    turns = replace(first, programs=4)
    with pytest.raises(InvalidNest, match="take turns"):
        verify_nest(replace(nest, steps=(Grids("bad", (turns, nest.kernels[2])),)))


def test_grids_are_listed_and_read_back() -> None:
    nest = joined(TOGETHER["streams"])
    text = show_nest(nest)
    assert text.startswith("grids several_1_together:\n    kernel several_1:\n")
    again = nest_from_text(nest_to_text(nest))
    assert show_nest(again) == text
    assert all(isinstance(step, Launchable) for step in again.steps)


def test_a_cpu_has_no_launches_to_share() -> None:
    program = TOGETHER["streams"].program()
    request = Request(program, target="cpu", schedule=Schedule(together=True))
    nest, _ = choose(request)[0].scheduled()
    assert nest.launches == nest.kernels
