"""The work of the kernels of a part: launches, the bytes of each array, and the predicted time."""

from collections.abc import Mapping
from dataclasses import dataclass

from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.plans.plan import Launch
from blockbuster_fusion.plans.predicted import touched
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.schedule.cost import Seconds, predicted
from blockbuster_fusion.schedule.count_work import work_of


@dataclass(frozen=True)
class KernelWork:
    """The work of the kernels of a part, for sizes that are known."""

    launches: tuple[Launch, ...] = ()
    read: Mapping[str, int] | None = None
    """The bytes of each array of the program; None if it is interpreted."""
    written: Mapping[str, int] | None = None
    predicted: Seconds | None = None


def kernel_work(
    executable: Executable, tiling: Tiling, machine: Machine | None, names: Mapping[str, str]
) -> KernelWork:
    """The work of the kernels of a part; `names` has the name of each in the model."""
    nest, config = executable.nest, executable.config
    if nest is None:
        return KernelWork()
    launches, read, written = list[Launch](), dict[str, int](), dict[str, int]()
    for launched in nest.launches:
        moved = touched(launched, tiling)
        for into, found in zip((read, written), moved, strict=True):
            for buffer, size in found.items():
                into[buffer.name] = max(into.get(buffer.name, 0), size)
        works = [work_of(kernel, tiling, executable.target) for kernel in launched.kernels]
        flops = sum(work.products + work.operations for work in works)
        loaded, stored = (sum(found.values()) for found in moved)
        launches.append(Launch(names[launched.name], loaded, stored, int(flops)))
    time = None
    if machine is not None and config is not None:
        time = predicted(nest, tiling, machine, config.schedule)
    return KernelWork(tuple(launches), read, written, time)
