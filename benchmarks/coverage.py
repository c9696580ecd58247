"""How much of each model in the zoo is fused, how exactly, and how much memory a call takes.

    python benchmarks/coverage.py [--only llama] [--dtype float32 bfloat16] [--attention sdpa]
        [--parts explain compile library]

Lengths and memory are measured in a process of their own for each model; what is found is kept in
benchmarks/results/coverage.json, beside what was found before, and shown in docs/coverage.md.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date
from importlib.metadata import version
from itertools import product
from pathlib import Path

from library_choices import library_choices, section

os.environ.setdefault("BLOCKBUSTER_LIBRARY", "never")  # kernels are measured, faster or not
os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned here once does not count

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "coverage.json"
PAGE = ROOT / "docs" / "coverage.md"
sys.path.insert(0, str(ROOT / "tests"))

LENGTHS = (24, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 200)
WARM, LONG = 24, 1000
"""Words in the calls before the memory of a call is measured, and in that call."""
FEW, MANY = 2, 512
"""Images, where there are no words."""
PARTS = ("explain", "compile", "library", "lengths", "blockbuster", "eager", "inductor")
"""What is found out of a model; the last three are the memory that a call takes."""
QUICK = frozenset({"explain", "compile", "library"})
"""Parts that need no process of their own."""
PACKAGES = ("blockbuster-fusion", "torch", "transformers", "numpy")
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Arrays are given back to the system when they are freed, so that its count is of live ones."""

Row = dict[str, object]


# ---------------------------------------------------------------- one model


def measure(
    name: str,
    dtype_name: str,
    attention: str,
    parts: Iterable[str],
    told: Callable[[Row], None] = lambda row: None,
) -> Row:
    """Some parts of a model's row; what fails is told under `failed`, and the rest is kept."""
    row: Row = {"name": name, "dtype": dtype_name, "attention": attention, "failed": {}}
    runs = {
        "explain": explained,
        "compile": exactness,
        "library": library_choices,
        "lengths": recompilations,
    }
    for part in parts:
        start = time.perf_counter()
        try:
            if part in runs:
                row |= runs[part](name, dtype_name, attention)
            else:
                row[f"{part}_bytes"] = peak_memory(name, dtype_name, attention, part)
        except Exception as error:
            sentence = next(iter(str(error).strip().splitlines()), "")
            row["failed"][part] = f"{type(error).__name__}: {sentence}"[:300]
        row.setdefault("seconds", {})[part] = round(time.perf_counter() - start, 2)
        told(row)  # in case the next part ends the process
    return row


def explained(name: str, dtype_name: str, attention: str) -> Row:
    """What `bb.explain` counts."""
    import torch

    import blockbuster_fusion as bb
    from helpers.zoo import ZOO

    dtype = getattr(torch, dtype_name)
    with torch.no_grad():
        model = ZOO[name].build(dtype, attention)
        found = bb.explain(model, **ZOO[name].inputs(dtype=dtype))
    return {
        "regions": len(found.regions),
        "kernels": len(found.kernels),
        "flash": sum(kernel.is_flash for kernel in found.kernels),
        "attentions": ZOO[name].attentions,
        "misc": [str(operator) for operator in found.misc],
        "fallbacks": [str(fallback) for fallback in found.fallbacks],
        "elided_casts": len(found.elided_casts),
        "coverage": found.coverage,
        "edges_before": found.edges_before,
        "edges_after": found.edges_after,
    }


def exactness(name: str, dtype_name: str, attention: str) -> Row:
    """The worst output's error against a float64 run, and eager's."""
    import torch

    from helpers.zoo import ZOO
    from helpers.zoo_reference import eager_errors, reference, relative_errors, tolerances

    dtype = getattr(torch, dtype_name)
    inputs = ZOO[name].inputs(dtype=dtype)
    compiled = compile_for("blockbuster", name, dtype_name, attention, dynamic=False)
    with torch.no_grad():
        outputs = ZOO[name].output(compiled(**inputs))
    exact = reference(ZOO[name], dtype, attention, inputs)
    eager = eager_errors(ZOO[name], dtype, attention, inputs, exact)
    errors = relative_errors(outputs, exact)
    allowed = tolerances(dtype, eager)
    share, error, of_eager = max(
        (x / y, x, e) for x, y, e in zip(errors, allowed, eager, strict=True)
    )
    return {"error": error, "eager_error": of_eager, "share_of_allowed": share}


def recompilations(name: str, dtype_name: str, attention: str) -> Row:
    """How many graphs calls of many lengths take beyond the first."""
    import torch
    from torch._dynamo.utils import counters

    from helpers.zoo import ZOO

    if not ZOO[name].has_length:
        return {}
    compiled = compile_for("blockbuster", name, dtype_name, attention, dynamic=True)
    counters.clear()
    with torch.no_grad():
        for length in LENGTHS:
            compiled(**ZOO[name].inputs(length, dtype=getattr(torch, dtype_name)))
    return {"recompilations": counters["stats"]["unique_graphs"] - 1}


def peak_memory(name: str, dtype_name: str, attention: str, contender: str) -> int | None:
    """Bytes by which the process grows in the first long call, compiled for any length."""
    import torch

    from helpers.zoo import ZOO

    dtype = getattr(torch, dtype_name)

    def inputs(large: bool) -> dict[str, torch.Tensor]:
        if ZOO[name].has_length:
            return ZOO[name].inputs(LONG if large else WARM, dtype=dtype)
        return ZOO[name].inputs(batch=MANY if large else FEW, dtype=dtype)

    run = compile_for(contender, name, dtype_name, attention, dynamic=True)
    with torch.no_grad():
        for _ in range(2):
            run(**inputs(large=False))
        given = inputs(large=True)
        return growth(lambda: run(**given))


def growth(call: Callable[[], object]) -> int | None:
    """How far the memory of this process rises while it runs, where the system tells."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest count so far
    except OSError:
        return None
    before = _memory("VmRSS")
    made = call()
    after = _memory("VmHWM")
    del made
    return max(0, after - before)


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == field:
            return 1024 * int(value.removesuffix("kB"))
    raise KeyError(field)


def compile_for(
    contender: str, name: str, dtype_name: str, attention: str, *, dynamic: bool
) -> Callable[..., object]:
    """The model as eager runs it, or compiled by a backend."""
    import torch

    from helpers.zoo import ZOO

    model = ZOO[name].build(getattr(torch, dtype_name), attention)
    if contender == "eager":
        return model
    torch._dynamo.reset()
    if contender == "blockbuster":
        import blockbuster_fusion as bb

        bb.register_backend()
    return torch.compile(model, backend=contender, dynamic=dynamic)


def show(row: Row) -> None:
    """Tell the process that asked; the last line counts."""
    print(json.dumps(row), flush=True)


# ---------------------------------------------------------------- all of them


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


def keep(rows: Iterable[Row]) -> list[Row]:
    """All rows ever found, the new ones in the place of the old."""
    from helpers.zoo import ZOO

    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    merged: dict[tuple[object, ...], Row] = {}
    for row in [*known, *rows]:
        key = (row["dtype"], row["attention"], row["name"])
        before = merged.get(key, {"failed": {}, "seconds": {}})
        done = row.get("seconds", {})
        failed = {part: why for part, why in before["failed"].items() if part not in done}
        merged[key] = before | row | {"failed": failed | row["failed"]}
        merged[key]["seconds"] = before.get("seconds", {}) | done
    places = {name: place for place, name in enumerate(ZOO)}
    kept = [row for row in merged.values() if row["name"] in places]
    kept.sort(key=lambda row: (row["dtype"] != "float32", row["attention"], places[row["name"]]))
    content = {
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "machine": {"machine": platform.machine(), "cores": os.cpu_count()},
        "rows": kept,
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    return kept


# ---------------------------------------------------------------- the page

HEADING = """\
# Coverage

Fusion results of each model in `tests/helpers/zoo.py`: two layers, 64 wide, random weights,
two texts with padding. This command makes the page:

    python benchmarks/coverage.py --dtype float32 bfloat16 --attention eager sdpa

`--parts explain compile library` does not measure lengths and memory; earlier figures are kept.
The versions are {versions}.
The figures are kept in `benchmarks/results/coverage.json`.

- **regions**, **kernels**: fused regions, and kernels in them. **flash**: kernels that hold a whole
  attention, and the number of attentions in the model.
- **misc**: operators that the framework runs between regions; **fallbacks**: regions that it runs
  because Blockbuster could not.
- **coverage**: the share of operators, views not counted, inside fused regions.
- **edges**: buffered edges inside the regions, before fusion and after.
- **error**: ‖y - y₆₄‖ / ‖y₆₄‖ against a run in float64, divided by eager's own error; 2 is allowed.
- **recompiled**: graphs beyond the first for {lengths} lengths from 1 to 200 with `dynamic=True`.
  A length of one is a graph of its own for every backend of torch.compile.
- **memory**: growth of the process in MiB in the first call with {long} words ({many} images).
  The model was compiled for any length and called with {warm} words ({few} images) before. Results,
  intermediate arrays and scratch of all allocators count; weights and code do not. In brackets
  are Inductor's growth, then eager's. A dash: not measured.
"""

COLUMNS = (
    ("model", "---"),
    ("regions", "--:"),
    ("kernels", "--:"),
    ("flash", "--:"),
    ("misc", "--:"),
    ("fallbacks", "--:"),
    ("coverage", "--:"),
    ("edges", "--:"),
    ("error", "--:"),
    ("recompiled", "--:"),
    ("memory", "--:"),
)


def page(rows: list[Row], versions: Mapping[str, str]) -> str:
    """The documentation's table of all rows."""
    words = ", ".join(f"{package} {number}" for package, number in versions.items())
    sizes = {"lengths": len(LENGTHS), "long": LONG, "warm": WARM, "many": MANY, "few": FEW}
    parts = [HEADING.format(versions=words, **sizes), section(rows)]
    rows = [row for row in rows if {"explain", "compile"} <= {*row["seconds"]}]
    for kind in dict.fromkeys((row["dtype"], row["attention"]) for row in rows):
        chosen = [row for row in rows if (row["dtype"], row["attention"]) == kind]
        parts.append(f"\n## {kind[0]}, {kind[1]} attention\n\n{_summary(chosen)}\n\n")
        parts.append("| " + " | ".join(name for name, _ in COLUMNS) + " |\n")
        parts.append("|" + "|".join(line for _, line in COLUMNS) + "|\n")
        parts += ["| " + " | ".join(_cells(row)) + " |\n" for row in chosen]
        parts += [
            f"\n- **{row['name']}**, {part}: {reason.replace('|', ' ')}"
            for row in chosen
            for part, reason in row["failed"].items()
        ]
        parts.append("\n" if any(row["failed"] for row in chosen) else "")
    return "".join(parts)


def _summary(rows: list[Row]) -> str:
    whole = sum(_is_whole(row) for row in rows)
    return (
        f"{whole} of {len(rows)} models have no fallback, a flash kernel for each attention, "
        + ("95% coverage and at most twice eager's error.")
    )


def _is_whole(row: Row) -> bool:
    return (
        not row["failed"]
        and not row["fallbacks"]
        and row["flash"] == row["attentions"]
        and row["coverage"] >= 0.95
        and row["share_of_allowed"] <= 1
    )


def _cells(row: Row) -> list[str]:
    def given(text: Callable[[], str]) -> str:
        try:
            return text()
        except KeyError:
            return "failed" if row["failed"] else "–"

    def mebibytes(contender: str) -> str:
        size = row.get(f"{contender}_bytes")
        return "–" if size is None else f"{size / 2**20:.1f}"

    return [
        row["name"],
        given(lambda: str(row["regions"])),
        given(lambda: str(row["kernels"])),
        given(lambda: f"{row['flash']} of {row['attentions']}"),
        given(lambda: str(len(row["misc"]))),
        given(lambda: str(len(row["fallbacks"]))),
        given(lambda: f"{row['coverage']:.1%}"),
        given(lambda: f"{row['edges_before']} → {row['edges_after']}"),
        given(lambda: f"{2 * row['share_of_allowed']:.2f}"),
        str(row["recompilations"]) if "recompilations" in row else "–",
        f"{mebibytes('blockbuster')} ({mebibytes('inductor')}, {mebibytes('eager')})",
    ]


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
