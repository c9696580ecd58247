"""Models and functions on 1 to 16 threads of a CPU: the gain of ours against that of eager PyTorch.

    python benchmarks/scaling.py [--threads 1 4 16] [--cases attention BERT] [--seconds 0.3]
    python benchmarks/scaling.py --save benchmarks/results/scaling.json  # goes on with what is kept
    python benchmarks/scaling.py --table                                 # the table of docs/cpu.md

Cases are those of benchmarks/cpu.py, but for single operators, of which three are taken. The gain
of a contender is its time on one thread over its time on several, on the same machine.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from never_slower.case import Case
from never_slower.contenders import DIRECT, EAGER, OURS, names_of
from never_slower.kept import Kept, merged
from never_slower.report import line
from never_slower.showcase import showcase
from never_slower.timing import Effort, Result, measured

RESULTS = Path(__file__).parent / "results" / "scaling.json"
OWN = f"{OURS} {DIRECT}"
OPERATORS = ("gelu 512x2048", "softmax 512x2048", "linear 16x2048x2048")
THREADS = (1, 2, 4, 8, 16)


def cases() -> list[Case]:
    """The cases of the showcase that have work for several threads."""
    return [c for c in showcase() if c.family != "single operators" or c.name in OPERATORS]


def gains(results: Sequence[Result], name: str) -> dict[str, dict[int, float]]:
    """The gain of a contender over one thread, by case and number of threads."""
    times: dict[str, dict[int, float]] = {}
    for result in results:
        own = result["contenders"].get(name, {})
        if "microseconds" in own:
            times.setdefault(result["case"], {})[result["threads"]] = own["microseconds"]
    return {
        case: {threads: found[1] / time for threads, time in sorted(found.items())}
        for case, found in times.items()
        if 1 in found
    }


def mean(numbers: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def table(results: Sequence[Result]) -> str:
    """Every case, and the mean: the gains of eager PyTorch and of ours on several threads."""
    theirs, ours = gains(results, EAGER), gains(results, OWN)
    shared = [case for case in theirs if theirs[case].keys() == ours.get(case, {}).keys()]
    counts = sorted({n for case in shared for n in theirs[case]} - {1})
    shown = [case for case in shared if {*counts} <= theirs[case].keys()]
    head = ["case", *(f"{n} threads: eager, ours" for n in counts)]
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * len(counts)]
    for case in shown:
        cells = [f"{theirs[case][n]:.1f}, {ours[case][n]:.1f}" for n in counts]
        lines.append(f"| {' | '.join([case, *cells])} |")
    if shown:
        pairs = [[mean([own[case][n] for case in shown]) for own in (theirs, ours)] for n in counts]
        cells = [f"**{a:.1f}, {b:.1f}**" for a, b in pairs]
        lines.append(f"| {' | '.join(['geometric mean', *cells])} |")
    return "\n".join(lines)


def load(file: Path) -> list[Result]:
    return merged([file], cases(), "cpu") if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="*", help="cases whose name has one of these words")
    parser.add_argument("--threads", type=int, nargs="*", default=THREADS)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each contender of a case")
    parser.add_argument("--limit", type=float, default=60.0, help="for a case, with compiling")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the results as JSON")
    parser.add_argument("--table", action="store_true", help="print the table of kept results")
    options = parser.parse_args()
    if options.table:
        print(table(load(options.save or RESULTS)))
        return
    torch.set_grad_enabled(False)
    names = names_of("cpu", [DIRECT], [EAGER])
    kept = Kept(options.save)
    for threads in options.threads:
        torch.set_num_threads(threads)
        effort = Effort("cpu", names, threads, options.seconds, options.limit, 600.0)
        for case in cases():
            if options.cases and not any(word in case.name for word in options.cases):
                continue
            if not kept.has(case, effort):
                result = kept.add(measured(case, effort), effort)
                print(f"{threads} threads: {line(result)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
