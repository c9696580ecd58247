"""Triton kernels: loading and launching."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from triton.compiler import CompiledKernel
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.messages import log
from blockbuster_fusion.nest.analysis.shared_memory import USUAL_SHARED
from blockbuster_fusion.nest.nest import Buffer, Launchable, Nest
from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.printers.triton.launch_plan import LaunchPlan, LaunchPlanner, options_of
from blockbuster_fusion.printers.triton.tiles import Halving, seen_outside
from blockbuster_fusion.runtime.traced import Number, Trace
from blockbuster_fusion.runtime.triton.descriptors import Matrix, described, is_describable
from blockbuster_fusion.runtime.triton.driver import DriverLaunch, Odd, driver_launch, single
from blockbuster_fusion.runtime.triton.modules import load
from blockbuster_fusion.runtime.triton.variants import ALIGNED, Arguments, Variants, placeholder

SHORT, LONG = 64, 1 << 20
"""The lengths of changing sizes for which kernels are compiled before they are needed."""
NARROW = 1 << 31
"""Integers from here on are of 64 bits in a kernel."""
TORCH = {dtype: getattr(torch, dtype.value) for dtype in DType}


class TritonKernels:
    """The kernels of a nest, ready to be launched.

    `tiles` and `options` (num_warps, num_stages, group) are the defaults of launches. `shared` is
    the number of bytes of shared memory that one program may take.
    """

    def __init__(
        self,
        nest: Nest,
        tiles: Mapping[Dim, int] | None = None,
        *,
        options: Mapping[str, int] | None = None,
        source: str | None = None,
        shared: int = USUAL_SHARED,
    ) -> None:
        self.source = print_triton(nest) if source is None else source
        self.tiles, self.options = dict(tiles or {}), dict(options or {})
        module = load(self.source)
        self.nest = nest  # kept, so that no other kernel gets the id of one of its own
        self._launchers = {
            id(launched): Launcher(launched, getattr(module, launched.name), shared, self.source)
            for launched in nest.launches
        }

    def bind(
        self,
        kernel: Launchable,
        strides: Sequence[Sequence[int]],
        sizes: Mapping[Symbol, int],
        *,
        elements: int = 0,
    ) -> Callable[[Sequence[torch.Tensor]], None]:
        """A launch for tensors with these strides, in the order of its global buffers.

        If the GPU lacks resources for it, it gets fewer stages, and then smaller tiles.
        """
        launcher = self._launchers[id(kernel)]
        named = {symbol.name: size for symbol, size in sizes.items()}
        options = options_of(kernel, self.nest.kernels, self.options)
        return FittingLaunch(launcher, named, self.tiles, options, strides)

    def launch(
        self,
        kernel: Launchable,
        tensors: Mapping[Buffer, torch.Tensor],
        sizes: Mapping[str, int],
        tiles: Mapping[Dim, int] | None = None,
        options: Mapping[str, int] | None = None,
    ) -> None:
        """Runs one launch with just these tiles and options, or OutOfResources.

        Axes of tensors are in the order of the buffers'; strides are free.
        """
        launcher = self._launchers[id(kernel)]
        chosen = options or options_of(kernel, self.nest.kernels, self.options)
        plan = launcher.plan(sizes, {**self.tiles, **(tiles or {})}, chosen)
        given = [tensors[buffer] for buffer in launcher.buffers]
        launcher.bound(plan, [x.stride() for x in given])(given)


# ------------------------------------------------------------------------ launching


class Launcher(LaunchPlanner):
    """One kernel, or several of one launch, and the arguments of its function."""

    def __init__(
        self, launched: Launchable, function: Any, shared: int = USUAL_SHARED, source: str = ""
    ) -> None:
        """`source` is the text of the function's module."""
        super().__init__(launched, shared)
        self.function, self.source = function, source
        self.parameters: list[str] = list(function.arg_names)
        at = {name: i for i, name in enumerate(self.parameters)}
        self.pointers = [at.get(self.names.pointers[b]) for b in self.buffers]
        self.scratch = [at[self.names.pointers[b]] for b in self.names.copies]
        self.variants = Variants(launched, self.names, function)

    def numbers(
        self, plan: LaunchPlan, strides: Sequence[Sequence[int]]
    ) -> tuple[Arguments, frozenset[str]]:
        """The numbers of a launch, and the names of those that may differ in later calls."""
        known: Arguments = dict(plan.constants)
        own = dict(zip(self.buffers, strides, strict=True))
        copies = {b: contiguous(shape) for b, shape in plan.scratch}
        for buffer, numbers in own.items():
            known.update(zip(self.names.strides[buffer], numbers, strict=True))
        for buffer, numbers in copies.items():
            names = (self.names.copies[buffer], *self.names.strides[buffer])
            known.update(zip(names, numbers, strict=True))
        return known, self.variants.changing(own, copies)

    def compile_forms(
        self,
        sizes: Mapping[str, int],
        tiles: Mapping[Dim, int],
        options: Mapping[str, int],
        strides: Sequence[Sequence[int]],
    ) -> None:
        """Compiles all forms that calls with other sizes need, unless that is done."""
        for length in (None, SHORT, LONG):
            own = sizes if length is None else dict.fromkeys(sizes, length)
            plan = self.plan(own, tiles, options)
            for function, numbers in self.variants.all_forms(*self.numbers(plan, strides)):
                self.compile_form(function, numbers, plan.options, {})

    def compile_form(
        self,
        function: Any,
        numbers: Arguments,
        options: Mapping[str, int],
        matrices: Mapping[int, Matrix],
    ) -> None:
        """Compiles a function for some numbers and matrices, unless that is done."""
        self.variants.compile(function, self.values(numbers, matrices), options, self.shared)

    def values(self, numbers: Arguments, matrices: Mapping[int, Matrix]) -> list[Any]:
        """The arguments of the function, with placeholders for arrays."""
        arrays = {n: placeholder(TORCH[b.dtype]) for b, n in self.names.pointers.items()}
        given = [arrays.get(name, numbers.get(name)) for name in self.parameters]
        return [*described(given, matrices)]

    def matrices(self, plan: LaunchPlan, strides: Sequence[Sequence[int]]) -> dict[int, Matrix]:
        """The arrays that descriptors load, by their places among the arguments."""
        own = dict(zip(self.buffers, zip(self.pointers, strides, strict=True), strict=True))
        found: dict[int, Matrix] = {}
        for buffer, (shape, block) in plan.matrices.items():
            place, steps = own[buffer]
            if place is not None and is_describable(shape, steps, buffer.dtype.bytes):
                found[place] = Matrix(shape, tuple(steps), block)
        for one, other in plan.joined:
            (place, steps), (second, same) = own[one], own[other]
            if place in found and second in found and steps == same:
                size = found[place].shape[0] * steps[0] * one.dtype.bytes
                found[place] = replace(found[place], other=second, bytes=size)
        return found

    def bound(
        self, plan: LaunchPlan, strides: Sequence[Sequence[int]]
    ) -> Callable[[Sequence[torch.Tensor]], None]:
        """A launch for tensors with these strides."""
        function, template = self.form(plan, strides)
        if not plan.grid[0]:
            return lambda tensors: None
        matrices = self.matrices(plan, strides)
        return BoundLaunch(function, template, plan, self.pointers, self.scratch, matrices)

    def form(self, plan: LaunchPlan, strides: Sequence[Sequence[int]]) -> tuple[Any, list[Any]]:
        """The function for a launch, and its arguments; None stands for a tensor."""
        function, known = self.variants.fitting(*self.numbers(plan, strides))
        return function, [known.get(name) for name in self.parameters]

    def traced(self, plan: LaunchPlan, strides: Sequence[Sequence[int]]) -> list[Any]:
        """The arguments of numbers that are traced, with guards of all that Triton looks at.

        It compiles a kernel for the values of integers, unless they change, and for their widths.
        """
        known, changing = self.numbers(plan, strides)
        _, known = self.variants.fitting(known, changing)
        for name, x in known.items():
            if name in changing:
                _is_narrow = -NARROW <= x < NARROW
            elif isinstance(x, Number):
                known[name] = int(x)
        return [known.get(name) for name in self.parameters]


class BoundLaunch:
    """A launch with given numbers, for any tensors with the strides that they stand for.

    In each call Triton looks at all arguments, to find the kernel that was compiled for such. Here
    only addresses differ. So the kernel that a first call found serves all later ones on the same
    device in which the same arrays are aligned. The driver launches it.
    """

    def __init__(
        self,
        function: Any,
        template: Sequence[Any],
        plan: LaunchPlan,
        pointers: Sequence[int | None],
        scratch: Sequence[int],
        matrices: Mapping[int, Matrix],
    ) -> None:
        """`pointers`, `scratch` and `matrices` have the places of arrays among the arguments."""
        self.function, self.template, self.plan = function, template, plan
        self.matrices = matrices
        places = (*pointers, *scratch)
        self.given = [(at, number) for number, at in enumerate(places) if at is not None]
        """The places of arrays, with the numbers of the arrays; scratch comes last."""
        self.known: dict[tuple[torch.device, Odd], Callable[[Sequence[int]], object]] = {}
        """The launches of compiled kernels, which take the addresses of arrays."""
        self.compiled: dict[tuple[torch.device, Odd], CompiledKernel] = {}

    def by_driver(
        self,
        device: torch.device,
        odd: Odd,
        grid: Sequence[Any] | None = None,
        template: Sequence[Any] | None = None,
        trace: Trace | None = None,
    ) -> DriverLaunch | None:
        """The launch as the driver takes it; None if no call on the device has been that simple.

        A trace comes with the grid and the arguments that it is of.
        """
        compiled = self.compiled.get((device, odd))
        if compiled is None:
            return None
        shapes = [(shape, TORCH[buffer.dtype]) for buffer, shape in self.plan.scratch]
        grid, template = grid or self.plan.grid, template or self.template
        matrices = self.matrices_at(odd)
        return driver_launch(compiled, grid, template, self.given, shapes, trace, odd, matrices)

    def matrices_at(self, odd: Odd) -> dict[int, Matrix]:
        """The arrays that descriptors load: those at odd addresses are loaded by pointers."""
        even = {at for at, number in self.given if number not in odd}
        near = {at for at, number in self.given if ~number in odd}
        return {
            at: matrix if matrix.other in even and at not in near else replace(matrix, other=-1)
            for at, matrix in self.matrices.items()
            if at in even
        }

    def odd(self, addresses: Sequence[int]) -> Odd:
        """The arrays at odd addresses, of those that are given; memory of its own has none.

        One that overlaps with the array that its descriptor would be for as well, or is too far
        from it, has the number `~number`.
        """
        numbers = {at: number for at, number in self.given if number < len(addresses)}
        found = {number for number in numbers.values() if addresses[number] % ALIGNED}
        for at, matrix in self.matrices.items():
            if matrix.is_joined:
                both = addresses[numbers[at]], addresses[numbers[matrix.other]]
                found |= set() if matrix.are_apart(*both) else {~numbers[at]}
        return frozenset(found)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        device = tensors[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):  # kernels are launched on the current one
                self(tensors)
            return
        arrays = [*tensors, *(_scratch(b, shape, device) for b, shape in self.plan.scratch)]
        addresses = [array.data_ptr() for array in arrays]
        odd = self.odd(addresses)
        launch = self.known.get((device, odd)) or self.found(arrays, device, odd)
        if launch is None:
            given = described(self.arguments(arrays), self.matrices_at(odd))
            self.function[self.plan.grid](*given, **self.plan.options)
        else:
            launch(addresses)

    def arguments(self, arrays: Sequence[Any]) -> list[Any]:
        """The arguments of the function, with arrays or their addresses among them."""
        made = [*self.template]
        for at, number in self.given:
            made[at] = arrays[number]
        return made

    def found(
        self, arrays: Sequence[torch.Tensor], device: torch.device, odd: Odd
    ) -> Callable[[Sequence[int]], object] | None:
        """The launch of the kernel that is compiled for such arrays; none by an interpreter."""
        if not isinstance(self.function, JITFunction):
            return None
        matrices, grid = self.matrices_at(odd), self.plan.grid
        given = described(self.arguments(arrays), matrices)
        compiled = self.function.warmup(*given, grid=grid, **self.plan.options)
        self.compiled[device, odd] = compiled
        launch = self.by_driver(device, odd)
        if launch is None and matrices:
            return None
        if launch is None:
            by_triton = compiled[grid]
            self.known[device, odd] = lambda addresses: by_triton(*self.arguments(addresses))
        else:
            self.known[device, odd] = single(launch, device.index, len(arrays))
        return self.known[device, odd]


class FittingLaunch:
    """A launch of a kernel that is made smaller until the GPU has the resources for it."""

    def __init__(
        self,
        launcher: Launcher,
        sizes: Mapping[str, int],
        tiles: Mapping[Dim, int],
        options: Mapping[str, int],
        strides: Sequence[Sequence[int]],
    ) -> None:
        self.launcher, self.sizes, self.strides = launcher, sizes, strides
        self.tiles, self.options = dict(tiles), dict(options)
        self.launch = self.bound()

    def bound(self) -> Callable[[Sequence[torch.Tensor]], None]:
        self.plan = self.launcher.plan(self.sizes, self.tiles, self.options)
        self.has_all_forms = not self.launcher.variants.are_compiled
        return self.launcher.bound(self.plan, self.strides)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        if not self.has_all_forms:
            self.launcher.compile_forms(self.sizes, self.tiles, self.options, self.strides)
            self.has_all_forms = True
        while True:
            try:
                self.launch(tensors)
            except OutOfResources as error:
                self.make_smaller(error)
            else:
                return

    def compile(self) -> None:
        """Compiles all forms of the kernel, and launches none."""
        launcher = self.launcher
        if self.has_all_forms:
            launcher.variants.compile(*self.form, launcher.shared)
        else:
            launcher.compile_forms(self.sizes, self.tiles, self.options, self.strides)

    @property
    def is_new(self) -> bool:
        """True if the kernel has one form, which this process has not compiled."""
        return self.has_all_forms and not self.launcher.variants.knows(*self.form)

    @property
    def form(self) -> tuple[Any, list[Any], Mapping[str, int]]:
        """The function, with placeholders for arrays among its arguments, and its options."""
        launcher = self.launcher
        function, numbers = launcher.variants.fitting(*launcher.numbers(self.plan, self.strides))
        matrices = launcher.matrices(self.plan, self.strides)
        return function, launcher.values(numbers, matrices), self.plan.options

    def by_driver(self, device: torch.device, addresses: Sequence[int]) -> DriverLaunch | None:
        """The launch as the driver takes it, if it has run on a device with such addresses."""
        launch = self.launch
        if not isinstance(launch, BoundLaunch):
            return None
        return launch.by_driver(device, launch.odd(addresses))

    def traced(
        self,
        device: torch.device,
        addresses: Sequence[int],
        trace: Trace,
        sizes: Mapping[str, Any],
        strides: Sequence[Sequence[Any]],
    ) -> DriverLaunch | None:
        """The launch for all sizes and strides that pass the guards of a trace.

        The sizes and strides have the values of this launch, which has run on the device with
        arrays at these addresses.
        """
        if not isinstance(self.launch, BoundLaunch):
            return None
        plan = self.launcher.plan(sizes, self.tiles, self.options)
        template = self.launcher.traced(plan, strides)
        odd = self.launch.odd(addresses)
        return self.launch.by_driver(device, odd, plan.grid, template, trace)

    def make_smaller(self, error: OutOfResources) -> None:
        """One stage less, or else half the longest tile that may be halved; if none, the error."""
        launched, stages = self.launcher.launched, self.plan.options["num_stages"]
        if stages > 1:
            self.options["num_stages"] = stages - 1
            change = f"{stages - 1} instead of {stages} stages"
        else:
            shared = seen_outside(launched)
            halvings = [Halving(k, self.sizes, shared, launched.kernels) for k in launched.kernels]
            dims = [dim for halving in halvings for dim in halving.halvable(self.tiles)]
            longest = max(dims, key=self.tiles.__getitem__, default=None)
            if longest is None:
                raise error
            self.tiles[longest] //= 2
            change = f"tiles of {self.tiles[longest]} for {longest.label}"
        log.warning("kernel %s gets %s: %s", launched.name, change, error)
        self.launch = self.bound()


def _scratch(buffer: Buffer, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=TORCH[buffer.dtype], device=device)
