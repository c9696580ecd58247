"""Generated Triton kernels against PyTorch, on a GPU: attention, LayerNorm+linear, RMSNorm+SwiGLU.

    python benchmarks/gpu.py [--cases attention,layernorm,swiglu] [--seconds 400] [--no-compile]

Every snapshot of a program is tried, in one piece and with its preparation apart, each kernel with
some tiles, warps and stages; a configuration counts only if its result is right. What is best runs
against eager, torch.compile (default and max-autotune) and, for attention, every SDPA backend: GPU
time in CUDA graphs, interleaved, over inputs that rotate. All in bfloat16, random normal inputs.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import torch
import triton
from cuda_graphs import interleaved
from torch.nn import functional

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import with_known_sizes
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Along, Buffer, Contract, For, Kernel, Nest
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.printers.triton.launch_plan import axis_length
from blockbuster_fusion.runtime.triton.launch import Launcher
from blockbuster_fusion.runtime.triton.modules import load
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.schedule.schedule import Schedule, scheduled

os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # kernels are measured, faster or not

RESULTS = Path(__file__).parent / "results" / "gpu.json"
BFLOAT16 = torch.bfloat16
ROTATING = 3
START = time.time()


# -------------------------------------------------------------------------- programs


@dataclass
class Case:
    """A program with its sizes, and what PyTorch users would write for it."""

    name: str
    program: Any
    sizes: dict[str, int]
    unit: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    scales: dict[str, float]
    eager: Callable[..., torch.Tensor]
    flops: float
    rivals: dict[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    variants: tuple[tuple[int, Schedule], ...] = ()
    """Which snapshots to try, each with its schedule; empty: all, in one piece and apart."""


APART = Schedule(apart=True)


def apart_and_split(axis: str, parts: int) -> Schedule:
    """Preparation apart, and sums over an axis shared out: for few rows."""
    return Schedule(apart=True, split={axis: parts})


def attention(batch: int, heads: int, length: int, width: int, causal: bool) -> Case:
    ops = bb.ops

    def program(Q: Any, K: Any, V: Any) -> dict[str, Any]:
        scores = (Q @ K.swapaxes(-1, -2)) * width**-0.5
        if causal:
            scores = ops.where(ops.index(scores, -1) <= ops.index(scores, -2), scores, -1e30)
        return {"O": ops.softmax(scores) @ V}

    def eager(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        scores = (Q @ K.transpose(-1, -2)) * width**-0.5
        if causal:
            mask = torch.ones(length, length, dtype=torch.bool, device=Q.device).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        return torch.softmax(scores.float(), -1).to(Q.dtype) @ V

    def sdpa(backend: Any) -> Callable[..., torch.Tensor]:
        def run(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
            with torch.nn.attention.sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(Q, K, V, is_causal=causal)

        return run

    backends = torch.nn.attention.SDPBackend
    shape = (batch, heads, length, width)
    traced = bb.trace(program, Q="B H M D", K="B H N D", V="B H N L", name="attention")
    return Case(
        f"attention b{batch} h{heads} s{length} d{width}{' causal' if causal else ''}",
        traced,
        {"BB": batch, "HH": heads, "MM": length, "NN": length, "DD": width, "LL": width},
        ("D", "L"),
        {"Q": shape, "K": shape, "V": shape},
        {},
        eager,
        4.0 * batch * heads * length * length * width * (0.5 if causal else 1),
        {
            "SDPA cuDNN": sdpa(backends.CUDNN_ATTENTION),
            "SDPA flash": sdpa(backends.FLASH_ATTENTION),
        },
        ((-1, Schedule()),),
    )


def layernorm(M: int, K: int, N: int) -> Case:
    def eager(
        X: torch.Tensor, g: torch.Tensor, b: torch.Tensor, WT: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        return functional.linear(functional.layer_norm(X, (K,), g, b), WT, c)

    return Case(
        f"layernorm-linear {M}x{K}x{N}",
        bb.examples.find("layernorm-linear"),
        {"MM": M, "KK": K, "NN": N},
        (),
        {"X": (M, K), "g": (K,), "b": (K,), "WT": (N, K), "c": (N,)},
        {"WT": K**-0.5},
        eager,
        2.0 * M * K * N,
        variants=(
            (0, APART),
            (1, APART),
            (1, Schedule()),
            *([(0, apart_and_split("K", 4))] if M <= 128 else []),
        ),
    )


def plain_layernorm(M: int, K: int, N: int) -> Case:
    def eager(X: torch.Tensor, YT: torch.Tensor) -> torch.Tensor:
        return functional.linear(functional.layer_norm(X, (K,)), YT)

    return Case(
        f"layernorm-matmul {M}x{K}x{N}",
        bb.examples.find("layernorm-matmul"),
        {"MM": M, "KK": K, "NN": N},
        (),
        {"X": (M, K), "YT": (N, K)},
        {"YT": K**-0.5},
        eager,
        2.0 * M * K * N,
    )


def swiglu(M: int, D: int, K: int) -> Case:
    def eager(
        X: torch.Tensor, g: torch.Tensor, WT: torch.Tensor, VT: torch.Tensor, UT: torch.Tensor
    ) -> torch.Tensor:
        h = functional.rms_norm(X, (D,), g, 1e-6)
        up = functional.silu(functional.linear(h, WT)) * functional.linear(h, VT)
        return X + functional.linear(up, UT)

    return Case(
        f"rmsnorm-swiglu-residual M{M} D{D} K{K}",
        bb.examples.find("rmsnorm-swiglu-residual"),
        {"MM": M, "DD": D, "KK": K},
        (),
        {"X": (M, D), "g": (D,), "WT": (K, D), "VT": (K, D), "UT": (D, K)},
        {"WT": D**-0.5, "VT": D**-0.5, "UT": K**-0.5},
        eager,
        6.0 * M * D * K,
        variants=((0, APART), *([(0, apart_and_split("K", 4))] if M <= 128 else [])),
    )


def cases(wanted: Sequence[str]) -> list[Case]:
    """The cases, in the order in which they matter if time runs out."""
    made: list[Case] = []
    heads = ((4, 32, 2048, 128), (8, 16, 1024, 64), (1, 32, 8192, 128))
    shapes = ((4096, 4096, 4096), (8192, 1024, 4096), (128, 4096, 4096), (16, 8192, 8192))
    if "swiglu" in wanted:
        made += [swiglu(M, 4096, 14336) for M in (1024, 4096, 128, 16, 1)]
        made += [swiglu(M, 1024, 2816) for M in (128, 16, 1)]
    if "layernorm" in wanted:
        made += [layernorm(*shape) for shape in shapes]
    if "attention" in wanted:
        made += [attention(*shape, causal) for shape in heads for causal in (False, True)]
    if "layernorm" in wanted:
        made += [plain_layernorm(*shape) for shape in shapes]
    return made


# --------------------------------------------------------------------- configurations


@dataclass(frozen=True)
class Config:
    """Tiles and options of one kernel."""

    tiles: tuple[tuple[Dim, int], ...]
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        tiles = " ".join(f"{dim.label}={tile}" for dim, tile in self.tiles)
        return f"{tiles} warps={self.num_warps} stages={self.num_stages}"


# fmt: off
ATTENTION = [
    (128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3), (128, 32, 4, 4), (64, 64, 4, 3),
    (64, 128, 4, 2), (128, 64, 8, 2), (128, 128, 8, 3), (128, 64, 4, 2), (64, 64, 4, 2),
]
GEMM = [
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3),
    (128, 128, 64, 4, 4), (128, 128, 32, 4, 4), (256, 128, 64, 8, 3), (64, 128, 64, 4, 4),
    (64, 256, 64, 8, 3), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4), (64, 64, 128, 4, 3),
]
THIN = [
    (16, 64, 128, 4, 4), (16, 128, 128, 4, 3), (16, 32, 256, 4, 4), (16, 64, 256, 4, 3),
    (16, 16, 512, 4, 3), (16, 32, 128, 4, 5), (16, 64, 128, 8, 4),
]
ROWS = [
    (1, 1024, 4, 2), (1, 4096, 8, 2), (2, 1024, 4, 2), (4, 1024, 8, 2), (4, 512, 4, 2),
    (8, 256, 4, 2), (16, 256, 4, 2), (16, 512, 8, 2),
]
# fmt: on


def configs(kernel: Kernel, case: Case) -> list[Config]:
    """What is tried for a kernel, by its shape: rows and a loop, two dims and a loop, or others."""
    grid = [i.dim for i in kernel.grid if i.dim.packed and not i.dim.unit]
    loops = [s.index.dim for s in kernel.statements if isinstance(s, For)]
    loops = [d for d in dict.fromkeys(loops) if d.packed and not d.unit]
    others = [d for d in kernel.dims if d.packed and not d.unit and d not in {*grid, *loops}]
    dots = any(isinstance(s, Contract) for s in kernel.statements)
    made: list[Config] = []
    rows = case.sizes.get("MM", 1 << 30)
    if len(grid) == 2 and dots:
        spaces = [(16, *c[1:]) for c in THIN] if rows <= 16 else GEMM
        if 16 < rows <= 128:
            spaces = [*GEMM, *((32, *c[1:]) for c in THIN[:4])]
        for m, n, k, warps, stages in spaces:
            tiles = ((grid[0], m), (grid[1], n), *((d, k) for d in (*loops, *others)))
            made.append(Config(tiles, warps, stages))
    elif len(grid) == 1 and dots and len(loops) == 1:
        for m, n, warps, stages in ATTENTION:
            made.append(Config(((grid[0], m), (loops[0], n)), warps, stages))
    elif dots:
        for m, n, warps, stages in ((64, 64, 4, 2), (64, 64, 8, 2), (16, 64, 4, 3), (32, 64, 4, 3)):
            tiles = (*((d, m) for d in grid), *((d, n) for d in (*loops, *others)))
            made.append(Config(tiles, warps, stages))
    else:
        for m, n, warps, stages in ROWS:
            tiles = (*((d, m) for d in grid[:1]), *((d, n) for d in (*grid[1:], *loops, *others)))
            made.append(Config(tiles, warps, stages))
    return made


# -------------------------------------------------------------------------- candidates


class Candidate:
    """One way to run a program: a snapshot, its preparation apart or not."""

    def __init__(self, case: Case, raw: Any, number: int, schedule: Schedule) -> None:
        graph = make_safe(stored_as(raw, DType.bfloat16)).graph
        words = ["apart"] * schedule.apart + [f"{a} in {n}" for a, n in schedule.split.items()]
        self.case, self.label = case, ", ".join([f"snapshot {number + 1}", *words])
        self.nest: Nest = scheduled(graph, "kernel", schedule)
        self.source = print_triton(self.nest)
        module = load(self.source)
        self.launchers = [
            Launcher(kernel, getattr(module, kernel.name)) for kernel in self.nest.kernels
        ]
        self.space = [configs(kernel, case) for kernel in self.nest.kernels]

    def allocate(self, inputs: Mapping[str, torch.Tensor]) -> dict[Buffer, torch.Tensor]:
        made = {b: inputs[b.name] for b in self.nest.inputs}
        for b in (*(v.buffer for v in self.nest.outputs), *self.nest.between):
            assert all(axis.along is Along.AXIS or not axis.dim.packed for axis in b.axes)
            shape = [axis_length(axis, self.case.sizes, {}) for axis in b.axes]
            dtype = getattr(torch, b.dtype.value)
            made.setdefault(b, torch.empty(shape, dtype=dtype, device="cuda"))
        return made

    def launch(self, at: int, config: Config, memory: Mapping[Buffer, torch.Tensor]) -> Any:
        """A call that runs kernel number `at`."""
        launcher = self.launchers[at]
        plan = self.plan(at, config)
        tensors = [memory[b] for b in launcher.buffers]
        bound = launcher.bound(plan, [x.stride() for x in tensors])
        return lambda: bound(tensors)

    def plan(self, at: int, config: Config) -> Any:
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        return self.launchers[at].plan(self.case.sizes, dict(config.tiles), options)

    def output(self, memory: Mapping[Buffer, torch.Tensor]) -> torch.Tensor:
        (view,), (layout,) = self.nest.outputs, self.nest.layouts
        return memory[view.buffer].permute([view.axes.index(axis) for axis in layout])


def warm(job: tuple[int, int, int]) -> str | None:
    """Compiles one configuration into Triton's cache; what went wrong, if something did."""
    which, at, number = job
    candidate = CANDIDATES[which]
    launcher, config = candidate.launchers[at], candidate.space[at][number]
    try:
        plan = candidate.plan(at, config)
        known: dict[str, Any] = dict(plan.constants)
        for buffer in launcher.buffers:
            shape = [axis_length(axis, candidate.case.sizes, {}) for axis in buffer.axes]
            strides = torch.empty(shape, device="meta").stride()
            known.update(zip(launcher.names.strides[buffer], strides, strict=True))
            known[launcher.names.pointers[buffer]] = getattr(torch, buffer.dtype.value)
        for buffer, shape in plan.scratch:
            names = (launcher.names.copies[buffer], *launcher.names.strides[buffer])
            known.update(zip(names, torch.empty(shape, device="meta").stride(), strict=True))
            known[launcher.names.pointers[buffer]] = getattr(torch, buffer.dtype.value)
        arguments = [known.get(name) for name in launcher.parameters]
        launcher.function.warmup(*arguments, grid=plan.grid, **plan.options)
    except Exception as error:  # a configuration that does not compile is left out
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


CANDIDATES: list[Candidate] = []


# -------------------------------------------------------------------------- measuring


def make_inputs(case: Case, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return {
        name: (
            torch.randn(shape, generator=generator, device="cuda") * case.scales.get(name, 1.0)
        ).to(BFLOAT16)
        for name, shape in case.shapes.items()
    }


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error of the whole, inf where something is not finite."""
    if not torch.isfinite(found).all():
        return math.inf
    return float((found.double() - exact).norm() / exact.norm())


def reference(case: Case, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The result in float64; attention head by head, where it would not fit into memory."""
    wide = {name: x.double() for name, x in inputs.items()}
    if "Q" not in wide:
        return case.eager(**wide)
    parts = [
        case.eager(*(wide[n][:, h : h + 1] for n in ("Q", "K", "V")))
        for h in range(wide["Q"].shape[1])
    ]
    return torch.cat(parts, 1)


def measure(case: Case, candidates: Sequence[Candidate], compiled: bool) -> dict[str, Any]:
    sets = [make_inputs(case, seed) for seed in range(ROTATING)]
    exact = reference(case, sets[0])
    allowed = 2 * error_of(case.eager(**sets[0]), exact)
    rows: dict[str, Any] = {"case": case.name, "allowed_error": allowed, "tried": []}
    best: dict[str, tuple[Candidate, list[Config]]] = {}
    for candidate in candidates:
        chosen = tuned(candidate, sets[0], exact, allowed, rows["tried"])
        if chosen is not None:
            best[f"blockbuster {candidate.label}"] = (candidate, chosen)
    rivals: dict[str, list[Callable[[], Any]]] = {}
    keep = []
    for name, (candidate, chosen) in best.items():
        calls = []
        for inputs in sets:
            memory = candidate.allocate(inputs)
            keep.append(memory)
            steps = [candidate.launch(at, c, memory) for at, c in enumerate(chosen)]
            calls.append(lambda steps=steps: [step() for step in steps])
        rivals[name] = calls
    functions = {"eager": case.eager, **case.rivals}
    if compiled:
        for mode in ("default", "max-autotune-no-cudagraphs"):
            torch._dynamo.reset()
            functions[f"torch.compile {mode}"] = torch.compile(case.eager, mode=mode, dynamic=False)
    for name, function in functions.items():
        try:
            with torch.no_grad():
                found = error_of(function(**sets[0]), exact)
        except Exception as error:
            print(f"    {name}: left out, {str(error)[:120]}", flush=True)
            continue
        rows.setdefault("errors", {})[name] = found
        rivals[name] = [lambda f=function, x=x: f(**x) for x in sets]
    with torch.no_grad():
        times = interleaved(rivals)
    rows["microseconds"] = times
    rows["configs"] = {n: [str(c) for c in chosen] for n, (_, chosen) in best.items()}
    report(case, times)
    return rows


def tuned(
    candidate: Candidate,
    inputs: Mapping[str, torch.Tensor],
    exact: torch.Tensor,
    allowed: float,
    tried: list[dict[str, Any]],
) -> list[Config] | None:
    """The fastest configuration of every kernel; each is checked through the whole program."""
    memory = candidate.allocate(inputs)
    chosen: list[Config] = []
    count = len(candidate.launchers)
    usable = [first_usable(candidate, at, memory) for at in range(count)]
    if None in usable:
        return None
    for at in range(count):
        timed = []
        for config in candidate.space[at]:
            row = {"program": candidate.label, "kernel": at, "config": str(config)}
            tried.append(row)
            if config in FAILED.get((id(candidate), at), {}):
                row["failed"] = FAILED[id(candidate), at][config]
                continue
            try:
                step = candidate.launch(at, config, memory)
                others = [*chosen, *usable[at:]]
                steps = [
                    step if i == at else candidate.launch(i, others[i], memory)
                    for i in range(count)
                ]
                candidate.output(memory).fill_(math.nan)
                for run in steps:
                    run()
                torch.cuda.synchronize()
                row["error"] = error_of(candidate.output(memory), exact)
                row["right"] = row["error"] <= allowed
                if row["right"]:
                    row["microseconds"] = (
                        triton.testing.do_bench(step, warmup=2, rep=8, return_mode="median") * 1e3
                    )
                    timed.append((row["microseconds"], config))
            except Exception as error:
                row["failed"] = str(error)[:100]
        if not timed:
            print(f"    {candidate.label}, kernel {at}: no configuration is right", flush=True)
            return None
        chosen.append(min(timed, key=lambda pair: pair[0])[1])
    return chosen


FAILED: dict[tuple[int, int], dict[Config, str]] = {}
"""Configurations that did not compile or could not be launched, and why."""


def first_usable(
    candidate: Candidate, at: int, memory: Mapping[Buffer, torch.Tensor]
) -> Config | None:
    for config in candidate.space[at]:
        try:
            candidate.launch(at, config, memory)()
            torch.cuda.synchronize()
            return config
        except Exception as error:  # too much shared memory, for one: noted, and never chosen
            FAILED.setdefault((id(candidate), at), {})[config] = str(error)[:150]
    return None


def report(case: Case, times: Mapping[str, float]) -> None:
    print(f"{case.name}  ({time.time() - START:.0f} s)")
    ours = min((t for n, t in times.items() if n.startswith("blockbuster")), default=math.inf)
    for name, microseconds in sorted(times.items(), key=lambda item: item[1]):
        rate = case.flops / microseconds / 1e6
        print(
            f"    {name:44}{microseconds:10.1f} us {rate:7.1f} TFLOP/s  {microseconds / ours:5.2f}"
        )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="attention,layernorm,swiglu")
    parser.add_argument("--seconds", type=float, default=540, help="no new case after this")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    wanted = cases(options.cases.split(","))
    grouped: list[tuple[Case, list[Candidate]]] = []
    for case in wanted:
        graph = bb.lower(case.program)
        fusion = bb.fuse(with_known_sizes(graph, case.sizes), unit=case.unit)
        count = len(fusion.fused)
        everything = [(i, a) for i in range(count) for a in (Schedule(), APART)]
        own = [
            Candidate(case, fusion.fused[i], i % count, schedule)
            for i, schedule in case.variants or everything
        ]
        different = {c.source: c for c in own}
        grouped.append((case, list(different.values())))
        CANDIDATES.extend(different.values())
    jobs = [
        (which, at, number)
        for which, candidate in enumerate(CANDIDATES)
        for at, space in enumerate(candidate.space)
        for number in range(len(space))
    ]
    print(f"{len(jobs)} configurations to compile ({time.time() - START:.0f} s)", flush=True)
    workers = max(1, (os.cpu_count() or 2) - 2)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for job, problem in zip(jobs, pool.map(warm, jobs, chunksize=4), strict=True):
            if problem is not None:
                candidate = CANDIDATES[job[0]]
                config = candidate.space[job[1]][job[2]]
                FAILED.setdefault((id(candidate), job[1]), {})[config] = problem
                print(f"    {candidate.case.name} {candidate.label}: {problem}"[:240], flush=True)
    print(f"compiled ({time.time() - START:.0f} s)", flush=True)
    made: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "cases": [],
    }
    for case, candidates in grouped:
        if time.time() - START > options.seconds:
            print(f"{case.name}: no time left")
            continue
        try:
            made["cases"].append(measure(case, candidates, not options.no_compile))
        except Exception as error:
            print(f"{case.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        torch.cuda.empty_cache()
        options.json.parent.mkdir(exist_ok=True)
        options.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
