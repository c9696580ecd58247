"""Rules and matches: a rule finds matches of its pattern in a graph; `apply` rewrites one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from blockbuster_fusion.errors import RuleMisapplied
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.ops import Op, item_expr


@dataclass(frozen=True, slots=True)
class Match:
    """An occurrence of a rule's pattern, as data that can be kept, printed and replayed.

    `nodes` are the nodes of the pattern in the rule's order. `unify` lists dims that become others
    throughout the program when the rule fires. `fresh` is the first id that new nodes may take.
    """

    rule: "Rule"
    graph: Graph
    nodes: tuple[int, ...]
    dim: Dim | None = None
    variant: str = ""
    unify: tuple[tuple[Dim, Dim], ...] = ()
    path: Path = ()
    fresh: int | None = None

    def ids(self) -> Iterator[int]:
        """Ids for new nodes."""
        return count(self.graph.max_id + 1 if self.fresh is None else self.fresh)

    def __str__(self) -> str:
        where = "/".join(f"%{i}" for i in self.path) or "top"
        nodes = ", ".join(f"%{i}" for i in self.nodes)
        dim = f"[{self.dim}]" if self.dim else ""
        return f"{self.rule.name}{dim}{self.variant and f' ({self.variant})'} at {where}: {nodes}"


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition without which a rule would be wrong, or rewriting would not terminate.

    A *far* guard looks along paths through the graph: a change anywhere may satisfy it.
    """

    name: str
    refusal: str
    holds: Callable[[Graph, Match], bool]
    far: bool = False


class Rule:
    """A logic-preserving substitution.

    `sites` yields the occurrences of the pattern's shape at a node; `guards` decide which of them
    may be rewritten; `rewrite` returns the new graph. Every site must be found from one of its
    nodes that a change of the site touches: a changed node, or a neighbour of one.
    """

    name: str
    number: int | None = None
    anchors: tuple[type, ...] = ()
    """The operators from which sites are found."""
    operations: frozenset[str] = frozenset()
    """If given, an anchor computes one of these expressions, in a map or alone."""
    guards: tuple[Guard, ...] = ()
    needs_safety: bool = False
    """True if the rule may fire only if numerical safety is applied afterwards."""
    moves_shifts: bool = False
    """True if the rule takes a shift out of a sum, which may lose digits."""

    def sites(self, graph: Graph, node: int) -> Iterator[Match]:
        """The sites of the pattern that are found from `node`, which is an anchor."""
        raise NotImplementedError

    def rewrite(self, graph: Graph, match: Match) -> Graph:
        """The graph with the pattern at `match` substituted."""
        raise NotImplementedError

    def match(self, graph: Graph, *, dim: Dim | str | None = None) -> Match | None:
        """The first match in `graph`; `dim` asks for a map over it."""
        return next(self.matches(graph, dim=dim), None)

    def matches(self, graph: Graph, *, dim: Dim | str | None = None) -> Iterator[Match]:
        """Every match in `graph`."""
        seen: set[tuple[int, ...]] = set()
        for node in graph.nodes:
            for site in self.sites_at(graph, node):
                if site.nodes not in seen and _over(site, dim) and self.refusal(site) is None:
                    seen.add(site.nodes)
                    yield site

    def sites_at(self, graph: Graph, node: int) -> Iterator[Match]:
        """`sites` of a node that is an anchor, nothing for others."""
        return self.sites(graph, node) if self.starts_at(graph.op(node)) else iter(())

    def starts_at(self, op: Op) -> bool:
        """True if a node with this operator is an anchor."""
        if not isinstance(op, self.anchors):
            return False
        if not self.operations:
            return True
        expr = item_expr(op)
        return expr is not None and expr.op in self.operations

    def refusal(self, site: Match) -> Guard | None:
        """The first guard that refuses a site, or None."""
        for guard in self.guards:
            if not guard.holds(site.graph, site):
                return guard
        return None

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


def _over(site: Match, dim: Dim | str | None) -> bool:
    if dim is None:
        return True
    if site.dim is None:
        return False
    return dim in (site.dim.name, site.dim.label) if isinstance(dim, str) else dim is site.dim


def apply(match: Match, program: Graph | None = None, path: Path = ()) -> Graph:
    """The graph of a match, rewritten there by its rule.

    If that graph is the inner one at `path` of a `program`, the result is the whole program: new
    nodes take ids that are free in it, and dims are unified throughout.
    """
    if program is not None:
        program = program.substitute(dict(match.unify))
        fresh = program.max_id + 1 if match.fresh is None else match.fresh
        inner = replace(match, graph=program.at(path), unify=(), path=path, fresh=fresh)
        return program.replace(path, apply(inner))
    graph = match.graph
    for node in match.nodes:
        if node not in graph.nodes:
            raise RuleMisapplied(rule=match.rule.name, problem=f"the graph has no node %{node}")
    if match.unify:
        graph = graph.substitute(dict(match.unify))
        match = replace(match, graph=graph)
    return match.rule.rewrite(graph, match)


def unify(keep: Dim, give_up: Dim) -> tuple[tuple[Dim, Dim], ...]:
    """The substitution that makes two dims of one axis the same."""
    return () if keep is give_up else ((give_up, keep),)


def unify_into(known: dict[Dim, Dim], more: tuple[tuple[Dim, Dim], ...]) -> None:
    """Adds substitutions so that applying `known` once does them all."""
    for old, new in more:
        for earlier, target in known.items():
            if target is old:
                known[earlier] = new
        known[old] = new
