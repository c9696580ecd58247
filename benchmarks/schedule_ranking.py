"""Measures how well predictions rank schedules: the best of the predicted ten, and the best of all.

    python benchmarks/schedule_ranking.py                                 # this CPU, one thread
    python benchmarks/schedule_ranking.py --device cuda --jobs 14 --save ranking.json
    python benchmarks/schedule_ranking.py --device cuda --again ranking.json   # measures nothing

For each kernel, the ten configurations of the least predicted times are measured, and as many more
as --more says: half of them anywhere in the schedule space, half a few changes away from the ten.
The last line has the share of kernels whose best of ten is within 10% of the best of all. With
--again, the configurations of a file are predicted again, and ranked by that.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cost_error import PRODUCTS, ROWS, Case, o

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, capability_of, choose, executable_of
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.improve import improved
from blockbuster_fusion.ir.tiling import Extents, Tiling
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.runtime.machines import this_cpu
from blockbuster_fusion.schedule.config import GRIDS, Config
from blockbuster_fusion.schedule.cost import predicted
from blockbuster_fusion.schedule.count_work import work_of
from blockbuster_fusion.schedule.space import Space
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals import timing

TOP = 10
NEAR = 1.1
USUAL_CAPABILITY = 90
"""That of the GPU that is predicted for where there is none."""


def attention(Q: Any, K: Any, V: Any) -> Any:
    return o.softmax(Q @ K.transpose(0, 2, 1) * 0.125) @ V


def gated(X: Any, W: Any, V: Any) -> Any:
    return o.silu(X @ W) * (X @ V)


def normed(X: Any, W: Any) -> Any:
    return o.rmsnorm(X) @ W


MORE = [
    Case(
        "attention",
        attention,
        ("B M D", "B N D", "B N D"),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.125),
    ),
    Case(
        "gated product",
        gated,
        ("M K", "K N", "K N"),
        lambda x, w, v: F.silu(x @ w) * (x @ v),
    ),
    Case(
        "norm, product",
        normed,
        ("M K", "K N"),
        lambda x, w: F.rms_norm(x, x.shape[-1:]) @ w,
    ),
]
ROW_SIZES = {"cpu": {"M": 512, "N": 2048}, "cuda": {"M": 8192, "N": 4096}}
LARGE = {"cpu": {"M": 256, "K": 512, "N": 512}, "cuda": {"M": 4096, "K": 4096, "N": 4096}}
FEW_ROWS = {"cpu": {"M": 4, "K": 1024, "N": 1024}, "cuda": {"M": 16, "K": 4096, "N": 4096}}
HEADS = {
    "cpu": {"B": 4, "M": 256, "N": 256, "D": 64},
    "cuda": {"B": 32, "M": 2048, "N": 2048, "D": 64},
}


def kernels(device: str) -> list[tuple[Case, Mapping[str, int]]]:
    """The kernels that are ranked, with their sizes."""
    made = [(case, ROW_SIZES[device]) for case in ROWS]
    made += [(case, LARGE[device]) for case in (*PRODUCTS, *MORE[1:])]
    made += [(case, FEW_ROWS[device]) for case in (PRODUCTS[0], *MORE[1:])]
    return [*made, (MORE[0], HEADS[device])]


class Ranking:
    """One kernel, its configurations and their times."""

    def __init__(self, number: int, device: str) -> None:
        self.case, self.sizes = kernels(device)[number]
        self.device = device
        self.machine: Machine = machine_for("cuda") if device == "cuda" else this_cpu(1)
        program = bb.trace(self.case.function, *self.case.specs)
        stored = "bfloat16" if device == "cuda" else None
        request = Request(
            program,
            target=device,
            sizes=dict(self.sizes),
            dtype=stored,
            capability=capability_of(device) or USUAL_CAPABILITY,
        )
        self.usual = choose(request)

    def best(self) -> list[Choice]:
        """The choices of the least predicted times."""
        return improved(self.usual, (), self.machine, most=TOP)[:TOP]

    def others(self, best: Sequence[Choice], count: int, seed: int) -> Iterator[Choice]:
        """Choices anywhere in the space, and in the neighbourhood of the best."""
        chance = random.Random(seed)
        for number in range(count):
            start = chance.choice(best)
            changes = chance.randint(1, 3) if number % 2 else 8
            try:
                yield self.changed(start, changes, chance)
            except BlockbusterError:
                continue

    def changed(self, choice: Choice, changes: int, chance: random.Random) -> Choice:
        """A choice with some of its numbers drawn anew."""
        schedule, is_far = choice.schedule, changes > 3
        if is_far:
            schedule = replace(schedule, grid=chance.choice(GRIDS), split={}, atomic=False)
        nest, tiles = replace(choice, schedule=schedule).scheduled()
        space = Space(nest, Extents(), self.machine)
        for _ in range(100):
            drawn = dict(tiles)
            for dim in chance.sample(space.dims, min(changes, len(space.dims))):
                drawn[dim] = chance.choice(space.tiles(dim))
            if space.fits(drawn):
                break
        else:
            drawn = dict(tiles)
        if is_far:
            work = [work_of(k, Tiling(Extents(), drawn), self.device) for k in nest.kernels]
            splits = [{}, *space.splits(min(w.programs for w in work))]
            schedule = replace(schedule, split=chance.choice(splits))
        schedule = replace(schedule, **chance.choice([{}, *space.launches]))
        return replace(choice, schedule=schedule, tiles=drawn)

    def inputs(self) -> list[torch.Tensor]:
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        shapes = [[self.sizes[axis] for axis in spec.split()] for spec in self.case.specs]
        torch.manual_seed(0)
        return [torch.randn(shape, dtype=dtype, device=self.device) for shape in shapes]

    def row(self, choice: Choice, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The predicted and the measured time of a choice, in microseconds."""
        place = torch.device(self.device)
        nest, tiles = choice.scheduled()
        guess = predicted(nest, Tiling(Extents(), tiles), self.machine, choice.schedule)
        start = time.perf_counter()
        executable = executable_of([choice], 1 if self.device == "cpu" else None)
        run = timing.launcher(executable, inputs, (), place)
        run()
        seconds = time.perf_counter() - start
        with _ALONE:
            found = timing.timed(run, place)
        if not found.is_sure:
            raise RuntimeError("the host is too busy")
        config = choice.config.data()
        config["tiles"] = {dim.label: tile for dim, tile in tiles.items()}
        times = {"predicted": guess.device * 1e6, "measured": found.seconds.device * 1e6}
        return {"config": config, **times, "seconds": seconds}

    def rival(self) -> float:
        """The time of PyTorch's operators, in microseconds."""
        inputs = self.inputs()
        with _ALONE:
            found = timing.timed(lambda: self.case.rival(*inputs), torch.device(self.device))
        return found.seconds.device * 1e6


_ALONE: Any = contextlib.nullcontext()
"""Held while a configuration is measured: compilers run beside it, other kernels do not."""


def begin(lock: Any) -> None:
    """Prepares a process that compiles and measures."""
    global _ALONE
    _ALONE = lock
    torch.set_num_threads(1)


@cache
def ranking_of(number: int, device: str) -> tuple[Ranking, list[torch.Tensor]]:
    ranking = Ranking(number, device)
    return ranking, ranking.inputs()


def timed(device: str, number: int, data: Mapping[str, Any]) -> dict[str, Any] | str:
    """The measurement of one configuration, or why there is none."""
    ranking, inputs = ranking_of(number, device)
    try:
        with torch.no_grad():
            return ranking.row(choice_of(ranking, Config.from_data(data)), inputs)
    except Exception as error:
        return f"{ranking.case.name}: {Config.from_data(data)}: {error}"[:300]


def choice_of(ranking: Ranking, config: Config) -> Choice:
    """The choice that a configuration stands for."""
    own = next(c for c in ranking.usual if c.snapshot == config.snapshot)
    labels = {dim.label: dim for dim in own.scheduled()[0].kernels[0].dims}
    labels |= {d.label: d for k in own.scheduled()[0].kernels for d in k.dims}
    tiles = {labels[name]: tile for name, tile in config.tiles.items() if name in labels}
    return replace(own, schedule=config.schedule, tiles={**own.tiles, **tiles})


class Rankings:
    """The kernels that are measured, their configurations in jobs, and what was found so far."""

    def __init__(self, numbers: Sequence[int], device: str, more: int) -> None:
        self.device = device
        self.found: dict[int, dict[str, Any]] = {}
        first: list[tuple[int, Any, bool]] = []
        later: list[tuple[int, Any, bool]] = []
        for number in numbers:
            ranking = Ranking(number, device)
            best = ranking.best()
            choices = [*best, *ranking.others(best, more, number)]
            unique = {str(choice.config): choice for choice in choices}
            configs = [choice.config.data() for choice in unique.values()]
            first += [(number, config, True) for config in configs[: len(best)]]
            later += [(number, config, False) for config in configs[len(best) :]]
            sizes = dict(ranking.sizes)
            self.found[number] = {"case": ranking.case.name, "sizes": sizes, "rows": []}
        random.Random(0).shuffle(later)
        self.jobs = [*first, *later]

    def run(self, pool: ProcessPoolExecutor, end: float) -> None:
        """Measures all jobs, and PyTorch's operators, until a time."""
        jobs = {
            pool.submit(timed, self.device, number, config): (number, is_top)
            for number, config, is_top in self.jobs
        }
        rivals = {number: pool.submit(rival, self.device, number) for number in self.found}
        try:
            for job in as_completed(jobs, timeout=max(0.0, end - time.monotonic())):
                number, is_top = jobs[job]
                row = job.result()
                if isinstance(row, str):
                    print(row, flush=True)
                else:
                    self.found[number]["rows"].append({**row, "top": is_top})
            for number, waiting in rivals.items():
                self.found[number]["library"] = waiting.result()
        except TimeoutError:
            print("the time is over", flush=True)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The kernels of which one of the ten was measured."""
        return [row for row in self.found.values() if any(r["top"] for r in row["rows"])]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--more", type=int, default=30, help="configurations beside the ten")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile")
    parser.add_argument("--seconds", type=float, default=math.inf, help="the time limit")
    parser.add_argument("--kernels", default="", help="only those whose name has this word")
    parser.add_argument("--again", type=Path, metavar="FILE", help="predict its kernels again")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.again:
        found = json.loads(options.again.read_text(encoding="utf-8"))
        predicted_again(options.device, [k for k in found if options.kernels in k["case"]])
        return
    end = time.monotonic() + options.seconds
    numbers = [
        n for n, (case, _) in enumerate(kernels(options.device)) if options.kernels in case.name
    ]
    rankings = Rankings(numbers, options.device, options.more)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(options.jobs, context, begin, (context.Lock(),))
    rankings.run(pool, end)
    rows = rankings.rows
    near = sum(shown(row) <= NEAR for row in rows)
    print(f"best of ten within {NEAR - 1:.0%} of the best of all: {near} of {len(rows)} kernels")
    if options.save:
        options.save.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for process in [*(pool._processes or {}).values()]:
        process.kill()  # a compiler may still be busy
    os._exit(0)


def predicted_again(device: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Prints how the present predictions rank configurations that were measured before."""
    by_name = {(case.name, *sizes.values()): n for n, (case, sizes) in enumerate(kernels(device))}
    shares = []
    for kernel in found:
        ranking = Ranking(by_name[kernel["case"], *kernel["sizes"].values()], device)
        found_again = [(again(ranking, row["config"]), row["measured"]) for row in kernel["rows"]]
        pairs = [(now, then) for now, then in found_again if math.isfinite(now)]
        pairs.sort(key=lambda pair: pair[0])
        best = min(row["measured"] for row in kernel["rows"])
        first, few = pairs[0][1] / best, min(pair[1] for pair in pairs[:3]) / best
        shares.append((first, few))
        sizes = "×".join(map(str, kernel["sizes"].values()))
        errors = sorted(pair[1] / pair[0] for pair in pairs[:TOP])
        print(
            f"{kernel['case']:14} {sizes:16} first {first:5.2f}, of three {few:5.2f} times the best"
            f" of {len(pairs)}, {best:.1f} µs; measured / predicted {errors[len(errors) // 2]:.2f}"
        )
    firsts, threes = (math.exp(sum(map(math.log, x)) / len(x)) for x in zip(*shares, strict=True))
    print(f"geometric means: first {firsts:.3f}, best of three {threes:.3f}")


def again(ranking: Ranking, data: Mapping[str, Any]) -> float:
    """The microseconds that are predicted for a configuration now; infinite if there is none."""
    try:
        choice = choice_of(ranking, Config.from_data(data))
        nest, tiles = choice.scheduled()
    except (BlockbusterError, StopIteration):  # other snapshots and loops are made now
        return math.inf
    tiling = Tiling(Extents(), tiles)
    return predicted(nest, tiling, ranking.machine, choice.schedule).device * 1e6


def rival(device: str, number: int) -> float:
    with torch.no_grad():
        return ranking_of(number, device)[0].rival()


def shown(kernel: Mapping[str, Any]) -> float:
    """Prints the summary of one kernel; returns how much slower the best of the ten is."""
    rows = kernel["rows"]
    top = min(row["measured"] for row in rows if row["top"])
    first = min((row for row in rows if row["top"]), key=lambda row: row["predicted"])
    best = min(rows, key=lambda row: row["measured"])
    sizes = "×".join(map(str, kernel["sizes"].values()))
    print(
        f"{kernel['case']:14} {sizes:16} first {first['measured']:8.1f},"
        f" best of ten {top:8.1f}, of {len(rows)} {best['measured']:8.1f} µs"
        f" (PyTorch {kernel.get('library', math.nan):.1f}): {Config.from_data(best['config'])}",
        flush=True,
    )
    return top / best["measured"]


if __name__ == "__main__":
    main()
