"""`bb.explain`: what became of each operator of a model, as data and as text."""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.codegen.flash import is_flash
from blockbuster_fusion.codegen.nest import Kernel as NestKernel
from blockbuster_fusion.codegen.show import show_nest
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.frontends.torch.backend import backend, options_from
from blockbuster_fusion.frontends.torch.express import ElidedCast
from blockbuster_fusion.frontends.torch.graph import name_of
from blockbuster_fusion.frontends.torch.groups import Fused, Joined, Unfused
from blockbuster_fusion.frontends.torch.planner import Planned
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.show import show
from blockbuster_fusion.runtime.torch_replay import device_of, obstacle
from blockbuster_fusion.select.parts import Kind


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the operators whose part it belongs to."""

    name: str
    region: str
    operators: tuple[str, ...]
    fused: Fused = field(repr=False)
    nest: NestKernel = field(repr=False)

    @cached_property
    def listing(self) -> str:
        """The kernel as a loop nest."""
        return show_nest(self.nest)

    @cached_property
    def program(self) -> str:
        """The fused block program, as the paper writes it."""
        return show(self.fused.executable.graph)

    @property
    def source(self) -> str:
        """The source that was compiled, of the whole part."""
        return self.fused.executable.source

    @property
    def digest(self) -> str:
        """What the fused block program is, whatever its arrays and axes are called."""
        return self.fused.executable.graph.digest

    @cached_property
    def is_flash(self) -> bool:
        """Whether it makes exponentials of one product and multiplies them, all in local memory."""
        return is_flash(self.nest)


@dataclass(frozen=True)
class Region:
    """Parts that follow one another in one layer, with no operator of PyTorch's between them."""

    name: str
    parts: tuple[Fused, ...] = field(repr=False)

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(name_of(n) for p in self.parts for n in p.part.nodes)

    @property
    def kernels(self) -> list[Kernel]:
        return [k for p in self.parts for k in _kernels(p)]


@dataclass(frozen=True)
class Left:
    """An operator that PyTorch runs."""

    operator: str
    node: str
    region: str
    reason: str

    def __str__(self) -> str:
        where = f" in {self.region}" if self.region else ""
        return f"{self.operator} ({self.node}{where}): {self.reason}"


@dataclass(frozen=True)
class Explanation:
    """What became of each operator of a model."""

    graphs: tuple[Planned, ...] = field(repr=False)
    graph_breaks: tuple[str, ...] = ()
    """Why the model is more than one graph."""

    @cached_property
    def regions(self) -> list[Region]:
        """What is compiled without an operator of PyTorch's in between."""
        return [region for g in self.graphs for region in _regions(g)]

    @cached_property
    def kernels(self) -> list[Kernel]:
        """Every kernel, in the order of their calls."""
        return [kernel for region in self.regions for kernel in region.kernels]

    @cached_property
    def misc(self) -> list[Left]:
        """The operators that PyTorch runs because no kernel is meant to."""
        left = [u for g in self.graphs for u in g.unfused if not u.is_fallback]
        made = [_left(u) for u in left if _counts(u.node)]
        for g in self.graphs:
            known = {u.node for u in g.unfused}
            for node in g.operated:
                joins = g.analysis.is_join(node)
                if joins:
                    reason = "no kernel makes a piece of it"
                    made.append(Left(name_of(node), node.name, "", reason))
                elif g.analysis.kind(node) not in (Kind.VIEW, Kind.MISC) and node not in known:
                    reason = "cheap, and needed in another form than kernels have it"
                    made.append(Left(name_of(node), node.name, "", reason))
        return made

    @cached_property
    def fallbacks(self) -> list[Left]:
        """The operators that should have had a kernel, and have none."""
        return [_left(u) for g in self.graphs for u in g.unfused if u.is_fallback]

    @cached_property
    def halved(self) -> list[str]:
        """The parts that should have been one program, had no kernel, and were halved; and why."""
        return [reason for g in self.graphs for reason in g.halved]

    @cached_property
    def unreplayed(self) -> list[str]:
        """Why CUDA graphs cannot hold those graphs on a GPU that they cannot hold."""
        plans = [g.plan for g in self.graphs if device_of(g.plan).type == "cuda"]
        reasons = [obstacle(plan) for plan in plans]
        return [reason for reason in reasons if reason is not None]

    @cached_property
    def elided_casts(self) -> list[ElidedCast]:
        """The conversions between floats that fusion has made unnecessary."""
        return [cast for g in self.graphs for cast in g.elided]

    @cached_property
    def coverage(self) -> float:
        """The share of the operators that compute which kernels compute, in fused regions."""
        fused = sum(len(_covered(g)) for g in self.graphs)
        whole = fused + len(self.misc) + len(self.fallbacks)
        return fused / whole if whole else float(bool(self.graphs))

    @cached_property
    def edges_before(self) -> int:
        """Intermediates that go through memory where every operator stands alone."""
        inside = [len(buffered(lower(f.part.expressed.program))) for f in self._fused]
        return sum(inside) + self._between

    @cached_property
    def edges_after(self) -> int:
        """Intermediates that go through memory now."""
        return sum(len(buffered(f.executable.graph)) for f in self._fused) + self._between

    @property
    def _fused(self) -> list[Fused]:
        return [f for g in self.graphs for f in g.fused]

    @cached_property
    def _between(self) -> int:
        return sum(_edges_between(g) for g in self.graphs)

    def data(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "graphs": len(self.graphs),
            "graph_breaks": [*self.graph_breaks],
            "coverage": self.coverage,
            "edges_before": self.edges_before,
            "edges_after": self.edges_after,
            "regions": [{"name": r.name, "operators": [*r.operators]} for r in self.regions],
            "kernels": [
                {
                    "name": k.name,
                    "region": k.region,
                    "is_flash": k.is_flash,
                    "operators": [*k.operators],
                    "digest": k.digest,
                    "listing": k.listing,
                }
                for k in self.kernels
            ],
            "misc": [_plain(x) for x in self.misc],
            "fallbacks": [_plain(x) for x in self.fallbacks],
            "halved": [*self.halved],
            "unreplayed": [*self.unreplayed],
            "elided_casts": [str(cast) for cast in self.elided_casts],
        }

    def __str__(self) -> str:
        return "\n".join(_text(self))


def _plain(left: Left) -> dict[str, str]:
    return {
        "operator": left.operator,
        "node": left.node,
        "region": left.region,
        "reason": left.reason,
    }


def _text(e: Explanation) -> Iterator[str]:
    yield (
        f"{_count(e.graphs, 'graph')}, {_count(e.regions, 'region')}, "
        f"{_count(e.kernels, 'kernel')}; "
        f"{e.coverage:.1%} of the operators in kernels; "
        f"{e.edges_before} intermediates in memory before, {e.edges_after} after"
    )
    if not e.graphs:
        yield "torch.compile has captured nothing of it: TORCH_LOGS=graph_breaks says why"
    for reason in e.graph_breaks:
        yield f"graph break: {reason}"
    for region in e.regions:
        yield f"{region.name or 'around the layers'}:"
        for kernel in region.kernels:
            note = " (flash form)" if kernel.is_flash else ""
            yield f"  {kernel.name}{note}: {', '.join(map(_short, kernel.operators))}"
    titled: tuple[tuple[str, Sequence[object]], ...] = (
        ("run by PyTorch", e.misc),
        ("fallbacks", e.fallbacks),
        ("parts that were halved", e.halved),
        ("not to be replayed as a CUDA graph", e.unreplayed),
    )
    for title, found in titled:
        if found:
            yield f"{title}:"
            yield from (f"  {x}" for x in found)
    if e.elided_casts:
        yield f"conversions left out: {len(e.elided_casts)}"
        yield from (f"  {cast}" for cast in e.elided_casts[:20])
        if len(e.elided_casts) > 20:
            yield f"  and {len(e.elided_casts) - 20} more"


def _count(found: Sized, what: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def _short(operator: str) -> str:
    return operator.split(".")[1].strip("_") if "." in operator else operator


def _left(u: Unfused) -> Left:
    return Left(u.operator, u.node.name, u.region, u.reason)


def _counts(node: Node) -> bool:
    """Whether a node is an operator: not a constant, nor one element of what another gives."""
    return node.op == "call_function" and isinstance(node.target, torch._ops.OperatorBase)


def _kernels(fused: Fused) -> list[Kernel]:
    nest = fused.executable.nest
    if nest is None:
        return []
    operators = tuple(name_of(n) for n in fused.part.nodes)
    return [Kernel(k.name, fused.region, operators, fused, k) for k in nest.kernels]


def _regions(planned: Planned) -> list[Region]:
    made: list[Region] = []
    run: list[Fused] = []
    for group in planned.groups:
        if isinstance(group, Joined):
            continue
        breaks = isinstance(group, Unfused) or (run and run[-1].region != group.region)
        if breaks and run:
            made.append(Region(run[0].region, tuple(run)))
            run = []
        if isinstance(group, Fused):
            run.append(group)
    return [*made, Region(run[0].region, tuple(run))] if run else made


def _covered(planned: Planned) -> set[Node]:
    """The operators that kernels compute, and nobody else."""
    operated = set(planned.operated)
    computed = {n for f in planned.fused for n in f.part.covered if n not in operated}
    return computed | set(planned.joined)


def _edges_between(planned: Planned) -> int:
    """How many intermediates one group leaves in memory for another."""
    inputs = {n.name for n in planned.analysis.inputs}
    count = 0
    for group in planned.groups:
        if isinstance(group, Joined):
            continue
        if isinstance(group, Fused):
            sources = {layout.source for layout in group.part.expressed.inputs}
        else:
            sources = {planned.analysis.base(n).name for n in group.node.all_input_nodes}
        count += len({s for s in sources if s not in inputs})
    return count


def explain(
    model: Any,
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **named: Any,
) -> Explanation:
    """What becomes of each operator of a model, a function or an exported program.

    `inputs` and `named` are what it is called with; an exported program needs none. The model is
    compiled and run once, without gradients.
    """
    options_from(mode, options)
    if isinstance(model, torch.export.ExportedProgram):
        from blockbuster_fusion.frontends.torch.export import from_torch

        return Explanation((from_torch(model, **dict(options or {})).planned,))
    if not callable(model):
        raise WrongKind(
            function="explain",
            wanted="a module, a function or an exported program",
            given=type(model).__name__,
            remedy="give what you would give torch.compile",
        )
    model = getattr(model, "_orig_mod", model)
    graphs: list[Planned] = []
    breaks_before = dict(torch._dynamo.utils.counters["graph_break"])
    watched = partial(backend, mode=mode, options=options, watcher=graphs.append)
    limits = {"recompile_limit": 10_000, "accumulated_recompile_limit": 10_000}
    patched: Any = torch._dynamo.config.patch(limits)
    with torch.no_grad(), patched:
        compiled: Any = torch.compile(model, backend=watched, dynamic=dynamic)
        compiled(*inputs, **named)
    breaks = torch._dynamo.utils.counters["graph_break"]
    new = [r for r, count in breaks.items() if count > breaks_before.get(r, 0)]
    return Explanation(tuple(graphs), tuple(_first_line(reason) for reason in new))


def _first_line(reason: str) -> str:
    return str(reason).strip().splitlines()[0]
