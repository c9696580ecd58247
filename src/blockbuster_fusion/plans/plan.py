"""A plan: kernels and library operators in order, each with its cost and the reason for it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from blockbuster_fusion.errors import BadPlan, NotStored
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.plans.operator_graph import OperatorGraph
from blockbuster_fusion.plans.records import from_data, to_data, to_text
from blockbuster_fusion.runtime.ranges import Scale
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.certificate import Certificate

FORMAT = 1
"""The version of the format of files."""
KIND = "blockbuster plan"
MOST_KNOWN = 8
"""The most arrays that an error lists."""

StepKind = Literal["kernels", "library", "misc", "join"]
Decision = Literal["cost", "order", "misc", "guard", "result"]


@dataclass(frozen=True)
class Launch:
    """A launch of one kernel, or of several at a time."""

    name: str
    bytes_read: int
    bytes_written: int
    flops: int


@dataclass(frozen=True)
class Division:
    """Values of a size that stand for those near them, and the number of what serves each."""

    symbol: str
    lengths: tuple[int, ...]
    numbers: tuple[int, ...]
    home: int
    """The place of the length that was captured, which number 0 serves."""

    @classmethod
    def of(cls, scale: Scale) -> "Division":
        return cls(str(scale.symbol), scale.lengths, scale.numbers, scale.home)

    @property
    def scale(self) -> Scale:
        return Scale(Symbol(self.symbol), self.lengths, self.numbers, self.home)


@dataclass(frozen=True)
class Kernels:
    """The choice of the kernels of a part."""

    digest: str
    """A digest of the fused block program that does not depend on names."""
    config: Config | None
    """The snapshot, tiles and schedule; the interpreter has none."""
    launches: tuple[Launch, ...] = ()
    divisions: tuple[Division, ...] = ()
    """The ranges of sizes that other kernels serve."""
    others: tuple[Config, ...] = ()
    """The configurations with the numbers 1, 2, … of these ranges."""


@dataclass(frozen=True)
class RunnerUp:
    """The best of what else could have run some operators, and why it lost."""

    by: Literal["kernels", "library"]
    operators: tuple[str, ...] = ()
    """The operators that it would run, in the graph: maybe more than those of the step."""
    seconds: Seconds | None = None
    """None if there are no such kernels."""
    basis: str = ""
    """The source of the time: predicted, measured, or "at least" for a bound."""
    config: str = ""
    instead: Seconds | None = None
    """The time of what runs these operators now."""
    reason: str = ""
    obstacle: str = ""
    """The reason why there are no kernels, if that is so."""
    instead_basis: str = ""
    """The source of the time of what runs now."""


@dataclass(frozen=True)
class Step:
    """Operators that are run together: by kernels, or by one operator of a library.

    A join is a concatenation whose pieces are stored in place.
    """

    kind: StepKind
    name: str
    operators: Mapping[str, str]
    """The operators by their names in the graph."""
    reads: Mapping[str, int]
    """The bytes of each array that it reads, by the array's name in the graph."""
    writes: Mapping[str, int]
    bytes_read: int
    """The bytes of arrays in memory that are read; between launches of the step as well."""
    bytes_written: int
    flops: int = 0
    """Operations, in additions: functions such as exp count as several."""
    predicted: Seconds | None = None
    measured: Seconds | None = None
    region: str = ""
    """The layer of the model; empty around the layers."""
    lines: tuple[str, ...] = ()
    """The lines of the model that the operators come from, as `model.py:12`."""
    recognised: str = ""
    """The operator of a library that stands for all of them."""
    anew: tuple[str, ...] = ()
    """Cheap operators that its kernels compute as well, as other steps may: masks, positions."""
    reason: str = ""
    """The reason why no kernel computes a misc operator."""
    kernels: Kernels | None = None
    runner_up: RunnerUp | None = None

    @property
    def seconds(self) -> Seconds | None:
        """The time: measured if it was, or else predicted."""
        return self.predicted if self.measured is None else self.measured

    @property
    def basis(self) -> str:
        """The source of the time."""
        if self.seconds is None:
            return ""
        return "predicted" if self.measured is None else "measured"


@dataclass(frozen=True)
class StoredArray:
    """An array that is stored between two steps, or by one for itself, and the reason."""

    array: str
    bytes: int
    written_by: str
    """The operator of the graph that makes it; for an array of one step, the step's name."""
    read_by: str
    """The first operator of the step that reads it; empty for a result of the model."""
    decided: Decision
    reason: str
    seconds: Seconds | None = None
    """The time that fusing it would have taken."""
    basis: str = ""
    """The source of that time: predicted, measured, or "at least" for a bound."""
    instead: Seconds | None = None
    """The time of what runs these operators now."""
    region: str = ""


@dataclass(frozen=True)
class SizePlan:
    """The steps of a graph for one range of sizes."""

    steps: tuple[Step, ...]
    sizes: str = ""
    """The range in words; empty for all sizes."""
    usual: int | None = None
    """The value of the size that stands for those of the range."""
    certificate: Certificate | None = None
    """None if no partition was proven to be the cheapest."""
    chosen_by: str = "hand"
    """The way in which parts were chosen, if there is no certificate."""
    as_captured: bool = False
    """True if the graph runs as it was captured: nothing is faster."""
    stored: tuple[StoredArray, ...] = ()
    runner_up: RunnerUp | None = None
    """The best of what else could have run the whole graph, if it is known."""

    @property
    def seconds(self) -> Seconds:
        """The time of the steps whose times are known."""
        return sum((s.seconds for s in self.steps if s.seconds is not None), Seconds(0.0))


@dataclass(frozen=True)
class GraphPlan:
    """The plan of one graph: one for all sizes, or one for each of some ranges."""

    digest: str
    operators: tuple[str, ...]
    """The operator graph, as plans/operator_graph.py has it."""
    plans: tuple[SizePlan, ...]
    """The first one is for the sizes of the captured call."""
    division: Division | None = None
    """The ranges of the size that divides the plans, by their numbers."""

    @cached_property
    def graph(self) -> OperatorGraph:
        return OperatorGraph(self.operators)


@dataclass(frozen=True, repr=False)
class Plan:
    """Kernels and library operators in order, with the reason for each."""

    version: str
    """The version of the package that made it."""
    target: str
    machine: str
    graphs: tuple[GraphPlan, ...]
    graph_breaks: tuple[str, ...] = ()
    """The reasons why a model has more than one graph."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all graphs, for the sizes of the captured call."""
        return tuple(step for graph in self.graphs for step in graph.plans[0].steps)

    @property
    def certificate(self) -> Certificate | None:
        """The proof that no partition is cheaper; None if some graph has none."""
        found = [graph.plans[0].certificate for graph in self.graphs]
        known = [certificate for certificate in found if certificate is not None]
        return _together(known) if known and len(known) == len(found) else None

    @property
    def seconds(self) -> float:
        """The time of a run, of the steps whose times are known."""
        return sum(graph.plans[0].seconds.total() for graph in self.graphs)

    def why_not(self, array: str | None = None) -> list[StoredArray]:
        """The reason for each array that is stored between steps, or for one of them."""
        found = [x for graph in self.graphs for x in graph.plans[0].stored]
        if array is None:
            return found
        own = [x for x in found if x.array == array]
        if not own:
            raise NotStored(array=array, known=_listed(x.array for x in found))
        return own

    def data(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {"kind": KIND, "format": FORMAT, **to_data(self)}

    def save(self, file: str | PathLike[str]) -> None:
        """Writes the plan as JSON."""
        Path(file).write_text(to_text(self.data()) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: str | PathLike[str]) -> "Plan":
        """The plan that `save` wrote; BadPlan if the file is damaged."""
        try:
            data = json.loads(Path(file).read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise BadPlan(place=str(file), problem=f"it is no JSON: {error}") from None
        return cls.from_data(data, str(file))

    @classmethod
    def from_data(cls, data: Any, place: str = "plan") -> "Plan":
        """The plan that `data` gave, or BadPlan."""
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise BadPlan(place=place, problem="it is no plan: it does not say so in `kind`")
        if data.get("format") != FORMAT:
            problem = f"it has format {data.get('format')!r}, and this version reads {FORMAT}"
            raise BadPlan(place=place, problem=f"{problem}; make the plan again")
        rest = {name: x for name, x in data.items() if name not in ("kind", "format")}
        made = from_data(cls, rest, place)
        for number, graph in enumerate(made.graphs):
            _check(graph, f"{place}.graphs[{number}]")
        return made

    def __repr__(self) -> str:
        return f"<plan of {len(self.steps)} steps for {self.target}>"

    def __str__(self) -> str:
        from blockbuster_fusion.plans.text import text

        return "\n".join(text(self))


def _check(graph: GraphPlan, place: str) -> None:
    """Raises BadPlan if a graph is not the one of its digest, or its steps are not for it."""
    graph.graph.check(f"{place}.operators")
    if graph.graph.digest != graph.digest:
        problem = "the operators were changed: their digest is another one; make the plan again"
        raise BadPlan(place=f"{place}.digest", problem=problem)
    if not graph.plans:
        raise BadPlan(place=f"{place}.plans", problem="there is none")
    if graph.division is not None:
        _check_division(graph.division, f"{place}.division")
        if graph.division.symbol not in graph.graph.symbols:
            raise BadPlan(place=f"{place}.division", problem="no shape has its symbol")
    numbers = () if graph.division is None else graph.division.numbers
    if len(graph.plans) != max(numbers, default=0) + 1:
        raise BadPlan(place=f"{place}.plans", problem="there must be one for each range of sizes")
    for number, plan in enumerate(graph.plans):
        _check_steps(plan, graph.graph, f"{place}.plans[{number}].steps")


def _check_steps(plan: SizePlan, graph: OperatorGraph, place: str) -> None:
    """Raises BadPlan if the operators of steps are not in the graph, or are in several steps."""
    run = set[str]()
    for number, step in enumerate(plan.steps):
        for name in (*step.operators, *step.anew):
            if name not in graph.names:
                problem = f"the graph has no operator {name}"
                raise BadPlan(place=f"{place}[{number}].operators", problem=problem)
        for name in step.operators:
            if name in run:
                problem = f"{name} is in a step before"
                raise BadPlan(place=f"{place}[{number}].operators", problem=problem)
            run.add(name)
        kernels = step.kernels
        if (kernels is None) == (step.kind == "kernels"):
            raise BadPlan(place=f"{place}[{number}].kernels", problem="its kind says otherwise")
        for division in () if kernels is None else kernels.divisions:
            where = f"{place}[{number}].kernels.divisions"
            _check_division(division, where)
            if kernels is not None and max(division.numbers) > len(kernels.others):
                raise BadPlan(place=where, problem="a range has no configuration")


def _check_division(division: Division, place: str) -> None:
    """Raises BadPlan if something is no division of lengths into ranges."""
    lengths, numbers, home = division.lengths, division.numbers, division.home
    is_whole = len(lengths) == len(numbers) > home >= 0 == numbers[home]
    if not is_whole or min(numbers) < 0 or [*lengths] != sorted({*lengths}) or lengths[0] < 0:
        problem = "lengths must ascend, each with a number, and that at `home` must be 0"
        raise BadPlan(place=place, problem=problem)


def _together(found: list[Certificate]) -> Certificate:
    """One certificate for several graphs that run one after the other."""
    counts = {f.name: [getattr(x, f.name) for x in found] for f in fields(Certificate)}
    caps = tuple(cap for several in counts.pop("caps") for cap in several)
    return Certificate(**{name: sum(each) for name, each in counts.items()}, caps=caps)


def _listed(arrays: Iterable[str]) -> str:
    """Some names in words, the first ones of many."""
    names = [*dict.fromkeys(arrays)]
    more = [f"and {len(names) - MOST_KNOWN} more"] if len(names) > MOST_KNOWN else []
    return ", ".join([*names[:MOST_KNOWN], *more]) or "none"


def rounded(seconds: Seconds | None) -> Seconds | None:
    """A time with four digits, so that files differ where plans do; None if there is none."""
    if seconds is None or seconds.total() == float("inf"):
        return None
    return Seconds(float(f"{seconds.device:.4g}"), float(f"{seconds.host:.4g}"))
