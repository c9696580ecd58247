"""Steps, runners-up and proofs of plans in words, and tables of cells."""

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence

from blockbuster_fusion.plans.amounts import counted, duration, timed
from blockbuster_fusion.plans.plan import RunnerUp, Step
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.certificate import Certificate

Cells = tuple[str, ...]
LONGEST_NAME = 44
UNPROVEN = "not proven to be the least"


def runner(step: Step) -> str:
    """The runner of a step."""
    if step.kernels is not None:
        count = len(step.kernels.launches)
        config = step.kernels.config
        snapshot = "" if config is None else f", snapshot {config.snapshot + 1}"
        return (counted(count, "kernel") if count else "interpreter") + snapshot
    return {"library": "PyTorch", "misc": "PyTorch", "join": "in place"}[step.kind]


def rival(other: RunnerUp, now: Seconds | None = None) -> str:
    """A runner-up with its time; `now` is the time of the step, which is told anyway."""
    if other.obstacle:
        return "no kernels"
    who = "kernels" if other.by == "kernels" else "PyTorch"
    time = "" if other.seconds is None else f" {timed(other.seconds.total(), other.basis)}"
    if other.instead is None or other.instead == now:
        return f"{who}{time}"
    return f"{who}{time} against {duration(other.instead.total())}"


def proof(certificate: Certificate | None, chosen_by: str) -> str:
    """The knowledge of a choice of parts."""
    if certificate is None:
        return f"chosen by {chosen_by}" if chosen_by else "nothing to choose"
    if certificate.proven:
        return f"proven to be the least, among {counted(certificate.candidates, 'candidate')}"
    caps = f" ({', '.join(certificate.caps)})" if certificate.caps else ""
    if certificate.bound <= 0:
        return f"{UNPROVEN}: nothing is known of the least cost{caps}"
    above = 100 * (certificate.value / certificate.bound - 1)
    percent = f"{above:.0f} %" if above >= 10 else f"{above:.1f} %"
    gap = duration(certificate.value - certificate.bound)
    above_least = f"at most {percent}, {gap}, above the least cost"
    return f"{UNPROVEN}: {above_least}, where predictions count times their errors{caps}"


def shortened(name: str) -> str:
    """A name of which the end is left out if it is long."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def aligned(table: Iterable[Cells | str], left: Collection[int]) -> Iterator[str]:
    """Rows with columns of equal widths; a text is a line by itself.

    `left` are the columns that are flush left.
    """
    lines = [*table]
    rows = [row for row in lines if not isinstance(row, str)]
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    yield from (x if isinstance(x, str) else _line(x, widths, left) for x in lines)


def _line(row: Cells, widths: Sequence[int], left: Collection[int]) -> str:
    cells = []
    for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
        space = " " * (width - columns(cell))
        cells.append(cell + space if at in left else space + cell)
    return "  ".join(cells).rstrip()


def columns(text: str) -> int:
    """The width of a text in a terminal, where some characters are two columns wide or none."""
    wide = sum(unicodedata.east_asian_width(x) in "WF" for x in text)
    return len(text) + wide - sum(unicodedata.combining(x) != 0 for x in text)
