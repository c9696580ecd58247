"""The data of the page of a model's part: its fusion, and the kernels that run in the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, capability_of, choose
from blockbuster_fusion.explorer.collect import FORMAT, snapshot_rows
from blockbuster_fusion.explorer.kernels import LANGUAGES, KernelMoments
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.steps import Data, array_names, fusion_moments
from blockbuster_fusion.explorer.summary import summary, with_fates
from blockbuster_fusion.explorer.written_words import as_written
from blockbuster_fusion.fusion.fuse import run
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.safety.fuse import SafeFusion
from blockbuster_fusion.schedule.snapshots import chosen_snapshots
from blockbuster_fusion.torch.groups import Fused
from blockbuster_fusion.version import __version__

RUNS = "This snapshot runs in the model"


def part_data(fused: Fused, title: str, lengths: Mapping[str, int]) -> Data:
    """The data of the page of a part, with the kernels of the snapshot that runs.

    `lengths` has the lengths of symbols. As `doors`, the data has the moments by which a reader
    enters: the program as it was written, its first step, the snapshot that runs, and its source.
    """
    part, executable = fused.part, fused.executable
    target = executable.target
    request = Request(part.expressed.program, target=target, dtype=part.storage)
    request = replace(request, capability=capability_of(target))
    graph, _ = request.block_program()
    options = (request.rules, request.unit, request.stored, target)
    choice = choose(replace(request, config=executable.config))[0]
    sizes = Sizes(_lengths(graph, lengths), _tiles(choice) if target in LANGUAGES else {})
    first = chosen_snapshots(graph, *options).fusion
    source = choice.graph if choice.fused is None else choice.fused
    fusion, number = _holding(source, first)
    frames: list[Data] = []
    names = array_names(fusion.trace)
    moments = with_fates(fusion_moments(fusion, sizes, frames, names), frames)
    fates = summary(moments, frames)
    runs = next(moment for moment in moments if moment.get("snapshot") == number + 1)
    rows = snapshot_rows(fusion, sizes, names)
    other = choice.snapshot + 1
    known_as = "" if other == number + 1 else f"; the plan calls it snapshot {other}"
    rows[number + 1]["said"].insert(0, f"{RUNS}{known_as}.")
    kernels = KernelMoments(sizes, frames, names)
    own = [replace(choice, fused=request.as_stored(source))] if target in LANGUAGES else []
    moments += kernels.of(number, own, runs["frame"]) if own else []
    moments[0] |= as_written(fusion.initial, moments)
    return {
        "format": FORMAT,
        "kind": "program",
        "title": title,
        "program": str(part.expressed.program),
        "version": __version__,
        "rules": fusion.trace.rules.name,
        "sizes": sizes.lengths,
        "blocks": sizes.words(choice.graph),
        "summary": fates,
        "frames": frames,
        "moments": moments,
        "snapshots": rows,
        "chosen": {},
        "runs": runs["id"],
        "doors": _doors([moment["id"] for moment in moments], runs["id"]),
    }


def _doors(moments: Sequence[str], runs: str) -> list[list[str]]:
    """The title and the moment of each way into the page, in the order of the page."""
    steps = [moment for moment in moments if moment.startswith("step-")]
    found = {"Block program": steps[0]}
    if len(steps) > 1:
        found |= {"Fusion steps": steps[1], "What runs": runs}
    if moments[-1] != steps[-1]:
        found["Source"] = moments[-1]
    return [[title, moment] for title, moment in found.items()]


def _lengths(graph: Graph, lengths: Mapping[str, int]) -> dict[str, int]:
    """The length of every axis of a program, by the axis's name."""
    found = {}
    for axis in sorted({dim.axis for dim in graph.dims}, key=lambda axis: axis.name):
        extent = axis.extent
        found[axis.name] = lengths[extent.name] if isinstance(extent, Symbol) else int(extent)
    return found


def _tiles(choice: Choice) -> dict[str, int]:
    """The tiles of the kernels of a choice, by the labels of their dims."""
    _, tiles = choice.scheduled()
    return {dim.label: tile for dim, tile in tiles.items()}


def _fusions(fusion: SafeFusion) -> Iterator[SafeFusion]:
    """The fusions that snapshots are chosen from: by all rules, by careful ones, by the base."""
    yield fusion
    made = run(fusion.initial, fusion.trace.rules.careful)
    yield SafeFusion(made.initial, made.fused, made.trace, stored=fusion.stored)
    if isinstance(fusion.base, SafeFusion):
        yield fusion.base


def _holding(snapshot: Graph, fusion: SafeFusion) -> tuple[SafeFusion, int]:
    """The fusion that has a snapshot, with its number."""
    for found in _fusions(fusion):
        digests = [graph.digest for graph in found.fused]
        if snapshot.digest in digests:
            return found, digests.index(snapshot.digest)
    raise AssertionError(f"no fusion of the program has the snapshot {snapshot.digest}")
