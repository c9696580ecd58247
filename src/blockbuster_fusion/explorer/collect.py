"""All data of an explorer's page for one program, as plain data."""

from collections.abc import Collection, Mapping

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.explorer.kernels import LANGUAGES, Choices, kernel_moments
from blockbuster_fusion.explorer.steps import Data, cost, fusion_moments, reasons
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.tiling import DEFAULT_TILE, given_extents
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.plans.predicted import Predicted
from blockbuster_fusion.safety.fuse import SafeFusion
from blockbuster_fusion.schedule.snapshots import chosen_snapshots
from blockbuster_fusion.version import __version__

FORMAT = 1
MACHINE = "h200"
"""The machine for which times are predicted: the same wherever a page is made."""


def program_data(
    program: ArrayProgram | Graph,
    sizes: Mapping[str, int],
    *,
    rules: str = "extended",
    unit: Collection[str] | None = None,
    name: str | None = None,
    times: bool = True,
) -> Data:
    """The data of the page of one program: pictures, moments and snapshots.

    `sizes` are for the figures alone: the program keeps its symbols. Without `times`, no
    configurations are searched, and no time is predicted.
    """
    request = Request(program, rules=rules, unit=unit, name=name)
    graph, title = request.block_program()
    fusion = chosen_snapshots(graph, rules, unit, None, request.target).fusion
    frames: list[Data] = []
    names: dict[str, dict[str, str]] = {}
    choices = Choices(request)
    moments = fusion_moments(fusion, sizes, frames)
    at = {moment["snapshot"]: moment for moment in moments if "snapshot" in moment}
    for number in range(len(fusion.fused)):
        first = at[number + 1]["frame"]
        moments += kernel_moments(choices.of, number, sizes, frames, names, first)
    return {
        "format": FORMAT,
        "kind": "program",
        "title": title,
        "program": str(program) if isinstance(program, ArrayProgram) else "",
        "version": __version__,
        "rules": rules,
        "sizes": dict(sizes),
        "tile": DEFAULT_TILE,
        "frames": frames,
        "names": names,
        "moments": moments,
        "snapshots": _snapshots(choices, fusion, sizes, times),
        "chosen": {LANGUAGES[target]: n + 1 for target, n in choices.default.items()},
    }


def _snapshots(
    choices: Choices, fusion: SafeFusion, sizes: Mapping[str, int], times: bool
) -> list[Data]:
    """The unfused program and each snapshot, with its costs and the reasons for what is left."""
    ready = [choices.of("cuda", number) for number in range(len(fusion.fused))]
    unfused = ready[0].before_fusion
    rows: list[Data] = []
    if unfused is not None:
        rows.append(
            {
                "name": "unfused",
                "moment": "step-0",
                "cost": cost(fusion.initial, meter(fusion.initial, sizes)),
                "times": _times(unfused(), sizes) if times else {},
                "reasons": [],
            }
        )
    for number, (graph, choice) in enumerate(zip(fusion.fused, ready, strict=True)):
        rows.append(
            {
                "name": f"snapshot {number + 1}",
                "number": number + 1,
                "moment": f"step-{fusion.trace.snapshots[number]}",
                "cost": cost(graph, meter(graph, sizes)),
                "times": _times(choice, sizes) if times else {},
                "precision": str(fusion.safety[number].precision),
                "decisions": [each.reason for each in fusion.safety[number].choices],
                "reasons": reasons(fusion, number),
            }
        )
    return rows


def _times(choice: Choice, sizes: Mapping[str, int]) -> dict[str, float]:
    """The predicted time of a program's best configuration on a known machine, if there is one."""
    machine = known()[MACHINE]
    axes = sorted({dim.axis for dim in choice.graph.dims}, key=str)
    extents = given_extents(axes, sizes)
    try:
        best = improved([choice], tuple((axis, extents.of(axis)) for axis in axes), machine)[0]
        seconds = Predicted(best, extents, machine).seconds
    except BlockbusterError:
        return {}
    return {} if seconds is None else {machine.name: seconds.total(replayed=True)}
