"""The arrays between the steps of a plan, those of equal layers as one, by the rows of a report."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blockbuster_fusion.explorer.steps import Data
from blockbuster_fusion.plans.folds import titled
from blockbuster_fusion.plans.plan import SizePlan, StoredArray
from blockbuster_fusion.report.report import Section

_Layer = tuple[int, int]
"""A layer: the place of its fold in the section, and its own in the fold."""


@dataclass(frozen=True)
class _Kind:
    """Arrays that are alike: the same in all equal layers."""

    made_by: int | None
    """The row that stores it."""
    read_by: int | None
    """The row that reads it; None for a result of the model."""
    crosses: bool
    """True if a layer stores it for a later one of the same fold."""
    bytes: int
    decided: str
    reason: str


@dataclass(frozen=True)
class _Stored:
    """An array, with the fold and layer of the steps that store it and that read it."""

    array: StoredArray
    made_in: _Layer | None
    read_in: _Layer | None


def arrays(plan: SizePlan, section: Section, first: int) -> list[Data]:
    """The stored arrays of a section, those of equal layers together.

    Rows are numbered from `first`, in the order of the section.
    """
    rows, runs = _places(section, first)
    places = {next(iter(x.operators), x.name): at for at, x in enumerate(plan.steps)}
    found: dict[_Kind, list[_Stored]] = {}
    for maker, reader, array in _ends(plan, places):
        ends = (_row(maker, rows), _row(reader, rows))
        if ends == (None, None):
            continue
        kind = _Kind(*ends, _crosses(maker, reader, runs), array.bytes, array.decided, array.reason)
        found.setdefault(kind, []).append(_Stored(array, runs.get(maker), runs.get(reader)))
    return [_array(kind, several, section) for kind, several in found.items()]


def _ends(
    plan: SizePlan, places: Mapping[str, int]
) -> Iterator[tuple[int | None, int | None, StoredArray]]:
    """The places of the steps that store and that read each array."""
    own: dict[tuple[str, str], list[int]] = {}
    for at, step in enumerate(plan.steps):
        own.setdefault((step.region, step.name), []).append(at)
    for array in plan.stored:
        if array.written_by == array.read_by:  # one step stores it for itself
            for at in own.get((array.region, array.written_by), ()):
                yield at, at, array
        else:
            yield places.get(array.written_by), places.get(array.read_by), array


def _row(step: int | None, rows: Mapping[int, int]) -> int | None:
    return None if step is None else rows.get(step)


def _crosses(maker: int | None, reader: int | None, runs: Mapping[int | None, _Layer]) -> bool:
    """True if two steps are in different layers of one fold."""
    if maker is None or reader is None:
        return False
    return runs[maker][0] == runs[reader][0] and runs[maker][1] != runs[reader][1]


def _places(section: Section, first: int) -> tuple[dict[int, int], dict[int | None, _Layer]]:
    """The row of each step, and its fold and layer, by the place of the step in the plan."""
    rows, runs, number = dict[int, int](), dict[int | None, _Layer](), first
    for fold, layers in enumerate(section.layers):
        for row in layers.rows:
            for layer, step in enumerate(row.steps):
                rows[step - 1], runs[step - 1] = number, (fold, layer)
            number += 1
    return rows, runs


def _only(layers: list[_Layer | None], section: Section) -> str:
    """Some layers of a fold in words; empty if they are all of it, or lie in none."""
    known = sorted({layer for layer in layers if layer is not None})
    regions = section.layers[known[0][0]].regions if known else ()
    return titled([regions[at] for _, at in known]) if len(known) < len(regions) else ""


def _array(kind: _Kind, alike: list[_Stored], section: Section) -> Data:
    first = alike[0].array
    return {
        "name": first.array,
        "from": kind.made_by,
        "to": kind.read_by,
        "crosses": kind.crosses,
        "bytes": kind.bytes,
        "count": len(alike),
        "made_in": _only([x.made_in for x in alike], section),
        "read_in": _only([x.read_in for x in alike], section),
        "decided": kind.decided,
        "reason": kind.reason,
        "fused": None if first.seconds is None else first.seconds.total(),
        "basis": first.basis,
        "now": None if first.instead is None else first.instead.total(),
    }
