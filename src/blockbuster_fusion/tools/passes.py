"""The text of a program after each pass of the compiler, from whole arrays to its loop nest."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from blockbuster_fusion.array.arrays import as_dtype
from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import (
    BETWEEN,
    FOR_ROWS,
    ON_A_GPU,
    SHARING,
    Choice,
    joining,
    merging,
    starting,
)
from blockbuster_fusion.compiler import Request, choose, first_with_kernels, with_known_sizes
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.tiling import Tiles
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.passes import Pass
from blockbuster_fusion.rules.sets import RuleSet
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pipeline import SAFETY_PASSES, make_safe
from blockbuster_fusion.safety.storage import Storage, stored_as
from blockbuster_fusion.schedule.schedule import Schedule, graph_passes, lowering, nest_passes

FRONT = {
    "trace": "Records the operators of a function over whole arrays.",
    "lower": "Turns every operator into maps over blocks.",
    "fuse": "Fuses maps by rules; `blockbuster trace` shows each step.",
    "narrow_storage": "Stores float32 arrays in the dtype that was asked for.",
}
"""The steps up to the chosen snapshot."""


class AfterPass(NamedTuple):
    """The name of a pass, and the program after it as text."""

    name: str
    text: str


def pass_docs() -> dict[str, str]:
    """The names of all passes in order, each with a sentence on what it does."""
    schedule = Schedule()
    named: tuple[Pass[Any, Any], ...] = (
        *SAFETY_PASSES,
        *graph_passes(schedule),
        lowering("", schedule),
        *nest_passes(schedule, folds_late=True),
        SHARING,
        *FOR_ROWS,
        *BETWEEN,
        *ON_A_GPU,
        merging({}),
        joining(schedule),
        starting(schedule.early),
    )
    return FRONT | {each.name: each.doc for each in named}


def passes(
    program: ArrayProgram,
    *,
    target: str = "cpu",
    snapshot: int | None = None,
    tiles: Tiles | None = None,
    sizes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    rules: str | RuleSet = "extended",
    schedule: Schedule | None = None,
) -> Iterator[AfterPass]:
    """The program after each pass that the compiler runs on it, as text."""
    choices = choose(
        Request(
            program,
            target=target,
            snapshot=snapshot,
            tiles=tiles,
            sizes=sizes,
            dtype=dtype,
            rules=rules,
            schedule=schedule,
        )
    )
    stored = None if dtype is None else as_dtype(dtype)
    yield AfterPass("trace", _text(program))
    yield AfterPass("lower", _text(with_known_sizes(lower(program), sizes or {})))
    for name, made in first_with_kernels(choices, lambda choice: _observed(choice, stored)):
        yield AfterPass(name, _text(made))


def _observed(choice: Choice, stored: Storage | None) -> list[tuple[str, object]]:
    """The programs from the fused snapshot on."""
    graph, found = choice.fused or choice.graph, list[tuple[str, object]]()

    def observe(name: str, program: object) -> None:
        found.append((name, program))

    observe("fuse", graph)
    if stored is not None:
        graph = stored_as(graph, stored)
        observe("narrow_storage", graph)
    make_safe(graph, observe)
    choice.scheduled(observe)
    return found


def _text(program: object) -> str:
    match program:
        case Graph():
            return show(program)
        case Safe():
            return show(program.graph)
        case Nest():
            return show_nest(program)
    return f"{program}\n"
