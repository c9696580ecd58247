"""A tape of launches on a GPU: one call of the driver's tape (runtime/triton/driver.py)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.errors import LaunchFailed
from blockbuster_fusion.runtime.triton.library_call_source import DIFFERS, UNFIT
from blockbuster_fusion.runtime.triton.library_calls import (
    LibraryCall,
    Release,
    Result,
    array_at,
    handle_of,
    tensor_of,
)
from blockbuster_fusion.torch.plan.c_tape import Address
from blockbuster_fusion.torch.plan.sized import CallNumbers, GpuKernel
from blockbuster_fusion.torch.plan.steps import with_strides

if TYPE_CHECKING:  # it needs Triton
    from blockbuster_fusion.runtime.triton.driver import DriverLaunch, Stopped

    Action = DriverLaunch | GpuKernel | LibraryCall | Release


class GpuTape:
    """Launches that one call runs in order; `Tape` is that of a CPU.

    A call in which none of a kernel's forms fits launches it by Triton, and adds a form: that is
    the first call, and the first with numbers that Triton compiles another kernel for.
    """

    def __init__(
        self,
        launches: "Sequence[tuple[Action, Sequence[Address]]]",
        device: torch.device,
        met: dict[int, tuple[int, ...]],
    ) -> None:
        """The strides of results that are not as PyTorch tells are noted in `met`."""
        from blockbuster_fusion.runtime.triton.driver import Launches

        self.device, self.met = device, met
        self.places = [places for _, places in launches]
        self.calls = {n: x for n, (x, _) in enumerate(launches) if isinstance(x, LibraryCall)}
        self.kernels = {n: x for n, (x, _) in enumerate(launches) if isinstance(x, GpuKernel)}
        others = [slot for x, _ in launches if isinstance(x, LibraryCall) for slot in x.given]
        self.numbers = CallNumbers([x.buffers for x in self.kernels.values()], others)
        located = [
            (_forms(x) if isinstance(x, GpuKernel) else x, [(p.base, p.offset) for p in places])
            for x, places in launches
        ]
        names = [x.name for x, _ in launches]
        self.launches = Launches(located, device.index, names, self.numbers.places)
        self.is_compiled = False

    def lines(self, name: Callable[[str, Any], str], values: str) -> Iterator[str]:
        """The text of a call, of the addresses `a` of the bases, with names for what it needs.

        It runs the launches on the current device, and saves some calls of Python's.
        """
        launches = self.launches
        numbers = f"{name('read', self.numbers.read)}({values})" if self.numbers.count else "None"
        stream = name("stream", torch._C._cuda_getCurrentRawStream)
        mode = name("mode", torch.is_inference_mode_enabled)
        place = f"{stream}({launches.device}), {launches.device}, {mode}()"
        yield f"numbers = {numbers}"
        first = f"{launches.start}, {len(self.places)}"
        yield f"failed = {name('play', launches.play)}({first}, a, numbers, {place})"
        yield f"if failed: {name('tape', self)}.resume(failed, a, numbers)"

    def resume(self, failed: int, addresses: Any, numbers: Any) -> None:
        """Runs the launch at which a call has stopped, and those after it."""
        stopped = self.launches.stopped(failed)
        self.go_on(stopped, addresses, numbers, len(self.places))

    def run(self, addresses: Any, values: Sequence[Any], first: int, count: int) -> None:
        """Runs some of the launches."""
        numbers = self.numbers.read(values) if self.numbers.count else None
        stopped = self.launches(addresses, first, count, numbers)
        self.go_on(stopped, addresses, numbers, first + count)

    def go_on(self, stopped: "Stopped | None", addresses: Any, numbers: Any, end: int) -> None:
        """Runs the launches from one that has stopped on, up to `end`."""
        while stopped is not None:
            if stopped.reason == UNFIT:
                self.meet(stopped.at, addresses, numbers)
            elif stopped.reason == DIFFERS:
                call = self.calls[stopped.at]
                self.keep(
                    call, {x.number: self.taken(x, addresses) for x in call.results}, addresses
                )
            else:
                self.repeat(stopped.at, addresses)
            first = stopped.at + 1
            stopped = self.launches(addresses, first, end - first, numbers)

    def taken(self, x: Result, addresses: Any) -> torch.Tensor:
        """A result of a call from C as a tensor, which C does not keep any more."""
        found, addresses[x.handle] = tensor_of(addresses[x.handle]), None
        return found

    def repeat(self, number: int, addresses: Any) -> None:
        """Calls an operator from Python after it has failed: an error is then PyTorch's own."""
        call = self.calls[number]
        assert call.again is not None
        places = zip(self.places[number], call.operands, strict=True)
        made = call.again(
            [array_at(addresses[p.base] + p.offset, x, call.device) for p, x in places]
        )
        results = dict(enumerate(made if isinstance(made, tuple) else (made,)))
        self.keep(call, results, addresses)

    def keep(self, call: LibraryCall, results: Mapping[int, torch.Tensor], addresses: Any) -> None:
        """Has C keep the results of a call, by number.

        Those that lie otherwise than expected are copied, and their strides are noted.
        """
        for x in call.results:
            found = results[x.number]
            if tuple(found.shape) != x.shape or found.dtype != x.dtype:
                other = f"{x.dtype} of shape {x.shape}, as PyTorch tells"
                problem = f"it gives {found.dtype} of shape {tuple(found.shape)}, not {other}"
                raise LaunchFailed(name=call.name, problem=problem)
            if found.stride() != x.strides:
                self.met[x.key] = tuple(found.stride())
            found = with_strides(found, x.strides)
            addresses[x.address], addresses[x.handle] = found.data_ptr(), handle_of(found)

    def meet(self, number: int, addresses: Any, numbers: Any) -> None:
        """Runs a launch for numbers that none of its forms fits, and adds a form for such."""
        kernel, places = self.kernels[number], self.numbers.places
        if not self.is_compiled:
            self.compile(numbers)
        found = [(addresses[x.base] or 0) + x.offset for x in self.places[number]]
        own = found[: len(kernel.dtypes)]
        launch = kernel.launch(numbers, places)
        launch(kernel.arrays(own))
        form = kernel.form(launch, own, numbers, places)
        if form is not None:
            self.launches.add(number, form)

    def compile(self, numbers: Any) -> None:
        """Compiles all kernels at the same time, for the strides that their arrays have here."""
        from blockbuster_fusion.runtime.triton.ahead import compile_launches

        self.is_compiled = True
        with contextlib.suppress(Exception):  # a launch tells what is wrong
            found = [x.launch(numbers, self.numbers.places) for x in self.kernels.values()]
            compile_launches(found, self.device)

    def apart(self, values: Sequence[Any] = ()) -> Iterator[Callable[[Any], None]]:
        """Each launch as a function of the addresses of the bases."""
        for at in range(len(self.places)):
            yield partial(self.run, values=values, first=at, count=1)


def _forms(kernel: GpuKernel) -> int:
    """The most forms that a kernel may have."""
    from blockbuster_fusion.runtime.triton.driver import FEW_FORMS, MOST_FORMS

    return MOST_FORMS if kernel.buffers.is_sized else FEW_FORMS
