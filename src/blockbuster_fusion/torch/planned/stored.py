"""The arrays that the steps of a graph store for one another, and the reason for each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from torch.fx import Node

from blockbuster_fusion.compiler import Request, capability_of, choose
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.plans.amounts import duration
from blockbuster_fusion.plans.plan import Decision, RunnerUp, Step, StoredArray, rounded
from blockbuster_fusion.plans.predicted import Predicted
from blockbuster_fusion.plans.within import guarded, stored_within
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.certificate import Certificate
from blockbuster_fusion.torch.groups import Fused, Group
from blockbuster_fusion.torch.planned.steps import PlannedGraph
from blockbuster_fusion.torch.rivals.estimate import Estimate
from blockbuster_fusion.torch.rivals.least import least
from blockbuster_fusion.torch.rivals.reasons import slower

RESULT = "it is a result of the model"
BOTH = "kernels for both"
LEAST = "even the least time of kernels for both is longer"
NEEDLESS = "no part that holds both makes the model faster, by the bounds"
UNTRIED = "kernels for both were not tried"


def stored_arrays(planned: PlannedGraph) -> Iterator[StoredArray]:
    """The arrays between steps, in the order in which they are written, and those within steps."""
    reasons = _Reasons(planned)
    described = planned.described
    for number, (group, step) in enumerate(described):
        if isinstance(group, Fused):
            yield from reasons.within(group, step)
        for array, size in step.writes.items():
            if array in reasons.results:
                yield _stored(array, size, step, None, "result", RESULT)
                continue
            for later, reader in enumerate(described[number + 1 :], start=number + 1):
                if array in reader[1].reads:
                    middle = _middle([x for _, x in described[number : later + 1]])
                    yield reasons.between(array, size, (group, step), reader, middle)


class _Reasons:
    """The reasons for the arrays of one graph."""

    def __init__(self, planned: PlannedGraph) -> None:
        self.planned = planned
        self.known: dict[str, list[StoredArray]] = {}
        """The arrays within equal kernels, by the digest of these."""
        self.asked: dict[object, Estimate | None] = {}
        """The times of kernels for two steps, by what these compute."""
        self.free = replace(planned.analysis, library=frozenset())
        """The graph as if PyTorch ran nothing by choice."""

    @cached_property
    def results(self) -> set[str]:
        """The arrays that are results of the graph."""
        outputs = self.planned.analysis.outputs
        return {self.planned.array(n) for n in outputs}

    def within(self, fused: Fused, step: Step) -> Iterator[StoredArray]:
        """The arrays between the kernels of a part."""
        graph = fused.executable.graph
        if graph.digest not in self.known:
            self.known[graph.digest] = [*self.kept(fused, step)] if buffered(graph) else []
        for x in self.known[graph.digest]:
            yield replace(x, region=step.region)

    def kept(self, fused: Fused, step: Step) -> Iterator[StoredArray]:
        """The same, of a kind of part that was not met before: its snapshots are made again."""
        part, executable, machine = fused.part, fused.executable, self.planned.machine
        target, extents = executable.target, self.planned.tiling(fused).extents
        request = Request(part.expressed.program, target=target, dtype=part.storage)
        request = replace(request, capability=capability_of(target))
        own = choose(replace(request, config=executable.config))[0]
        if machine is None:
            return guarded(own, extents, step.name)
        others = [Predicted(choice, extents, machine) for choice in choose(request)]
        return stored_within(Predicted(own, extents, machine), others, step.name)

    def between(
        self,
        array: str,
        size: int,
        maker: tuple[Group, Step],
        reader: tuple[Group, Step],
        middle: Step | None,
    ) -> StoredArray:
        """The reason for an array that one step writes and another one reads.

        `middle` is a step that has to run between the two, if there is any.
        """
        steps = (maker[1], reader[1])
        outside = [s for kind in ("misc", "join") for s in steps if s.kind == kind]
        if outside:
            return _stored(array, size, *steps, "misc", _outside(outside[0]))
        if middle is not None:
            return _stored(array, size, *steps, "order", f"{middle.name} runs between the two")
        nodes = [n for group, _ in (maker, reader) for n in _nodes(group)]
        tried = self.tried({n.name for n in nodes})
        if tried is not None:
            return _stored(array, size, *steps, "cost", tried.reason or UNTRIED, tried)
        losing = [(s, s.runner_up) for s in steps if s.kind == "library" and s.runner_up]
        bound = RunnerUp("kernels", (), rounded(self.floor(nodes)), "at least", "", _sum(steps))
        if losing:
            step, other = losing[0]
            reason = f"PyTorch runs {step.name}: {other.obstacle or other.reason}"
            return _stored(array, size, *steps, "cost", reason, bound)
        if _alike(steps) not in self.asked:
            self.asked[_alike(steps)] = self.kernels(nodes)
        known = self.asked[_alike(steps)]
        if known is not None:
            both = RunnerUp("kernels", (), rounded(known.seconds), known.basis, "", _sum(steps))
            return _stored(array, size, *steps, "cost", slower(known.basis, BOTH), both)
        return _stored(
            array, size, *steps, "cost", untried(bound, self.planned.graph.certificate), bound
        )

    def kernels(self, nodes: Sequence[Node]) -> Estimate | None:
        """The time of kernels for some operators, if the selection has asked for it."""
        try:
            return self.planned.graph.tried(sorted(nodes))
        except BlockbusterError:  # no program expresses them
            return None

    def tried(self, names: set[str]) -> RunnerUp | None:
        """The kernels for some operators that were weighed and have lost, if there are any."""
        enough = [x for x in self.planned.graph.chosen if names <= {*x.nodes}]
        if not enough:
            return None
        weighed = min(enough, key=lambda x: len(x.nodes))
        seconds, basis = weighed.kernels, weighed.basis
        times = (rounded(seconds), basis, weighed.config, rounded(weighed.library))
        return RunnerUp("kernels", weighed.nodes, *times, weighed.obstacle or weighed.reason)

    def floor(self, nodes: Sequence[Node]) -> Seconds | None:
        """The least time that a kernel for some nodes could take."""
        machine = self.planned.machine
        return None if machine is None else least(self.free, nodes, machine, self.planned.length)[1]


def untried(bound: RunnerUp, certificate: Certificate | None) -> str:
    """The reason why the selection has not asked for kernels for some operators.

    `bound` has the least time of these, and that of what runs the operators now.
    """
    saved = None
    if bound.seconds and bound.instead:
        saved = bound.instead.total() - bound.seconds.total()
    if saved is not None and saved <= 0:
        return LEAST
    if certificate is not None and certificate.caps:
        most = "" if saved is None else f"; fusing might save up to {duration(saved)}"
        return f"{UNTRIED}: {', '.join(certificate.caps)}{most}"
    return UNTRIED if certificate is None else NEEDLESS


def _middle(steps: Sequence[Step]) -> Step | None:
    """The first step after which the last one must come, and that must come after the first."""
    first, *between, last = steps
    found = list[Step]()
    for step in between:
        if any(name in step.reads for x in (first, *found) for name in x.writes):
            found.append(step)
    needed = [x for x in found if any(name in last.reads for name in x.writes)]
    return needed[0] if needed else None


def _alike(steps: Sequence[Step]) -> object:
    """Something that is equal for pairs of steps in equal layers."""
    digests = tuple(step.kernels.digest for step in steps if step.kernels is not None)
    shared = [size for name, size in steps[0].writes.items() if name in steps[1].reads]
    return digests, tuple(shared), tuple(tuple(step.operators.values()) for step in steps)


def _nodes(group: Group) -> Iterable[Node]:
    return group.part.nodes if isinstance(group, Fused) else (group.node,)


def _outside(step: Step) -> str:
    """The reason why a step is no kernel."""
    if step.kind == "join":
        return "its pieces come from several steps, and are stored in place"
    return f"{step.name} runs in PyTorch: {step.reason}"


def _sum(steps: Iterable[Step]) -> Seconds | None:
    """The time of some steps; None if that of one is not known."""
    found = [step.seconds for step in steps]
    known = [seconds for seconds in found if seconds is not None]
    return rounded(sum(known, Seconds(0.0))) if len(known) == len(found) else None


def _stored(
    array: str,
    size: int,
    maker: Step,
    reader: Step | None,
    decided: Decision,
    reason: str,
    fused: RunnerUp | None = None,
) -> StoredArray:
    costs = () if fused is None else (fused.seconds, fused.basis, fused.instead)
    made = StoredArray(array, size, _first(maker), _first(reader), decided, reason, *costs)
    return replace(made, region=maker.region)


def _first(step: Step | None) -> str:
    """The operator by which a step is known."""
    return "" if step is None else next(iter(step.operators), step.name)
