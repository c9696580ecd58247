"""All data of an explorer's page for one program, as plain data."""

from collections.abc import Collection, Mapping, Sequence

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.explorer.array_names import ArrayNames
from blockbuster_fusion.explorer.kernels import LANGUAGES, Choices, KernelMoments
from blockbuster_fusion.explorer.measured import measured
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.snapshot_words import cost_words, snapshot_words
from blockbuster_fusion.explorer.steps import Data, array_names, cost, fusion_moments, reasons
from blockbuster_fusion.explorer.summary import summary, with_fates
from blockbuster_fusion.explorer.written_words import as_written
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.tiling import given_extents
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.plans.predicted import Predicted
from blockbuster_fusion.safety.fuse import SafeFusion
from blockbuster_fusion.schedule.defaults import ASSUMED
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
    note: str = "",
    times: bool = True,
    measure: bool = False,
) -> Data:
    """The data of the page of one program: pictures, moments and snapshots.

    `sizes` are for the figures alone: the program keeps its symbols. `note` is a text about the
    program, which the page shows under its title. With `times`, the time of each
    snapshot is predicted; with `measure`, an array program's is measured on this CPU.
    """
    request = Request(program, rules=rules, unit=unit, name=name)
    graph, title = request.block_program()
    fusion = chosen_snapshots(graph, rules, unit, None, request.target).fusion
    frames, own = list[Data](), Sizes(sizes)
    choices, names = Choices(request), array_names(fusion.trace)
    moments = with_fates(fusion_moments(fusion, own, frames, names), frames)
    fates = summary(moments, frames)
    at = {moment["snapshot"]: moment for moment in moments if "snapshot" in moment}
    kernels = KernelMoments(own, frames, names)
    for number in range(len(fusion.fused)):
        first = at[number + 1]["frame"]
        moments += kernels.of(number, choices.all(number), first)
    moments[0] |= as_written(graph, moments)
    data: Data = {
        "format": FORMAT,
        "kind": "program",
        "title": title,
        "note": note,
        "program": str(program) if isinstance(program, ArrayProgram) else "",
        "version": __version__,
        "rules": rules,
        "sizes": dict(sizes),
        "blocks": own.words(graph),
        "summary": fates,
        "frames": frames,
        "moments": moments,
        "snapshots": snapshot_rows(fusion, own, names),
        "chosen": {LANGUAGES[target]: n + 1 for target, n in choices.default.items()},
        "chosen_why": default_words(fusion),
    }
    data = with_predicted_times(data, choices) if times and all(sizes.values()) else data
    if measure and isinstance(program, ArrayProgram):
        data = with_measured_times(data, choices, program)
    return data


def default_words(fusion: SafeFusion) -> list[str]:
    """The reason for the snapshot that is run by default, and when another one is run."""
    symbols = any(isinstance(dim.axis.extent, Symbol) for dim in fusion.initial.dims)
    careful = [safe.precision.careful for safe in fusion.safety]
    among = "the snapshots that lose no digits" if len(set(careful)) > 1 else "all snapshots"
    where = f" for {ASSUMED} elements along each axis whose length the program does not fix"
    words = [f"Of {among} it has the least estimated time{where if symbols else ''}."]
    if symbols and len(careful) > 1:
        words.append("With fixed lengths the estimate is for these, and may choose another.")
    return words


def snapshot_rows(fusion: SafeFusion, sizes: Sizes, names: ArrayNames) -> list[Data]:
    """The unfused program and each snapshot, with its costs and the reasons for what is left."""
    first = _cost(fusion.initial, sizes)
    rows: list[Data] = [{"name": "unfused", "moment": "step-0", "cost": first, "reasons": []}]
    for number, graph in enumerate(fusion.fused):
        last, own = fusion.trace.snapshots[number], _cost(graph, sizes)
        shown = names.listed(graph).labels
        words = snapshot_words(fusion.initial, graph, fusion.trace[:last], sizes, shown)
        rows.append(
            {
                "name": f"snapshot {number + 1}",
                "number": number + 1,
                "moment": f"step-{last}",
                "cost": own,
                "said": [*words, cost_words(first, own)],
                "precision": str(fusion.safety[number].precision),
                "reasons": reasons(fusion, number, shown),
            }
        )
    return [{**row, "times": {}} for row in rows]


def _cost(graph: Graph, sizes: Sizes) -> Data:
    return cost(graph, sizes.traffic(graph))


def with_predicted_times(data: Data, choices: Choices) -> Data:
    """The data of a page with the time of each snapshot's best configuration on a known machine."""
    machine, sizes = known()[MACHINE], data["sizes"]
    compared = choices.compared("cuda", len(data["snapshots"]) - 1)
    found = [_predicted(choice, sizes, machine) for choice in compared]
    return _with_times(data, f"predicted, {machine.name}", found)


def with_measured_times(data: Data, choices: Choices, program: ArrayProgram) -> Data:
    """The data of a page with the time of each snapshot on this CPU."""
    compared = choices.compared("cpu", len(data["snapshots"]) - 1)
    found = measured(program, data["sizes"], compared)
    return _with_times(data, "measured, this CPU", found)


def _with_times(data: Data, name: str, seconds: Sequence[float | None]) -> Data:
    rows = zip(data["snapshots"], seconds, strict=True)
    timed = [
        row | {"times": row["times"] | ({name: t} if t is not None else {})} for row, t in rows
    ]
    return data | {"snapshots": timed}


def _predicted(choice: Choice, sizes: Mapping[str, int], machine: Machine) -> float | None:
    axes = sorted({dim.axis for dim in choice.graph.dims}, key=str)
    extents = given_extents(axes, sizes)
    try:
        best = improved([choice], tuple((axis, extents.of(axis)) for axis in axes), machine)[0]
        seconds = Predicted(best, extents, machine).seconds
    except BlockbusterError:
        return None
    return None if seconds is None else seconds.total(replayed=True)
