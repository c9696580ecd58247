"""The bytes that kernels are predicted to move and touch, against counters compiled into them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.compiler import Request, choose, first_with_kernels
from blockbuster_fusion.cost.meter import meter
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.analysis.traffic import covered, traffic_of
from blockbuster_fusion.nest.nest import For, Nest
from blockbuster_fusion.nest.passes.divide_masked_loops import divide_masked_loops
from blockbuster_fusion.runtime.c.counted import counted
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.tools.examples import EXAMPLES
from helpers import lookup_programs, placed_programs
from helpers.attention_forms import FORMS
from helpers.effort import part
from helpers.programs import ExtendedProgram
from helpers.running import inputs_for, sizes_for

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

    @property
    def tiles(self) -> dict[str, int] | None:
        """The tile of every axis that has blocks."""
        dims = bb.lower(self.program()).dims
        apart = {dim.name for dim in dims if not dim.packed}
        return {d.name: self.tile for d in dims if d.name not in apart} if self.tile else None

    def compiled(self) -> Executable:
        own = {"schedule": self.schedule, "dtype": self.dtype, "unit": self.unit}
        return bb.compile(self.program(), tiles=self.tiles, threads=1, **own)

    def scheduled(self, schedule: Schedule) -> tuple[Graph, Nest, Tiling]:
        """The block program, its loop nest by a schedule, and the blocks of the arrays."""
        choices = choose(Request(self.program(), tiles=self.tiles, schedule=schedule))
        graph, (nest, tiles) = first_with_kernels(choices, lambda x: (x.graph, x.scheduled()))
        extents = Extents()
        for buffer, x in zip(nest.inputs, self.arrays(), strict=True):
            for axis, length in zip(buffer.axes, x.shape, strict=True):
                extents.bind(axis.dim.axis, length, buffer.name)
        return graph, nest, Tiling(extents, tiles)

    def arrays(self) -> list[np.ndarray]:
        program, rng = self.program(), np.random.default_rng(0)
        sizes = sizes_for(program, {**SIZES, **self.sizes})
        made = []
        for given in program.inputs:
            extents = [axis.extent for axis in given.type.axes]
            named = [sizes[axis.name] for axis in given.type.axes]
            shape = [n if isinstance(n, int) else m for n, m in zip(extents, named, strict=True)]
            dtype = given.type.dtype
            if dtype is DType.bool_:  # no key is padding
                made.append(np.ones(shape, bool))
            elif dtype.is_float:
                made.append(rng.standard_normal(shape).astype(np.float32))
            else:
                places = (np.arange(shape[-1]) * 4 + 1) % PLACES
                made.append(np.broadcast_to(places, shape).astype(dtype.value))
        return made


def traced(function: Callable[..., object], **specs: object) -> Callable[[], ArrayProgram]:
    return lambda: bb.trace(function, **specs)


def example(name: str) -> Callable[[], ArrayProgram]:
    return EXAMPLES[name]


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


SKIPPING = (
    *("added_mask", "offset_of_sizes", "chosen_nothing", "window_and_padding"),
    *("bias_and_mask", "rows_without_keys", "rows_all_masked", "groups_of_heads", "sink"),
)
"""Forms of attention whose loops skip blocks that positions mask."""


def assert_counted(program: Executable, arrays: list[np.ndarray], *, knows_places: bool) -> None:
    """Moved and touched bytes of every array agree, kernel by kernel; so do the outputs."""
    assert program.nest is not None
    outputs, counts, tiling = counted(program, *[x.copy() for x in arrays])
    for kernel in program.nest.kernels:
        found, expected = counts[kernel.name], traffic_of(kernel, tiling)
        assert found.moved == expected.moved
        assert found.touched == expected.touched or not knows_places
        for buffer, (read, written) in found.touched.items():
            assert read <= expected.touched[buffer][0]
            assert written <= expected.touched[buffer][1]
    for made, wanted in zip(outputs, program(*[x.copy() for x in arrays]), strict=True):
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", CASES)
def test_predicted_bytes_are_those_that_kernels_count(name: str) -> None:
    case = CASES[name]
    assert_counted(case.compiled(), case.arrays(), knows_places=name not in LOOKS_UP)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("rows", "keys"), [(37, 53), (53, 37), (40, 40)])
@pytest.mark.parametrize("name", SKIPPING)
def test_skipped_blocks_do_not_count(name: str, rows: int, keys: int) -> None:
    case = Case(FORMS[name].traced, sizes={"S": rows, "T": keys, "B": 2, "H": 3, "G": 2, "R": 2})
    tiles = {"S": 8, "T": 8}
    program = bb.compile(case.program(), tiles=tiles, snapshot="most_fused", threads=1)
    assert program.nest is not None
    loops = [s for k in program.nest.kernels for s in k.statements if isinstance(s, For)]
    assert any(loop.window is not None for loop in loops)
    if name == "window_and_padding" and rows > keys:  # the last rows see nothing: they visit all
        _, counts, tiling = counted(program, *case.arrays())
        (kernel,) = program.nest.kernels
        assert counts[kernel.name].total_moved > traffic_of(kernel, tiling).total_moved
    else:
        assert_counted(program, case.arrays(), knows_places=True)


@pytest.mark.parametrize("name", ["added_mask", "offset_of_sizes", "chosen_nothing"])
def test_loops_that_a_mask_divides_move_the_same_bytes(name: str) -> None:
    """On a GPU, blocks that a mask leaves whole have a loop of their own."""
    program = FORMS[name].traced()
    (choice, *_) = choose(Request(program, tiles={"S": 16, "T": 8}, snapshot="most_fused"))
    nest, tiles = choice.scheduled()
    (kernel,) = nest.kernels
    divided = divide_masked_loops(kernel)
    loops = [s for s in divided.statements if isinstance(s, For) and s.window is not None]
    assert [loop.window.clear for loop in loops if loop.window] == [True, False]
    for rows, keys in ((37, 53), (40, 40), (1, 41), (53, 37)):
        extents = Extents()
        lengths = {"S": rows, "T": keys, "B": 2, "H": 3}
        for dim in kernel.dims:
            extents.bind(dim.axis, lengths.get(dim.name, 16), "the test")
        tiling = Tiling(extents, tiles)
        assert traffic_of(divided, tiling).moved == traffic_of(kernel, tiling).moved


@pytest.mark.parametrize("seed", range(part(24, of=8)))
def test_random_programs_move_the_predicted_bytes(seed: int) -> None:
    program = ExtendedProgram(seed).build()
    dims = sorted(bb.lower(program).dims, key=lambda dim: dim.label)
    apart = {dim.name for dim in dims if not dim.packed}
    tiles = {dim.name: 2 + at % 3 for at, dim in enumerate(dims) if dim.name not in apart}
    arrays = [x.astype(np.float32) for x in inputs_for(program).values()]
    assert_counted(bb.compile(program, tiles=tiles, threads=1), arrays, knows_places=True)


def test_threads_count_together() -> None:
    """Sizes are fixed, so that blocks do not depend on the number of threads."""
    program = bb.trace(lambda A, B: ops.relu(A @ B.T), A="M:300 K:70", B="N:90 K:70")
    compiled = bb.compile(program, tiles={"M": 16, "N": 16, "K": 16})
    assert compiled.nest is not None
    arrays = [np.ones((300, 70), np.float32), np.ones((90, 70), np.float32)]
    _, counts, tiling = counted(compiled, *arrays, threads=3)
    (kernel,) = compiled.nest.kernels
    assert counts[kernel.name] == traffic_of(kernel, tiling)


def test_moved_and_touched_bytes_by_hand() -> None:
    """A block of rows stays while it is multiplied; all columns are read again for the next."""
    program = bb.trace(lambda A, B: A @ B.T, A="M:40 K:20", B="N:35 K:20")
    compiled = bb.compile(program, tiles={"M": 16, "N": 16, "K": 16})
    assert compiled.nest is not None
    (kernel,) = compiled.nest.kernels
    found = traffic_of(kernel, Tiling(Extents(), compiled.tiles))
    a, b, c = 40 * 20 * 4, 35 * 20 * 4, 40 * 35 * 4
    moved = {buffer.name: sizes for buffer, sizes in found.moved.items()}
    touched = {buffer.name: sizes for buffer, sizes in found.touched.items()}
    assert sorted(moved.values()) == sorted([(a, 0), (3 * b, 0), (0, c)])
    assert sorted(touched.values()) == sorted([(a, 0), (b, 0), (0, c)])
    assert found.total_moved == a + 3 * b + c
    assert found.total_touched == a + b + c


def test_boxes_cover_each_element_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        ends = np.sort(rng.integers(0, 9, (5, 3, 2)), axis=-1)
        boxes = [tuple((int(a), int(b)) for a, b in box) for box in ends]
        marks = np.zeros((9, 9, 9), bool)
        for box in boxes:
            marks[tuple(slice(a, b) for a, b in box)] = True
        assert covered(boxes) == marks.sum()


@pytest.mark.parametrize("name", CASES)
def test_the_cost_model_moves_the_same_bytes(name: str) -> None:
    """`Work.moved` is the same quantity, but for windows: those are estimated, and none is here."""
    case = CASES[name]
    _, nest, tiling = case.scheduled(case.schedule or Schedule(grid="outer"))
    for kernel in nest.kernels:
        work = work_of(kernel, tiling, "cpu")
        assert work.moved == pytest.approx(traffic_of(kernel, tiling).total_moved, rel=1e-12)


KEPT = ("lora", "three-matmuls", "parallel-attention-ffn", "low-rank-kv-attention")
KEPT += ("residual-layers", "default tiles", "scatter", "scatter of a norm")
"""Programs of which the meter says less: a block that a program has just stored is not loaded
again, and the places of a scatter are not loaded."""


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].schedule is None])
def test_the_meter_says_the_same_of_one_program(name: str) -> None:
    """The meter counts every list; kernels keep some of them in a program's own memory."""
    case = CASES[name]
    graph, nest, tiling = case.scheduled(Schedule(grid="one"))
    own = {dim: tile for dim, tile in tiling.tiles.items() if dim in graph.dims}
    found = meter(graph, {s.name: n for s, n in tiling.extents.sizes.items()}, own)
    moved = sum(traffic_of(kernel, tiling).total_moved for kernel in nest.kernels)
    scratch = sum(work_of(kernel, tiling, "cpu").scratch for kernel in nest.kernels)
    if name in KEPT:
        assert found.loaded + found.stored < moved + scratch
    else:
        assert found.loaded + found.stored == pytest.approx(moved + scratch, rel=1e-12)


def test_only_kernels_in_c_count() -> None:
    program = bb.compile(EXAMPLES["softmax"](), target="interpret")
    with pytest.raises(WrongKind, match="compile it with target='cpu'"):
        counted(program, np.zeros((3, 4), np.float32))
