"""Compiled programs against PyTorch on this machine's CPU, one thread, float32.

    python benchmarks/cpu.py [--seconds 2] [--save benchmarks/results/cpu.json]

All contenders of a case are timed in turns, in one process; only ratios mean something. Inputs are
random normal, sizes those of the cases below, tiles and snapshots what `bb.compile` chooses.
"""

import argparse
import json
from datetime import date
from pathlib import Path

import blockbuster_fusion as bb
from blockbuster_fusion.bench import bench, versions

CASES = [
    ("attention", {"M": 512, "N": 512, "D": 64, "L": 64}),
    ("attention", {"M": 2048, "N": 2048, "D": 64, "L": 64}),
    ("attention", {"M": 2048, "N": 2048, "D": 128, "L": 128}),
    ("multi-head-attention", {"B": 1, "H": 8, "M": 2048, "N": 2048, "D": 64, "L": 64}),
    ("multi-head-attention", {"B": 1, "H": 8, "M": 2048, "N": 2048, "D": 128, "L": 128}),
    ("layernorm-matmul", {"M": 512, "K": 1024, "N": 4096}),
    ("layernorm-linear", {"M": 512, "K": 1024, "N": 4096}),
    ("rmsnorm-swiglu-residual", {"M": 1, "D": 1024, "K": 2816}),
    ("rmsnorm-swiglu-residual", {"M": 16, "D": 1024, "K": 2816}),
    ("rmsnorm-swiglu-residual", {"M": 128, "D": 1024, "K": 2816}),
    ("rmsnorm-swiglu-residual", {"M": 512, "D": 1024, "K": 2816}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each contender of a case")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    results = []
    for name, sizes in CASES:
        result = bench(
            bb.examples.find(name),
            sizes=sizes,
            threads=1,
            seconds=options.seconds,
            with_compile=not options.no_compile,
        )
        print(result, flush=True)
        results.append(json.loads(result.as_json()))
    if options.save:
        made = {"date": str(date.today()), "versions": versions(), "results": results}
        options.save.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
