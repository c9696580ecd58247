"""The rows of all models that were ever measured, in a file."""

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from coverage.model import Row

RESULTS = Path(__file__).parents[1] / "results" / "coverage.json"
PACKAGES = ("blockbuster-fusion", "torch", "transformers", "numpy")


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
