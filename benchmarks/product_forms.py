"""Forms of products on a GPU, with norms before and gates or sums after them.

    python benchmarks/product_forms.py [--cases gated] [--save forms.json]

Each case has the configurations of the kept file, and the one that is chosen by now. Processes
compile all of them first. Times are medians of CUDA graphs, interleaved with PyTorch's operators,
over inputs that rotate, so that none is in the second cache. Results are compared with float64.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cuda_graphs import interleaved

import blockbuster_fusion as bb
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose, executable_of
from blockbuster_fusion.improve import Improver
from blockbuster_fusion.runtime.workers import Workers, usual_workers
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals.compiling import compile_choices

RESULTS = Path(__file__).parent / "results" / "product_forms_h200.json"
COLD = 200 << 20
"""The bytes of all inputs that rotate."""
MOST_SETS = 64
CAPABILITY = 90
EPSILON = 1e-5
o = bb.ops


def gated(X: Any, W: Any, V: Any) -> Any:
    return o.silu(X @ W.T) * (X @ V.T)


def gated_row(X: Any, W: Any, V: Any) -> Any:
    return o.silu(W @ X) * (V @ X)


def gated_linear(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def normed(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], g, EPSILON)


def normed_linear(
    x: torch.Tensor, g: torch.Tensor, h: torch.Tensor, w: torch.Tensor
) -> torch.Tensor:
    return F.linear(F.layer_norm(x, x.shape[-1:], g, h, EPSILON), w)


@dataclass(frozen=True)
class Program:
    """A function over arrays with the axes of its inputs, and the same in PyTorch."""

    function: Callable[..., Any]
    specs: tuple[str, ...]
    reference: Callable[..., torch.Tensor]

    def choices(self, sizes: Mapping[str, int]) -> list[Choice]:
        """The snapshots of the program for some sizes, with their default tiles."""
        program = bb.trace(self.function, *self.specs)
        request = Request(
            program, target="cuda", sizes=dict(sizes), dtype="bfloat16", capability=CAPABILITY
        )
        return choose(request)

    def inputs(self, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        made = []
        for number, spec in enumerate(self.specs):
            shape = [sizes[axis] for axis in spec.split()]
            x = torch.randn(shape, device="cuda")
            is_weight = number and len(shape) > 1
            made.append((x / shape[-1] ** 0.5 if is_weight else x).bfloat16())
        return made


PROGRAMS = {
    "turned": Program(lambda X, W: X @ W.T, ("M K", "N K"), F.linear),
    "row": Program(lambda X, W: X @ W, ("K", "K N"), torch.matmul),
    "batched": Program(lambda X, W: X @ W, ("B M K", "B K N"), torch.matmul),
    "gated rows": Program(gated, ("M K", "N K", "N K"), gated_linear),
    "one row, gated rows": Program(gated_row, ("K", "N K", "N K"), gated_linear),
    "norm, gated rows": Program(
        lambda X, G, W, V: gated(o.rmsnorm(X, G, eps=EPSILON), W, V),
        ("M K", "K", "N K", "N K"),
        lambda x, g, w, v: gated_linear(normed(x, g), w, v),
    ),
    "one row, norm, gated rows": Program(
        lambda X, G, W, V: gated_row(o.rmsnorm(X, G, eps=EPSILON), W, V),
        ("K", "K", "N K", "N K"),
        lambda x, g, w, v: gated_linear(normed(x, g), w, v),
    ),
    "product, sum": Program(
        lambda X, W, Y: Y + X @ W.T, ("M K", "N K", "M N"), lambda x, w, y: y + F.linear(x, w)
    ),
    "one row, product, sum": Program(
        lambda X, W, Y: Y + W @ X, ("K", "N K", "N"), lambda x, w, y: y + F.linear(x, w)
    ),
    "layer norm, product": Program(
        lambda X, G, H, W: o.layernorm(X, G, H, eps=EPSILON) @ W.T,
        ("M K", "K", "K", "N K"),
        normed_linear,
    ),
}


def configured(choices: Sequence[Choice], data: Mapping[str, Any]) -> Choice:
    """The choice that a configuration stands for."""
    config = Config.from_data(data)
    usual = next(choice for choice in choices if choice.snapshot == config.snapshot)
    own = replace(usual, schedule=config.schedule)
    dims = {d.label: d for k in own.scheduled()[0].kernels for d in k.dims}
    tiles = {dims[name]: tile for name, tile in config.tiles.items() if name in dims}
    return replace(own, tiles={**own.tiles, **tiles})


def candidates(case: Mapping[str, Any]) -> list[Choice]:
    """The kept configurations of a case, and the one that is chosen by now."""
    choices = PROGRAMS[case["case"]].choices(case["sizes"])
    best = Improver(choices, machine_for("cuda")).best(())[0]
    found = [best, *(configured(choices, row["config"]) for row in case["rows"])]
    return list({str(choice.config): choice for choice in found}.values())


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def measured(case: Mapping[str, Any], found: Sequence[Choice]) -> dict[str, Any]:
    """The times of all configurations of a case that are right."""
    program = PROGRAMS[case["case"]]
    first = program.inputs(case["sizes"])
    count = min(MOST_SETS, max(2, math.ceil(COLD / sum(x.nbytes for x in first))))
    sets = [first, *([x.clone() for x in first] for _ in range(count - 1))]
    exact = program.reference(*(x.double() for x in first))
    allowed = 2 * error_of(program.reference(*first), exact)
    calls: dict[str, list[Callable[[], object]]] = {}
    calls["PyTorch"] = [partial(program.reference, *own) for own in sets]
    for number, choice in enumerate(found):
        try:
            runner = executable_of([choice]).runner
            error = error_of(runner.run(first)[0].reshape(exact.shape), exact)
            if not error <= allowed:
                print(f"  WRONG, {error:.2g} instead of {allowed:.2g}: {choice.config}")
                continue
            calls[str(number)] = [partial(runner.run, own) for own in sets]
        except Exception as error:  # whatever it is, the others are measured
            print(f"  {type(error).__name__} {str(error)[:150]}: {choice.config}")
    times = interleaved(calls, milliseconds=1.0)
    rows = [
        {"config": found[int(name)].config.data(), "measured": round(spent, 2)}
        for name, spent in times.items()
        if name != "PyTorch"
    ]
    return {**case, "library": round(times["PyTorch"], 2), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="only those that begin with this")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    cases = [case for case in kept if case["case"].startswith(options.cases)]
    found = [candidates(case) for case in cases]
    workers, rows = Workers(usual_workers()), []
    with torch.no_grad():
        for case, choices in zip(cases, found, strict=True):
            inputs = PROGRAMS[case["case"]].inputs(case["sizes"])
            compile_choices(workers, choices, inputs, (), 60.0)
            rows.append(measured(case, choices))
            sizes, library = "x".join(map(str, case["sizes"].values())), rows[-1]["library"]
            print(f"{case['case']} {sizes}: PyTorch {library:.1f} µs", flush=True)
            for number, row in enumerate(rows[-1]["rows"]):
                mark = "chosen" if number == 0 else ""
                share = f"{row['measured']:8.1f} µs {library / row['measured']:5.2f}"
                print(f"  {share}  {Config.from_data(row['config'])} {mark}", flush=True)
            torch.cuda.empty_cache()
    if options.save is not None:
        texts = (json.dumps(row) for row in rows)
        options.save.write_text("[\n" + ",\n".join(texts) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
