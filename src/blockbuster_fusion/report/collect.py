"""The report of a plan: equal layers folded, shares of the whole, reasons with their steps."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from statistics import median
from typing import Literal

from blockbuster_fusion.plans.folds import digest, folds
from blockbuster_fusion.plans.plan import Plan, RunnerUp, SizePlan, Step, StoredArray
from blockbuster_fusion.plans.words import proof, rival, runner
from blockbuster_fusion.report.report import (
    Kept,
    Layers,
    Note,
    Report,
    Rival,
    Row,
    Section,
    Time,
    Totals,
)
from blockbuster_fusion.schedule.cost import Seconds

MIXED = "partly measured"


def report_of(
    plan: Plan, summary: Sequence[str] = (), notes: Iterable[Note] = (), name: str = ""
) -> Report:
    """The report of a plan; `summary`, `notes` and `name` are what else is known of the model."""
    sections = [*_sections(plan)]
    totals = _sum(section.totals for section in sections if section.is_usual)
    whole = totals.seconds
    shared = tuple(_with_shares(x, whole if x.is_usual else x.totals.seconds) for x in sections)
    breaks = plan.graph_breaks
    about = (plan.version, plan.target, plan.machine)
    return Report(*about, totals, shared, breaks, tuple(summary), tuple(notes), name)


def _sections(plan: Plan) -> Iterator[Section]:
    for number, graph in enumerate(plan.graphs, start=1):
        title = f"graph {number}" if len(plan.graphs) > 1 else ""
        for place, own in enumerate(graph.plans):
            yield Section(
                ", ".join(x for x in (title, own.sizes) if x),
                tuple(_layers(own)),
                _sum(map(_totals, own.steps)),
                proof(own.certificate, own.chosen_by),
                own.as_captured,
                None if own.runner_up is None else _rival(own.runner_up, None, both=False),
                is_usual=place == 0,
            )


def _layers(plan: SizePlan) -> Iterator[Layers]:
    kept = _kept(plan)
    for fold in folds(plan.steps):
        rows = (_row(plan.steps, places, kept) for places in zip(*fold.runs, strict=True))
        yield Layers(fold.title, fold.regions, tuple(rows), fold.differs)


def _row(steps: Sequence[Step], places: Sequence[int], kept: Mapping[int, Sequence[Kept]]) -> Row:
    """The row of equal steps."""
    alike = [steps[at] for at in places]
    first = alike[0]
    known = [x.seconds.total() for x in alike if x.seconds is not None]
    bases = {x.basis for x in alike if x.basis}
    basis = bases.pop() if len(bases) == 1 else MIXED
    return Row(
        first.name,
        first.kind,
        runner(first),
        digest(first),
        tuple(at + 1 for at in places),
        first.operators,
        tuple(dict.fromkeys(line for step in alike for line in step.lines)),
        () if first.kernels is None else tuple(x.name for x in first.kernels.launches),
        first.bytes_read,
        first.bytes_written,
        first.flops,
        Time(median(known), basis) if known else None,
        sum(known) if known else None,
        rival=None if first.runner_up is None else _rival(first.runner_up, first.seconds),
        reason=first.reason,
        kept=_most_common([tuple(kept.get(at, ())) for at in places]),
    )


def _most_common(several: Sequence[tuple[Kept, ...]]) -> tuple[Kept, ...]:
    """The arrays of a layer whose neighbours are those of most layers."""
    alike = [tuple((x.side, x.other, x.reason) for x in found) for found in several]
    return several[alike.index(Counter(alike).most_common(1)[0][0])]


def _rival(other: RunnerUp, now: Seconds | None, *, both: bool = True) -> Rival:
    """A runner-up; with `both`, it is kernels against PyTorch's operators."""
    own = _time(other.seconds, other.basis)
    instead = _time(other.instead, other.instead_basis) if both else None
    kernels, library = (own, instead) if other.by == "kernels" else (instead, own)
    words, reason = rival(other, now), other.obstacle or other.reason
    return Rival(other.by, words, reason, kernels, library, other.operators, other.config)


def _time(seconds: Seconds | None, basis: str) -> Time | None:
    return None if seconds is None else Time(seconds.total(), basis)


def _kept(plan: SizePlan) -> dict[int, list[Kept]]:
    """The arrays that each step keeps in memory, by the step's place."""
    places = {next(iter(x.operators), x.name): at for at, x in enumerate(plan.steps)}
    named: dict[tuple[str, str], list[int]] = {}
    for at, step in enumerate(plan.steps):
        named.setdefault((step.region, step.name), []).append(at)
    found: dict[int, list[Kept]] = {}
    for array in plan.stored:
        if (
            array.written_by == array.read_by
        ):  # by one step, or by a program whose kernels are steps
            for at in named.get((array.region, array.written_by), range(len(plan.steps))):
                found.setdefault(at, []).append(_stored(array, "within", array.written_by))
            continue
        maker, reader = places.get(array.written_by), places.get(array.read_by)
        if maker is not None:
            other = "" if reader is None else plan.steps[reader].name
            found.setdefault(maker, []).append(_stored(array, "writes", other))
        if reader is not None:
            other = array.written_by if maker is None else plan.steps[maker].name
            found.setdefault(reader, []).append(_stored(array, "reads", other))
    return {at: [*dict.fromkeys(several)] for at, several in found.items()}


def _stored(array: StoredArray, side: Literal["reads", "writes", "within"], other: str) -> Kept:
    return Kept(
        array.array,
        array.bytes,
        side,
        other,
        array.decided,
        array.reason,
        _time(array.seconds, array.basis),
        None if array.instead is None else array.instead.total(),
    )


def _totals(step: Step) -> Totals:
    """The figures of one step."""
    seconds = 0.0 if step.seconds is None else step.seconds.total()
    is_measured = step.measured is not None
    is_nothing = step.kind == "join" and not step.bytes_read  # all pieces are in place already
    return Totals(
        1,
        0 if step.kernels is None else len(step.kernels.launches),
        seconds if is_measured else 0.0,
        0.0 if is_measured else seconds,
        int(step.seconds is None and not is_nothing),
        step.bytes_read,
        step.bytes_written,
        step.flops,
    )


def _sum(several: Iterable[Totals]) -> Totals:
    found = [*several]
    return Totals(*(sum(getattr(x, f.name) for x in found) for f in fields(Totals)))


def _with_shares(section: Section, whole: float) -> Section:
    """A section whose rows have their shares of a time."""

    def shared(row: Row) -> Row:
        if row.seconds is None or not whole:
            return row
        return replace(row, share=row.seconds / whole)

    several = (replace(x, rows=tuple(map(shared, x.rows))) for x in section.layers)
    return replace(section, layers=tuple(several))
