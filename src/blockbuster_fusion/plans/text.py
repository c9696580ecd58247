"""A plan as text: a table of its steps, equal layers once; and the reasons for stored arrays."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from blockbuster_fusion.plans.plan import GraphPlan, Plan, RunnerUp, SizePlan, Step, StoredArray
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.partition import Certificate

AROUND = "around the layers"
HEADS = ("", "step", "by", "reads", "writes", "flops", "time", "otherwise")
LEFT = (1, 2, 7)
"""The columns that are flush left."""
LONGEST_NAME = 44

Row = tuple[str, ...]


def text(plan: Plan) -> Iterator[str]:
    """The lines of a plan."""
    launches = [k for s in plan.steps if s.kernels is not None for k in s.kernels.launches]
    is_captured = all(graph.plans[0].as_captured for graph in plan.graphs)
    proof = "as captured" if is_captured else _proof(plan.certificate, _ways(plan))
    yield (
        f"plan for {plan.target} ({plan.machine}): {_count(len(plan.graphs), 'graph')}, "
        f"{_count(len(plan.steps), 'step')}, {_count(len(launches), 'kernel')}; "
        f"{_shown(plan.seconds)} in all; {proof}"
    )
    yield from (f"graph break: {reason}" for reason in plan.graph_breaks)
    for number, graph in enumerate(plan.graphs, start=1):
        yield from _graph(graph, f"graph {number}" if len(plan.graphs) > 1 else "")


def why_text(stored: Sequence[StoredArray]) -> Iterator[str]:
    """The lines of the reasons for arrays that are stored, equal layers once."""
    by_region = [(region, [*found]) for region, found in groupby(stored, key=lambda x: x.region)]
    for lines, alike in groupby(by_region, key=lambda x: tuple(map(_reason, x[1]))):
        regions = [*alike]
        if len(by_region) > 1 or stored[0].region:
            yield _title([region for region, _ in regions])
        shown = zip(lines, regions[0][1], strict=True)
        yield from (f"  {x.array}{_reader(x)} {line}" for line, x in shown)


def _reader(x: StoredArray) -> str:
    return f" for {x.read_by}" if x.read_by and x.read_by != x.written_by else ""


def _reason(x: StoredArray) -> str:
    """A stored array without its names, which differ in equal layers."""
    where = f"({_amount(x.bytes)})"
    costs = "" if x.seconds is None else f"; fused {_time(x.seconds, x.basis)}"
    costs += "" if x.instead is None or not costs else f", now {_time(x.instead)}"
    return f"{where}: {x.reason}{costs}"


def _graph(graph: GraphPlan, title: str) -> Iterator[str]:
    for plan in graph.plans:
        words = ", ".join(x for x in (title, plan.sizes) if x)
        if words:
            proof = _proof(plan.certificate, plan.chosen_by)
            yield f"{words}: {_shown(plan.seconds.total())}; {proof}"
        if plan.as_captured:
            yield "it runs as it was captured, as nothing is faster"
        yield from _steps(plan)
        if plan.runner_up is not None:
            config = f" ({plan.runner_up.config})" if plan.runner_up.config else ""
            yield f"otherwise: {_otherwise(plan.runner_up)}{config}"


def _steps(plan: SizePlan) -> Iterator[str]:
    """The table of the steps: neighbouring regions with equal rows are one."""
    regions = [(name, [*found]) for name, found in groupby(plan.steps, key=lambda s: s.region)]
    folded: list[tuple[list[str], list[Row]]] = []
    for rows, alike in groupby(regions, key=lambda x: tuple(map(_row, x[1]))):
        folded.append(([name for name, _ in alike], [*rows]))
    number, table = 0, list[Row | str]()
    for names, found in folded:
        if len(folded) > 1 or names != [""]:
            table.append(_title(names))
        table += [(str(number + at), *row) for at, row in enumerate(found, start=1)]
        number += len(found) * len(names)
    return _aligned([HEADS, *table])


def _title(names: Sequence[str]) -> str:
    shown = [name or AROUND for name in names]
    return f"{shown[0]}:" if len(shown) == 1 else f"{shown[0]} to {shown[-1]} ×{len(shown)}:"


def _aligned(table: Iterable[Row | str]) -> Iterator[str]:
    """Rows with columns of equal widths; a text is a line by itself."""
    lines = [*table]
    rows = [row for row in lines if not isinstance(row, str)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADS))]
    for line in lines:
        if isinstance(line, str):
            yield line
            continue
        cells = [
            f"{cell:<{width}}" if at in LEFT else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _row(step: Step) -> Row:
    """The cells of a step but its number: equal for equal layers."""
    seconds = step.seconds
    return (
        _shortened(step.name),
        _by(step),
        _amount(step.bytes_read),
        _amount(step.bytes_written),
        _amount(step.flops, ""),
        "" if seconds is None else _time(seconds, step.basis),
        step.reason if step.runner_up is None else _otherwise(step.runner_up, seconds),
    )


def _by(step: Step) -> str:
    """The runner of a step."""
    if step.kernels is not None:
        count = len(step.kernels.launches)
        config = step.kernels.config
        snapshot = "" if config is None else f", snapshot {config.snapshot + 1}"
        return (_count(count, "kernel") if count else "interpreter") + snapshot
    return {"library": "PyTorch", "misc": "PyTorch", "join": "in place"}[step.kind]


def _otherwise(other: RunnerUp, now: Seconds | None = None) -> str:
    """A runner-up and the reason why it lost; `now` is the time that is told anyway."""
    who = "kernels" if other.by == "kernels" else "PyTorch"
    if other.obstacle:
        return f"no kernels: {other.obstacle}"
    time = "" if other.seconds is None else f" {_time(other.seconds, other.basis)}"
    instead = ""
    if other.instead is not None and other.instead != now:
        instead = f" against {_time(other.instead)}"
    reason = f": {other.reason}" if other.reason and other.by == "kernels" else ""
    return f"{who}{time}{instead}{reason}"


def _ways(plan: Plan) -> str:
    """The ways in which the parts of all graphs were chosen."""
    found = [graph.plans[0] for graph in plan.graphs]
    return " and ".join(dict.fromkeys(x.chosen_by for x in found if x.certificate is None))


def _proof(certificate: Certificate | None, chosen_by: str) -> str:
    if certificate is None:
        return f"chosen by {chosen_by}" if chosen_by else "nothing to choose"
    if certificate.proven:
        return f"proven to be the least, among {certificate.candidates} candidates"
    caps = f" ({', '.join(certificate.caps)})" if certificate.caps else ""
    return f"no choice takes less than {_shown(certificate.bound)}{caps}"


def _time(seconds: Seconds, basis: str = "") -> str:
    shown = _shown(seconds.total())
    return f"at least {shown}" if basis == "at least" else f"{shown} {basis}".rstrip()


def _shown(seconds: float) -> str:
    """A time in a unit that leaves one to four digits."""
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 9999.5:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"


def _amount(count: int, unit: str = "B") -> str:
    """A number in a unit that leaves one to four digits."""
    number = float(count)
    for prefix in ("", "K", "M", "G"):
        if number < 1000:
            return f"{number:.3g} {prefix}{unit}".rstrip()
        number /= 1000
    return f"{number:.4g} T{unit}"


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
