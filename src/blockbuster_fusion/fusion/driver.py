"""The fusion algorithm: which rule is tried when, and where.

As in the paper: `fuse_no_extend` on one graph, `bfs_fuse_no_extend` on all of them breadth first,
`bfs_extend` for one extension, `fuse` until nothing can be extended, with a snapshot before each.
"""

from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import replace

from blockbuster_fusion.fusion.trace import Firing
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.rules.rule import Match, Rule, apply, unify_into
from blockbuster_fusion.rules.sets import RuleSet


class Driver:
    """One run of the algorithm on a program: the program so far and where rules fired."""

    def __init__(self, program: Graph, rules: RuleSet) -> None:
        self.program = program
        self.rules = rules
        self.firings: list[Firing] = []
        self._next_id = program.max_id + 1
        self.snapshots: list[tuple[Graph, int]] = []
        """Each with the number of firings that led to it."""
        self.base: Driver | None = None
        """Where the rules have a base: a run that turns off before the first other rule."""
        self._settled: set[Graph] = set()
        """Graphs in which no local rule matches."""
        self._unextendable: set[Graph] = set()
        self._queue: deque[Path] = deque([()])
        """Graphs that the local rules are still to be applied to."""
        self._begun: _Search | None = None
        """The search in the first of them, where another run has begun it."""

    def fuse(self) -> None:
        """Runs to the end: afterwards `snapshots` and `firings` are complete."""
        self.bfs_fuse_no_extend()
        self.snapshots.append((self.program, len(self.firings)))
        while self.bfs_extend():
            self._queue.append(())
            self.bfs_fuse_no_extend()
            self.snapshots.append((self.program, len(self.firings)))

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
        search = self._begun or _Search(graph, self.rules.local)
        self._begun = None
        unified: dict[Dim, Dim] = {}
        start = graph
        while (match := search.next()) is not None:
            if self._leaves_base(match):
                self._turn_off(self.program.substitute(unified).replace(path, graph), search)
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
                    if (match := rule.match(graph)) is not None:
                        if self._leaves_base(match):
                            self._turn_off(self.program)
                        made = self._apply(match, path)
                        program = self.program.substitute(dict(match.unify))
                        self.program = program.replace(path, made)
                        return True
                self._unextendable.add(graph)
            queue.extend((*path, i) for i, _ in graph.maps())
        return False

    def _apply(self, match: Match, path: Path) -> Graph:
        match = replace(match, path=path, fresh=self._next_id)
        graph = apply(match)
        self._next_id = max(self._next_id, graph.max_id + 1)
        self.firings.append(Firing.of(match))
        return graph

    def _leaves_base(self, match: Match) -> bool:
        """Whether this is the first rule to fire that the base does not have."""
        return self.base is None and match.rule in self.rules.beyond

    def _turn_off(self, program: Graph, search: "_Search | None" = None) -> None:
        """Prepares the run by the base alone from here on; what has been done so far is shared.

        It goes on in the middle of a search where there is one, so that it comes to the same as a
        run by the base from the beginning.
        """
        assert self.rules.base is not None
        self.base = Driver(program, self.rules.base)
        self.base.firings = list(self.firings)
        self.base.snapshots = [found for found in self.snapshots if found[1] < len(self.firings)]
        self.base._next_id = self._next_id
        self.base._settled = set(self._settled)
        self.base._queue = deque(self._queue)
        self.base._begun = search and search.by(self.rules.base.local)


class _Search:
    """Finds the next match in a graph without looking again at what has not changed.

    Each rule has the nodes that it still has to look at. A rewrite puts the nodes that it touched
    back; places that a far guard refused are looked at once more when nothing else is left.
    """

    def __init__(self, graph: Graph, rules: tuple[Rule, ...]) -> None:
        self.graph = graph
        self.rules = rules
        self.pending: list[dict[int, None]] = [{} for _ in rules]
        self.refused: list[dict[int, None]] = [{} for _ in rules]
        self.moved = False
        self.interested: dict[type, list[int]] = {}
        """Which rules look at nodes of each kind."""
        self._put_back(graph.nodes)

    def by(self, rules: tuple[Rule, ...]) -> "_Search":
        """This search, as far as it has come, by some of its rules alone."""
        places = [self.rules.index(rule) for rule in rules]
        search = copy(self)
        search.rules = rules
        search.pending = [dict(self.pending[at]) for at in places]
        search.refused = [dict(self.refused[at]) for at in places]
        search.interested = {}
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
                        guard = rule.refusal(site)
                        if guard is None:
                            return site
                        if guard.far:
                            refused[node] = None
                del nodes[node]
        return None

    def move_to(self, graph: Graph) -> None:
        """Goes on with the graph that the last match made."""
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
