"""The program after each pass, as text."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.tools.passes import pass_docs, passes

SIZES = {"D": 64, "L": 64}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_from_whole_arrays_to_the_nest_that_is_printed(target: str) -> None:
    program = bb.examples.find("attention")
    found = list(passes(program, target=target, sizes=SIZES))
    choice = choose(Request(program, target=target, sizes=SIZES))[0]
    texts = dict(found)
    assert texts["trace"] == f"{program}\n"
    assert texts["pairs"] == show(choice.graph)
    assert found[-1].text == show_nest(choice.scheduled()[0])
    assert len(texts) == len(found)


def test_every_pass_is_listed_in_order() -> None:
    program = bb.examples.find("rmsnorm-swiglu")
    names = [name for name, _ in passes(program, target="cuda", dtype="bfloat16")]
    assert names == [n for n in pass_docs() if n != "once_per_row"]
    of_gpus = {"narrow_storage", "fold_after_loops", "untie_kernels", "divide_masked_loops"}
    of_gpus |= {"gather_in_groups"}
    of_gpus |= {"narrow_operands", "unroll_short_loops", "merge_kernels", "join_rows"}
    of_gpus |= {"join_grids", "start_early", "sum_in_products", "sink", "select_once"}
    assert [n for n, _ in passes(program)] == [n for n in pass_docs() if n not in of_gpus]


def test_nest_passes_are_named_after_their_files() -> None:
    from pathlib import Path

    from blockbuster_fusion.nest import passes as folder

    (path,) = folder.__path__
    files = {file.stem for file in Path(path).glob("*.py")} - {"__init__"}
    assert files <= set(pass_docs())


def test_schedules_take_part() -> None:
    program, schedule = bb.examples.find("attention"), bb.Schedule(split={"N": 4})
    texts = dict(passes(program, sizes=SIZES, schedule=schedule))
    assert texts["split_reduction"].count("kernel ") == 2
    assert texts["skip_masked_blocks"].count("kernel ") == 1
