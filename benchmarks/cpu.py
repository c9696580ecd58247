"""Models and functions on a CPU against the best of eager PyTorch, Inductor and ONNX Runtime.

    python benchmarks/cpu.py [--threads 1] [--cases attention gelu] [--seconds 0.5]
    python benchmarks/cpu.py --save benchmarks/results/cpu.json    # goes on with what is kept
    python benchmarks/cpu.py --table                               # the tables of docs/cpu.md

Cases are the paper's three programs in realistic form, ten kinds of attention, single operators,
and models at their real widths (never_slower/showcase.py), in float32. Ours is `bb.compile`, and
`bb.compile(…, freeze=True)`, for which weights are constants. Each baseline is at its best: eager
PyTorch with SDPA and the like, Inductor with and without freezing, and ONNX Runtime where it is
installed and the model can be exported. They run in turns in one process, as
benchmarks/never_slower.py has them, and the same errors are allowed. On one thread, CPU time of the
process counts, so that a machine that does other work as well takes little part in the ratios.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from never_slower.contenders import (
    BEST,
    DIRECT,
    EAGER,
    FROZEN,
    INDUCTOR,
    INDUCTOR_FROZEN,
    ONNX_RUNTIME,
    OURS,
    names_of,
)
from never_slower.kept import Kept, merged
from never_slower.report import line
from never_slower.showcase import showcase
from never_slower.timing import Effort, Result, measured

RESULTS = Path(__file__).parent / "results" / "cpu.json"
MODES = (DIRECT, FROZEN)
BASELINES = (EAGER, INDUCTOR, INDUCTOR_FROZEN, ONNX_RUNTIME, BEST)
UNFROZEN = (EAGER, INDUCTOR, BEST)
"""The baselines for ours where weights may change."""
GOALS = {
    "the paper's programs": (1.05, 0.97),
    "kinds of attention": (1.1, 0.97),
    "single operators": (1.0, 0.97),
    "models at real widths": (1.1, 1.0),
}
"""The geometric mean, and the least of each case, that a family should reach."""


def best(result: Result, names: Sequence[str]) -> str:
    """The fastest of some contenders that were measured and are right."""
    times = {
        name: own["microseconds"]
        for name, own in result["contenders"].items()
        if name in names and "microseconds" in own and not own.get("is_wrong")
    }
    return min(times, key=times.__getitem__, default="")


def speed(result: Result, *, frozen: bool) -> tuple[float, str] | None:
    """The speed against the best baseline, and its name; frozen ones are compared with all."""
    ours = [f"{OURS} {mode}" for mode in (MODES if frozen else (DIRECT,))]
    rival = best(result, BASELINES if frozen else UNFROZEN)
    own = best(result, ours)
    if not rival or not own:
        return None
    times = result["contenders"]
    return times[rival]["microseconds"] / times[own]["microseconds"], rival


def mean(numbers: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def summary(results: Sequence[Result]) -> str:
    """A line for each family and number of threads: mean, least and goal."""
    lines = [
        "| | threads | cases | mean | least | mean, frozen | least, frozen | goal |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for threads in sorted({r["threads"] for r in results}):
        for family, (goal, least) in GOALS.items():
            own = [r for r in results if (r["family"], r["threads"]) == (family, threads)]
            pairs = [[s[0] for r in own if (s := speed(r, frozen=f))] for f in (False, True)]
            if all(pairs):
                shown = [f"{number:.2f}" for p in pairs for number in (mean(p), min(p))]
                goals = f"{goal}, {least}"
                cells = [family, str(threads), str(len(own)), *shown, goals]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(results: Sequence[Result]) -> str:
    """Every case: microseconds of the contenders, and the speed against the best."""
    names = [EAGER, BEST, INDUCTOR, INDUCTOR_FROZEN, ONNX_RUNTIME, *(f"{OURS} {m}" for m in MODES)]
    short = ["eager", "at its best", "Inductor", "frozen", "ONNX Runtime", "ours", "frozen"]
    head = ["case", "threads", *short, "of the best", "frozen, of the best"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    for result in results:
        times = [result["contenders"].get(name, {}).get("microseconds") for name in names]
        cells = ["–" if t is None else f"{t:.0f}" for t in times]
        found = [speed(result, frozen=frozen) for frozen in (False, True)]
        cells += ["–" if s is None else f"{s[0]:.2f}" for s in found]
        lines.append(f"| {result['case']} | {result['threads']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def load(file: Path) -> list[Result]:
    return merged([file], showcase(), "cpu") if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="*", help="cases whose name or family has these words")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each contender of a case")
    parser.add_argument("--limit", type=float, default=180.0, help="for a case, with compiling")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the results as JSON")
    parser.add_argument("--table", action="store_true", help="print the tables of kept results")
    options = parser.parse_args()
    if options.table:
        results = load(options.save or RESULTS)
        print(f"{summary(results)}\n\n{table(results)}")
        return
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    names = names_of("cpu", MODES, BASELINES)
    effort = Effort("cpu", names, options.threads, options.seconds, options.limit, 600.0)
    kept = Kept(options.save)
    for case in showcase():
        told = f"{case.family}: {case.name}"
        if options.cases and not any(word in told for word in options.cases):
            continue
        if kept.has(case, effort):
            print(f"{case.name}: kept from before", file=sys.stderr, flush=True)
            continue
        result = kept.add(measured(case, effort), effort)
        print(line(result), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
