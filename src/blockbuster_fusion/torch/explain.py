"""`bb.explain`: what became of each operator of a model, as data and as text."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Buffer, Lookup, Space, Store, accesses
from blockbuster_fusion.nest.nest import Kernel as NestKernel
from blockbuster_fusion.nest.shapes import buffer_shape
from blockbuster_fusion.progress import doing
from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.backend import backend, needs_gradients, options_from
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.compile_parts import Fused, Joined, Unfused, distinct_names
from blockbuster_fusion.torch.flash import is_flash
from blockbuster_fusion.torch.plan.clock import Timed
from blockbuster_fusion.torch.plan.cuda_graph import device_of, obstacle
from blockbuster_fusion.torch.plan_model import Planned
from blockbuster_fusion.torch.source_lines import source_lines
from blockbuster_fusion.torch.to_array_program import ElidedCast


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the operators whose part it belongs to."""

    name: str
    """A name of its own in the model, also in torch.profiler; equal kernels share it."""
    region: str
    operators: tuple[str, ...]
    fused: Fused = field(repr=False)
    nest: NestKernel = field(repr=False)
    bytes_read: int = 0
    bytes_written: int = 0
    """The bytes of the arrays in memory that it reads and writes, each array once, for the sizes
    of the captured call; of a table, as many elements as are looked up."""
    seconds: float | None = None
    """The measured time of its part, if it was asked for."""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines of the model that its operators come from, as `file.py:12`."""
        return source_lines(self.fused.part.nodes)

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

    kernels: tuple[Kernel, ...] = field(repr=False)


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
    needs_gradients: bool = False
    """Whether the model runs eagerly where it was called, because gradients are enabled there; all
    else is what becomes of it under torch.no_grad()."""
    seconds: Mapping[int, float] = field(default_factory=dict, repr=False)
    """The measured time of each part, by its id."""

    @cached_property
    def regions(self) -> list[Region]:
        """What is compiled without an operator of PyTorch's in between."""
        names = distinct_names(f for g in self.graphs for f in g.fused)
        return [region for g in self.graphs for region in _regions(g, names, self.seconds)]

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
        if not self.kernels and not any(f.executable.nest is None for f in self._fused):
            return 0.0
        fused = sum(len(_covered(g)) for g in self.graphs)
        whole = fused + len(self.misc) + len(self.fallbacks)
        return fused / whole if whole else 0.0

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
            "needs_gradients": self.needs_gradients,
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
                    "bytes_read": k.bytes_read,
                    "bytes_written": k.bytes_written,
                    "lines": [*k.lines],
                    "seconds": k.seconds,
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
        from blockbuster_fusion.torch.explain_text import text

        return "\n".join(text(self))


def _plain(left: Left) -> dict[str, str]:
    return {
        "operator": left.operator,
        "node": left.node,
        "region": left.region,
        "reason": left.reason,
    }


def _left(u: Unfused) -> Left:
    return Left(u.operator, u.node.name, u.region, u.reason)


def _counts(node: Node) -> bool:
    """Whether a node is an operator: not a constant, nor one element of what another gives."""
    return node.op == "call_function" and isinstance(node.target, torch._ops.OperatorBase)


Names = Mapping[tuple[int, str], str]


def _kernels(
    planned: Planned, fused: Fused, names: Names, seconds: Mapping[int, float]
) -> Iterator[Kernel]:
    nest = fused.executable.nest
    if nest is None:
        return
    operators = tuple(name_of(n) for n in fused.part.nodes)
    tiling = _tiling(planned, fused)
    for kernel in nest.kernels:
        yield Kernel(
            names[id(fused.executable), kernel.name],
            fused.region,
            operators,
            fused,
            kernel,
            *traffic(kernel, tiling),
            seconds.get(id(fused)),
        )


def _tiling(planned: Planned, fused: Fused) -> Tiling:
    """The blocks of a part for the sizes of the captured call."""
    length, extents = captured_length(planned.analysis), Extents()
    for axis, size in fused.part.expressed.sizes:
        extents.bind(axis, length(size), "the captured call")
    return Tiling(extents, fused.executable.tiles)


def traffic(kernel: NestKernel, tiling: Tiling) -> tuple[int, int]:
    """The bytes of the arrays in memory that a kernel reads, and of those that it writes."""
    read: dict[Buffer, int] = {}
    written: dict[Buffer, int] = {}
    for statement in kernel.statements:
        for access in accesses(statement):
            buffer = access.buffer
            if buffer.space is not Space.GLOBAL:
                continue
            count = math.prod(buffer_shape(buffer, tiling))
            if isinstance(statement, Lookup):
                spans = statement.tile.spans
                count = min(count, math.prod(tiling.extents.of(s.dim.axis) for s in spans))
            kept = written if isinstance(statement, Store) else read
            kept[buffer] = max(kept.get(buffer, 0), count * buffer.dtype.bytes)
    return sum(read.values()), sum(written.values())


def _regions(planned: Planned, names: Names, seconds: Mapping[int, float]) -> Iterator[Region]:
    run: list[Fused] = []

    def region() -> Region:
        kernels = [k for f in run for k in _kernels(planned, f, names, seconds)]
        return Region(run[0].region, tuple(run), tuple(kernels))

    for group in planned.groups:
        if isinstance(group, Joined):
            continue
        breaks = isinstance(group, Unfused) or (run and run[-1].region != group.region)
        if breaks and run:
            yield region()
            run = []
        if isinstance(group, Fused):
            run.append(group)
    if run:
        yield region()


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


@doing("explaining the model")
def explain(
    model: Any,
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    time: bool = False,
    **named: Any,
) -> Explanation:
    """Tells what becomes of each operator of a model, a function or an exported program.

    `inputs` and `named` are what it is called with; an exported program needs none. The model is
    compiled and run once, without gradients; with `time`, some more times, to measure each part.
    """
    options_from(mode, options)
    if isinstance(model, torch.export.ExportedProgram):
        from blockbuster_fusion.torch.export import from_torch

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
    timed: list[Timed] = []
    needs: list[bool] = []

    def watch(planned: Planned) -> None:
        graphs.append(planned)
        if time:
            timed.append(Timed(planned.plan))
            planned.plan = timed[-1]

    def watched(module: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        needs.append(needs_gradients(module, examples))
        return backend(module, examples, mode=mode, options=options, watcher=watch)

    is_enabled = torch.is_grad_enabled()
    breaks_before = dict(torch._dynamo.utils.counters["graph_break"])
    limits = {"recompile_limit": 10_000, "accumulated_recompile_limit": 10_000}
    patched: Any = torch._dynamo.config.patch(limits)
    with torch.no_grad(), patched:
        compiled: Any = torch.compile(model, backend=watched, dynamic=dynamic)
        compiled(*inputs, **named)
    breaks = torch._dynamo.utils.counters["graph_break"]
    new = [r for r, count in breaks.items() if count > breaks_before.get(r, 0)]
    seconds = {
        id(f): t for g, clock in zip(graphs, timed, strict=False) for f, t in clock.parts(g.fused)
    }
    told = tuple(_first_line(reason) for reason in new)
    return Explanation(tuple(graphs), told, is_enabled and any(needs), seconds)


def _first_line(reason: str) -> str:
    return str(reason).strip().splitlines()[0]
