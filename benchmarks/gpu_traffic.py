"""Compares the bytes of DRAM that generated kernels move on a GPU with those that are predicted.

    python benchmarks/gpu_traffic.py [--cases norm softmax]

Five kernels in bfloat16 run several times on inputs that rotate, so that the L2 cache has none of
them. Nsight Compute (`ncu`) reads the counters of DRAM, if it is found; else PyTorch's profiler
does, by CUPTI. Launches follow each other without flushing caches: results that one leaves in L2
are written while the next one runs, and the first launches do not count. The prediction is that of
schedule/waves.py: blocks that are loaded again come from DRAM, unless L2 still holds them. Beside
it, `touched` bytes of nest/analysis/traffic.py count each byte of arrays once, and `moved` bytes
each time. Where no counters can be read, a sentence says why.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
LAUNCHES, FIRST = 10, 4
"""The calls of each kernel, and the first ones among them, which do not count."""
SETS = 3
ALLOWED = 0.15
"""The difference of measured and predicted bytes, as a share of the latter."""
SECONDS = 55
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
NO_RIGHT = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True)
class Case:
    """A function and the shapes of its arguments."""

    name: str
    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self, seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        made = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in self.shapes]
        return [x / x.shape[-1] ** 0.5 for x in made]


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES = (
    Case("layer norm 8192x4096", norm, ((8192, 4096), (4096,), (4096,))),
    Case("softmax 16384x4096", lambda x: torch.softmax(x, -1), ((16384, 4096),)),
    Case("silu gate 8192x8192", lambda x, y: F.silu(x) * y, ((8192, 8192),) * 2),
    Case("product 4096x4096x4096", lambda x, w: x @ w, ((4096, 4096),) * 2),
    Case("causal attention 4x16x4096x128", attention, ((4, 16, 4096, 128),) * 3),
)


# ------------------------------------------------------------------------ the kernels


@dataclass
class Prepared:
    """A case that is compiled, with the bytes of DRAM that are predicted for its kernels."""

    case: Case
    call: Callable[..., Any]
    predicted: float
    touched: int
    moved: int
    launches: int


def prepared(case: Case) -> Prepared:
    """A case compiled by generated kernels alone, for its sizes."""
    from blockbuster_fusion.ir.tiling import Extents, Tiling
    from blockbuster_fusion.nest.analysis.traffic import traffic_of
    from blockbuster_fusion.schedule.cost import predicted_bytes
    from blockbuster_fusion.torch.backend import backend
    from blockbuster_fusion.torch.capture.sizes import captured_length
    from blockbuster_fusion.torch.compiled_graph import CompiledGraph
    from blockbuster_fusion.torch.machines import machine_for
    from blockbuster_fusion.torch.model import own_frame

    graphs: list[CompiledGraph] = []
    compiler = partial(backend, options={"library": "never"}, watcher=graphs.append)
    call = torch.compile(own_frame(case.function), backend=compiler, dynamic=False)
    call(*case.inputs(0))
    found, predicted, machine = [], 0.0, machine_for("cuda")
    for graph in graphs:
        length = captured_length(graph.analysis)
        for fused in graph.fused:
            nest, config = fused.executable.nest, fused.executable.config
            assert nest is not None
            assert config is not None
            sizes = [(axis, length(size)) for axis, size in fused.part.expressed.sizes]
            tiling = Tiling(Extents.of_sizes(sizes, "the call"), fused.executable.tiles)
            found += [traffic_of(launch, tiling) for launch in nest.launches]
            predicted += predicted_bytes(nest, tiling, machine, config.schedule)
    touched, moved = sum(x.total_touched for x in found), sum(x.total_moved for x in found)
    return Prepared(case, call, predicted, touched, moved, len(found))


def run_all(cases: Sequence[Prepared]) -> None:
    """Calls all cases, each several times in a row on inputs that rotate."""
    for one in cases:
        sets = [one.case.inputs(seed) for seed in range(SETS)]
        one.call(*sets[0])
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        for at in range(LAUNCHES):
            one.call(*sets[at % SETS])
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


# ------------------------------------------------------------------------ the counters

Measured = list[dict[str, float]]
"""The counters of each launch, in order."""


def by_launch(text: str) -> Measured:
    """The counters in the table that Nsight Compute writes, launch by launch."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines):
        if row["Metric Name"] in METRICS:
            number = float(row["Metric Value"].replace(",", ""))
            found.setdefault(row["ID"], {})[row["Metric Name"]] = number
    return [*found.values()]


def in_trace(trace: Mapping[str, Any]) -> Measured:
    """The counters in a trace of PyTorch's profiler, launch by launch."""
    events = [x for x in trace["traceEvents"] if METRICS[0] in x.get("args", {})]
    events.sort(key=lambda x: x["ts"])
    return [{name: float(x["args"][name]) for name in METRICS} for x in events]


def nsight() -> str | None:
    """The command line of Nsight Compute, if it is installed."""
    found = shutil.which("ncu")
    places = [path for place in PLACES for path in Path(place).rglob("ncu")]
    return found or next((str(path) for path in places if path.is_file()), None)


def by_nsight(command: str, names: Sequence[str]) -> tuple[list[dict[str, Any]], Measured, str]:
    """The predictions of a process that Nsight Compute watches, its counters, and its words."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        done = subprocess.run(
            [
                *(command, "--csv", "--print-units", "base", "--metrics", ",".join(METRICS)),
                *("--profile-from-start", "off", "--cache-control", "none"),
                *("--clock-control", "none", "--log-file", str(log)),
                *(sys.executable, __file__, "--watched", "--cases", *names),
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        text = log.read_text(encoding="utf-8") if log.exists() else ""
    rows = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    return rows, by_launch(text), text + done.stderr


def by_cupti(cases: Sequence[Prepared]) -> Measured:
    """The counters as PyTorch's profiler reads them."""
    from torch.profiler import ProfilerActivity, profile

    config = torch._C._profiler._ExperimentalConfig(
        profiler_metrics=[*METRICS], profiler_measure_per_kernel=True
    )
    with profile(activities=[ProfilerActivity.CUDA], experimental_config=config) as watched:
        run_all(cases)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(file))
        return in_trace(json.loads(file.read_text(encoding="utf-8")))


# ------------------------------------------------------------------------ the comparison


def compared(rows: Sequence[Mapping[str, Any]], measured: Measured) -> Iterator[str]:
    """A line for each case: the bytes that were predicted and measured."""
    launches = [row["launches"] * LAUNCHES for row in rows]
    if len(measured) != sum(launches):
        found, wanted = len(measured), sum(launches)
        yield f"The counters are of {found} launches, and {wanted} were expected: not comparable."
        return
    at = 0
    for row, count in zip(rows, launches, strict=True):
        own = measured[at + FIRST * row["launches"] : at + count]
        at += count
        calls = LAUNCHES - FIRST
        read, written = (sum(x[name] for x in own) / calls for name in METRICS)
        share = (read + written) / row["predicted"] - 1
        said = "within" if abs(share) <= ALLOWED else "beyond"
        yield (
            f"{row['name']:32} predicted {row['predicted'] / 1e6:8.1f} MB (touched "
            f"{row['touched'] / 1e6:.1f}, moved {row['moved'] / 1e6:.1f}), "
            f"measured {(read + written) / 1e6:8.1f} MB (read {read / 1e6:.1f}, "
            f"written {written / 1e6:.1f}): {share:+.1%}, {said} {ALLOWED:.0%}"
        )


def data(one: Prepared) -> dict[str, Any]:
    own = {"name": one.case.name, "predicted": one.predicted, "touched": one.touched}
    return own | {"moved": one.moved, "launches": one.launches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", metavar="WORD", default=[""])
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = [c for c in CASES if any(word in c.name for word in options.cases)]
    if not torch.cuda.is_available():
        sys.exit("There is no GPU, so there are no counters of its memory.")
    torch.set_grad_enabled(False)
    if options.watched:
        cases = [prepared(case) for case in chosen]
        for one in cases:
            print(json.dumps(data(one)), flush=True)
        run_all(cases)
        return
    command, reason = nsight(), "Nsight Compute is not installed"
    if command is not None:
        try:
            rows, measured, words = by_nsight(command, options.cases)
        except subprocess.TimeoutExpired:
            sys.exit(f"Nsight Compute took longer than {SECONDS} s.")
        if measured:
            print("\n".join(compared(rows, measured)))
            return
        lacks = f"the driver lets only administrators read counters ({NO_RIGHT})"
        last = next(iter(words.strip().splitlines()[-1:]), "it said nothing")
        reason = lacks if NO_RIGHT in words else f"Nsight Compute gave none: {last}"
    else:
        cases = [prepared(case) for case in chosen]
        try:
            measured, words = by_cupti(cases), "it has none"
        except Exception as error:  # whatever it is, it is the reason
            measured, words = [], f"{type(error).__name__}: {error}"
        if measured:
            print("\n".join(compared([data(one) for one in cases], measured)))
            return
        reason += f", and PyTorch's profiler gives none from CUPTI: {words}"
        for one in cases:
            print(json.dumps(data(one)))
    sys.exit(f"The counters of DRAM cannot be read: {reason}.")


if __name__ == "__main__":
    main()
