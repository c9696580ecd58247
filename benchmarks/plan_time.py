"""The seconds after capture in which a Llama of 2 and of 32 layers is planned.

    python benchmarks/plan_time.py [--target cuda] [--words 2048] [--layers 2 32] [--save]

The model has the shape of Llama 3.1 8B in bfloat16; its weights take no memory, and nothing is run.
With `cuda`, it is planned for an H200, also where there is none; with `cpu`, for this CPU. Kernels
are predicted, and PyTorch's operators have times by a model (tests/helpers/offline.py). `--rows` is
the number of texts of which one word each is decoded, `--words` that of a prompt. Each count of
layers is planned in a process of its own. `cpu_seconds` are those of the process, which other work
on the machine does not lengthen, and ratios are of these. `--save` keeps the figures in
results/plan_time.json.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned here once does not count

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "plan_time.json"
PACKAGES = ("blockbuster-fusion", "torch")


def planned(target: str, layers: int, rows: int, words: int) -> dict[str, Any]:
    """The seconds of one plan, and its certificate."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

    from llama_shapes import llama

    from blockbuster_fusion.torch.machines import machine_for
    from blockbuster_fusion.torch.options import Options
    from helpers.offline import captured, offline

    model, given = llama(layers, words or rows, decodes=not words)
    (graph,) = captured(model, *given, runs=False)
    machine = machine_for(target)
    with offline(machine):
        start, spent = time.perf_counter(), time.process_time()
        chooser = graph.chooser(Options(target=target, library="auto", strict=True), machine)
        chooser.choose()
        seconds, spent = time.perf_counter() - start, time.process_time() - spent
    found = chooser.certificate
    assert found is not None
    return {
        "layers": layers,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(spent, 2),
        "ideals": found.ideals,
        "candidates": found.candidates,
        "priced": found.priced,
        "proven": found.proven,
        "value": found.value,
        "bound": found.bound,
        "caps": [*found.caps],
        "kernels": len(chooser.parts.taken),
    }


def alone(arguments: argparse.Namespace, target: str, layers: int, words: int) -> dict[str, Any]:
    """One plan in a process of its own."""
    own = ["--target", target, "--layers", str(layers), "--words", str(words), "--one"]
    command = [sys.executable, __file__, *own, "--rows", str(arguments.rows)]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(made.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", nargs="+", default=["cuda", "cpu"])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--words", type=int, nargs="+", default=[0, 2048], help="0: decode")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 32])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        given = (options.target[0], options.layers[0], options.rows, options.words[0])
        print(json.dumps(planned(*given)))
        return
    cases = []
    for target in options.target:
        for words in options.words:
            name = f"{target}, " + (f"prompt of {words}" if words else f"decode {options.rows}")
            rows = [alone(options, target, layers, words) for layers in options.layers]
            ratio = round(rows[-1]["cpu_seconds"] / rows[0]["cpu_seconds"], 2)
            cases.append({"name": name, "ratio": ratio, "plans": rows})
            for row in rows:
                state = "proven" if row["proven"] else ", ".join(row["caps"]) or "open"
                counts = "{ideals} ideals, {candidates} candidates, {priced} priced".format(**row)
                times = "{cpu_seconds} s of CPU, {seconds} s".format(**row)
                print(f"{name}, {row['layers']} layers: {times}; {counts}; {state}")
            print(f"{name}: {ratio} times as long", flush=True)
    if options.save:
        content = {
            "date": date.today().isoformat(),
            "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
            "cores": os.cpu_count(),
            "cases": cases,
        }
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
