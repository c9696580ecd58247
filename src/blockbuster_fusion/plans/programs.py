"""The plan of an array program: the kernels of the snapshot with the least predicted time."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from blockbuster_fusion.array.program import ArrayType, shown_attribute
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BadExtent, PlanMisfit
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.tiling import given_extents
from blockbuster_fusion.machine.machine import Machine, known
from blockbuster_fusion.nest.nest import Buffer, Call, Launchable
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.plans.operator_graph import OperatorGraph
from blockbuster_fusion.plans.plan import (
    GraphPlan,
    Kernels,
    Launch,
    Plan,
    RunnerUp,
    SizePlan,
    Step,
    rounded,
)
from blockbuster_fusion.plans.predicted import Predicted, touched
from blockbuster_fusion.plans.within import stored_within
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.machines import this_cpu
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import predicted_launch
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.version import __version__

USUAL_GPU = "h200"
"""The GPU that kernels are chosen for."""


@doing("planning a program")
def plan_program(request: Request, machine: Machine | None = None) -> Plan:
    """The plan of a program; the request has all of its sizes."""
    machine = machine or machine_of(request.target)
    choices = choose(request)
    axes = sorted({dim.axis for dim in request.block_program()[0].dims}, key=str)
    extents = given_extents(axes, {})
    missing = [axis for axis in axes if not extents.knows(axis)]
    if missing:
        problem = f"a plan is for given sizes; write sizes={{'{missing[0]}': 512}}"
        raise BadExtent(name=missing[0].extent, problem=problem)
    sizes = tuple((axis, extents.of(axis)) for axis in axes)
    best = improved(choices, sizes, machine)
    made, *others = [Predicted(choice, extents, machine) for choice in best]
    graph = program_graph(request)
    stored = stored_within(made, others, made.nest.name, request.rules)
    plan = SizePlan(
        tuple(_Steps(made).steps(graph)),
        chosen_by="predicted time",
        stored=tuple(stored),
        runner_up=_runner_up(made, others),
    )
    graphs = (GraphPlan(graph.digest, graph.lines, (plan,)),)
    return Plan(__version__, request.target, machine.name, graphs)


def machine_of(target: str) -> Machine:
    """The machine that a program is planned for: this CPU, or a usual GPU."""
    return known()[USUAL_GPU] if target == "cuda" else this_cpu()


def planned_config(plan: Plan, request: Request) -> Config:
    """The configuration that a plan has for a program, or PlanMisfit."""
    if plan.target != request.target:
        problem = f"it is for the target {plan.target!r}, and this one is {request.target!r}"
        raise PlanMisfit(problem=problem)
    graph, own = program_graph(request), plan.graphs[0]
    difference = own.graph.difference(graph)
    if len(plan.graphs) > 1 or difference:
        raise PlanMisfit(problem=difference or "it is for a model of several graphs")
    found = next((s.kernels.config for s in own.plans[0].steps if s.kernels is not None), None)
    if found is None:
        raise PlanMisfit(problem="it has no kernels")
    return found


def program_graph(request: Request) -> OperatorGraph:
    """The operators of a program, with the lengths of its axes and the dtypes that are stored."""
    program = request.traced()
    stored = f"stored as {request.dtype}, " if request.dtype else ""
    if isinstance(program, Graph):
        return OperatorGraph((f"%program = block program {stored}: {program.digest}",))
    sizes = request.sizes or {}

    def length(axis: Axis) -> str:
        found = [sizes[name] for name in (axis.name, str(axis.extent)) if name in sizes]
        return f"{axis}={found[0] if found else axis.extent}"

    def shown(kind: ArrayType) -> str:
        return f"{kind.dtype}[{' '.join(map(length, kind.axes))}]"

    names = [given.name for given in program.inputs]
    lines = [f"%{x.name} = {stored}input: {shown(x.type)}" for x in program.inputs]
    for number, op in enumerate(program.operators, start=1):
        given = [f"%{names[v]}" for v in op.operands]
        given += [f"{key}={shown_attribute(value)}" for key, value in op.attributes]
        names.append(_unlike(f"v{number}", names))
        lines.append(f"%{names[-1]} = {op.name}({', '.join(given)}): {shown(op.type)}")
    for out in program.outputs:
        made, kind = names[out.value], ArrayType(out.axes, program.type(out.value).dtype)
        name = _unlike(out.name, names)
        names.append(name)
        lines.append(f"%{name} = output(%{made}): {shown(kind)}")
    return OperatorGraph(tuple(lines))


def _unlike(name: str, others: Sequence[str]) -> str:
    """A name that is none of some others."""
    while name in others:
        name += "_"
    return name


@dataclass(frozen=True)
class _Steps:
    """The kernels of a choice, each as a step."""

    made: Predicted

    def steps(self, graph: OperatorGraph) -> Iterator[Step]:
        """A step for each launch, and for each misc operator that the host runs.

        Fusion shares operators among kernels: only a program of one kernel has them in its step.
        """
        alone = len(self.made.nest.launches) == len(self.made.nest.steps) == 1
        for step in self.made.nest.steps:
            if isinstance(step, Launchable):
                yield self.launch(step, graph.operators if alone else {})
            elif isinstance(step, Call):
                yield self.call(step)

    def launch(self, launched: Launchable, operators: Mapping[str, str]) -> Step:
        works = [
            work_of(kernel, self.made.tiling, self.made.machine.target)
            for kernel in launched.kernels
        ]
        schedule = self.made.choice.schedule.of_launch(launched, self.made.nest.kernels)
        read, written = touched(launched, self.made.tiling)
        sums = (sum(read.values()), sum(written.values()))
        flops = int(sum(work.products + work.operations for work in works))
        one = Launch(launched.name, *sums, flops)
        return Step(
            "kernels",
            launched.name,
            operators,
            _by_name(read),
            _by_name(written),
            *sums,
            flops,
            rounded(predicted_launch(works, self.made.machine, schedule)),
            kernels=Kernels(self.made.choice.graph.digest, self.made.choice.config, (one,)),
        )

    def call(self, call: Call) -> Step:
        read, written = (self.sizes(x.buffer for x in own) for own in (call.operands, call.results))
        sums = (sum(read.values()), sum(written.values()))
        reason = f"{call.op.namespace}.{call.op.name} works on whole arrays"
        return Step("misc", call.op.name, {}, read, written, *sums, reason=reason)

    def sizes(self, buffers: Iterable[Buffer]) -> dict[str, int]:
        """The bytes of whole arrays."""
        found = dict.fromkeys(buffers)
        return {x.name: math.prod(buffer_shape(x, self.made.tiling)) * x.dtype.bytes for x in found}


def _by_name(found: Mapping[Buffer, int]) -> dict[str, int]:
    return {buffer.name: size for buffer, size in found.items()}


def _runner_up(made: Predicted, others: Sequence[Predicted]) -> RunnerUp | None:
    """The fastest of the other snapshots; of the same one, if there is no other."""
    rest = [x for x in others if x.choice.snapshot != made.choice.snapshot] or others
    timed = [(x.seconds, x) for x in rest if x.seconds is not None]
    if not timed or made.seconds is None:
        return None
    seconds, other = min(timed, key=lambda x: x[0].total())
    now = made.seconds
    reason = "it is predicted to be slower" if seconds.total() > now.total() else "it is as fast"
    times = (rounded(seconds), "predicted", str(other.choice.config), rounded(now))
    return RunnerUp("kernels", (), *times, reason)
