"""Groups: operators of a graph that are run together, by kernels or by PyTorch."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch._logging._internal import getArtifactLogger
from torch.fx import Node

from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.nodes import name_of
from blockbuster_fusion.torch.to_array_program import PartProgram

CHEAP = "cheap, and needed in another form than kernels have it"
"""The reason why PyTorch runs an operator that parts compute anew."""
UNJOINED = "no kernel makes a piece of it"
"""The reason why PyTorch runs a concatenation."""


@dataclass(frozen=True)
class Fused:
    """A part with its kernels."""

    part: PartProgram
    region: str
    executable: Executable


@dataclass(frozen=True)
class Unfused:
    """An operator that PyTorch runs, with the reason."""

    node: Node
    region: str
    reason: str
    is_fallback: bool
    """True if the operator table knows it, so that a kernel was to be expected."""

    @property
    def operator(self) -> str:
        return name_of(self.node)


@dataclass(frozen=True)
class Joined:
    """A concatenation whose pieces are stored in place, by kernels if they compute them."""

    node: Node
    region: str


@dataclass(frozen=True)
class LibraryChoice:
    """A part that PyTorch's operators run, because kernels for it would be slower."""

    operators: tuple[str, ...]
    region: str
    library: Seconds
    """The measured time of PyTorch's operators."""
    kernels: Seconds
    """The time of the best kernels that there are."""
    basis: str
    """The source of the kernels' time: predicted, measured, or "at least" for the bound."""
    config: str
    """The configuration of these kernels; empty if none was looked for, or there is none."""
    recognised: tuple[str, ...] = ()
    """The operators, of PyTorch's or of the user's, that stand for several of these each."""
    bound: Seconds | None = None
    """The least time that any kernels could take: for bytes, products and one launch."""
    reason: str = ""
    """The reason why kernels do not run it."""
    obstacle: str = ""
    """The reason why there are no kernels for it, if that is so."""
    nodes: tuple[str, ...] = ()
    """The names of the operators in the graph."""
    sizes: str = ""
    """The range of sizes for which PyTorch runs it; empty for all."""
    elsewhere: tuple[str, ...] = ()
    """The ranges of sizes for which kernels run it."""
    called: tuple[str, ...] = ()
    """The words for the operators, as the model calls them."""

    def data(self) -> dict[str, Any]:
        """The choice as plain data."""
        return {
            "operators": [*self.operators],
            "region": self.region,
            "library_seconds": self.library.total(),
            "kernel_seconds": None if math.isinf(self.kernels.total()) else self.kernels.total(),
            "basis": self.basis,
            "config": self.config,
            "bound_seconds": None if self.bound is None else self.bound.total(),
            "reason": self.reason,
            "obstacle": self.obstacle,
            "recognised": [*self.recognised],
            "sizes": self.sizes,
            "kernels_for": [*self.elsewhere],
        }

    def __str__(self) -> str:
        words = ", ".join(dict.fromkeys(self.called))
        if self.recognised:
            words += " as " + ", ".join(
                dict.fromkeys(name.split(".")[1] for name in self.recognised)
            )
        where = f" in {self.region}" if self.region else ""
        where += f", {self.sizes}" if self.sizes else ""
        reason = f"; {self.reason}" if self.reason else ""
        others = f"; kernels run it for {' and '.join(self.elsewhere)}" if self.elsewhere else ""
        return f"{words}{where}: {self.library} measured; {self._kernels()}{reason}{others}"

    def _kernels(self) -> str:
        """The best kernels in words."""
        if self.obstacle:
            bound = "" if self.bound is None else f", of at least {self.bound}"
            return f"kernels{bound}: there are none: {self.obstacle}"
        ours = f"kernels {self.kernels} {self.basis}"
        if self.config:
            ours += f" ({self.config})"
        if self.bound is not None and self.basis != "at least":
            ours += f", at least {self.bound}"
        return ours


@dataclass(frozen=True)
class Library:
    """An operator that PyTorch runs by choice."""

    node: Node
    region: str
    choice: LibraryChoice


Group = Fused | Unfused | Joined | Library
"""Operators that are run together."""

KernelNames = dict[tuple[int, str], str]
"""The name of each kernel in a model, by the id of its executable and its own name."""


def distinct_names(groups: Iterable[Group]) -> KernelNames:
    """A distinct name for each kernel, by its executable's id and its own name.

    It is the kernel's own name, with a number if other kernels have it too.
    """
    found: KernelNames = {}
    used: set[str] = set()
    for part in (g for g in groups if isinstance(g, Fused)):
        for kernel in (k for nest in part.executable.nests for k in nest.launches):
            key = (id(part.executable), kernel.name)
            if key in found:
                continue
            name, number = kernel.name, 1
            while name in used:
                number += 1
                name = f"{kernel.name}_{number}"
            used.add(name)
            found[key] = name
    return found


output_code = getArtifactLogger("torch.blockbuster_fusion", "output_code")
"""The log that TORCH_LOGS=output_code shows; PyTorch has handlers for its own loggers alone."""


def log_sources(groups: Iterable[Group], names: KernelNames) -> None:
    """Logs the source of each executable once, with the names of its kernels."""
    logs = [logger for logger in (log, output_code) if logger.isEnabledFor(logging.DEBUG)]
    if not logs:
        return
    fused = [g for g in groups if isinstance(g, Fused)]
    for executable in {id(f.executable): f.executable for f in fused}.values():
        own = dict.fromkeys(k.name for nest in executable.nests for k in nest.launches)
        kernels = [names[id(executable), name] for name in own]
        for logger in logs:
            for source in executable.sources:
                logger.debug("kernel %s:\n%s", ", ".join(kernels), source)
