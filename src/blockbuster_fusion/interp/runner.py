"""The target "interpret": programs run by the reference interpreter."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.improve import Elsewhere
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import show
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.runtime.arrays import ArrayLibrary, has_tensor
from blockbuster_fusion.runtime.bound import is_empty
from blockbuster_fusion.runtime.executable import Sizes


class Interpreted:
    """Runs a program by the reference interpreter, slowly.

    `unfused` gives the program before fusion, which runs if an array has no elements. After fusion
    a scale may stand behind a sum, and it is infinite if the sum is empty.
    """

    def __init__(
        self,
        graph: Graph,
        tiles: Mapping[Dim, int],
        unfused: Callable[[], Graph] | None = None,
    ) -> None:
        self.graph = graph
        self.tiles = dict(tiles)
        self.nest: Nest | None = None
        self.nests: tuple[Nest, ...] = ()
        self._unfused = unfused

    @cached_property
    def source(self) -> str:
        return show(self.graph)

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @cached_property
    def unfused(self) -> "Interpreted | None":
        """The runner of the program before fusion, if there is one."""
        return None if self._unfused is None else Interpreted(self._unfused(), {})

    def run(
        self,
        given: Sequence[Any],
        sizes: Sizes = (),
        library: ArrayLibrary | None = None,
        into: Mapping[int, Any] | None = None,
    ) -> Sequence[Any]:
        outputs = self.outputs(given, sizes, library)
        for number, target in (into or {}).items():
            target[...] = outputs[number]
        return outputs

    def outputs(
        self, given: Sequence[Any], sizes: Sizes, library: ArrayLibrary | None
    ) -> Sequence[Any]:
        has_tensors = has_tensor(given)
        if has_tensors:
            from blockbuster_fusion.runtime.tensors import check_untraced

            check_untraced()
        if is_empty([np.shape(x) for x in given], sizes) and self.unfused is not None:
            return self.unfused.outputs(given, sizes, library)
        if not has_tensors and (library is None or library.name == "numpy"):
            return self.interpreted(given, sizes)
        from blockbuster_fusion.runtime.tensors import through_numpy

        dtypes = [self.graph.type(out.value).dtype for out in self.graph.outputs]
        return through_numpy(given, dtypes, lambda x: self.interpreted(x, sizes))

    def interpreted(self, given: Sequence[Any], sizes: Sizes) -> Sequence[Any]:
        tiles: dict[Dim | str, int] = dict(self.tiles.items())
        return interpret(self.graph, list(given), tiles, sizes=sizes)


def interpreted(choice: Choice, threads: int | None, elsewhere: Elsewhere) -> Interpreted:
    """The interpreting runner of a choice; `threads` and `elsewhere` have no effect."""
    return Interpreted(choice.graph, choice.tiles, choice.unfused)
