"""The time of each stage of compiling, and its growth with the program.

    python benchmarks/compile_time.py [--small] [--save benchmarks/results/compile_time.json]

Stages are in CPU seconds of this process; the C compiler runs in its own and is not among them. The
growth is the exponent of n that fits best: 1 is linear, and n·log n between these sizes about 1.1.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fusion_time import decoder

import blockbuster_fusion as bb
from blockbuster_fusion.fusion.fuse import fuse
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.schedule.defaults import all_tiles, by_estimate, chosen_units, default_tiles
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from helpers.deep_programs import chain, nested, outputs, products, unary_chain

PROGRAMS: dict[str, tuple[Callable[[int], bb.ArrayProgram], tuple[int, ...]]] = {
    "chain": (chain, (1000, 2000, 5000, 10_000)),
    "unary chain": (unary_chain, (1000, 2000, 5000, 10_000)),
    "nested": (nested, (250, 500, 1000, 2000)),
    "outputs": (outputs, (50, 100, 200, 500)),
    "products": (products, (50, 100, 200, 500)),
    "decoder layers": (decoder, (2, 4, 8, 16, 32)),
}


class Clock:
    """CPU seconds of each stage, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, stage: str, work: Callable[[], Any]) -> Any:
        """Does the work, notes its time, and gives its result."""
        start = time.process_time()
        made = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - start
        return made


def stages(make: Callable[[int], bb.ArrayProgram], size: int) -> dict[str, float]:
    """The time of each stage from a function to C."""
    clock = Clock()
    program = clock.run("trace", lambda: make(size))
    graph = clock.run("lower", lambda: bb.lower(program))

    def safe(units: Any) -> list[Graph]:
        fused = clock.run("fuse", lambda: fuse(graph, unit=units).fused)
        return clock.run("safety", lambda: [make_safe(g).graph for g in fused])

    start = time.process_time()
    before = sum(clock.seconds.values())
    units = chosen_units(graph, "cpu", safe)
    within = sum(clock.seconds.values()) - before
    clock.seconds["units"] = time.process_time() - start - within
    graphs = safe(units)
    tiles = clock.run("tiles", lambda: [default_tiles(g, "cpu") for g in graphs])
    best = clock.run("choice", lambda: by_estimate(graphs, tiles, "cpu"))[0]
    how = Schedule(grid="outer")
    nest = clock.run("nest", lambda: scheduled(graphs[best], "kernel", how))
    clock.run("print", lambda: print_c(nest, all_tiles(nest, tiles[best], "cpu")))
    return clock.seconds


def growth(sizes: list[int], seconds: list[float]) -> float:
    """The exponent of n that fits the times best."""
    x, y = ([math.log(max(v, 1e-6)) for v in values] for values in (sizes, seconds))
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="leave out the largest two sizes")
    parser.add_argument("--save", type=Path, help="keep the result as JSON")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name, (make, sizes) in PROGRAMS.items():
        rows = {n: stages(make, n) for n in (sizes[:-2] if options.small else sizes)}
        totals = {n: sum(row.values()) for n, row in rows.items()}
        exponent = growth(list(totals), list(totals.values()))
        found[name] = {"stages": rows, "total": totals, "growth": exponent}
        for n, row in rows.items():
            parts = ", ".join(f"{stage} {value:.2f}" for stage, value in row.items())
            print(f"{name} {n}: {totals[n]:.2f} s ({parts})", flush=True)
        print(f"{name}: grows as n^{exponent:.2f}", flush=True)
        if options.save:
            keep(found, options.save)


def keep(found: dict[str, Any], file: Path) -> None:
    """Writes what has been measured so far as JSON."""
    about = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found | about, indent=1) + "\n")


if __name__ == "__main__":
    main()
