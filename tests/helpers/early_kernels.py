"""Kernels that start before the one before them has ended, by printed Triton kernels."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.passes.join_grids import join_grids
from blockbuster_fusion.nest.passes.start_early import start_early
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.effort import part
from helpers.together import TOGETHER, random_cases

ACCESS = re.compile(r"\b((ld|st|atom|red|prefetch)\S*\.global|cp\.async|cp\.reduce|ld\.b|ld\.u)")
"""Instructions that load from the memory that kernels share, or store into it."""
BRANCH = re.compile(r"\bbra\b|^\$L__BB")
"""Branches and their targets: what is before the first of them is run by all threads."""
WAIT, SIGNAL = "griddepcontrol.wait", "griddepcontrol.launch_dependents"


def norm_swiglu(x: Any, w: Any, v: Any, u: Any) -> Any:
    y = x / bb.ops.sqrt(bb.ops.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return x + (bb.ops.silu(y @ w.T) * (y @ v.T)) @ u.T


SWIGLU = {"x": "M D", "w": "K D", "v": "K D", "u": "D K"}


@dataclass(frozen=True)
class EarlyCase:
    """A program with fixed sizes, and the options in which it differs from the best schedule."""

    function: Any
    specs: dict[str, str]
    sizes: dict[str, int]
    options: tuple[tuple[str, Any], ...] = ()

    def program(self) -> ArrayProgram:
        return bb.trace(self.function, **self.specs)

    def choice(self) -> Choice:
        """The best choice for an H200 in bfloat16, whose kernels start early."""
        program = self.program()
        request = Request(program, target="cuda", sizes=self.sizes, dtype="bfloat16", capability=90)
        best = improved(choose(request), (), known()["h200"])[0]
        schedule = replace(best.schedule, **dict(self.options), early=True)
        return replace(best, schedule=schedule)


def _sizes(m: int, d: int, k: int) -> dict[str, int]:
    return {"M": m, "D": d, "K": k}


PRODUCT = (lambda x, w: x @ w.T, {"x": "M D", "w": "N D"})
CASES = {
    "one row": EarlyCase(norm_swiglu, SWIGLU, _sizes(1, 1024, 2816)),
    "sixteen rows": EarlyCase(norm_swiglu, SWIGLU, _sizes(16, 1024, 2816)),
    "ragged": EarlyCase(norm_swiglu, SWIGLU, _sizes(77, 1000, 2821)),
    "large product": EarlyCase(*PRODUCT, {"M": 4096, "N": 4096, "D": 4096}),
    "in turns": EarlyCase(
        *PRODUCT, {"M": 4096, "N": 4096, "D": 4096}, (("programs", 132), ("described", False))
    ),
    "added": EarlyCase(
        *PRODUCT, {"M": 16, "N": 1024, "D": 8192}, (("split", {"D": 4}), ("atomic", True))
    ),
    "softmax": EarlyCase(
        lambda x: bb.ops.softmax(x, axis=-1), {"x": "M D"}, {"M": 64, "D": 128256}
    ),
    "sum": EarlyCase(lambda x: bb.ops.sum(x, axis=-1), {"x": "M D"}, {"M": 200, "D": 100000}),
    "transpose": EarlyCase(lambda x, y: x + y.T, {"x": "M N", "y": "N M"}, {"M": 2048, "N": 2048}),
}
"""Programs whose kernels have loops and none, several launches, turns, descriptors and atomics."""


def early_errors() -> Iterator[dict[str, object]]:
    """The error of each program, and True if kernels that are not early give the same numbers.

    Kernels that share launches are among them.
    """
    from helpers import triton_runner

    for name, case in [*TOGETHER.items(), *random_cases(part(20))]:
        nest, given = join_grids(case.nest()), case.inputs()
        wanted = triton_runner.run(nest, given, case.tiles(nest))
        made = triton_runner.run(start_early(nest), given, case.tiles(nest))
        yield {
            "case": name,
            "error": relative_error(made, bb.evaluate(case.program(), given)),
            "same": all(np.array_equal(made[x], wanted[x], equal_nan=True) for x in wanted),
        }


def early_assembly() -> Iterator[dict[str, object]]:
    """For each kernel that is compiled, the lines on which it waits, signals and uses memory."""
    for name, case in CASES.items():
        choice = case.choice()
        yield from compiled(name, *choice.scheduled(), choice.schedule.launch)
    rng = random.Random(0)
    for name, case in random_cases(part(60, of=10)):
        if case.is_fixed:
            nest = case.nest(rng.choice((DType.bfloat16, DType.float32)))
            nest = join_grids(nest) if rng.random() < 0.5 else nest
            yield from compiled(name, start_early(nest), case.tiles(nest), {})


def compiled(
    name: str, nest: Nest, tiles: Mapping[Dim, int], options: Mapping[str, int]
) -> Iterator[dict[str, object]]:
    """The kernels of a nest, compiled for an H200."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles, options=options)
    for launched in nest.launches:
        yield {"case": f"{name}: {launched.name}", **places(made[launched.name].assembly)}


def places(assembly: str) -> dict[str, object]:
    """The lines of a kernel's assembly on which it waits, signals, branches, and uses memory."""
    code = assembly[assembly.index(".entry") :].splitlines()
    lines = [line.split("//")[0].strip() for line in code]

    def found(wanted: str) -> list[int]:
        return [at for at, line in enumerate(lines) if wanted in line]

    def first(pattern: re.Pattern[str]) -> int:
        return next((at for at, line in enumerate(lines) if pattern.search(line)), len(lines))

    numbers = {"branch": first(BRANCH), "access": first(ACCESS)}
    return {"waits": found(WAIT), "signals": found(SIGNAL), **numbers}
