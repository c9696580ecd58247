"""The fusion algorithm: the order in which rules are tried.

As in the paper: `fuse_no_extend` on one graph, `bfs_fuse_no_extend` on all of them breadth first,
`bfs_extend` for one extension, `fuse` until nothing can be extended, with a snapshot before each.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from blockbuster_fusion.fusion.trace import Firing
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.rules.cautions import caution
from blockbuster_fusion.rules.rule import Match, Rule, apply, unify_into
from blockbuster_fusion.rules.sets import RuleSet


@dataclass(frozen=True, slots=True)
class Fork:
    """The state of a run before the first rule beyond the base, from which the base continues."""

    program: Graph
    rules: RuleSet
    firings: tuple[Firing, ...]
    snapshots: tuple[tuple[Graph, int], ...]
    next_id: int
    settled: frozenset[Graph]
    queue: tuple[Path, ...]
    search: "Begun | None"
    shared: frozenset[Dim]


@dataclass(frozen=True, slots=True)
class Begun:
    """The state of a search: the nodes that each rule still has to examine."""

    graph: Graph
    pending: tuple[tuple[int, ...], ...]
    refused: tuple[tuple[int, ...], ...]
    moved: bool


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run: snapshots, each with the number of firings that led to it."""

    snapshots: tuple[tuple[Graph, int], ...]
    firings: tuple[Firing, ...]
    next_id: int
    fork: Fork | None

    def by_base(self, first_id: int | None = None) -> "Run":
        """The result by the base alone; the same if no rule beyond it has fired.

        New nodes take ids from `first_id` on, as other programs may use smaller ones.
        """
        if self.fork is None:
            return self
        fork = self.fork if first_id is None else replace(self.fork, next_id=first_id)
        return Driver.resumed(fork).fuse()


class Driver:
    """One run of the algorithm on a program: the program so far and where rules fired."""

    def __init__(
        self,
        program: Graph,
        rules: RuleSet,
        *,
        first_id: int | None = None,
        shared: frozenset[Dim] = frozenset(),
    ) -> None:
        self.program = program
        self.rules = rules
        self.firings: list[Firing] = []
        self._next_id = program.max_id + 1 if first_id is None else first_id
        self._shared = shared
        """Dims that other programs mention: they are not replaced by others."""
        self.snapshots: list[tuple[Graph, int]] = []
        """Each with the number of firings that led to it."""
        self.fork: Fork | None = None
        """If the rule set has a base: the state before the first rule outside it."""
        self._settled: set[Graph] = set()
        """Graphs in which no local rule matches."""
        self._unextendable: set[Graph] = set()
        self._queue: deque[Path] = deque([()])
        """Graphs that the local rules are still to be applied to."""
        self._begun: _Search | None = None
        """The search in the first of them, if another run has begun it."""

    @classmethod
    def resumed(cls, fork: Fork) -> "Driver":
        """A run that continues from a fork; the fork does not change."""
        driver = cls(fork.program, fork.rules, first_id=fork.next_id, shared=fork.shared)
        driver.firings = list(fork.firings)
        driver.snapshots = list(fork.snapshots)
        driver._settled = set(fork.settled)
        driver._queue = deque(fork.queue)
        if fork.search is not None:
            driver._begun = _Search.resumed(fork.search, fork.rules.local, fork.shared)
        return driver

    def fuse(self) -> Run:
        """Runs to the end."""
        self.bfs_fuse_no_extend()
        self.snapshots.append((self.program, len(self.firings)))
        while self.bfs_extend():
            self._queue.append(())
            self.bfs_fuse_no_extend()
            self.snapshots.append((self.program, len(self.firings)))
        return Run(tuple(self.snapshots), tuple(self.firings), self._next_id, self.fork)

    def bfs_fuse_no_extend(self) -> None:
        """Applies the local rules in every graph of the program, breadth first."""
        while self._queue:
            path = self._queue[0]
            self.fuse_no_extend(path)
            self._queue.popleft()
            self._queue.extend((*path, i) for i, _ in self.program.at(path).maps())

    def fuse_no_extend(self, path: Path) -> None:
        """Applies the local rules, in their order of priority, to one graph until none matches."""
        graph = self.program.at(path)
        if graph in self._settled:
            return
        search = self._begun or _Search(graph, self.rules.local, self._shared)
        self._begun = None
        unified: dict[Dim, Dim] = {}
        start = graph
        while (match := search.next()) is not None:
            declined = caution(self.rules.cautions, match) is not None
            if self._leaves_base(match, declined):
                self._keep_fork(self.program.substitute(unified).replace(path, graph), search)
            if declined:
                search.decline(match)
                continue
            graph = self._apply(match, path)
            search.move_to(graph)
            unify_into(unified, match.unify)
        if graph is not start:
            self.program = self.program.substitute(unified).replace(path, graph)
        self._settled.add(self.program.at(path))

    def bfs_extend(self) -> bool:
        """Applies one extending rule at the first place where one matches, breadth first."""
        queue: deque[Path] = deque([()])
        while queue:
            path = queue.popleft()
            graph = self.program.at(path)
            if graph not in self._unextendable:
                for rule in self.rules.extending:
                    if (match := self._extension(rule, graph)) is not None:
                        if self._leaves_base(match):
                            self._keep_fork(self.program)
                        made = self._apply(match, path)
                        program = self.program.substitute(dict(match.unify))
                        self.program = program.replace(path, made)
                        return True
                self._unextendable.add(graph)
            queue.extend((*path, i) for i, _ in graph.maps())
        return False

    def _extension(self, rule: Rule, graph: Graph) -> Match | None:
        """The first site of an extending rule that replaces no shared dim."""
        matches = rule.matches(graph)
        return next(
            (m for m in matches if self._shared.isdisjoint(old for old, _ in m.unify)), None
        )

    def _apply(self, match: Match, path: Path) -> Graph:
        match = replace(match, path=path, fresh=self._next_id)
        graph = apply(match)
        self._next_id = max(self._next_id, graph.max_id + 1)
        self.firings.append(Firing.of(match))
        return graph

    def _leaves_base(self, match: Match, declined: bool = False) -> bool:
        """True if this is the first firing that differs from the base."""
        if self.fork is not None or self.rules.base is None:
            return False
        return declined is not (match.rule in self.rules.beyond)

    def _keep_fork(self, program: Graph, search: "_Search | None" = None) -> None:
        """Keeps the state from which the base alone continues.

        That may be in the middle of a search, so that the result equals a run by the base from
        the beginning.
        """
        base = self.rules.base
        assert base is not None
        done = len(self.firings)
        self.fork = Fork(
            program,
            base,
            tuple(self.firings),
            tuple(found for found in self.snapshots if found[1] < done),
            self._next_id,
            frozenset(self._settled),
            tuple(self._queue),
            None if search is None else search.begun(base.local),
            self._shared,
        )


class _Search:
    """Finds the next match in a graph without examining unchanged nodes again.

    Each rule has a list of nodes to examine. A rewrite adds the nodes that it touched. Sites that a
    far guard refused are examined once more when nothing else is left.
    """

    def __init__(
        self, graph: Graph, rules: tuple[Rule, ...], shared: frozenset[Dim] = frozenset()
    ) -> None:
        self.graph = graph
        self.rules = rules
        self.shared = shared
        self.pending: list[dict[int, None]] = [{} for _ in rules]
        self.refused: list[dict[int, None]] = [{} for _ in rules]
        self.moved = False
        self.declined: set[tuple[str, tuple[int, ...]]] = set()
        """Sites that a caution refused; no rewrite here can change that."""
        self.interested: dict[type, list[int]] = {}
        """The indices of the rules that apply to nodes of each kind."""
        self._put_back(graph.nodes)

    def begun(self, rules: tuple[Rule, ...]) -> Begun:
        """The state of this search, for some of its rules."""
        places = [self.rules.index(rule) for rule in rules]
        pending = tuple(tuple(self.pending[at]) for at in places)
        refused = tuple(tuple(self.refused[at]) for at in places)
        return Begun(self.graph, pending, refused, self.moved)

    @classmethod
    def resumed(cls, begun: Begun, rules: tuple[Rule, ...], shared: frozenset[Dim]) -> "_Search":
        """A search that continues from the state of another."""
        search = cls(begun.graph, rules, shared)
        search.pending = [dict.fromkeys(nodes) for nodes in begun.pending]
        search.refused = [dict.fromkeys(nodes) for nodes in begun.refused]
        search.moved = begun.moved
        return search

    def next(self) -> Match | None:
        """A match of the first rule that has one."""
        match = self._next_pending()
        if match is None and self.moved:
            self.pending, self.refused = self.refused, [{} for _ in self.rules]
            self.moved = False
            match = self._next_pending()
        return match

    def _next_pending(self) -> Match | None:
        for rule, nodes, refused in zip(self.rules, self.pending, self.refused, strict=True):
            for node in list(nodes):
                if node in self.graph.nodes:
                    for site in rule.sites_at(self.graph, node):
                        if any(old in self.shared for old, _ in site.unify):
                            continue
                        guard = rule.refusal(site)
                        if guard is None:
                            if (rule.name, site.nodes) not in self.declined:
                                return site
                        elif guard.far:
                            refused[node] = None
                del nodes[node]
        return None

    def decline(self, match: Match) -> None:
        """Excludes a match from now on."""
        self.declined.add((match.rule.name, match.nodes))

    def move_to(self, graph: Graph) -> None:
        """Continues with the graph that the last match made."""
        self.graph = graph
        self.moved = True
        self._put_back(graph.nodes if graph.touched is None else graph.touched)

    def _put_back(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            op = self.graph.nodes[node].op
            kind = type(op)
            if kind not in self.interested:
                rules = enumerate(self.rules)
                self.interested[kind] = [at for at, r in rules if issubclass(kind, r.anchors)]
            for at in self.interested[kind]:
                if self.rules[at].starts_at(op):
                    self.pending[at][node] = None
