"""The C printer: its text and its results, on the examples and on random programs."""

import os

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.printers.c.kernel import kernels_in_c
from blockbuster_fusion.printers.c.prelude import PARTS, prelude
from blockbuster_fusion.runtime.bound import CompiledNest
from blockbuster_fusion.runtime.c.kernels import CpuKernels
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.defaults import all_tiles, default_tiles
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from helpers.programs import random_inputs, random_program, random_tiles, random_unit
from helpers.running import inputs_for

GOLDEN = [
    ("attention", ("D", "L"), DType.float32),
    ("multi-head-attention", ("D", "L"), DType.bfloat16),
    ("sliding-window-attention", ("D", "L"), DType.float32),
    ("layernorm-linear", ("K",), DType.float32),
    ("rmsnorm-swiglu-residual", (), DType.float16),
]

SCHEDULES = [
    Schedule(),
    Schedule(grid="outer"),
    Schedule(grid="one"),
    Schedule(apart=True),
]


@pytest.mark.parametrize(("name", "unit", "dtype"), GOLDEN, ids=[g[0] for g in GOLDEN])
def test_text(name, unit, dtype, golden):
    raw = bb.fuse(bb.lower(bb.examples.find(name)), unit=unit).fused[-1]
    graph = make_safe(stored_as(raw, dtype)).graph
    nest = scheduled(graph, name.replace("-", "_"), Schedule(grid="outer"))
    needs, kernels = kernels_in_c(nest, default_tiles(graph, "cpu"))
    golden("\n".join([*map(str, sorted(needs)), "", kernels]))


def test_prelude(golden):
    """Every part, for floats and for whole numbers."""
    needs = {("places",), ("runs",), ("bfloat16",)}
    for name, part in PARTS.items():
        for at in (0, -1):
            needs.add((name, *(types[at] for types in part.types)))
    golden(prelude(needs))


def compiled(graph: bb.Graph, nest: Nest, tiles: dict) -> Executable:
    names = tuple(graph.op(i).name for i in graph.inputs)
    program = CompiledNest(nest, names, tiles, CpuKernels(nest, tiles, threads=2))
    return Executable(graph, "cpu", tiles, 0, Compiled([program], device="cpu"))


def assert_equal(found, expected, bound: float) -> None:
    for name, wanted in expected.items():
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=bound * scale, err_msg=name)


@pytest.mark.parametrize(
    ("name", "axis", "unit", "atomic"),
    [
        ("attention", "N", ("D", "L"), False),
        ("causal-attention", "N", ("D", "L"), False),
        ("rmsnorm-swiglu", "K", ("N",), False),
        ("rmsnorm-swiglu", "K", ("N",), True),
    ],
)
def test_split_reductions(name, axis, unit, atomic):
    program = bb.examples.find(name)
    graph = bb.lower(program)
    snapshot = bb.fuse(graph, unit=unit).snapshots[-1]
    nest = scheduled(snapshot, "k", Schedule("outer", split={axis: 3}, atomic=atomic))
    tiles = all_tiles(nest, dict.fromkeys((d for d in snapshot.dims if d.packed), 16), "cpu")
    kernel = compiled(snapshot, nest, tiles)
    inputs = inputs_for(program, M=45, N=70, K=61, D=20, L=33)
    exact = dict(bb.interpret(graph, inputs).items())
    found = kernel(**{name: x.astype(np.float32) for name, x in inputs.items()})
    assert_equal(found, exact, 5e-6)


def test_names_that_the_text_has_for_itself():
    """The numbers are right for all names of arrays, axes and programs."""

    def exp(memory, program, m_len, sizes, BLOCK_I, t1, c1, int64_t):
        made = memory @ program.swapaxes(-1, -2) + m_len[:, None] * sizes
        return {"double": bb.ops.exp(made * 0.01) + (BLOCK_I + c1) * t1[:, None] * int64_t}

    given = {
        "memory": "I m_len",
        "program": "J m_len",
        **dict.fromkeys(("m_len", "t1"), "I"),
        **dict.fromkeys(("sizes", "BLOCK_I", "c1", "int64_t"), "J"),
    }
    program = bb.trace(exp, **given)
    kernel = bb.compile(program, tiles={"I": 16, "J": 8, "m_len": 8})
    inputs = inputs_for(program, I=37, J=21, m_len=19)
    exact = dict(bb.interpret(bb.lower(program), inputs).items())
    assert_equal(kernel(**{n: x.astype(np.float32) for n, x in inputs.items()}), exact, 1e-6)


FUZZ = int(os.environ.get("BLOCKBUSTER_FUZZ", "200"))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed):
    check_random_program(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(16, 16 + FUZZ))
def test_many_random_programs(seed):
    check_random_program(seed)


def check_random_program(seed: int) -> None:
    """A random program in float64, fused, in C, against the interpreter."""
    program = random_program(seed, extended=seed % 2 == 1)
    graph = in_float64(bb.lower(program))
    unit = random_unit(program, seed) if seed % 3 == 0 else ()
    snapshot = bb.fuse(graph, unit=unit).snapshots[-1]
    nest = scheduled(snapshot, "k", SCHEDULES[seed % len(SCHEDULES)])
    labels = random_tiles(snapshot, seed)
    chosen = {d: labels[d.label] for d in snapshot.dims if d.label in labels and not d.is_free}
    tiles = all_tiles(nest, chosen, "cpu")
    inputs = random_inputs(program, seed)
    expected = dict(bb.interpret(snapshot, inputs, labels).items())
    assert_equal(compiled(snapshot, nest, tiles)(**inputs), expected, 1e-6)


def in_float64(graph: bb.Graph) -> bb.Graph:
    kinds = [graph.type_of_input(port) for port in range(len(graph.inputs))]
    return graph.retype(
        [Type(k.lists, k.items, DType.float64, k.virtual) if k.dtype.is_float else k for k in kinds]
    )


def test_compile_takes_a_schedule():
    program = bb.examples.attention()
    schedule = bb.Schedule(grid="outer", split={"N": 3})
    tiles = {"M": 16, "N": 16}
    kernel = bb.compile(program, sizes={"D": 16, "L": 16}, schedule=schedule, tiles=tiles)
    assert [k.name for k in kernel.nest.kernels] == ["attention_parts", "attention"]
    inputs = inputs_for(program, M=40, N=70, D=16, L=16)
    exact = dict(bb.interpret(bb.lower(program), inputs).items())
    assert_equal(kernel(**{n: x.astype(np.float32) for n, x in inputs.items()}), exact, 1e-6)


def test_the_sign_of_zero_survives_relu() -> None:
    """PyTorch keeps a -0.0 where it is compared with 0; so do kernels."""
    kernel = bb.compile(lambda X: {"O": 1 / bb.ops.relu(X)}, X="M")
    x = np.array([-0.0, 0.0, -1.0, 2.0, np.nan], np.float32)
    with np.errstate(divide="ignore"):
        wanted = 1 / torch.relu(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(kernel(x)[0], wanted)
