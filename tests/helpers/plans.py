"""Plans that are made by hand: steps, layers, ranges of sizes, names of any kind."""

from dataclasses import replace
from itertools import pairwise

from blockbuster_fusion.plans.plan import (
    GraphPlan,
    Kernels,
    Launch,
    Plan,
    RunnerUp,
    SizePlan,
    Step,
    StoredArray,
)
from blockbuster_fusion.report.collect import report_of
from blockbuster_fusion.report.report import Note, Report
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds

LOST = "kernels may be faster, but by less than the error of their time"


def kernel_step(
    name: str, region: str, number: int, predicted: float, measured: float | None = None
) -> Step:
    """A step of one kernel, which PyTorch's operators would run in 20 µs."""
    return Step(
        "kernels",
        name,
        {f"{name}_{number}": f"aten.{name}.default"},
        {},
        {},
        2000,
        1000,
        500,
        Seconds(predicted),
        None if measured is None else Seconds(measured),
        region,
        (f"models/small.py:{number}",),
        kernels=Kernels("digest", Config(1), (Launch(name, 2000, 1000, 500),)),
        runner_up=RunnerUp(
            "library",
            (f"{name}_{number}",),
            Seconds(20e-6),
            "measured",
            "",
            Seconds(predicted),
            "PyTorch's operators take longer",
            instead_basis="predicted",
        ),
    )


def library_step(name: str, region: str, number: int, measured: float) -> Step:
    """A step that PyTorch runs by choice; kernels would take at least 60 µs."""
    times = (Seconds(60e-6), "at least", "snapshot 1", Seconds(measured))
    return Step(
        "library",
        name,
        {f"{name}_{number}": f"aten.{name}.default"},
        {},
        {},
        4000,
        3000,
        900,
        measured=Seconds(measured),
        region=region,
        lines=("models/small.py:7",),
        runner_up=RunnerUp(
            "kernels", (f"{name}_{number}",), *times, LOST, instead_basis="measured"
        ),
    )


def misc_step(name: str, region: str = "", number: int = 0) -> Step:
    """A step that no kernel computes, whose time is not known."""
    operators = {f"{name}_{number}": f"aten.{name}.default"}
    reason = "not in the operator table"
    return Step("misc", name, operators, {}, {}, 10, 20, region=region, reason=reason)


def stored(maker: Step, reader: Step, reason: str = LOST) -> StoredArray:
    """The array that one step stores for another."""
    first, second = next(iter(maker.operators)), next(iter(reader.operators))
    times = (Seconds(61e-6), "at least", Seconds(97e-6))
    return StoredArray(first, 3000, first, second, "cost", reason, *times, maker.region)


def layered(layers: int = 12, odd: int | None = 5, *, measured: bool = False) -> SizePlan:
    """A linear layer and an activation in each layer, and a step that no kernel computes."""
    steps: list[Step] = []
    for at in range(layers):
        name, spent = ("relu" if at == odd else "gelu"), (12e-6 + at * 1e-6 if measured else None)
        steps.append(library_step("linear", f"layers.{at}", at, 90e-6))
        steps.append(kernel_step(name, f"layers.{at}", at, 10e-6, spent))
    arrays = tuple(stored(one, two) for one, two in pairwise(steps))
    return SizePlan((*steps, misc_step("topk")), stored=arrays)


def plan_of(*graphs: tuple[SizePlan, ...], breaks: tuple[str, ...] = ()) -> Plan:
    """A plan of some graphs, each by ranges of sizes."""
    made = tuple(GraphPlan("digest", (), plans) for plans in graphs)
    return Plan("1.0", "cpu", "four cores", made, breaks)


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</style></table>"


def hostile() -> Report:
    """A report in which everything that a model can name is hostile."""
    layers = layered(3, None)
    made = []
    for number, step in enumerate(layers.steps):
        other = step.runner_up
        other = None if other is None else replace(other, reason=EVIL, config=EVIL)
        made.append(
            replace(
                step,
                name=EVIL,
                operators={f"{EVIL}{number}": EVIL},
                lines=(EVIL,),
                region=f"{EVIL}.{number}",
                reason=EVIL,
                runner_up=other,
            )
        )
    arrays = tuple(replace(x, array=EVIL, reason=EVIL) for x in layers.stored)
    own = replace(layers, steps=tuple(made), stored=arrays, sizes=EVIL, runner_up=made[0].runner_up)
    plan = replace(plan_of((own,), (own,), breaks=(EVIL,)), machine=EVIL, target=EVIL)
    return report_of(plan, [EVIL], [Note(EVIL, (EVIL,))])
