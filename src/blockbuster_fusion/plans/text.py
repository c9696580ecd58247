"""A plan as text: a table of its steps, equal layers once; and the reasons for stored arrays."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from blockbuster_fusion.plans.amounts import amount, counted, duration, timed
from blockbuster_fusion.plans.folds import folds, titled
from blockbuster_fusion.plans.plan import GraphPlan, Plan, RunnerUp, SizePlan, Step, StoredArray
from blockbuster_fusion.plans.words import Cells, aligned, proof, rival, runner, shortened
from blockbuster_fusion.schedule.cost import Seconds

HEADS = ("", "step", "by", "reads", "writes", "flops", "time", "otherwise")
LEFT = (1, 2, 7)
"""The columns that are flush left."""


def text(plan: Plan) -> Iterator[str]:
    """The lines of a plan."""
    launches = [k for s in plan.steps if s.kernels is not None for k in s.kernels.launches]
    is_captured = all(graph.plans[0].as_captured for graph in plan.graphs)
    known = "as captured" if is_captured else proof(plan.certificate, _ways(plan))
    yield (
        f"plan for {plan.target} ({plan.machine}): {counted(len(plan.graphs), 'graph')}, "
        f"{counted(len(plan.steps), 'step')}, {counted(len(launches), 'kernel')}; "
        f"{duration(plan.seconds)} in all; {known}"
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
            yield f"{titled([region for region, _ in regions])}:"
        shown = zip(lines, regions[0][1], strict=True)
        yield from (f"  {x.array}{_reader(x)} {line}" for line, x in shown)


def _reader(x: StoredArray) -> str:
    return f" for {x.read_by}" if x.read_by and x.read_by != x.written_by else ""


def _reason(x: StoredArray) -> str:
    """A stored array without its names, which differ in equal layers."""
    costs = "" if x.seconds is None else f"; fused {timed(x.seconds.total(), x.basis)}"
    costs += "" if x.instead is None or not costs else f", now {duration(x.instead.total())}"
    return f"({amount(x.bytes)}): {x.reason}{costs}"


def _graph(graph: GraphPlan, title: str) -> Iterator[str]:
    for plan in graph.plans:
        words = ", ".join(x for x in (title, plan.sizes) if x)
        if words:
            known = proof(plan.certificate, plan.chosen_by)
            yield f"{words}: {duration(plan.seconds.total())}; {known}"
        if plan.as_captured:
            yield "it runs as it was captured, as nothing is faster"
        yield from _steps(plan)
        if plan.runner_up is not None:
            config = f" ({plan.runner_up.config})" if plan.runner_up.config else ""
            yield f"otherwise: {_otherwise(plan.runner_up)}{config}"


def _steps(plan: SizePlan) -> Iterator[str]:
    """The table of the steps: regions with equal steps are one."""
    found, table = folds(plan.steps), list[Cells | str]([HEADS])
    for fold in found:
        if len(found) > 1 or fold.regions != ("",):
            times = f" ×{len(fold.runs)}" if len(fold.runs) > 1 else ""
            differs = f" {fold.differs}" if fold.differs else ""
            table.append(f"{fold.title}{times}:{differs}")
        table += [(str(at + 1), *_row(plan.steps[at])) for at in fold.runs[0]]
    return aligned(table, LEFT)


def _row(step: Step) -> Cells:
    """The cells of a step but its number."""
    seconds = step.seconds
    return (
        shortened(step.name),
        runner(step),
        amount(step.bytes_read),
        amount(step.bytes_written),
        amount(step.flops, ""),
        "" if seconds is None else timed(seconds.total(), step.basis),
        step.reason if step.runner_up is None else _otherwise(step.runner_up, seconds),
    )


def _otherwise(other: RunnerUp, now: Seconds | None = None) -> str:
    """A runner-up and the reason why it lost; `now` is the time that is told anyway."""
    reason = other.obstacle or (other.reason if other.by == "kernels" else "")
    return f"{rival(other, now)}: {reason}" if reason else rival(other, now)


def _ways(plan: Plan) -> str:
    """The ways in which the parts of all graphs were chosen."""
    found = [graph.plans[0] for graph in plan.graphs]
    return " and ".join(dict.fromkeys(x.chosen_by for x in found if x.certificate is None))
