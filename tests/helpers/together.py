"""Independent kernels of one launch, by printed Triton kernels."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature
from typing import Any

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.choice import BETWEEN
from blockbuster_fusion.compiler import Request, choose, with_known_sizes
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.machine.machine import known
from blockbuster_fusion.nest.nest import Grids, Nest
from blockbuster_fusion.nest.passes.join_grids import join_grids
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.passes import run_passes
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.effort import FULL, part

Function = Callable[..., Any]
Body = tuple[Function, tuple[str, ...]]
"""A function of arrays, and the axes of the arrays; # stands for the number of the body."""

BODIES: dict[str, Body] = {
    "product": (lambda X, W: X @ W.T, ("M K", "N# K")),
    "straight": (lambda X, W: X @ W, ("M K", "K N#")),
    "gated": (
        lambda X, W, V: bb.ops.silu(X @ W.T) * (X @ V.T),
        ("M K", "N# K", "N# K"),
    ),
    "residual": (lambda X, W, R: X @ W.T + R, ("M K", "N# K", "M N#")),
    "vector": (lambda W, x: W @ x, ("N# K", "K")),
    "softmax": (lambda X: bb.ops.softmax(X, axis=-1), ("P# N#",)),
    "sums": (lambda X: bb.ops.sum(X, axis=-1), ("P# N#",)),
    "exponentials": (lambda X, R: bb.ops.exp(X) * R, ("P# N#", "N#")),
}
SHARED = {"M K": "X", "K": "x"}
"""The arrays that all bodies read, by their axes."""
LENGTHS = {"M": 19, "K": 70}
"""The lengths of the axes of these arrays."""


@dataclass(frozen=True)
class Together:
    """Bodies of one program, in a schedule; the sizes are known to the kernels or not."""

    bodies: tuple[str, ...]
    schedule: Schedule = field(default_factory=Schedule)
    is_fixed: bool = True
    sizes: dict[str, int] = field(default_factory=dict)
    tile: int = 16

    def specs(self) -> dict[str, str]:
        """The axes of the arrays by name."""
        made: dict[str, str] = {}
        for number, body in enumerate(self.bodies):
            for name, axes in zip("ABC", BODIES[body][1], strict=False):
                made[SHARED.get(axes, f"{name}{number}")] = axes.replace("#", str(number))
        return made

    def program(self) -> Any:
        specs = self.specs()
        names = [*specs]

        def function(*arrays: Any) -> dict[str, Any]:
            given = dict(zip(names, arrays, strict=True))
            made = {}
            for number, body in enumerate(self.bodies):
                function, axes = BODIES[body]
                pairs = zip("ABC", axes, strict=False)
                own = [given[SHARED.get(a, f"{name}{number}")] for name, a in pairs]
                made[f"O{number}"] = function(*own)
            return made

        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return bb.trace(function, **specs)

    def lengths(self) -> dict[str, int]:
        axes = {axis for own in self.specs().values() for axis in own.split()}
        return {axis: self.sizes.get(axis, LENGTHS.get(axis, 21)) for axis in sorted(axes)}

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng, lengths = np.random.default_rng(seed), self.lengths()
        made = {
            name: rng.standard_normal([lengths[axis] for axis in axes.split()])
            for name, axes in self.specs().items()
        }
        return {name: x.astype(np.float32).astype(np.float64) for name, x in made.items()}

    def nest(self, dtype: DType = DType.float32) -> Nest:
        """The kernels before they share launches."""
        graph = bb.lower(self.program())
        graph = with_known_sizes(graph, self.lengths()) if self.is_fixed else graph
        fused = stored_as(make_safe(bb.fuse(graph).fused[0]).graph, dtype)
        nest = scheduled(fused, "several", replace(self.schedule, apart=True), folds_late=True)
        return run_passes(BETWEEN, nest, None)

    def tiles(self, nest: Nest) -> dict[Any, int]:
        return {d: self.tile for k in nest.kernels for d in k.dims if d.packed and not d.unit}


def fixed_sizes(count: int) -> dict[str, int]:
    """Other lengths for the axes of each body, none of them whole blocks."""
    return {f"{name}{n}": 5 + 17 * n + at for n in range(count) for at, name in enumerate("NP")}


TOGETHER = {
    "queries, keys, values": Together(("product",) * 3, sizes={"N0": 45, "N1": 21, "N2": 21}),
    "one row": Together(("product",) * 3, sizes={"M": 1, "N0": 45, "N1": 21, "N2": 21}),
    "any sizes": Together(("product", "gated", "straight"), is_fixed=False),
    "split": Together(("product",) * 3, Schedule(split={"K": 3}), sizes={"N0": 45}),
    "split, any sizes": Together(("product", "residual"), Schedule(split={"K": 2}), False),
    "added": Together(("product",) * 2, Schedule(split={"K": 2}, atomic=True)),
    "five": Together(("product", "residual", "straight", "gated", "vector"), sizes={"N3": 33}),
    "streams": Together(("softmax", "sums", "exponentials"), sizes=fixed_sizes(3)),
    "outer": Together(("softmax", "exponentials"), Schedule(grid="outer"), sizes=fixed_sizes(2)),
    "products and streams": Together(("product", "softmax", "vector", "sums")),
}


def random_cases(count: int) -> Iterator[tuple[str, Together]]:
    """Random bodies in random schedules."""
    rng = random.Random(0)
    for number in range(count):
        bodies = tuple(rng.choices([*BODIES], k=rng.randint(2, 5)))
        has_products = any("K" in axes.split() for b in bodies for axes in BODIES[b][1])
        split = {"K": rng.randint(2, 4)} if has_products and rng.random() < 0.5 else {}
        atomic = bool(split) and rng.random() < 0.3
        grid = "all" if split else rng.choice(("all", "outer"))
        schedule = Schedule(grid=grid, split=split, atomic=atomic)
        names = [f"{name}{n}" for n in range(len(bodies)) for name in "NP"]
        sizes = {name: rng.randint(1, 50) for name in names}
        sizes |= {"M": rng.choice((1, 3, 16, 33)), "K": rng.randint(33, 90)}
        case = Together(bodies, schedule, rng.random() < 0.6, sizes)
        yield f"random {number}: {case}", case


def together_errors() -> Iterator[dict[str, object]]:
    """The error of each program, its launches, and True if launches apart give the same."""
    from helpers import triton_runner

    for name, case in [*TOGETHER.items(), *random_cases(part(60))]:
        nest, given = case.nest(), case.inputs()
        joined = join_grids(nest)
        verify_nest(joined)
        exact = bb.evaluate(case.program(), given)
        made = triton_runner.run(joined, given, case.tiles(nest))
        apart = triton_runner.run(nest, given, case.tiles(nest))
        yield {
            "case": name,
            "error": relative_error(made, exact),
            "same": all(np.array_equal(made[x], apart[x], equal_nan=True) for x in apart),
            "kernels": len(nest.kernels),
            "launches": [len(x.kernels) if isinstance(x, Grids) else 1 for x in joined.launches],
        }


WIDTHS = {"K": 2048, "N0": 2048, "N1": 512, "N2": 512}
LARGE = {
    "decode 1": Together(("vector",) * 3, sizes=WIDTHS),
    "decode 16": Together(("product",) * 3, sizes=WIDTHS | {"M": 16}),
    "prefill": Together(("product",) * 3, sizes=WIDTHS | {"M": 2048}),
}
"""The projections of queries, keys and values of a model with a billion weights."""
COMPILED = (*LARGE,) if FULL else ("decode 16",)
"""Those that are compiled: each takes seconds."""


def together_resources() -> Iterator[dict[str, object]]:
    """The resources of kernels together and apart, with tiles that are predicted to be good."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name in COMPILED:
        case = LARGE[name]
        program, sizes = case.program(), case.lengths()
        request = Request(program, target="cuda", sizes=sizes, dtype="bfloat16", capability=90)
        best = improved(choose(request), (), known()["h200"])[0]
        schedules = [replace(best.schedule, together=value) for value in (True, False)]
        found = [replace(best, schedule=schedule).scheduled() for schedule in schedules]
        options = best.schedule.launch
        together, apart = (
            compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles, options=options)
            for nest, tiles in found
        )
        yield {
            "case": name,
            "is_best": best.schedule.together,
            "launches": len(together),
            "kernels": len(apart),
            "spilled": sum(one.stack for one in together.values()),
            "shared": max(one.shared for one in together.values()),
            "each_shared": [one.shared for one in apart.values()],
            "together": [*map(str, together.values())],
            "apart": [*map(str, apart.values())],
        }
