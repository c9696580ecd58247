"""Other configurations of generated GPU kernels that are short of their goals, measured.

    python benchmarks/gpu_alternatives.py [--cases softmax] [--seconds 110] [--most 20]
    python benchmarks/gpu_alternatives.py --save benchmarks/results/gpu_alternatives_h200.json
    python benchmarks/gpu_alternatives.py --predict             # predictions alone, without a GPU
    python benchmarks/gpu_alternatives.py --again FILE          # those of kept measurements, ranked

Cases are those of benchmarks/gpu_limits.py with one kernel program each, and programs of others
(benchmarks/gpu_part_points.py), each by itself. Measured are the chosen configuration, the points
of benchmarks/gpu_points.py, and then others of the search.
Each result is first compared with float64. Configurations run in turns, in CUDA graphs, on inputs
that rotate: none is in the L2 cache. A line has the measured and the predicted microseconds, and
the share of the memory's limit. Each case is compiled in a process of its own; one measures at a
time. After `--seconds` no more configurations are compiled or measured. With --again, nothing is
measured: the first by prediction of each case is compared with the fastest that was measured.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned once does not count

import torch
from gpu_cases import CASES
from gpu_limits import BANDWIDTH, MOST_SETS, ROTATED
from gpu_part_points import PARTS, Part
from gpu_points import POINTS
from torch.fx import Node

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import executable_of
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.runtime.measuring import measuring
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.torch.capture.nodes import tensors_of
from blockbuster_fusion.torch.compile_parts import PartCompiler
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.rivals.timing import launcher
from blockbuster_fusion.torch.rivals.tuning import Exactness, Subject, neighbours, subject_of
from helpers.offline import captured, offline

SLOW = 2.0
"""The factor beyond which a predicted time is not worth a measurement."""
COMPILING = 0.55
"""The share of the time in which configurations are compiled."""


ALL = {name: Part(name, tuple(points)) for name, points in POINTS.items()} | PARTS
"""All programs that are measured, by name."""


class Alternatives:
    """A program of a case, and the choices that may run it."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.machine = name, machine_for("cuda")
        self.part = ALL.get(name) or Part(name, ())
        self.case = next(c for c in CASES if c.name == self.part.case)
        (inputs,) = self.case.sets(1, device) if device == "cuda" else [self.empty()]
        (graph,) = captured(self.case.function, *inputs, runs=False)
        wishes = {"together": self.part.together, "apart": self.part.apart}
        chooser = graph.chooser(Options(target="cuda", library="never", **wishes), self.machine)
        chooser.choose_kernels()
        self.parts: PartCompiler = chooser.parts
        (self.nodes,) = [own for own in self.parts.taken if self.holds(own)]

    def holds(self, nodes: Sequence[Node]) -> bool:
        """True if some operators are those of the program."""
        names = {node.name for node in nodes}
        return not self.part.operator or self.part.operator in names

    def bytes(self, subject: Subject) -> float:
        """The bytes of the inputs and of the last result of the program, each moved once."""
        if not self.part.operator:
            return self.case.bytes
        given = {id(x): x for x in subject.inputs}
        return float(sum(x.nbytes for x in (*given.values(), *tensors_of(self.nodes[-1]))))

    def empty(self) -> list[torch.Tensor]:
        """Inputs that are not computed with."""
        made = [torch.empty(shape, dtype=torch.bfloat16) for shape in self.case.shapes]
        return [*made[:-1], made[-1].long()] if self.case.classes else made

    def choices(self, subject: Subject, most: int) -> list[tuple[Choice, float]]:
        """At most so many choices, each with its predicted seconds; the usual one first.

        After it come the points of the case, others of the search, and neighbours of the first.
        Points of a program among several are measured whatever is predicted for them.
        """
        first = subject.choices[0]
        points = [point(subject.choices, *given) for given in self.part.points]
        found = [first, *points, *subject.choices[1:-1], *neighbours(first, subject)]
        made: dict[str, tuple[Choice, float]] = {}
        usual = self.seconds(first, subject)
        wanted = points if self.part.operator else []
        for choice in found:
            seconds = self.seconds(choice, subject)
            is_wanted = any(choice is x for x in wanted) and math.isfinite(seconds)
            launch = choice.config.launch.keys() - first.config.launch.keys()
            is_same = seconds == usual and bool(launch & {"stages", "group"})
            is_new = seconds < SLOW * usual and not is_same
            if (is_new or is_wanted) and len(made) < most:
                made.setdefault(f"{choice.graph.digest}{choice.config}", (choice, seconds))
        return [*made.values()]

    def seconds(self, choice: Choice, subject: Subject) -> float:
        """The predicted seconds of a choice; infinite if there are no kernels."""
        return Improver([choice], self.machine).seconds(choice, subject.sizes)

    def measured(self, most: int, end: float, seconds: float) -> Iterator[dict[str, Any]]:
        """The choices with their predicted and measured microseconds, until a time."""
        from cuda_graphs import interleaved

        subject, place = subject_of(self.parts, self.nodes, self.machine), torch.device("cuda")
        least = self.bytes(subject)
        count = min(MOST_SETS, max(2, math.ceil(ROTATED / least)))
        sets = [subject.inputs, *(copied(subject.inputs) for _ in range(count - 1))]
        exactness = Exactness(subject)
        rows: dict[str, dict[str, Any]] = {}
        calls = {}
        for choice, predicted in self.choices(subject, most):
            if calls and time.time() > end - (1 - COMPILING) * seconds:
                break
            name = f"{choice.config}{' ' * len(rows)}"  # two may have one text
            row = {"config": choice.config.data(), "predicted": predicted * 1e6}
            rows[name] = row | {"case": self.name, "bytes": least}
            try:
                executable = executable_of([choice], None)
                rows[name]["is_wrong"] = not exactness.error(executable) <= exactness.bar
                calls[name] = [launcher(executable, x, subject.sizes, place) for x in sets]
            except Exception as error:  # whatever a compiler or a driver raises
                rows[name]["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
        with contextlib.suppress(BrokenBarrierError):  # until nothing else runs on the GPU
            _READY.wait(max(0.0, end - time.time()))
        with measuring("cuda", longest=seconds):
            right = {name: own for name, own in calls.items() if not rows[name]["is_wrong"]}
            if time.time() < end:
                for name, spent in interleaved(right, milliseconds=1.0).items():
                    rows[name]["measured"] = spent
        yield from rows.values()


def copied(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of arrays; one that is read twice is copied once."""
    made = {id(x): x.clone() for x in inputs}
    return [made[id(x)] for x in inputs]


def point(
    choices: Sequence[Choice], tiles: Mapping[str, int], options: Mapping[str, Any]
) -> Choice:
    """The first choice, or that of a snapshot, with other tiles and options.

    Labels that it does not have are left out.
    """
    own = {name: value for name, value in options.items() if name != "snapshot"}
    number = options.get("snapshot", choices[0].snapshot + 1) - 1
    choice = next(choice for choice in choices if choice.snapshot == number)
    made = replace(choice, schedule=replace(choice.schedule, **own))
    dims = {dim.label: dim for dim in made.scheduled()[1]}
    changed = {dims[label]: tile for label, tile in tiles.items() if label in dims}
    return replace(made, tiles={**made.tiles, **changed})


_READY: Any = None
"""The barrier at which all processes wait, once their kernels are compiled."""


def begin(ready: Any) -> None:
    """Prepares a process that compiles and measures."""
    global _READY
    _READY = ready


def found(name: str, most: int, end: float, seconds: float) -> list[dict[str, Any]]:
    """The measured alternatives of a case, in a process of its own."""
    torch.set_grad_enabled(False)
    try:
        return [*Alternatives(name, "cuda").measured(most, end, seconds)]
    except BaseException:
        _READY.abort()
        raise


def predicted(name: str, most: int) -> list[dict[str, Any]]:
    """The same without a GPU: predictions alone."""
    with offline(machine_for("cuda")):
        made = Alternatives(name, "cpu")
        subject = subject_of(made.parts, made.nodes, made.machine)
        choices, head = made.choices(subject, most), {"case": name, "bytes": made.bytes(subject)}
    rows = ((choice.config.data(), seconds * 1e6) for choice, seconds in choices)
    return [head | {"config": config, "predicted": x} for config, x in rows]


def again(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measured configurations of a case with the times that are predicted now, the least first."""
    made: list[dict[str, Any]] = []
    with offline(machine_for("cuda")):
        own = Alternatives(name, "cpu")
        subject = subject_of(own.parts, own.nodes, own.machine)
        for row in rows:
            config = Config.from_data(row["config"])
            of_snapshot = [x for x in subject.choices if x.snapshot == config.snapshot]
            if of_snapshot and "measured" in row:
                usual = replace(of_snapshot[0], schedule=config.schedule)
                seconds = own.seconds(point([usual], config.tiles, {}), subject)
                made.append({**row, "predicted": seconds * 1e6})
    return sorted(made, key=lambda row: row["predicted"])


def ranked(file: Path, words: Sequence[str]) -> None:
    """Prints how the present predictions rank the configurations of a file."""
    kept = json.loads(file.read_text(encoding="utf-8"))["rows"]
    shares = []
    for name in dict.fromkeys(row["case"] for row in kept if any(x in row["case"] for x in words)):
        rows = again(name, [row for row in kept if row["case"] == name])
        if rows:
            best = min(row["measured"] for row in rows)
            shares.append(rows[0]["measured"] / best)
            error = rows[0]["measured"] / rows[0]["predicted"]
            print(
                f"{name:32} first {shares[-1]:.3f} times the best of {len(rows)}, {best:.2f} µs;"
                f" measured / predicted {error:.2f}: {Config.from_data(rows[0]['config'])}"
            )
    if shares:
        print(f"geometric mean {math.exp(sum(map(math.log, shares)) / len(shares)):.4f}")


def told(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of a case, the fastest first, and the usual choice marked."""
    usual, least = rows[0], rows[0]["bytes"] / BANDWIDTH * 1e6
    yield f"{usual['case']}: {least:.1f} µs by the memory"
    for row in sorted(rows, key=lambda r: (r.get("measured") or math.inf, r["predicted"])):
        time_of = row.get("measured")
        own = "        –" if time_of is None else f"{time_of:9.2f}"
        share = "    " if time_of is None else f"{least / time_of:.2f}"
        note = " (chosen)" * (row is usual) + " WRONG" * row.get("is_wrong", False)
        note += f" FAILED, {row['failed']}" if "failed" in row else ""
        config = Config.from_data(row["config"])
        yield f"  {own} µs {share} predicted {row['predicted']:8.2f}  {config}{note}"


def save(file: Path | None, machine: str, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the rows into a file, if there is one; the first of each case is what was chosen."""
    if file is not None:
        content = {"date": str(date.today()), "machine": machine, "rows": rows}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", metavar="WORD", default=[""])
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--most", type=int, default=20, help="configurations of a case")
    parser.add_argument("--predict", action="store_true", help="measure nothing")
    parser.add_argument("--again", type=Path, metavar="FILE", help="predict its rows again")
    parser.add_argument("--save", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.again:
        ranked(options.again, options.cases)
        return
    names = [name for name in ALL if any(word in name for word in options.cases)]
    end = time.time() + options.seconds
    kept: list[dict[str, Any]] = []
    if options.predict:
        for name in names:
            kept += predicted(name, options.most)
            own = [row for row in kept if row["case"] == name]
            print("\n".join(told(own)), flush=True)
        save(options.save, "predicted", kept)
        return
    context = multiprocessing.get_context("spawn")
    work = partial(found, most=options.most, end=end, seconds=options.seconds)
    ready = context.Barrier(len(names))
    with ProcessPoolExecutor(len(names), context, begin, (ready,)) as pool:
        jobs = [pool.submit(work, name) for name in names]
        for name, job in zip(names, jobs, strict=True):
            try:
                rows = job.result()
                print("\n".join(told(rows)), flush=True)
                kept += rows
            except Exception as error:  # the other cases are still of use
                print(f"{name}: FAILED, {type(error).__name__}: {str(error)[:300]}", flush=True)
    save(options.save, torch.cuda.get_device_name(), kept)


if __name__ == "__main__":
    main()
