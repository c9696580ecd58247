"""Explains why an intermediate is still in global memory: the rules that were refused."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from blockbuster_fusion.fusion.causes import Causes
from blockbuster_fusion.ir.buffered import Edge, buffered
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import Labels
from blockbuster_fusion.ir.ops import Map, Misc, Pick, Rename, Value
from blockbuster_fusion.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule whose pattern matches at an edge, and the guard that refused it."""

    rule: str
    number: int | None
    guard: str
    sentence: str

    def __str__(self) -> str:
        number = f" (rule {self.number})" if self.number is not None else ""
        return f"{self.rule}{number}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reasons why one edge is left."""

    edge: Edge
    title: str
    """The list and its two ends, in the names of the listing."""
    causes: tuple[str, ...]
    """The statements of the program that need the list whole."""
    refusals: tuple[Refusal, ...]
    barrier: str
    """The operator that no rule moves across, if that is the reason."""
    remedy: str
    unit: tuple[str, ...] = ()
    """Axes that leave fewer edges as unit dims, if any; this was tried."""

    def __str__(self) -> str:
        lines = [self.title]
        lines += [f"    {cause}" for cause in self.causes]
        if self.barrier:
            lines.append(f"    {self.barrier}")
        lines += [f"    refused: {refusal}" for refusal in self.refusals]
        if self.remedy:
            lines.append(f"    remedy: {self.remedy}")
        return "\n".join(lines)


def why_not(
    graph: Graph,
    rules: Iterable[Rule],
    helps: Callable[[tuple[str, ...]], bool],
    names: Labels,
) -> list[Reason]:
    """The cause, the refused rules and a remedy for each interior buffered edge.

    `helps` is True if fewer edges are left when some axes have one block. `names` are those of
    a listing, of the program or of the same made safe.
    """
    rules = tuple(rules)
    return [_explain(Causes(graph, edge, names), rules, helps) for edge in buffered(graph)]


def _explain(
    causes: Causes, rules: tuple[Rule, ...], helps: Callable[[tuple[str, ...]], bool]
) -> Reason:
    graph, edge, title = causes.graph, causes.edge, str(causes)
    refusals = tuple(dict.fromkeys(_refusals(graph, edge, rules)))
    barrier = _barrier(causes)
    if barrier:
        return Reason(edge, title, (), refusals, *barrier)
    too_dear = any(refusal.guard == "cheap" for refusal in refusals)
    why = tuple(causes.sentences(too_dear=too_dear))
    unit = tuple(dict.fromkeys(d.name for d in edge.type.lists if d.packed and not d.is_free))
    remedies = []
    if unit and helps(unit):
        names = ", ".join(unit)
        remedies.append(f"one block along {names}: unit={{{', '.join(map(repr, unit))}}}")
    else:
        unit = ()
    computes_again = any(rule.name == "recompute_producer" for rule in rules)
    if not computes_again and _is_cheap(graph, edge.value):
        remedies.append("rules='extended', which compute such a list again: it takes no dot")
    return Reason(edge, title, why, refusals, "", "; or ".join(remedies), unit)


def _refusals(graph: Graph, edge: Edge, rules: tuple[Rule, ...]) -> Iterator[Refusal]:
    ends = {edge.value.node, edge.consumer}
    for rule in rules:
        for node in ends:
            for site in rule.sites_at(graph, node):
                guard = rule.refusal(site) if ends <= set(site.nodes) else None
                if guard is not None:
                    yield Refusal(rule.name, rule.number, guard.name, guard.refusal)


def _barrier(causes: Causes) -> tuple[str, str] | None:
    """An operator at an end of the edge that no rule handles, and a remedy."""
    graph, edge = causes.graph, causes.edge
    value, consumer = edge.value, graph.op(edge.consumer)
    producer = graph.op(value.node)
    while isinstance(producer, Pick):
        (value,) = graph[value.node].inputs
        producer = graph.op(value.node)
    if isinstance(producer, Rename):
        sentence = (
            f"{producer.old} is read as {producer.new}: a step over {producer.old} needs "
            f"{causes.name} of all {producer.new}, so the list really lies in memory"
        )
        return (
            sentence,
            f"would need the producer cloned under Rename({producer.old}→{producer.new})",
        )
    for op in (producer, consumer):
        if isinstance(op, Misc):
            sentence = f"{op.namespace}.{op.name} is a misc operator and works on whole arrays"
            return sentence, f"register {op.name} in the lookup table"
    return None


def _is_cheap(graph: Graph, value: Value) -> bool:
    op = graph.op(value.node)
    return isinstance(op, Map) and not op.body.holds_dot and not op.body.holds_misc
