"""Is a compiled model ever slower than the model itself? Many cases, on a CPU or a GPU.

    python benchmarks/never_slower.py --core --save core.json       # 40 cases, on one thread
    python benchmarks/never_slower.py --device cuda --shard 1/4 --save part1.json
    python benchmarks/never_slower.py --device cuda --graphs --modes reduce-overhead
    python benchmarks/never_slower.py --save core.json --page page.md   # measures nothing
    python benchmarks/never_slower.py --list --cases attention

Each case is a function or a module as people write it, in inference: float32 on a CPU, mostly
bfloat16 on a GPU. Contenders are eager PyTorch, Inductor and torch.compile(backend="blockbuster")
in some modes. All are first compared with a float64 run of the model: an error of more than twice
eager's own and a floor is wrong. Then they run in turns, in rounds, and each round gives a ratio.

A case is a miss if the 95% interval of its median ratio is below the bar, or if a result is wrong
or there is none: 0.97 of eager, and for max-autotune 0.95 of the better of eager and Inductor. The
exit status is then 1. With --graphs, all contenders are captured as CUDA graphs, so that the work
of the host does not count; the bar is then 0.97 of the better of eager and Inductor. A run that is
broken off goes on where it was, with the same --save.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from never_slower.case import DEVICES, Case
from never_slower.cases import chosen_cases
from never_slower.contenders import BASELINES, MODES, names_of
from never_slower.core import CORE
from never_slower.kept import Kept, ended_the_process, merged
from never_slower.report import line, misses, page, summary, unmeasured, verdicts
from never_slower.timing import DeviceLost, Effort, Result, measured


def tell(text: str) -> None:
    print(f"never slower: {text}", file=sys.stderr, flush=True)


def measure_all(cases: Sequence[Case], effort: Effort, kept: Kept) -> list[Result]:
    """The results of the cases, those that were kept before too."""
    for number, case in enumerate(cases, 1):
        place = f"[{number}/{len(cases)}]"
        if kept.has(case, effort):
            tell(f"{place} {case.name}: kept from before")
            continue
        if not kept.begin(case, effort.device):
            result = kept.add(ended_the_process(case, effort), effort)
            tell(f"{place} {line(result)}")
            continue
        try:
            result = kept.add(measured(case, effort), effort)
        except DeviceLost as lost:
            kept.add(lost.result, effort)
            tell(f"{place} {case.name}: {lost}; run it again to go on with the other cases")
            raise SystemExit(2) from lost
        except KeyboardInterrupt:
            kept.forget(case, effort.device)
            raise
        tell(f"{place} {line(result)}, {result['seconds']:.0f} s")
    names = {case.name: place for place, case in enumerate(cases)}
    threads = effort.threads if effort.device == "cpu" else None
    found = [
        r
        for r in kept.results
        if r["case"] in names and (r["device"], r["threads"]) == (effort.device, threads)
    ]
    return sorted(found, key=lambda r: names[r["case"]])


def listed(cases: Iterable[Case], device: str) -> str:
    """The cases, one a line; those of the core have a star."""
    core = set(CORE[device])
    return "\n".join(
        f"{'*' if case.name in core else ' '} {case.family}: {case.name}" for case in cases
    )


def shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    made = int(number), int(count)
    if not 1 <= made[0] <= made[1]:
        raise ValueError(text)
    return made


def count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def some_of(known: Sequence[str]) -> Any:
    """A list of words with commas between them, all of them known."""

    def parsed(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return list(dict.fromkeys(words))

    return parsed


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = made.add_argument
    add("--device", choices=DEVICES, default="cpu")
    add("--cases", nargs="*", default=[], metavar="WORD", help="cases with one of these words")
    add("--core", action="store_true", help="the fixed core of 40 cases")
    add(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="every Nth case, from the Ith on"
    )
    add("--threads", type=count, default=1, metavar="N", help="on a CPU; 1 if not given")
    add(
        "--modes",
        type=some_of(MODES),
        default=["default", "max-autotune"],
        metavar="MODE,...",
        help=f"of {', '.join(MODES)}; default and max-autotune if not given",
    )
    add(
        "--baselines",
        type=some_of(BASELINES),
        default=["eager", "inductor"],
        metavar="NAME,...",
        help="of eager, inductor, dynamo; eager is always measured",
    )
    add("--graphs", action="store_true", help="capture every contender, and time its replays")
    add("--seconds", type=float, default=1.0, help="for each contender of a case")
    add("--tuning", type=float, default=600.0, help="seconds in which max-autotune tunes a case")
    add("--limit", type=float, default=120.0, help="seconds for a case, with compiling")
    add(
        "--save",
        type=Path,
        metavar="FILE",
        help="keep results as JSON, and go on with what is kept",
    )
    add(
        "--with",
        type=Path,
        nargs="*",
        default=[],
        dest="others",
        metavar="FILE",
        help="more files with results, for the page",
    )
    add("--page", type=Path, metavar="FILE", help="write a page of kept results; measure nothing")
    add("--note", default="", metavar="TEXT", help="a remark for the top of the page")
    add("--causes", type=Path, metavar="FILE", help="known causes of misses by case, as JSON")
    add("--list", action="store_true", help="print the cases; measure nothing")
    return made  # fmt: skip


def main() -> int:
    arguments = parser()
    options = arguments.parse_args()
    device = options.device
    cases = chosen_cases(device, options.cases, options.shard, core=options.core)
    if options.list:
        print(listed(cases, device))
        return 0
    causes = json.loads(options.causes.read_text(encoding="utf-8")) if options.causes else {}
    if options.page:
        files = [*options.others, *([options.save] if options.save else [])]
        results = merged(files, cases, device)
        options.page.write_text(page(results, causes, options.note), encoding="utf-8")
    elif device == "cuda" and not torch.cuda.is_available():
        arguments.error("PyTorch finds no CUDA device")
    else:
        torch.set_num_threads(options.threads)
        torch.set_grad_enabled(False)
        if options.graphs and device != "cuda":
            arguments.error("graphs are captured on a GPU: give --device cuda")
        names = names_of(device, options.modes, options.baselines, replays=options.graphs)
        effort = Effort(
            device,
            names,
            options.threads,
            options.seconds,
            options.limit,
            options.tuning,
            options.graphs,
        )
        results = measure_all(cases, effort, Kept(options.save))
    judged = verdicts(results)
    print(f"{summary(judged)}\n\nMisses\n\n{misses(judged, causes)}")
    for result in unmeasured(results):
        tell(f"{result['case']} was not measured")
    return int(any(v.is_miss for v in judged) or bool(unmeasured(results)))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        tell("broken off; what is measured is kept if --save was given")
        raise SystemExit(130) from None
