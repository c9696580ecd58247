"""The trace of a fusion: the initial program and every firing of a rule, replayed on demand."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, overload

from blockbuster_fusion.cost.counters import Traffic
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import (
    BadText,
    BadTrace,
    BlockbusterError,
    InvalidGraph,
    UnknownRules,
)
from blockbuster_fusion.fusion.cut import LARGEST, ProgramPart, cut, joined
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.buffered import Edge, buffered
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.text import from_text, to_text
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.rules.cautions import CAUTIONS, caution
from blockbuster_fusion.rules.rule import Guard, Match, Rule, apply, unify_into
from blockbuster_fusion.rules.sets import RuleSet, rule_set

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Firing:
    """A match without its graph: enough to fire the rule again."""

    rule: Rule
    path: Path
    nodes: tuple[int, ...]
    dim: Dim | None
    variant: str
    unify: tuple[tuple[Dim, Dim], ...]
    fresh: int
    part: int = 0
    """The part of the program that `path` begins in, if it was cut (fusion/cut.py)."""

    @classmethod
    def of(cls, match: Match) -> "Firing":
        """The firing of a match."""
        fresh = match.graph.max_id + 1 if match.fresh is None else match.fresh
        unify = match.unify
        return cls(match.rule, match.path, match.nodes, match.dim, match.variant, unify, fresh)

    def replay(self, program: Graph) -> Graph:
        """The program after the rule has fired."""
        return apply(self.at(program), program, self.path)

    def at(self, program: Graph) -> Match:
        """The match in a program."""
        graph = program.at(self.path)
        rest = (self.variant, self.unify, self.path, self.fresh)
        return Match(self.rule, graph, self.nodes, self.dim, *rest)

    def to_json(self) -> dict[str, Any]:
        """Plain data; dims by their labels."""
        return {
            "rule": self.rule.name,
            "path": list(self.path),
            "nodes": list(self.nodes),
            "dim": self.dim and self.dim.label,
            "variant": self.variant,
            "unify": [[old.label, new.label] for old, new in self.unify],
            "fresh": self.fresh,
            **({"part": self.part} if self.part else {}),
        }

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], rules: RuleSet, dims: Mapping[str, Dim]
    ) -> "Firing":
        """The firing that `to_json` described."""
        return cls(
            rules.rule(data["rule"]),
            tuple(int(i) for i in data["path"]),
            tuple(int(i) for i in data["nodes"]),
            None if data["dim"] is None else dims[data["dim"]],
            str(data["variant"]),
            tuple((dims[old], dims[new]) for old, new in data["unify"]),
            int(data["fresh"]),
            int(data.get("part", 0)),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One firing in a trace. `index` counts from 1; `number` is the paper's rule number."""

    trace: "Trace"
    index: int
    firing: Firing

    @property
    def rule(self) -> str:
        return self.firing.rule.name

    @property
    def number(self) -> int | None:
        return self.firing.rule.number

    @property
    def dim(self) -> Dim | None:
        return self.firing.dim

    @property
    def path(self) -> Path:
        return self.firing.path

    @property
    def variant(self) -> str:
        return self.firing.variant

    @property
    def before(self) -> Graph:
        """The program before the rule fired."""
        return self.trace.program_after(self.index - 1)

    @property
    def after(self) -> Graph:
        """The program after it."""
        return self.trace.program_after(self.index)

    @property
    def buffered(self) -> list[Edge]:
        """The interior buffered edges that are left after this step."""
        return buffered(self.after)

    def traffic(
        self, extents: Mapping[str, int], tiles: Mapping[Any, int] | None = None
    ) -> Traffic:
        """The memory traffic of the program after this step, for given sizes and tiles."""
        return meter(self.after, extents, self.trace.tiles_after(self.index, tiles or {}))

    def __str__(self) -> str:
        number = f"rule {self.number}, " if self.number is not None else ""
        dim = f" [{self.dim}]" if self.dim is not None else ""
        variant = f" ({self.variant})" if self.variant else ""
        return f"step {self.index}: {number}{self.rule}{dim}{variant}"


class Trace(Sequence[Step]):
    """The steps of a fusion. Intermediate programs are computed on demand."""

    def __init__(
        self,
        initial: Graph,
        rules: RuleSet,
        firings: Sequence[Firing],
        snapshots: Sequence[int],
        parts: Sequence[ProgramPart] = (),
        largest: int = LARGEST,
    ) -> None:
        self.initial = initial
        self.rules = rules
        self.firings = tuple(firings)
        self.snapshots = tuple(snapshots)
        """The number of steps before each snapshot."""
        self.parts = tuple(parts) or cut(initial, largest)
        """The parts that were fused separately: one, unless the program is large."""
        self.largest = largest
        self._recent: dict[int, tuple[Graph, ...]] = {}
        """The most recent programs, so that a walk over the steps replays each once."""

    def program_after(self, steps: int) -> Graph:
        """The program after a number of steps."""
        at = max((n for n in self._recent if n <= steps), default=0)
        start = self._recent.get(at) or tuple(part.graph for part in self.parts)
        programs = list(start)
        for firing in self.firings[at:steps]:
            programs[firing.part] = firing.replay(programs[firing.part])
        self._recent = {at: start, steps: tuple(programs)}
        return joined(self.initial, self.parts, programs)

    def tiles_after(self, steps: int, tiles: Mapping[Dim | str, int]) -> dict[Dim | str, int]:
        """Tiles of the initial program's dims as tiles of the dims that replaced them."""
        known: dict[Dim, Dim] = {}
        for firing in self.firings[:steps]:
            unify_into(known, firing.unify)
        became: dict[Dim | str, Dim] = {old.label: new for old, new in known.items()}
        became.update(known.items())
        return {became.get(key, key): tile for key, tile in tiles.items()}

    @cached_property
    def careless(self) -> tuple[tuple[int, Guard], ...]:
        """The steps that a caution would have refused, with the caution."""
        if self.rules.cautions or not any(f.rule.name in CAUTIONS for f in self.firings):
            return ()  # they have been heeded
        programs = [part.graph for part in self.parts]
        found = []
        for index, firing in enumerate(self.firings, 1):
            program = programs[firing.part]
            refused = caution(CAUTIONS, firing.at(program))
            if refused is not None:
                found.append((index, refused))
            programs[firing.part] = firing.replay(program)
        return tuple(found)

    def __len__(self) -> int:
        return len(self.firings)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"the trace has {len(self)} steps")
        index %= len(self)
        return Step(self, index + 1, self.firings[index])

    def __iter__(self) -> Iterator[Step]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<trace of {len(self)} steps by the {self.rules.name} rules>"

    # ---------------------------------------------------------------- files

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `from_json` restores the trace."""
        return {
            "format": FORMAT,
            "rules": self.rules.name,
            "initial": to_text(self.initial),
            "firings": [firing.to_json() for firing in self.firings],
            "snapshots": list(self.snapshots),
            **({"largest": self.largest} if len(self.parts) > 1 else {}),
        }

    def save(self, file: str | FilePath) -> None:
        """Writes the trace as JSON."""
        FilePath(file).write_text(json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def from_json(cls, data: Any, place: str = "trace") -> "Trace":
        """The trace that `to_json` described; it is replayed once, to check that it fits."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise BadTrace(place=place, problem=f"this is no fusion trace of format {FORMAT}")
        try:
            initial = from_text(data["initial"])
            rules = rule_set(data["rules"])
            dims = {dim.label: dim for dim in initial.dims}
            firings = [Firing.from_json(f, rules, dims) for f in data["firings"]]
            snapshots = [int(s) for s in data["snapshots"]]
            verify(initial)
            largest = int(data.get("largest", sys.maxsize))
            trace = cls(initial, rules, firings, snapshots, largest=largest)
        except (BadText, InvalidGraph) as error:
            raise BadTrace(place=place, problem=f"the initial program: {error}") from None
        except UnknownRules as error:
            raise BadTrace(place=place, problem=str(error)) from None
        except (KeyError, TypeError, ValueError) as error:
            problem = f"a field is missing or wrong: {error!r}"
            raise BadTrace(place=place, problem=problem) from None
        trace.check(place)
        return trace

    @classmethod
    def load(cls, file: str | FilePath) -> "Trace":
        """The trace that `save` wrote."""
        try:
            data = json.loads(FilePath(file).read_text())
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise BadTrace(place=str(file), problem=problem) from None
        except (ValueError, RecursionError) as error:
            raise BadTrace(place=str(file), problem=f"is no JSON: {error}") from None
        return cls.from_json(data, str(file))

    def check(self, place: str = "trace") -> None:
        """Replays every step; raises BadTrace if one does not fit the program."""
        ordered = [0, *self.snapshots, len(self)]
        if ordered != sorted(ordered):
            problem = f"snapshots after {self.snapshots} of {len(self)} steps"
            raise BadTrace(place=place, problem=f"{problem}: they ascend and lie within the trace")
        programs = [part.graph for part in self.parts]
        for number, firing in enumerate(self.firings, 1):
            site = f"{place}, step {number} ({firing.rule.name})"
            if not 0 <= firing.part < len(programs):
                raise BadTrace(place=site, problem=f"the program has no part {firing.part}")
            try:
                if not _stands_at(firing, programs[firing.part]):
                    raise BadTrace(place=site, problem="the rule does not match there")
                programs[firing.part] = firing.replay(programs[firing.part])
            except BadTrace:
                raise
            except (BlockbusterError, KeyError, AssertionError) as error:
                raise BadTrace(place=site, problem=f"cannot be replayed: {error}") from None


def _stands_at(firing: Firing, program: Graph) -> bool:
    """True if the rule may fire as the firing says."""
    graph = program.at(firing.path)
    sites = (
        site
        for node in firing.nodes
        if node in graph.nodes
        for site in firing.rule.sites_at(graph, node)
    )
    said = (firing.nodes, firing.dim, firing.variant, firing.unify)
    return firing.fresh > program.max_id and any(
        (site.nodes, site.dim, site.variant, site.unify) == said
        and firing.rule.refusal(site) is None
        for site in sites
    )
