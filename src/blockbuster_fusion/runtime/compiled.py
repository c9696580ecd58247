"""Programs run by compiled kernels."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.runtime.arrays import ArrayLibrary, NumpyArrays, has_tensor
from blockbuster_fusion.runtime.bound import Bound, CompiledNest
from blockbuster_fusion.runtime.executable import Runner, Sizes
from blockbuster_fusion.runtime.ranges import Ranges
from blockbuster_fusion.runtime.recently_used import RecentlyUsed

MOST_BOUND = 64
"""The number of bound programs that are kept: one for each set of shapes and strides."""


class Compiled:
    """Runs a program by compiled kernels, one step after the other.

    `programs` compute the same, and `ranges` says which of them serves some sizes. `unfused` makes
    the runner for arrays without elements: that of the program before fusion. It is made when it is
    first needed.
    """

    def __init__(
        self,
        programs: Sequence[CompiledNest],
        ranges: Ranges | None = None,
        *,
        device: str,
        unfused: Callable[[], Runner] | None = None,
    ) -> None:
        self.programs, self.ranges = tuple(programs), ranges or Ranges()
        self.program = self.programs[0]
        self.nest: Nest | None = self.program.nest
        self.tiles, self.kernels = self.program.tiles, self.program.kernels
        self.source = self.kernels.source
        self.is_static = self.program.is_static
        self.device, self._unfused = device, unfused
        self.bound = RecentlyUsed[Bound](MOST_BOUND)
        self.numpy = NumpyArrays()

    def run(
        self,
        given: Sequence[Any],
        sizes: Sizes = (),
        library: ArrayLibrary | None = None,
        into: Mapping[int, Any] | None = None,
    ) -> Sequence[Any]:
        library = library or self.library(given)
        admitted = [
            library.admitted(name, x, dtype)
            for (name, dtype), x in zip(self.program.inputs, given, strict=True)
        ]
        bound = self.bound_for(admitted, sizes, library, into)
        if bound.is_empty and self.unfused is not None:
            return self.unfused.run(given, sizes, library, into)
        return bound.run(library, admitted, into)

    @property
    def nests(self) -> tuple[Nest, ...]:
        """The loop nests of all programs."""
        return tuple(program.nest for program in self.programs)

    @property
    def sources(self) -> tuple[str, ...]:
        """The texts of all programs."""
        return tuple(program.kernels.source for program in self.programs)

    @cached_property
    def unfused(self) -> Runner | None:
        """The runner of the program before fusion, if there is one."""
        return None if self._unfused is None else self._unfused()

    def bound_for(
        self,
        admitted: Sequence[Any],
        sizes: Sizes,
        library: ArrayLibrary,
        into: Mapping[int, Any] | None = None,
    ) -> Bound:
        """The program bound to the shapes and strides of these arrays; it serves all like them."""
        key = (library.name, sizes, *[library.seen(x) for x in admitted])
        if into:  # launches depend on the strides of these too
            key = (*key, *((number, library.seen(x)) for number, x in into.items()))
        bound = self.bound.get(key)
        if bound is None:
            bound = Bound(self.program, library, admitted, sizes)
            number = self.ranges.number(bound.extents.sizes)
            if number:
                bound = Bound(self.programs[number], library, admitted, sizes)
            if self.is_static:  # otherwise sizes may come from the results of an operator
                self.bound.put(key, bound)
        return bound

    def library(self, given: Sequence[Any]) -> ArrayLibrary:
        """The library of the outputs: that of the inputs, on the device of the kernels."""
        if self.device == "cpu" and not has_tensor(given):
            return self.numpy
        from blockbuster_fusion.runtime.tensors import library_for

        return library_for(given, self.device)
