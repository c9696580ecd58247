"""A tape of launches on a GPU: one call of the driver's tape (runtime/triton/driver.py)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from blockbuster_fusion.torch.plan.c_tape import Address

if TYPE_CHECKING:  # it needs Triton
    from blockbuster_fusion.runtime.triton.driver import DriverLaunch


class GpuTape:
    """Launches that one call runs in order; `Tape` is that of a CPU."""

    def __init__(
        self, launches: "Sequence[tuple[DriverLaunch, Sequence[Address]]]", device: torch.device
    ) -> None:
        from blockbuster_fusion.runtime.triton.driver import Launches

        self.device = device
        located = [(launch, [(x.base, x.offset) for x in places]) for launch, places in launches]
        self.launches = Launches(located, device.index)

    def __call__(self, addresses: Any, values: Sequence[Any] = ()) -> None:
        """Runs the launches; `addresses` are those of the bases."""
        if torch.cuda.current_device() == self.device.index:
            self.launches(addresses)
        else:
            with torch.cuda.device(self.device):  # the driver launches in the current context
                self.launches(addresses)

    def apart(self, values: Sequence[Any] = ()) -> Iterator[Callable[[Any], None]]:
        """Each launch as a function of the addresses of the bases."""
        for at in range(len(self.launches.names)):
            yield partial(self.launches, first=at, count=1)
