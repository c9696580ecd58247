"""A report of a plan: its steps as rows, equal layers folded, with the share of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from blockbuster_fusion.plans.folds import titled
from blockbuster_fusion.plans.plan import Decision, StepKind
from blockbuster_fusion.plans.records import to_data

FORMAT = 1
"""The version of the format of files."""
KIND = "blockbuster report"
MOST_COSTLY = 5
"""The number of rows for which a printer tells why they are not fused further."""


@dataclass(frozen=True)
class Time:
    """A time in seconds, and how it is known."""

    seconds: float
    basis: str
    """Measured, predicted, "partly measured", or "at least" for a bound."""


@dataclass(frozen=True)
class Rival:
    """The best of what else could have run some operators, and why it lost."""

    by: Literal["kernels", "library"]
    words: str
    """Its name and its time."""
    reason: str = ""
    kernels: Time | None = None
    """The time of kernels for all that was weighed, whichever runs."""
    library: Time | None = None
    """The time of PyTorch's operators for the same."""
    operators: tuple[str, ...] = ()
    """The names in the graph of all that was weighed: maybe more than the row has."""
    config: str = ""
    """The configuration of kernels that lost."""


@dataclass(frozen=True)
class Kept:
    """An array that a step stores for another or for itself, and the reason."""

    array: str
    bytes: int
    side: Literal["reads", "writes", "within"]
    """The row's side of it."""
    other: str
    """The name of the other step, empty for a result of the model; within one, its own name."""
    decided: Decision
    reason: str
    fused: Time | None = None
    """The time that fusing it would have taken."""
    now: float | None = None
    """The seconds of what runs these operators now."""


@dataclass(frozen=True)
class Row:
    """A step, or the equal steps of equal layers. Bytes and time are those of one."""

    name: str
    kind: StepKind
    by: str
    """The runner in words."""
    digest: str
    """A digest of that which runs, equal in all layers that have the same step."""
    steps: tuple[int, ...]
    """The numbers of the steps that it stands for, from 1."""
    operators: Mapping[str, str]
    """The operators of the first one, by their names in the graph."""
    lines: tuple[str, ...]
    """The lines of the model, as `models/llama.py:12`."""
    kernels: tuple[str, ...]
    """The names of its kernels."""
    bytes_read: int
    bytes_written: int
    flops: int
    time: Time | None = None
    """The time of one step, the median of several; None if it is not known."""
    seconds: float | None = None
    """The time of all steps."""
    share: float | None = None
    """The part of the whole time that all steps take; None if it is not known."""
    rival: Rival | None = None
    reason: str = ""
    """The reason why no kernel computes a misc operator."""
    kept: tuple[Kept, ...] = ()
    """The arrays that it stores for others or reads from them."""


@dataclass(frozen=True)
class Layers:
    """Regions in which the same runs: equal layers, or that which lies around them."""

    title: str
    regions: tuple[str, ...]
    rows: tuple[Row, ...]
    differs: str = ""
    """The difference from the most common layer of the same list, in words."""

    @property
    def seconds(self) -> float:
        """The known times of all regions."""
        return sum(row.seconds or 0.0 for row in self.rows)

    @property
    def share(self) -> float:
        """The part of the whole time that all regions take."""
        return sum(row.share or 0.0 for row in self.rows)


@dataclass(frozen=True)
class Costly:
    """Equal steps of all layers, with the time of all of them."""

    title: str
    """The layers; empty if it lies around these."""
    row: Row
    """The row with the most of them."""
    count: int
    seconds: float
    share: float


@dataclass(frozen=True)
class Totals:
    """Sums over steps."""

    steps: int = 0
    kernels: int = 0
    """The launches of kernels."""
    measured: float = 0.0
    """Seconds that were measured."""
    predicted: float = 0.0
    """Seconds that were predicted."""
    untimed: int = 0
    """The steps whose times are not known."""
    bytes_read: int = 0
    bytes_written: int = 0
    flops: int = 0

    @property
    def seconds(self) -> float:
        return self.measured + self.predicted


@dataclass(frozen=True)
class Section:
    """One graph of a model for one range of sizes."""

    title: str
    """The graph and the range in words; empty if there is one for all."""
    layers: tuple[Layers, ...]
    totals: Totals
    proof: str
    """The knowledge of the choice of parts, in words."""
    as_captured: bool = False
    """True if the graph runs as it was captured: nothing is faster."""
    otherwise: Rival | None = None
    """The best of what else could have run the whole graph, if it is known."""
    is_usual: bool = True
    """True for the sizes of the captured call: these sections are the whole model."""


@dataclass(frozen=True)
class Note:
    """A list of other facts under a title."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All that is told of a plan."""

    version: str
    target: str
    machine: str
    totals: Totals
    """Sums over the sections of the captured call."""
    sections: tuple[Section, ...]
    graph_breaks: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()
    """Sentences about the whole model."""
    notes: tuple[Note, ...] = ()
    name: str = ""
    """The name of the model's class or function, if it is known."""

    def costliest(self, most: int = MOST_COSTLY) -> list[Costly]:
        """The steps of the captured call that take the most time, equal ones together."""
        alike: dict[str, list[tuple[Layers, Row]]] = {}
        for section in self.sections:
            for layers in section.layers if section.is_usual else ():
                for row in layers.rows:
                    alike.setdefault(row.digest, []).append((layers, row))
        found = [x for x in map(_costly, alike.values()) if x.seconds]
        return sorted(found, key=lambda x: -x.seconds)[:most]

    def data(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return {"kind": KIND, "format": FORMAT, **to_data(self)}


def _costly(alike: Sequence[tuple[Layers, Row]]) -> Costly:
    """The sum of equal steps."""
    rows = [row for _, row in alike]
    regions = [region for layers, _ in alike for region in layers.regions]
    return Costly(
        titled(regions) if any(regions) else "",
        max(rows, key=lambda row: len(row.steps)),
        sum(len(row.steps) for row in rows),
        sum(row.seconds or 0.0 for row in rows),
        sum(row.share or 0.0 for row in rows),
    )
