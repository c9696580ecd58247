"""Writes the tables of kept results into the pages of docs/ and the README.

    python benchmarks/pages.py

A table stands between `<!-- name -->` and `<!-- /name -->`. Tests compare pages with results.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import charts
import cpu
import dots
import gpu_limits
import limits
import scaling
import traffic

ROOT = Path(__file__).parents[1]
TABLES: Mapping[str, Callable[[], str]] = {
    "summary": lambda: cpu.summary(cpu.load(cpu.RESULTS)),
    "cpu": lambda: cpu.table(cpu.load(cpu.RESULTS)),
    "scaling": lambda: scaling.table(scaling.load(scaling.RESULTS)),
    "limits": lambda: limits.table(limits.load(limits.RESULTS)),
    "gpu_limits": lambda: gpu_limits.table(limits.load(gpu_limits.RESULTS)),
    "llama_h200": charts.llama_table,
    "dots": lambda: dots.table(limits.load(dots.RESULTS)),
    "traffic": lambda: traffic.table(traffic.load(traffic.RESULTS)),
}
PAGES = ("README.md", "docs/cpu.md", "docs/gpu.md", "docs/performance.md", "docs/traffic.md")


def filled(page: str, tables: Mapping[str, str]) -> str:
    """A page with some tables in their places; it may have none of them."""
    for name, table in tables.items():
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page = place.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page)
    return page


def main() -> None:
    tables = {name: made() for name, made in TABLES.items()}
    for name in PAGES:
        file = ROOT / name
        file.write_text(filled(file.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
