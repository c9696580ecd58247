"""The page of the documentation: a line for each model."""

from collections.abc import Callable, Mapping

from coverage.library_choices import section
from coverage.memory import FEW, LONG, MANY, WARM
from coverage.model import LENGTHS, Row

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
