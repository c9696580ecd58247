"""How long fusing takes, and how it grows with the program.

    python benchmarks/fusion_time.py [--rounds 30] [--save benchmarks/results/fusion_time.json]

Machines differ and are noisy, so every time is also given in units of a fixed piece of pure Python
that is run right before it (`calls`: so many function calls take as long), and growth as a ratio.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.array.arrays import Array, elementwise
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.ops import Elementwise
from blockbuster_fusion.ir.types import DType, Type

BOUNDS = {"ten operators": 5, "1 decoder layers": 100}
"""Milliseconds for the median."""


def ten_operators() -> bb.ArrayProgram:
    """A candidate of ten operators: RMSNorm written out, SwiGLU and the residual."""

    def program(X: Array, WT: Array, VT: Array, UT: Array) -> Array:
        squares = bb.ops.square(X).sum(axis=-1, keepdims=True)
        normed = X * elementwise(lambda s: (s / bb.ops.size(X, 1) + 1e-6) ** -0.5, squares)
        return X + (bb.ops.swish(normed @ WT.T) * (normed @ VT.T)) @ UT.T

    traced = bb.trace(program, X="M D", WT="K D", VT="K D", UT="D K")
    assert len(traced.operators) == 10, len(traced.operators)
    return traced


def decoder(layers: int) -> bb.ArrayProgram:
    """So many pre-norm decoder layers in one program, no two alike: each has its own widths."""

    def program(X: Array, *weights: Array) -> Array:
        given = iter(weights)
        for _ in range(layers):
            normed = _rmsnorm(X, next(given))
            q, k, v = (normed @ next(given) for _ in range(3))
            scores = (q @ k.T) * bb.ops.size(q, 1) ** -0.5
            visible = bb.ops.index(scores, 1) <= bb.ops.index(scores, 0)
            e = bb.ops.exp(bb.ops.where(visible, scores, -1e30))
            attended = (e * bb.ops.reciprocal(e.sum(axis=-1, keepdims=True))) @ v
            X = X + attended @ next(given)
            normed = _rmsnorm(X, next(given))
            X = X + (bb.ops.swish(normed @ next(given)) * (normed @ next(given))) @ next(given)
        return X

    specs = ["M E"]
    for i in range(layers):
        d, f = f"D{i}:{16 + i}", f"F{i}:{48 + i}"
        specs += ["E", f"E {d}", f"E {d}", f"E {d}", f"{d} E", "E", f"E {f}", f"E {f}", f"{f} E"]
    return bb.trace(program, *specs)


def _rmsnorm(x: Array, weight: Array) -> Array:
    squares = bb.ops.square(x).sum(axis=-1, keepdims=True)
    inverse = elementwise(lambda s: (s / bb.ops.size(x, 1) + 1e-6) ** -0.5, squares)
    return (x * inverse) * weight


def long_graph(nodes: int) -> bb.Graph:
    """A graph of so many nodes, one after another."""
    builder = Builder()
    value = builder.input("x", Type((), (), DType.float32))
    for _ in range(nodes - 1):
        value = builder.one(Elementwise(call("sin", arg(0))), value)
    builder.output("y", value)
    return builder.build()


def milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def calls(milliseconds_taken: float, unit: float) -> float:
    """How many thousand plain function calls take as long."""
    return milliseconds_taken / unit


def _thousand_calls() -> None:
    def nothing(x: int) -> int:
        return x

    for i in range(1000):
        nothing(i)


RUNS: dict[str, Callable[[bb.Graph], object]] = {
    "paper": lambda graph: bb.fuse(graph, "paper"),
    "extended": lambda graph: bb.fuse(graph, "extended"),
    "extended, alternatives": lambda graph: bb.fuse(graph, "extended").alternatives,
}


def compare_rules(rounds: int) -> dict[str, dict[str, float]]:
    """Medians for one decoder layer by each set of rules, and ratios to the paper's."""
    program = decoder(1)
    times: dict[str, list[float]] = {name: [] for name in RUNS}
    for _ in range(rounds):
        for name, run in RUNS.items():
            graph = bb.lower(program)
            times[name].append(milliseconds(lambda run=run, graph=graph: run(graph)))
    median = {name: statistics.median(found) for name, found in times.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, times["paper"], strict=True))
        for name, found in times.items()
    }
    return {"median_ms": median, "ratio_to_paper": ratios}


def measure(rounds: int) -> dict[str, object]:
    """Medians over interleaved rounds."""
    programs = {
        "ten operators": ten_operators(),
        **{f"{n} decoder layers": decoder(n) for n in (1, 2, 4, 8)},
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    units: list[float] = []
    for _ in range(rounds):
        for name, program in programs.items():
            graph = bb.lower(program)  # a new graph each time: nothing is derived yet
            units.append(milliseconds(_thousand_calls))
            times[name].append(milliseconds(lambda graph=graph: bb.fuse(graph, "paper")))
    unit = statistics.median(units)
    median = {name: statistics.median(found) for name, found in times.items()}
    steps = {name: len(bb.fuse(program, "paper").trace) for name, program in programs.items()}
    digest_first, digest_again = [], []
    for _ in range(rounds):
        graph = long_graph(1000)
        digest_first.append(milliseconds(lambda graph=graph: graph.digest))
        digest_again.append(milliseconds(lambda graph=graph: graph.digest))
    n = steps["1 decoder layers"]
    growth = {k: median[f"{k} decoder layers"] / median["1 decoder layers"] for k in (2, 4, 8)}
    allowed = {k: k * math.log(k * n) / math.log(n) for k in (2, 4, 8)}
    return {
        "unit_ms": unit,
        "median_ms": median,
        "kilocalls": {name: calls(value, unit) for name, value in median.items()},
        "quartiles_ms": {k: statistics.quantiles(v, n=4)[::2] for k, v in times.items()},
        "steps": steps,
        "operators": {
            "ten operators": len(ten_operators().operators),
            **{f"{k} decoder layers": len(decoder(k).operators) for k in (1, 2, 4, 8)},
        },
        "growth": growth,
        "n_log_n": allowed,
        "rules": compare_rules(rounds),
        "digest_1000_nodes_ms": statistics.median(digest_first),
        "digest_again_ms": statistics.median(digest_again),
    }


def show(found: Mapping[str, Any]) -> None:
    """Prints the figures."""
    print(f"unit: 1000 plain function calls take {found['unit_ms']:.3f} ms here")
    for name, value in found["median_ms"].items():
        low, high = found["quartiles_ms"][name]
        print(
            f"{name:18} {found['operators'][name]:4} operators {found['steps'][name]:4} steps "
            f"{value:8.2f} ms ({low:.2f} to {high:.2f}) = {found['kilocalls'][name]:6.0f} units"
        )
    for k, ratio in found["growth"].items():
        print(
            f"{k} layers take {ratio:.2f} times as long as one; "
            f"n·log n is {found['n_log_n'][k]:.2f}"
        )
    for name, ratio in found["rules"]["ratio_to_paper"].items():
        print(
            f"a decoder layer, {name}: {found['rules']['median_ms'][name]:.2f} ms, "
            f"{ratio:.2f} times the paper's rules"
        )
    for name, bound in BOUNDS.items():
        value = found["median_ms"][name]
        print(f"{name}: {value:.2f} ms, bound {bound} ms: {'met' if value <= bound else 'NOT met'}")
    print(
        f"digest of 1000 nodes: {found['digest_1000_nodes_ms']:.2f} ms the first time, "
        f"{found['digest_again_ms']:.4f} ms again"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--save", type=Path, help="keep the result as JSON")
    options = parser.parse_args()
    found = measure(options.rounds)
    show(found)
    if options.save:
        found |= {
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "rounds": options.rounds,
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(found, indent=1) + "\n")
        print(f"saved to {options.save}")


if __name__ == "__main__":
    main()
