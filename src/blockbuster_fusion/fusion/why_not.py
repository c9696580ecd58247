"""Why an intermediate is still in global memory: which rules came near it, and what refused."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blockbuster_fusion.ir.buffered import Edge, buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Map, Misc, Rename, Value
from blockbuster_fusion.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule whose pattern stands at an edge, and the guard that kept it from firing."""

    rule: str
    number: int | None
    guard: str
    sentence: str

    def __str__(self) -> str:
        number = f" (rule {self.number})" if self.number is not None else ""
        return f"{self.rule}{number}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one edge is left."""

    edge: Edge
    refusals: tuple[Refusal, ...]
    barrier: str
    """What no rule's pattern reaches across, where that is the reason."""
    remedy: str

    def __str__(self) -> str:
        lines = [str(self.edge)]
        lines += [f"    {refusal}" for refusal in self.refusals]
        if self.barrier:
            lines.append(f"    {self.barrier}")
        if self.remedy:
            lines.append(f"    remedy: {self.remedy}")
        return "\n".join(lines)


def why_not(graph: Graph, rules: Iterable[Rule]) -> list[Reason]:
    """For each interior buffered edge: the rules that came near, and what would help."""
    rules = tuple(rules)
    return [_explain(graph.at(edge.path), edge, rules) for edge in buffered(graph)]


def _explain(graph: Graph, edge: Edge, rules: tuple[Rule, ...]) -> Reason:
    refusals = tuple(dict.fromkeys(_refusals(graph, edge, rules)))
    barrier = _barrier(graph, edge)
    remedies = [barrier[1]] if barrier else _remedies(graph, edge, {r.guard for r in refusals})
    return Reason(edge, refusals, barrier[0] if barrier else "", "; or ".join(remedies))


def _refusals(graph: Graph, edge: Edge, rules: tuple[Rule, ...]) -> Iterator[Refusal]:
    ends = {edge.value.node, edge.consumer}
    for rule in rules:
        for node in ends:
            for site in rule.sites_at(graph, node):
                guard = rule.refusal(site) if ends <= set(site.nodes) else None
                if guard is not None:
                    yield Refusal(rule.name, rule.number, guard.name, guard.refusal)


def _barrier(graph: Graph, edge: Edge) -> tuple[str, str] | None:
    """What stands at an end of the edge that no rule looks through, and what to do about it."""
    producer, consumer = graph.op(edge.value.node), graph.op(edge.consumer)
    if isinstance(producer, Rename):
        sentence = f"{producer.old} is read as {producer.new}, so the list really lies in memory"
        return (
            sentence,
            f"would need the producer cloned under Rename({producer.old}→{producer.new})",
        )
    for op in (producer, consumer):
        if isinstance(op, Misc):
            sentence = f"{op.namespace}.{op.name} is a misc operator and works on whole arrays"
            return sentence, f"register {op.name} in the lookup table"
    return None


def _remedies(graph: Graph, edge: Edge, guards: set[str]) -> list[str]:
    consumer = graph.op(edge.consumer)
    found: list[str] = []
    if isinstance(consumer, Map):
        port = graph[edge.consumer].inputs.index(edge.value)
        if not consumer.iterated[port] or "only_direct_edges" in guards:
            dims = ", ".join(d.name for d in edge.type.lists)
            found.append(f"one block along {dims}: unit={{{dims}}}")
    if _is_cheap(graph, edge.value):
        found.append("compute the list again for this use: it takes no dot")
    return found


def _is_cheap(graph: Graph, value: Value) -> bool:
    op = graph.op(value.node)
    return isinstance(op, Map) and not op.body.holds_dot
