"""Speed of a compiled program against PyTorch: `blockbuster bench` and `blockbuster demo`.

Every contender is first compared with float64. Then all are timed in turns, in one process: a
machine that is busy for a while is busy for all of them.
"""

import importlib.util
import json
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.compiler import compile as compile_program
from blockbuster_fusion.compiler import unfused
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.tiling import given_extents
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.progress import doing
from blockbuster_fusion.runtime.c.kernels import CpuKernels
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.safety.fuse import fuse
from blockbuster_fusion.schedule.snapshots import Snapshot
from blockbuster_fusion.tools import examples
from blockbuster_fusion.tools.check.judge import relative_error

OURS = "blockbuster"
LENGTHS = {"cpu": (2, 512), "cuda": (4, 2048)}
"""The default lengths of batch axes and of other axes."""
HEAD = {"D": 64, "L": 64}
"""The width of a head of attention."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of running a program."""

    name: str
    seconds: float
    """The median time of a round."""
    quartiles: tuple[float, float]
    """The first and third quartile of the times."""
    error: float
    """The largest error, relative to the largest number of a row, against float64."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a comparison."""

    program: str
    target: str
    dtype: str
    sizes: Mapping[str, int]
    snapshot: int
    """Counted from 1."""
    tiles: Mapping[str, int]
    threads: int | None
    """Of the compiled program; a GPU has none."""
    rounds: int
    contenders: Sequence[Contender]
    listing: str = ""
    """The block program that runs."""
    skipped: Sequence[str] = ()
    """Reasons why contenders were left out, or ran differently."""
    versions: Mapping[str, str] = field(default_factory=dict)

    def ratio(self, name: str) -> float:
        """The time of a contender as a multiple of that of the compiled program."""
        times = {c.name: c.seconds for c in self.contenders}
        return times[name] / times[OURS]

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={length}" for name, length in self.sizes.items())
        lines = [f"{self.program} on {self.target}, {self.dtype}, {sizes}", f"  {self._effort()}"]
        for c in self.contenders:
            lines.append(f"  {c.name:14} {c.seconds * 1e3:9.3f} ms   error {c.error:.1e}")
        speeds = [speed(self.ratio(c.name), c.name) for c in self.contenders if c.name != OURS]
        if speeds:
            lines.append(f"  {OURS} is {', '.join(speeds)}")
        return "\n".join([*lines, *(f"  {reason}" for reason in self.skipped)])

    def _effort(self) -> str:
        threads = "" if self.threads is None else f"{_counted(self.threads, 'thread')}, "
        noise = "" if len(self.contenders) == 1 else "; ratios are noisy on a busy machine"
        return f"{threads}median of {_counted(self.rounds, 'round')}{noise}"

    def as_json(self) -> str:
        """The result as JSON data, with the machine and the date."""
        machine = {"machine": platform.machine(), "processor": processor()}
        return json.dumps(
            {"date": date.today().isoformat(), **machine, **asdict(self)}, indent=2, default=str
        )


def speed(ratio: float, name: str) -> str:
    """The speed of the compiled program against one that takes `ratio` times as long, in words."""
    if f"{max(ratio, 1 / ratio):.1f}" == "1.0":
        return f"as fast as {name}"
    if ratio > 1:
        return f"{ratio:.1f} times as fast as {name}"
    return f"{1 / ratio:.1f} times slower than {name}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


@doing("measuring")
def bench(
    program: ArrayProgram,
    *,
    target: str = "cpu",
    sizes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    snapshot: Snapshot = None,
    tiles: Mapping[str, int] | None = None,
    rules: str = "extended",
    seconds: float = 2.0,
    with_compile: bool = True,
) -> Result:
    """Compares a compiled program with PyTorch's eager operators and with torch.compile.

    An example that PyTorch has a function for, as attention, runs against that as well.

    `sizes` gives lengths by symbol or axis; the kernel is compiled for those of axes that are
    not walked in rows. Takes about `seconds` for each contender.
    """
    lengths = default_lengths(program, target, sizes or {})
    made = compile_program(
        program,
        target=target,
        sizes=_fixed(program, lengths),
        dtype=dtype,
        threads=threads,
        snapshot=snapshot,
        tiles=dict((tiles or {}).items()),
        rules=rules,
    )
    stored = DType(dtype or "float32")
    race = _Race(program, made, inputs_for(program, lengths))
    if _there("torch"):
        race.with_torch(stored, target, threads, with_compile=with_compile)
    else:
        race.alone()
    return race.result(stored, target, lengths, seconds)


def _contender(name: str, times: Sequence[float], error: float) -> Contender:
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return Contender(name, middle, (low, high), error)


def _threads(made: Executable) -> int | None:
    """The number of threads that a compiled program runs on."""
    kernels = made.runner.kernels if isinstance(made.runner, Compiled) else None
    return kernels.threads if isinstance(kernels, CpuKernels) else None


class _Race:
    """The contenders of a comparison."""

    def __init__(self, program: ArrayProgram, made: Executable, arrays: Mapping[str, Any]) -> None:
        self.program, self.made, self.arrays = program, made, arrays
        self.runs: dict[str, Callable[[], Any]] = {}
        self.skipped: list[str] = []
        self.expected: dict[str, Any] = {}
        self.to_numpy: Callable[[Any], Any] = np.asarray
        self.wait: Callable[[], None] = lambda: None

    def alone(self) -> None:
        """The compiled program with NumPy's arrays."""
        self.skipped.append("PyTorch is not installed, so there is nothing to compare with")
        self.runs[OURS] = lambda: self.made(*self.arrays.values())
        self.expected = _expected(self.program, self.arrays)

    def with_torch(
        self, stored: DType, target: str, threads: int | None, *, with_compile: bool
    ) -> None:
        """The compiled program with PyTorch's tensors, and PyTorch itself."""
        from blockbuster_fusion.torch.bench import Torch

        torch = Torch(self.program, self.arrays, stored, target, threads)
        self.to_numpy, self.wait = torch.to_numpy, torch.wait
        self.expected = torch.exact()
        self.runs[OURS] = lambda: self.made(*torch.tensors)
        self.runs["eager"] = torch.eager
        for rival in torch.rivals:
            self.runs[rival] = partial(torch.rival, rival)
        if target == "cpu" and torch.threads != _threads(self.made):
            self.skipped.append(f"PyTorch runs on {_counted(torch.threads, 'thread')}")
        if not with_compile:
            return
        if target == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
            self.skipped.append("torch.compile is left out: it needs a C++ compiler")
        else:
            self.runs["torch.compile"] = torch.compiled

    def result(
        self, stored: DType, target: str, lengths: Mapping[str, int], seconds: float
    ) -> Result:
        """The errors of the contenders, and their times, of about some seconds for each."""
        errors = self.errors()
        times = interleaved(self.runs, self.wait, seconds)
        return Result(
            self.program.name,
            target,
            str(stored),
            lengths,
            self.made.snapshot + 1,
            {dim.label: tile for dim, tile in self.made.tiles.items()},
            _threads(self.made),
            len(times[OURS]),
            [_contender(name, times[name], errors[name]) for name in self.runs],
            self.made.listing,
            self.skipped,
            versions(),
        )

    def errors(self) -> dict[str, float]:
        """The error of each contender; those that fail are left out."""
        errors = {}
        for name in list(self.runs):
            try:
                found = [self.to_numpy(x) for x in self.runs[name]()]
            except Exception as error:  # torch.compile has many ways to fail
                if name == OURS or isinstance(error, BlockbusterError | MemoryError):
                    raise
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self.skipped.append(f"{name} failed: {first}")
                del self.runs[name]
                continue
            named = dict(zip(self.expected, found, strict=True))
            errors[name] = relative_error(named, self.expected)
        return errors


DEMO = {
    "attention": {"M": 1024, "N": 1024, "D": 64, "L": 64},
    "layernorm-matmul": {"M": 512, "K": 512, "N": 1024},
    "rmsnorm-swiglu": {"M": 256, "D": 512, "K": 1024, "N": 512},
}
ALLOWED = {"cpu": 1e-4, "cuda": 3e-2}
"""The error that the demonstration allows: float32 on the CPU, bfloat16 on a GPU."""


def demo() -> Iterator[str]:
    """Fuses, compiles, checks and times three programs on this machine; yields the text."""
    targets = ["cpu", *(["cuda"] if _has_gpu() else [])]
    for name, sizes in DEMO.items():
        program = examples.find(name)
        fusion = fuse(program, unit=())
        edges = [len(buffered(graph)) for graph in fusion.fused]
        yield f"{program}\n"
        before = len(buffered(lower(program)))
        after = " or ".join(map(str, dict.fromkeys(edges)))
        yield f"Lists that go through global memory: {before} unfused, {after} fused. What runs:\n"
        shown = False
        for target in targets:
            dtype = "bfloat16" if target == "cuda" else None
            result = bench(
                program, target=target, sizes=sizes, dtype=dtype, seconds=1, with_compile=False
            )
            if not shown:
                yield "\n".join(f"    {line}" for line in result.listing.rstrip().splitlines())
                shown = True
            error = result.contenders[0].error
            if not error <= ALLOWED[target]:
                message = f"{name} on {target} is wrong: an error of {error:.1e} against float64"
                raise BlockbusterError(message=message)
            yield f"\n{result}"
        yield ""
    if len(targets) == 1:
        yield "No GPU with PyTorch and Triton was found here, so the Triton kernels were not run."


def _has_gpu() -> bool:
    if not _there("torch") or not _there("triton"):
        return False
    from blockbuster_fusion.runtime.triton.device import has_gpu

    return has_gpu()


def interleaved(
    runs: Mapping[str, Callable[[], Any]], wait: Callable[[], None], seconds: float
) -> dict[str, list[float]]:
    """The times of each contender, measured in interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():  # once more: caches are warm, memory is there
        run()
    wait()
    begin = time.perf_counter()
    while min(map(len, times.values())) < 5 or time.perf_counter() - begin < seconds * len(runs):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            wait()
            times[name].append(time.perf_counter() - start)
    return times


def default_lengths(program: ArrayProgram, target: str, given: Mapping[str, int]) -> dict[str, int]:
    """A length for every axis of the inputs: the given one, by symbol or axis, or the default."""
    axes = dict.fromkeys(axis for i in program.inputs for axis in i.type.axes)
    known = given_extents(axes, given)
    batch, usual = LENGTHS[target]
    alone = {dim.axis for dim in lower(program).dims if not dim.packed}
    heads = HEAD if "attention" in program.name else {}
    made = {}
    for axis in axes:
        length = heads.get(axis.name, batch if axis in alone else usual)
        made[axis.name] = known.of(axis) if known.knows(axis) else length
    return made


def _fixed(program: ArrayProgram, lengths: Mapping[str, int]) -> dict[str, int]:
    """The sizes that are compiled in: all but those of the rows and batches of the outputs."""
    rows: set[Axis] = set()
    for out in program.outputs:
        rows.update(out.axes[:-1])
    symbols = {a.name: a for i in program.inputs for a in i.type.axes if a not in rows}
    return {name: lengths[name] for name, a in symbols.items() if isinstance(a.extent, Symbol)}


def inputs_for(program: ArrayProgram, lengths: Mapping[str, int]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for given in program.inputs:
        shape = [lengths[axis.name] for axis in given.type.axes]
        x = rng.standard_normal(shape, np.float32)
        if len(shape) > 1 and "attention" not in program.name:
            x /= np.float32(np.sqrt(shape[-1]))  # as weights are: so that numbers stay about 1
        made[given.name] = x if given.type.dtype.is_float else x.astype(given.type.dtype.value)
    return made


def _expected(program: ArrayProgram, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs in float64, by the interpreter."""
    exact = {
        name: np.asarray(x, np.float64) if np.asarray(x).dtype.kind == "f" else x
        for name, x in arrays.items()
    }
    return dict(interpret(unfused(program, {}), exact).items())


def versions() -> dict[str, str]:
    """The versions of the packages that take part."""
    made = {"python": platform.python_version()}
    for name in ("blockbuster-fusion", "numpy", "torch", "triton"):
        try:
            made[name] = version(name)
        except PackageNotFoundError:
            continue
    return made


def _there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(names, platform.processor())
