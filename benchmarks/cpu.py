"""Torch functions with this backend, against eager PyTorch and Inductor, on one CPU thread.

    python benchmarks/cpu.py [--cases attention gelu] [--seconds 1]
    python benchmarks/cpu.py --save benchmarks/results/cpu.json   # merges: other cases stay
    python benchmarks/cpu.py --table                              # the table of docs/kernels.md

Each case is the function that people write: F.scaled_dot_product_attention, F.layer_norm, F.gelu
and the like, in float32, under no_grad. Contenders are eager PyTorch, torch.compile (Inductor) and
torch.compile(backend="blockbuster"). They run in turns in one process, and what counts is the CPU
time of the process: a machine that does other work as well takes little part in the ratios. Errors
are against float64, relative to the largest number of a row.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.tools.bench import OURS, processor, versions
from blockbuster_fusion.tools.check.judge import relative_error

os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # kernels are measured, faster or not

RESULTS = Path(__file__).parent / "results" / "cpu.json"
ROUNDS = 11
EAGER, INDUCTOR, WRITTEN_OUT = "eager", "inductor", "written out"


@dataclass(frozen=True)
class Case:
    """A function with the shapes of its inputs."""

    name: str
    baseline: str
    """The PyTorch functions that eager and Inductor run."""
    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    written_out: Callable[..., Tensor] | None = None
    """The same from matmul, exp and so on, as a model may have it."""

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        made = [torch.randn(shape, generator=generator) for shape in self.shapes]
        return [x / x.shape[-1] ** 0.5 if number else x for number, x in enumerate(made)]


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


def swiglu(x: Tensor, g: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    y = F.rms_norm(x, x.shape[-1:], g)
    return x + F.linear(F.silu(F.linear(y, w)) * F.linear(y, v), u)


def norm_linear(x: Tensor, g: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.layer_norm(x, x.shape[-1:], g, b), w)


def mlp(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w)), u)


def _heads(rows: int, keys: int, width: int) -> tuple[tuple[int, ...], ...]:
    return (1, 8, rows, width), (1, 8, keys, width), (1, 8, keys, width)


SDPA = "F.scaled_dot_product_attention"
CASES = [
    Case("attention, 8 heads, 512×512, d 64", SDPA, F.scaled_dot_product_attention,
         _heads(512, 512, 64)),
    Case("attention, 8 heads, 2048×2048, d 64", SDPA, F.scaled_dot_product_attention,
         _heads(2048, 2048, 64)),
    Case("causal attention, 8 heads, 2048×2048, d 64", SDPA, causal,
         _heads(2048, 2048, 64), causal_written_out),
    Case("causal attention, 8 heads, 2048×2048, d 128", SDPA, causal,
         _heads(2048, 2048, 128), causal_written_out),
    Case("attention, 8 heads, 1×2048, d 64", SDPA, F.scaled_dot_product_attention,
         _heads(1, 2048, 64)),
    Case("LayerNorm, 512×1024", "F.layer_norm", lambda x, g, b: F.layer_norm(x, (1024,), g, b),
         ((512, 1024), (1024,), (1024,))),
    Case("RMSNorm, 512×1024", "F.rms_norm", lambda x, g: F.rms_norm(x, (1024,), g),
         ((512, 1024), (1024,))),
    Case("softmax, 512×4096", "F.softmax", lambda x: F.softmax(x, -1), ((512, 4096),)),
    Case("GELU (erf), 512×4096", "F.gelu", F.gelu, ((512, 4096),)),
    Case("GELU (tanh), 512×4096", "F.gelu", lambda x: F.gelu(x, approximate="tanh"),
         ((512, 4096),)),
    Case("SiLU, 512×4096", "F.silu", F.silu, ((512, 4096),)),
    Case("row sums, 512×4096", "Tensor.sum", lambda x: x.sum(-1), ((512, 4096),)),
    Case("linear, 512×1024×4096", "F.linear", F.linear, ((512, 1024), (4096, 1024))),
    Case("linear, 1×1024×4096", "F.linear", F.linear, ((1, 1024), (4096, 1024))),
    Case("LayerNorm + linear, 512×1024×4096", "F.layer_norm, F.linear", norm_linear,
         ((512, 1024), (1024,), (1024,), (4096, 1024))),
    Case("linear + GELU + linear, 128×1024×4096", "F.linear, F.gelu", mlp,
         ((128, 1024), (4096, 1024), (1024, 4096))),
    *(Case(f"RMSNorm + SwiGLU + residual, {rows}×1024×2816", "F.rms_norm, F.linear, F.silu",
           swiglu, ((rows, 1024), (1024,), (2816, 1024), (2816, 1024), (1024, 2816)))
      for rows in (1, 16, 128, 512)),
]  # fmt: skip


def measured(case: Case, seconds: float) -> dict[str, Any]:
    """One case: every contender against float64, then all of them in turns."""
    torch._dynamo.reset()
    inputs = case.inputs()
    functions = {
        OURS: torch.compile(case.function, backend="blockbuster"),
        EAGER: case.function,
        INDUCTOR: torch.compile(case.function),
    }
    if case.written_out is not None:
        functions[WRITTEN_OUT] = case.written_out
    exact = {"O": case.function(*(x.double() for x in inputs)).numpy()}
    errors = {
        name: relative_error({"O": f(*inputs).numpy()}, exact) for name, f in functions.items()
    }
    runs = {name: (lambda f=f: f(*inputs)) for name, f in functions.items()}
    times = in_turns(runs, seconds)
    contenders = {
        name: {
            "seconds": median(own),
            "quartiles": quantiles(own, n=4, method="inclusive")[::2],
            "error": errors[name],
        }
        for name, own in times.items()
    }
    return {
        "case": case.name,
        "baseline": case.baseline,
        "shapes": [list(shape) for shape in case.shapes],
        "threads": 1,
        "rounds": len(times[OURS]),
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {processor()}",
        "versions": versions(),
        "contenders": contenders,
    }


def in_turns(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """The CPU times of each, round after round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    begin = time.process_time()
    while len(times[OURS]) < ROUNDS or time.process_time() - begin < seconds * len(runs):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return times


def ratio(result: dict[str, Any], name: str) -> float:
    """How many times as long a contender takes as ours."""
    contenders = result["contenders"]
    return contenders[name]["seconds"] / contenders[OURS]["seconds"]


def table(results: list[dict[str, Any]]) -> str:
    """The results as the table of docs/kernels.md."""
    columns = ["case", "baseline", "against eager", "against Inductor", "against written out"]
    lines = [f"| {' | '.join(columns)} | our error / eager's |", "|---|---|---|---|---|---|"]
    for result in results:
        contenders = result["contenders"]
        error = contenders[OURS]["error"] / max(contenders[EAGER]["error"], 1e-12)
        speeds = [
            f"{ratio(result, name):.2f}" if name in contenders else "–"
            for name in (EAGER, INDUCTOR, WRITTEN_OUT)
        ]
        row = [result["case"], result["baseline"], *speeds, f"{error:.1f}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def load(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Old and new results in the order of the cases."""
    found = {result["case"]: result for result in (*old, *new)}
    return [found[case.name] for case in CASES if case.name in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="*", help="cases whose name has one of these words")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contender of a case")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--table", action="store_true", help="print the table of kept results")
    options = parser.parse_args()
    if options.table:
        print(table(load(options.save or RESULTS)))
        return
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    bb.register_backend()
    for case in CASES:
        if options.cases and not any(word in case.name for word in options.cases):
            continue
        result = measured(case, options.seconds)
        speeds = ", ".join(f"{n} {ratio(result, n):.2f}" for n in result["contenders"] if n != OURS)
        print(f"{case.name}: speed against {speeds}; {result['rounds']} rounds", flush=True)
        if options.save:
            kept = {"results": merged(load(options.save), [result])}
            options.save.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
