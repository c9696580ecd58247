"""How much of each model in the zoo is fused, how exactly, and how much memory a call takes.

    python benchmarks/coverage.py [--only llama] [--dtype float32 bfloat16] [--attention sdpa]
        [--parts explain compile library]

Lengths and memory are measured in a process of their own for each model; what is found is kept in
benchmarks/results/coverage.json, beside what was found before, and shown in docs/coverage.md.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from datetime import date
from itertools import product
from pathlib import Path

from coverage.kept import RESULTS, keep
from coverage.model import PARTS, QUICK, Row, measure
from coverage.page import page

os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # kernels are measured, faster or not
os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned here once does not count

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "coverage.md"
sys.path.insert(0, str(ROOT / "tests"))

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Arrays are given back to the system when they are freed, so that its count is of live ones."""


def show(row: Row) -> None:
    """Tell the process that asked; the last line counts."""
    print(json.dumps(row), flush=True)


def measure_apart(name: str, dtype: str, attention: str, options: argparse.Namespace) -> Row:
    """What a process of its own finds, however it ends."""
    command = [sys.executable, "-W", "ignore", __file__, "--measure", name]
    command += ["--dtype", dtype, "--attention", attention]
    command += ["--parts", *options.parts]
    row: Row = {"name": name, "dtype": dtype, "attention": attention, "failed": {}}
    try:
        done = subprocess.run(
            command,
            env=os.environ | ALLOCATOR,
            capture_output=True,
            text=True,
            timeout=options.timeout,
            check=False,
        )
        printed, complaint = done.stdout, done.stderr
        ended = f"ended with {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode()
        complaint, ended = "", f"took longer than {options.timeout} s"
    for line in printed.splitlines():
        with suppress(json.JSONDecodeError):
            row = json.loads(line)
    if ended:
        last = next(iter(complaint.strip().splitlines()[-1:]), "")
        row["failed"]["process"] = f"{ended} {last}".strip()[:300]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models alone")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--attention", nargs="+", default=["sdpa"], choices=["eager", "sdpa"])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a model")
    parser.add_argument("--measure", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.dtype[0], options.attention[0], options.parts, show)
        return

    from helpers.zoo import ZOO

    for name in options.only or ():
        if name not in ZOO:
            parser.error(f"no model is called {name}; there are {', '.join(ZOO)}")
    chosen = [
        (name, dtype, attention)
        for dtype, attention, name in product(options.dtype, options.attention, options.only or ZOO)
        if attention in ZOO[name].kinds
    ]
    for at, (name, dtype, attention) in enumerate(chosen, 1):
        start = time.perf_counter()
        if QUICK.issuperset(options.parts):
            row = measure(name, dtype, attention, options.parts)
        else:
            row = measure_apart(name, dtype, attention, options)
        rows = keep([row | {"date": date.today().isoformat()}])
        versions = json.loads(RESULTS.read_text())["versions"]
        PAGE.write_text(page(rows, versions))
        told = "; ".join(f"{part}: {why}" for part, why in row["failed"].items()) or "measured"
        seconds = time.perf_counter() - start
        print(
            f"{at}/{len(chosen)} {name} {dtype} {attention} {seconds:.0f} s: {told[:200]}",
            file=sys.stderr,
            flush=True,
        )
    print(f"written: {PAGE.relative_to(ROOT)}, {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
