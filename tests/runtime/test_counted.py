"""The bytes that kernels are predicted to move and touch, against counters compiled into them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.ir.tiling import Tiling
from blockbuster_fusion.nest.analysis.traffic import covered, traffic_of
from blockbuster_fusion.nest.nest import Nest, Space
from blockbuster_fusion.runtime.c.counted import counted
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.work import work_of
from blockbuster_fusion.tools.examples import EXAMPLES
from helpers import lookup_programs, placed_programs
from helpers.running import sizes_for

SIZES = {"M": 37, "N": 41, "K": 19, "D": 22, "L": 27, "S": 37, "V": 29, "E": 21, "B": 2, "H": 3}
"""Sizes of which no tile is a divisor."""
PLACES = 19
"""The rows at which programs look up and scatter; so many places are all different."""


@dataclass(frozen=True)
class Case:
    """A program, and how its kernels are made."""

    program: Callable[[], ArrayProgram]
    tile: int = 16
    schedule: Schedule | None = None
    dtype: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    unit: tuple[str, ...] | None = None

    def compiled(self, **changed: object) -> Executable:
        case = replace(self, **changed)
        program = case.program()
        dims = bb.lower(program).dims
        apart = {dim.name for dim in dims if not dim.packed}
        axes = {dim.name: case.tile for dim in dims if dim.name not in apart}
        return bb.compile(
            program,
            tiles=axes if case.tile else None,
            schedule=case.schedule,
            dtype=case.dtype,
            unit=case.unit,
            threads=1,
        )

    def arrays(self) -> list[np.ndarray]:
        program, rng = self.program(), np.random.default_rng(0)
        sizes = sizes_for(program, {**SIZES, **self.sizes})
        made = []
        for given in program.inputs:
            extents = [axis.extent for axis in given.type.axes]
            named = [sizes[axis.name] for axis in given.type.axes]
            shape = [n if isinstance(n, int) else m for n, m in zip(extents, named, strict=True)]
            dtype = given.type.dtype
            if dtype.is_float:
                made.append(rng.standard_normal(shape).astype(np.float32))
            else:
                places = (np.arange(shape[-1]) * 4 + 1) % PLACES
                made.append(np.broadcast_to(places, shape).astype(dtype.value))
        return made


def traced(function: Callable[..., object], **specs: object) -> Callable[[], ArrayProgram]:
    return lambda: bb.trace(function, **specs)


def example(name: str) -> Callable[[], ArrayProgram]:
    return EXAMPLES[name]


def causal_bias(Q, K, V, bias):  # noqa: ANN001, ANN201, N803
    """Causal attention whose bias is read below the diagonal only."""
    scores = Q @ K.T * 0.2 + bias
    rows, columns = ops.index(scores, 0), ops.index(scores, 1)
    return ops.softmax(ops.where(columns <= rows, scores, -np.inf)) @ V


BIASED = traced(causal_bias, Q="M D", K="N D", V="N L", bias="M N")
SQUARE = {"M": 41, "N": 41}
CASES = {
    **{name: Case(example(name)) for name in EXAMPLES if name not in ("decoder-layer",)},
    "default tiles": Case(example("rmsnorm-swiglu"), tile=0, sizes={"M": 300}),
    "one program": Case(example("layernorm-linear"), schedule=Schedule(grid="one")),
    "all loops": Case(example("matmul-relu"), schedule=Schedule(grid="all")),
    "bfloat16": Case(example("layernorm-matmul"), dtype="bfloat16"),
    "unit": Case(example("softmax"), unit=("N",)),
    "split sum": Case(example("matmul-relu"), schedule=Schedule(split={"K": 2})),
    "split sum, atomic": Case(
        example("matmul-relu"), schedule=Schedule(split={"K": 2}, atomic=True)
    ),
    "split softmax": Case(example("attention"), schedule=Schedule(split={"N": 2})),
    "more parts than blocks": Case(example("attention"), schedule=Schedule(split={"N": 5})),
    "prologue apart": Case(example("layernorm-linear"), schedule=Schedule(apart=True)),
    "causal": Case(example("causal-attention"), sizes=SQUARE),
    "sliding window": Case(example("sliding-window-attention"), tile=4, sizes=SQUARE),
    "causal bias": Case(BIASED, sizes=SQUARE),
    "causal bias, more keys": Case(BIASED, sizes={"M": 18, "N": 41}),
    "causal bias, more rows": Case(BIASED, tile=5, sizes={"M": 41, "N": 18}),
    "gate": Case(traced(lambda A, G: ops.swish(G) * A, A="M N", G="M N")),
    "transpose": Case(traced(lambda A: ops.transpose(A) * 2, A="M N")),
    "sum of rows": Case(traced(lambda A: ops.sum(A, axis=1), A="M N")),
    "sum of columns": Case(traced(lambda A: ops.sum(A, axis=0), A="M N")),
    "batches": Case(traced(lambda A, B: ops.softmax(A @ B), A="B M K", B="B K N", batch="B")),
    "scan": Case(traced(lambda A: ops.cumsum(A, axis=1), A="M N")),
    "scan of columns": Case(traced(lambda A: ops.cumsum(ops.exp(A), axis=0), A="M N")),
    "split scan": Case(
        traced(lambda A: ops.cumsum(A, axis=1), A="M N"), schedule=Schedule(split={"N": 2})
    ),
    "lookup": Case(lambda: lookup_programs.traced("embedding")),
    "lookup and norm": Case(lambda: lookup_programs.traced("three_embeddings")),
    "lookup and product": Case(lambda: lookup_programs.traced("embedding_and_projection")),
    "cross entropy": Case(lambda: lookup_programs.traced("cross_entropy"), sizes={"V": 37}),
    "scatter": Case(lambda: placed_programs.rows(19)),
    "scatter of a norm": Case(placed_programs.norm),
}

LOOKS_UP = ("lookup", "lookup and norm", "lookup and product", "cross entropy")
"""Programs in which only data tell what is touched: some places are equal."""


@pytest.mark.parametrize("name", CASES)
def test_predicted_bytes_are_those_that_kernels_count(name: str) -> None:
    """Moved and touched bytes of every array agree, kernel by kernel; so do the outputs."""
    case = CASES[name]
    program, arrays = case.compiled(), case.arrays()
    assert program.nest is not None
    outputs, counts, tiling = counted(program, *[x.copy() for x in arrays])
    for kernel in program.nest.kernels:
        expected = traffic_of(kernel, tiling)
        assert counts[kernel.name].moved == expected.moved
        if name not in LOOKS_UP:
            assert counts[kernel.name].touched == expected.touched
        for buffer, (read, written) in counts[kernel.name].touched.items():
            assert read <= expected.touched[buffer][0]
            assert written <= expected.touched[buffer][1]
    for found, wanted in zip(outputs, program(*[x.copy() for x in arrays]), strict=True):
        np.testing.assert_array_equal(found, wanted)
