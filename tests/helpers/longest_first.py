"""Attention whose longest programs start first, by printed Triton kernels, on ragged sizes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.choice import BETWEEN, ON_A_GPU
from blockbuster_fusion.nest.analysis.longest_last import longest_last
from blockbuster_fusion.nest.nest import Grids, Nest
from blockbuster_fusion.nest.passes.join_grids import join_grids
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.passes import run_passes
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from blockbuster_fusion.tools.check.judge import relative_error
from helpers.attention_forms import FORMS, QKV, attended, dots, inputs_of, places


def anti_causal(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where(t >= r, s, float("-inf")), v)


def two_masks(q: Array, k: Array, v: Array, Q: Array, K: Array, V: Array) -> dict[str, Array]:
    """Two attentions that do not depend on one another: a causal one, and one of all keys."""
    s = dots(q, k) * 0.25
    t, r = places(s)
    causal = attended(ops.where(t <= r, s, float("-inf")), v)
    return {"O1": causal, "O2": attended(dots(Q, K) * 0.25, V)}


@dataclass(frozen=True)
class Case:
    """A form of attention in a schedule, and the rows that start in reverse, if any."""

    program: ArrayProgram
    schedule: Schedule = field(default_factory=Schedule)
    group: int = 2
    is_down: bool = True
    sizes: dict[str, int] = field(default_factory=dict)

    def nest(self) -> Nest:
        fusion = bb.fuse(bb.lower(self.program), unit=("D", "E"))
        nest = scheduled(fusion.snapshots[fusion.most_fused], "longest", self.schedule)
        nest = run_passes((*BETWEEN, *ON_A_GPU), nest)
        if self.schedule.together:
            nest = join_grids(nest)
            assert any(isinstance(step, Grids) for step in nest.steps)
        verify_nest(nest)
        return nest


OTHER = {"Q": "C P D:16", "K": "C U D:16", "V": "C U E:16"}
EXTENTS = {"S": 37, "T": 53, "B": 2, "H": 1, "C": 2, "P": 21, "U": 35}
LONGEST = {
    "causal": Case(FORMS["added_mask"].traced()),
    "all heads at once": Case(FORMS["added_mask"].traced(), group=32),
    "one head at a time": Case(FORMS["added_mask"].traced(), group=1),
    "more rows than keys": Case(FORMS["added_mask"].traced(), sizes={"S": 53, "T": 37}),
    "offset": Case(FORMS["offset_of_sizes"].traced()),
    "offset that is data": Case(FORMS["offset_that_is_an_input"].traced()),
    "positions that are data": Case(FORMS["cache_positions"].traced()),
    "groups of heads": Case(FORMS["groups_of_heads"].traced(), group=3),
    "window": Case(FORMS["window_and_padding"].traced()),
    "lengths": Case(FORMS["lengths_of_each"].traced(), is_down=False),
    "no mask": Case(FORMS["safe_with_any_mask"].traced(), is_down=False),
    "earlier keys masked": Case(bb.trace(anti_causal, **QKV), is_down=False),
    "in turns": Case(FORMS["added_mask"].traced(), Schedule(programs=3)),
    "keys shared": Case(FORMS["added_mask"].traced(), Schedule(split={"T": 2})),
    "rows first": Case(FORMS["added_mask"].traced(), Schedule(order=("S", "H", "B"))),
    "together": Case(bb.trace(two_masks, **QKV, **OTHER), Schedule(together=True)),
}


def longest_errors() -> Iterator[dict[str, object]]:
    """The error of each case, PyTorch's, and whether rows start in reverse."""
    import torch

    from helpers import torch_reference, triton_runner

    for name, case in LONGEST.items():
        nest = case.nest()
        inputs = inputs_of(
            case.program, **{"S": 37, "T": 53, "U": 21, "B": 2, "H": 1, **case.sizes}
        )
        inputs = {
            n: x.astype(np.float32).astype(np.float64) if x.dtype == np.float64 else x
            for n, x in inputs.items()
        }
        exact = torch_reference.run(case.program, inputs, torch.float64)
        found = torch_reference.run(case.program, inputs, torch.float32)
        tiles = {d: 16 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        made = triton_runner.run(nest, inputs, tiles, options={"group": case.group})
        yield {
            "case": name,
            "is_down": any(longest_last(kernel) for kernel in nest.kernels),
            "error": relative_error(made, exact),
            "torch": max(2.0**-23, relative_error(found, exact)),
        }


def longest_resources() -> Iterator[dict[str, object]]:
    """The registers and spills of attention whose rows start in reverse."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for, symbols

    for name in ("causal", "groups of heads"):
        nest = LONGEST[name].nest()
        sizes = dict.fromkeys(symbols(nest), 1024)
        tiles = {d: 64 for k in nest.kernels for d in k.dims if d.packed and not d.unit}
        made = compile_for(nest, print_triton(nest), 90, sizes=sizes, tiles=tiles)
        yield {"case": name, "resources": str(made["longest"])}
