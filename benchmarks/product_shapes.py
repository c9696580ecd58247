"""Products of many shapes on a GPU: the default choice, other configurations, and cuBLAS.

    python benchmarks/product_shapes.py [--shapes 1x,4096] [--save products.json]

For each shape the configurations of the least predicted times are measured, the default one first,
and some more that are worth a look. Each is checked against float64. Times are medians of CUDA
graphs, interleaved with PyTorch's own product. Inputs rotate, so that none is in the second cache.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, capability_of, choose, executable_of
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.runtime.workers import Workers, usual_workers
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals.compiling import compile_choices
from blockbuster_fusion.torch.rivals.timing import launcher

DEVICE = torch.device("cuda")
COLD = 160 << 20
"""The bytes of all inputs that rotate."""
ROUNDS = 9
SAMPLE = 4e-4
"""The least seconds of a sample."""
USUAL_CAPABILITY = 90


@dataclass(frozen=True)
class Shape:
    """A product of M×K and N×K, with something done to it in the same kernel."""

    rows: int
    summed: int
    columns: int
    kind: str = "product"

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.summed}x{self.columns}" + f" {self.kind}" * (
            self.kind != "product"
        )

    @property
    def weights(self) -> int:
        return 2 if self.kind == "gated" else 1

    @property
    def specs(self) -> tuple[str, ...]:
        return ("M K" if self.rows > 1 else "K", *["N K"] * self.weights)

    def program(self, X: Any, *weights: Any) -> dict[str, Any]:
        parts = [X @ W.T if self.rows > 1 else W @ X for W in weights]
        if self.kind == "gated":
            return {"O": bb.ops.silu(parts[0]) * parts[1]}
        return {"O": bb.ops.gelu(parts[0]) if self.kind == "gelu" else parts[0]}

    def reference(self, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        parts = [F.linear(x, w) for w in weights]
        if self.kind == "gated":
            return F.silu(parts[0]) * parts[1]
        return F.gelu(parts[0]) if self.kind == "gelu" else parts[0]

    def rival(self, x: torch.Tensor, *weights: torch.Tensor) -> object:
        """PyTorch's products alone."""
        rows = x if x.dim() > 1 else x[None]
        return [F.linear(rows, w) for w in weights]

    def choices(self) -> list[Choice]:
        sizes = {"M": self.rows, "K": self.summed, "N": self.columns}
        own = {axis: n for axis, n in sizes.items() if axis in " ".join(self.specs).split()}
        names = dict(zip(("X", "W", "V"), self.specs, strict=False))
        functions: Mapping[int, Callable[..., Any]] = {
            1: lambda X, W: self.program(X, W),
            2: lambda X, W, V: self.program(X, W, V),
        }
        request = Request(
            bb.trace(functions[self.weights], **names),
            target="cuda",
            sizes=own,
            dtype="bfloat16",
            capability=capability_of("cuda") or USUAL_CAPABILITY,
        )
        return choose(request)

    def inputs(self, seed: int) -> list[torch.Tensor]:
        generator = torch.Generator(DEVICE).manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, generator=generator)

        x = normal(self.rows, self.summed) if self.rows > 1 else normal(self.summed)
        scale = self.summed**-0.5
        return [x, *(normal(self.columns, self.summed) * scale for _ in range(self.weights))]


SHAPES = [
    Shape(1, 2048, 3072),
    Shape(1, 2048, 8192, "gated"),
    Shape(1, 8192, 2048),
    Shape(1, 2048, 128256),
    Shape(4, 4096, 4096),
    Shape(16, 2048, 8192, "gated"),
    Shape(16, 8192, 2048),
    Shape(128, 4096, 4096),
    Shape(512, 2048, 2048),
    Shape(2048, 2048, 2048),
    Shape(2048, 2048, 8192, "gated"),
    Shape(4096, 4096, 4096),
    Shape(4096, 4096, 4096, "gelu"),
    Shape(8192, 1024, 4096),
    Shape(256, 65536, 256),
    Shape(8205, 2949, 5921),
]
Form = tuple[dict[str, int], dict[str, Any]]
"""Tiles by axis, and options of a schedule."""


def forms(shape: Shape) -> list[Form]:
    """Configurations beside those that are predicted to be the fastest."""

    def form(m: int, n: int, k: int, warps: int, stages: int, **more: Any) -> Form:
        return {"M": m, "N": n, "K": k}, {"warps": warps, "stages": stages, **more}

    if shape.rows == 1:
        few = [(8, 512, 4, 1), (8, 512, 4, 3), (4, 1024, 4, 1), (4, 1024, 4, 3), (2, 2048, 4, 1)]
        few += [(64, 64, 4, 3), (16, 256, 4, 4), (8, 256, 2, 4)]
        return [form(1, *numbers) for numbers in few]
    if shape.rows <= 16:
        made = [form(16, 32, 256, 4, 4), form(16, 16, 512, 4, 4), form(16, 64, 128, 4, 5)]
        return [*made, form(16, 64, 256, 4, 3, split={"K": 4})]
    if shape.rows <= 128:
        made = [form(128, 32, 128, 4, 4), form(64, 64, 128, 4, 5), form(128, 64, 64, 4, 6)]
        return [*made, form(128, 64, 64, 4, 4, split={"K": 2})]
    if shape.kind == "gated":
        made = [form(128, 128, 64, 8, 3), form(128, 128, 64, 8, 4), form(128, 64, 64, 4, 4)]
        return [*made, form(128, 128, 64, 8, 3, programs=132)]
    if shape.summed > 16 * shape.rows:
        sizes = [(128, 128, 64, 8, 3, 32), (128, 64, 64, 4, 4, 16), (64, 64, 128, 4, 4, 16)]
        return [form(*numbers, split={"K": parts}) for *numbers, parts in sizes]
    large = [(128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 4, 3)]
    made = [form(128, 256, 64, 8, 4, group=number) for number in (4, 8, 16)]
    made += [form(128, 256, 64, 8, number, programs=132) for number in (3, 4)]
    made += [form(128, 128, 64, 8, 4, programs=132), form(128, 128, 64, 4, 3, programs=264)]
    return [*made, *(form(*numbers) for numbers in large)]


def choice_of(usual: Choice, form: Form) -> Choice:
    """A form as a choice."""
    lengths, options = form
    schedule = replace(usual.schedule, **options)
    _, tiles = replace(usual, schedule=schedule).scheduled()
    chosen = {dim: lengths.get(dim.name, tile) for dim, tile in tiles.items()}
    return replace(usual, schedule=schedule, tiles=chosen)


def candidates(shape: Shape, most: int) -> dict[str, tuple[float, Choice]]:
    """Configurations with their predicted microseconds, by name; the default one first."""
    usual = shape.choices()
    improver = Improver(usual, machine_for("cuda"))
    made = improver.best((), most)[:most]
    plain = replace(usual[0], schedule=Schedule(grid="all"))
    made += [choice_of(plain, form) for form in forms(shape)]
    found: dict[str, tuple[float, Choice]] = {}
    for choice in made:
        seconds = improver.seconds(choice, ())
        name = str(replace(choice, tiles=choice.scheduled()[1]).config)
        found.setdefault(name, (seconds * 1e6, choice))
    return found


def graph_of(calls: Sequence[Callable[[], object]]) -> Any:
    """A CUDA graph of some calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def interleaved(graphs: Mapping[str, Any], calls: int) -> dict[str, float]:
    """The median microseconds of a call of each graph."""
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    counts = dict.fromkeys(graphs, 1)
    for number in range(ROUNDS + 1):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(counts[name]):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            seconds = begin.elapsed_time(end) / 1e3
            if number:
                samples[name].append(seconds / counts[name] / calls * 1e6)
            else:
                counts[name] = max(1, int(SAMPLE / max(seconds, 1e-7)))
    return {name: statistics.median(found) for name, found in samples.items()}


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def measured(shape: Shape, found: Mapping[str, tuple[float, Choice]]) -> dict[str, Any]:
    """The times and errors of all configurations of a shape, and of PyTorch."""
    first = shape.inputs(0)
    size = sum(x.numel() * x.element_size() for x in first)
    copies = [[x.clone() for x in first] for _ in range(min(64, max(2, -(-COLD // size))))]
    exact = shape.reference(*(x.double() for x in first))
    allowed = 2 * error_of(shape.reference(*first), exact)
    graphs: dict[str, Any] = {}
    kept: list[Any] = []  # what the graphs launch
    problems: dict[str, str] = {}
    graphs["PyTorch"] = graph_of([lambda own=own: shape.rival(*own) for own in copies])
    for name, (_, choice) in found.items():
        try:
            executable = executable_of([choice])
            names = dict(zip(("X", "W", "V"), first, strict=False))
            error = error_of(executable(**names)["O"].reshape(exact.shape), exact)
            if not error <= allowed:
                problems[name] = f"wrong: {error:.2g} instead of {allowed:.2g}"
                continue
            calls = [launcher(executable, own, (), DEVICE) for own in copies]
            kept.append((executable, calls))
            graphs[name] = graph_of(calls)
        except Exception as error:  # whatever it is, the others are measured
            problems[name] = f"{type(error).__name__}: {error}"[:200]
    times = interleaved(graphs, len(copies))
    rows = [
        {"config": name, "predicted": found[name][0], "measured": times[name]}
        for name in found
        if name in times
    ]
    return {
        "shape": shape.name,
        "library": times["PyTorch"],
        "rows": rows,
        "problems": problems,
    }


def show(row: Mapping[str, Any]) -> None:
    library = row["library"]
    print(f"{row['shape']}: PyTorch's products {library:.1f} µs", flush=True)
    for number, one in enumerate(row["rows"]):
        mark = "default" if number == 0 else ""
        share = library / one["measured"]
        times = f"predicted {one['predicted']:8.1f}, measured {one['measured']:8.1f} µs"
        print(f"  {times}, {share:5.2f} of PyTorch  {one['config']} {mark}", flush=True)
    for name, problem in row["problems"].items():
        print(f"  {name}: {problem}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="", help="only those that begin with one of these")
    parser.add_argument("--most", type=int, default=4, help="configurations by predicted time")
    parser.add_argument("--dry", action="store_true", help="only predict; needs no GPU")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    begun = time.monotonic()
    shapes = [s for s in SHAPES if s.name.startswith(tuple(options.shapes.split(",")))]
    found = {shape: candidates(shape, options.most) for shape in shapes}
    if options.dry:
        for shape, some in found.items():
            lines = [
                f"  predicted {seconds:8.1f} µs  {name}" for name, (seconds, _) in some.items()
            ]
            print(shape.name, *lines, sep="\n")
        return
    workers = Workers(usual_workers())
    rows = []
    with torch.no_grad():
        for shape, some in found.items():
            inputs = shape.inputs(0)
            compile_choices(workers, [choice for _, choice in some.values()], inputs, (), 60.0)
            rows.append(measured(shape, some))
            show(rows[-1])
            torch.cuda.empty_cache()
    defaults = [row["library"] / row["rows"][0]["measured"] for row in rows if row["rows"]]
    print(f"default choices of PyTorch's speed: {statistics.geometric_mean(defaults):.3f}")
    print(f"{time.monotonic() - begun:.0f} seconds")
    folder = os.environ.get("OUT")
    file = options.save or (Path(folder) / "product_shapes.json" if folder else None)
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
