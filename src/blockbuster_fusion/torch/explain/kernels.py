"""The kernels of compiled graphs: each with its operators, its bytes and its texts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.nest.analysis.traffic import traffic_of
from blockbuster_fusion.nest.listing import show_nest
from blockbuster_fusion.nest.nest import Launchable
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.capture.source_lines import source_lines
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain.flash import is_flash
from blockbuster_fusion.torch.groups import Fused, Joined, KernelNames, Library, Unfused


@dataclass(frozen=True)
class KernelReport:
    """A launch of a kernel or of several, and the operators whose part it belongs to."""

    name: str
    """A name of its own in the model, also in torch.profiler; equal kernels share it."""
    region: str
    operators: tuple[str, ...]
    fused: Fused = field(repr=False)
    nest: Launchable = field(repr=False)
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
        """A digest of the fused block program that does not depend on names."""
        return self.fused.executable.graph.digest

    @cached_property
    def is_flash(self) -> bool:
        """True if it makes exponentials of a product and multiplies them, all in local memory."""
        return is_flash(self.nest)

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "name": self.name,
            "region": self.region,
            "is_flash": self.is_flash,
            "operators": [*self.operators],
            "digest": self.digest,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "lines": [*self.lines],
            "seconds": self.seconds,
            "listing": self.listing,
        }


@dataclass(frozen=True)
class Region:
    """Parts that follow one another in one layer, with no operator of PyTorch's between them."""

    name: str
    parts: tuple[Fused, ...] = field(repr=False)

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(name_of(n) for p in self.parts for n in p.part.nodes)

    kernels: tuple[KernelReport, ...] = field(repr=False)


@dataclass(frozen=True)
class RangeReport:
    """A range of sizes, and the configuration of the kernels that serve it."""

    kernel: str
    """The name of the first kernel of the part."""
    sizes: str
    config: str

    def __str__(self) -> str:
        return f"{self.kernel}, {self.sizes}: {self.config}"


def _kernels(
    graph: CompiledGraph, fused: Fused, names: KernelNames, seconds: Mapping[int, float]
) -> Iterator[KernelReport]:
    nest = fused.executable.nest
    if nest is None:
        return
    operators = tuple(name_of(n) for n in fused.part.nodes)
    tiling = _tiling(graph, fused)
    for kernel in nest.launches:
        touched = traffic_of(kernel, tiling).touched.values()
        yield KernelReport(
            names[id(fused.executable), kernel.name],
            fused.region,
            operators,
            fused,
            kernel,
            sum(read for read, _ in touched),
            sum(written for _, written in touched),
            seconds.get(id(fused)),
        )


def _tiling(graph: CompiledGraph, fused: Fused) -> Tiling:
    """The blocks of a part for the sizes of the captured call."""
    length = captured_length(graph.analysis)
    sizes = ((axis, length(size)) for axis, size in fused.part.expressed.sizes)
    return Tiling(Extents.of_sizes(sizes, "the captured call"), fused.executable.tiles)


def ranges_of(graph: CompiledGraph, names: KernelNames) -> Iterator[RangeReport]:
    """The ranges of the parts of a graph; if kernels run some for a range alone, that range too."""
    words = [None] if graph.elsewhere is None else graph.elsewhere.words
    for within, own in zip(words, graph.ranged, strict=True):
        for executable in {id(f.executable): f.executable for f in own.fused}.values():
            if executable.nest is None:
                continue
            name = names[id(executable), executable.nest.launches[0].name]
            for sizes, config in executable.configs or ((None, executable.config),):
                where = ", ".join(x for x in (within, sizes) if x is not None)
                if where:
                    yield RangeReport(name, where, str(config))


def regions_of(
    graph: CompiledGraph, names: KernelNames, seconds: Mapping[int, float]
) -> Iterator[Region]:
    """The regions of a graph; `seconds` are measured times, by the ids of parts."""
    run: list[Fused] = []

    def region() -> Region:
        kernels = [k for f in run for k in _kernels(graph, f, names, seconds)]
        return Region(run[0].region, tuple(run), tuple(kernels))

    for group in graph.groups:
        if isinstance(group, Joined):
            continue
        breaks = isinstance(group, Unfused | Library) or (run and run[-1].region != group.region)
        if breaks and run:
            yield region()
            run = []
        if isinstance(group, Fused):
            run.append(group)
    if run:
        yield region()
