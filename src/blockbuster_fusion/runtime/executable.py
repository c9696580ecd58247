"""A compiled program, called with arrays, and the protocol of what runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from blockbuster_fusion.errors import BadInput
from blockbuster_fusion.host.inputs import in_order
from blockbuster_fusion.host.outputs import ByName
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.ir.ops import Input
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.runtime.arrays import ArrayLibrary
from blockbuster_fusion.schedule.config import Config

Sizes = Sequence[tuple[Axis, int]]
"""The lengths of some axes."""


class Runner(Protocol):
    """Runs a program: by compiled kernels, or by interpretation."""

    nest: Nest | None

    @property
    def nests(self) -> tuple[Nest, ...]: ...

    @property
    def tiles(self) -> Mapping[Dim, int]: ...

    @property
    def source(self) -> str: ...

    @property
    def sources(self) -> tuple[str, ...]: ...

    def run(
        self,
        given: Sequence[Any],
        sizes: Sizes = (),
        library: ArrayLibrary | None = None,
        into: Mapping[int, Any] | None = None,
    ) -> Sequence[Any]:
        """The outputs for inputs in order; `sizes` are of axes that no input need have.

        `library` is that of the arrays, if the inputs alone do not tell. `into` has arrays for
        some outputs, by number.
        """


@dataclass(frozen=True)
class Executable:
    """A program that runs: call it with arrays, in order or by name.

    NumPy arrays give NumPy arrays, and tensors give tensors on the same device. Arrays may have any
    strides; nothing is copied. Sizes that were not fixed are those of the arrays of each call. The
    same compiled kernels serve them all, or those for the range that they are in.
    """

    graph: Graph
    """The block program that runs."""
    target: str
    tiles: Mapping[Dim, int]
    snapshot: int
    """The number of the snapshot of the fusion, from 0."""
    runner: "Runner"
    configs: tuple[tuple[str, Config], ...] = ()
    """The ranges of sizes, each with the configuration that serves it; none if one serves all."""
    config: Config | None = None
    """The configuration for the usual sizes."""

    @property
    def source(self) -> str:
        """The text that was compiled; for the interpreter, the listing."""
        return self.runner.source

    @property
    def sources(self) -> tuple[str, ...]:
        """The texts for all ranges of sizes, the usual one first."""
        return self.runner.sources

    @property
    def nest(self) -> Nest | None:
        """The loop nest that was printed; the interpreter has none."""
        return self.runner.nest

    @property
    def nests(self) -> tuple[Nest, ...]:
        """The loop nests of all ranges of sizes, the usual one first."""
        return self.runner.nests

    @cached_property
    def listing(self) -> str:
        """The block program as a listing."""
        return show(self.graph)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        ops = (self.graph.op(i) for i in self.graph.inputs)
        return tuple(op.name for op in ops if isinstance(op, Input))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(out.name for out in self.graph.outputs)

    def __call__(self, *arrays: Any, **named: Any) -> ByName:
        """The outputs, in order and by name."""
        if named or len(arrays) != len(self.inputs):
            arrays = tuple(_gathered(self.inputs, arrays, named))
        return ByName(self.outputs, self.runner.run(arrays))

    def __repr__(self) -> str:
        name = self.nest.name if self.nest is not None else "program"
        return f"<{name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)}) on {self.target}>"


def _gathered(
    names: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> Sequence[Any]:
    """The inputs in order, of which some are given in order and the rest by name."""
    if arrays and named:
        for name in names[: len(arrays)]:
            if name in named:
                raise BadInput(name=name, problem="is given twice, in order and by name")
        if len(arrays) <= len(names):
            named = dict(zip(names, arrays, strict=False)) | dict(named)
    return in_order(names, named or list(arrays))
