"""Has a captured graph run by a plan: parts, operators of PyTorch's and configurations are given.

Nothing is weighed, searched or measured. A plan that is for something else is refused.
"""

from collections.abc import Iterator, Sequence

from torch.fx import Node

from blockbuster_fusion.errors import BlockbusterError, PlanMisfit
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.plans.operator_graph import OperatorGraph, nearest
from blockbuster_fusion.plans.plan import GraphPlan, Plan, RunnerUp, SizePlan, Step
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.sizes import Span
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.groups import LibraryChoice
from blockbuster_fusion.torch.rivals.attention import found_attention
from blockbuster_fusion.torch.rivals.composites import Composite, captured_names
from blockbuster_fusion.torch.rivals.crossings import Division
from blockbuster_fusion.torch.rivals.linears import found_linears
from blockbuster_fusion.torch.rivals.norms import found_norms
from blockbuster_fusion.torch.rivals.packed import found_packed
from blockbuster_fusion.torch.rivals.padded import found_padded

NEVER = Seconds(float("inf"))


def fitting(plan: Plan, captured: OperatorGraph, target: str) -> GraphPlan:
    """The graph of a plan that was captured, or PlanMisfit."""
    if plan.target != target:
        problem = f"it is for the target {plan.target!r}, and the model is compiled for {target!r}"
        raise PlanMisfit(problem=problem)
    found = next((g for g in plan.graphs if g.digest == captured.digest), None)
    if found is not None:
        return found
    if not plan.graphs:
        raise PlanMisfit(problem="it is for a model that computes nothing")
    near = nearest([g.graph for g in plan.graphs], captured)
    raise PlanMisfit(problem=near.difference(captured))


def division_of(plan: GraphPlan, captured: OperatorGraph) -> Division | None:
    """The ranges of sizes that a plan divides a graph into, by the symbols of this capture."""
    given = plan.division
    if given is None:
        return None
    symbol = captured.symbols[plan.graph.symbols.index(given.symbol)]
    scale = given.scale
    spans = []
    for number, own in enumerate(plan.plans):
        pairs = zip(given.lengths, given.numbers, strict=True)
        lengths = tuple(n for n, served in pairs if served == number)
        spans.append(Span(symbol, lengths, own.usual or lengths[0]))
    known = (given.lengths, given.numbers, given.home)
    return Division(type(scale)(Symbol(symbol), *known), tuple(spans))


class Follower:
    """Prepares the parts of a graph as a plan has them."""

    def __init__(
        self, parts: PartCompiler, plan: GraphPlan, number: int, captured: OperatorGraph
    ) -> None:
        """`number` is that of the range of sizes; `captured` is the graph as it is before."""
        self.parts, self.plan = parts, plan
        self.steps: SizePlan = plan.plans[number]
        self.here = captured.names
        self.names = dict(zip(plan.graph.names, captured.names, strict=True))
        """The names of operators in this capture, by those of the plan."""

    def follow(self) -> tuple[LibraryChoice, ...]:
        """Leaves operators to PyTorch and arranges the parts; gives the choices of kernels."""
        self.parts.pays = not self.steps.as_captured
        made = self.collapsed()
        single = [s for s in self.library if not s.recognised]
        nodes = self.nodes
        self.parts.leave({nodes[self.own(s)[0]]: self.choice(s) for s in single} | made)
        self.arrange()
        weighed = [s for s in self.steps.steps if s.kernels is not None and s.runner_up is not None]
        return tuple(self.choice(s) for s in weighed)

    @property
    def library(self) -> list[Step]:
        return [step for step in self.steps.steps if step.kind == "library"]

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the graph as it is now, by the names of what they compute."""
        graph = self.parts.analysis.module.graph
        return {name: n for n in graph.nodes for name in captured_names(n)}

    def own(self, step: Step) -> tuple[str, ...]:
        """The operators of a step in this capture."""
        return tuple(self.names[name] for name in step.operators)

    # ---------------------------------------------------------------- composites

    def collapsed(self) -> dict[Node, LibraryChoice]:
        """Puts operators of PyTorch's in place of the composites that the plan has recognised."""
        wanted = {
            (s.recognised, frozenset(self.own(s))): self.choice(s)
            for s in self.library
            if s.recognised
        }
        found: dict[Node, LibraryChoice] = {}
        while wanted:
            here = {key: x for x in self.composites() if (key := _key(x)) in wanted}
            if not here:
                operator, names = next(iter(wanted))
                problem = f"no {operator} is recognised in {', '.join(sorted(names))}"
                raise PlanMisfit(problem=problem)
            replaced: dict[Node, Node] = {}
            for key, x in here.items():
                analysis, choice = self.parts.analysis, wanted.pop(key)
                made = x.collapse(analysis.module.graph, replaced)
                found |= {n: choice for n in made if analysis.kind(n) is not Kind.VIEW}
                self.parts.collapsed.append(next(n for n in made if n.target is x.operator))
            self.parts.leave({})  # the graph is another one
        return found

    def composites(self) -> Iterator[Composite]:
        analysis: Analysis = self.parts.analysis
        yield from found_attention(analysis)
        yield from found_norms(analysis)
        yield from found_padded(analysis)
        yield from found_linears(analysis)
        yield from found_packed(analysis, self.parts.constants)

    # ---------------------------------------------------------------- parts

    def arrange(self) -> None:
        """Gives the compiler of parts those of the plan, with their configurations."""
        parts, nodes = self.parts, self.nodes
        for step in self.steps.steps:
            own = [*dict.fromkeys(nodes[name] for name in self.own(step) if name in nodes)]
            if step.kernels is not None and own:  # else it makes what a composite needs
                self.check(step, own)
                parts.planned[tuple(own)] = step.kernels
        parts.take([*parts.planned])
        for part in parts.planned:
            self.configure(part)
        self.check_all()

    def check(self, step: Step, own: Sequence[Node]) -> None:
        """Raises PlanMisfit if kernels cannot compute an operator of a part."""
        misc = [n for n in own if self.parts.analysis.kind(n) is Kind.MISC]
        if misc or len(own) != len(step.operators):
            missing = {*self.own(step)} - {n.name for n in own} | {n.name for n in misc}
            problem = f"{step.name}: no kernel computes {', '.join(sorted(missing))} here"
            raise PlanMisfit(problem=problem)

    def configure(self, own: Sequence[Node]) -> None:
        """Looks up the configuration of a part, which must give the program that was planned."""
        target = self.parts.options.target_of(own)
        wanted = self.parts.planned[tuple(own)]
        name = own[0].name
        try:
            part = self.parts.program(own)
            choice = self.parts.choices(part, target)[0]
        except BlockbusterError as error:
            raise PlanMisfit(problem=f"the part of {name} has no such kernels: {error}") from error
        if choice.graph.digest != wanted.digest:
            problem = f"the part of {name} is fused otherwise by this version of the package"
            raise PlanMisfit(problem=problem)

    def check_all(self) -> None:
        """Raises PlanMisfit if a plan should have an operator that none of its steps has."""
        taken = {n for part in self.parts.planned for n in part}
        for node in self.parts.analysis.operators:
            is_computed = self.parts.analysis.kind(node) is not Kind.MISC
            if is_computed and node.name in self.here and node not in taken:
                raise PlanMisfit(problem=f"no step of it has {node.name}")

    # ---------------------------------------------------------------- choices

    def choice(self, step: Step) -> LibraryChoice:
        """The choice that the plan has made for a step, with the times that it knows."""
        other = step.runner_up or RunnerUp("library" if step.kernels else "kernels")
        seconds, instead = other.seconds or NEVER, other.instead or step.seconds or NEVER
        library, kernels = (seconds, instead) if step.kernels else (instead, seconds)
        operators = tuple(self.names.get(name, name) for name in other.operators or step.operators)
        return LibraryChoice(
            tuple(step.operators.values()),
            step.region,
            library,
            kernels,
            step.basis if step.kernels else other.basis,
            other.config,
            (step.recognised,) if step.recognised else (),
            reason="" if step.kernels else other.reason,
            obstacle=other.obstacle,
            nodes=operators,
            called=(step.name,),
        )


def _key(x: Composite) -> tuple[str, frozenset[str]]:
    names = frozenset(name for n in x.members for name in captured_names(n))
    return str(x.operator), names
