"""Predicts the bytes that each model of the zoo moves: unfused, fused greedily, and by our plan.

    python benchmarks/traffic.py [--models llama bert] [--missing] [--plans kernels default]

Nothing is compiled and no model is run by kernels. For the plan `default`, which takes as long
again, PyTorch's operators are measured; without it, earlier figures of it are kept.
traffic_groups.py says what counts. Models are those of tests/helpers/zoo.py with 2 texts of 512
words, or 64 images. A model is kept in benchmarks/results/traffic.json once it is done, in place of
its earlier figures, and docs/traffic.md has the table. `--models` takes words: all models whose
names have one of them are counted. `--missing` leaves out models that are kept already.
"""

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from math import exp, log
from pathlib import Path
from typing import Any

os.environ.setdefault("BLOCKBUSTER_DATABASE", "off")  # what was tuned here once does not count

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "traffic.json"
PACKAGES = ("blockbuster-fusion", "torch", "transformers")
WORDS, IMAGES = 512, 64
GROUPINGS = ("unfused", "greedy", "kernels", "default", "bound")

Row = dict[str, Any]


def load(file: Path) -> dict[str, Any]:
    """The kept figures."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {"rows": []}


def table(kept: Mapping[str, Any]) -> str:
    """The models by line: mebibytes by grouping, and how often those of our kernels these are."""
    rows: Sequence[Row] = kept["rows"]
    lines = [
        "| model | unfused | greedy | kernels | default | bound | unfused ÷ kernels "
        "| greedy ÷ kernels | kernels ÷ bound |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        sizes = [_mebibytes(row["bytes"].get(name)) for name in GROUPINGS]
        ratios = [_ratio(row, *pair) for pair in PAIRS]
        shown = ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        lines.append(f"| {row['name']} | {' | '.join([*sizes, *shown])} |")
    means = [_mean([r for row in rows if (r := _ratio(row, *pair)) is not None]) for pair in PAIRS]
    lines.append(f"| geometric mean | | | | | | {' | '.join(means)} |")
    return "\n".join(lines)


PAIRS = (("unfused", "kernels"), ("greedy", "kernels"), ("kernels", "bound"))


def _mebibytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**20:.2f}"


def _ratio(row: Row, above: str, below: str) -> float | None:
    sizes = row["bytes"]
    return sizes[above] / sizes[below] if above in sizes and below in sizes else None


def _mean(ratios: Sequence[float]) -> str:
    return f"{exp(sum(map(log, ratios)) / len(ratios)):.2f}" if ratios else "–"


def keep(row: Row, order: Sequence[str]) -> None:
    """Keeps the figures of a model, beside those of the others and of other groupings."""
    rows = {known["name"]: known for known in load(RESULTS)["rows"]}
    before = rows.get(row["name"], {"bytes": {}, "groups": {}})
    merged = {key: before[key] | row[key] for key in ("bytes", "groups")}
    rows[row["name"]] = row | merged
    content = {
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "sizes": {"texts": 2, "words": WORDS, "images": IMAGES, "dtype": "float32"},
        "rows": [rows[name] for name in order if name in rows],
    }
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def count(name: str, plans: Sequence[str]) -> Row:
    """The figures of one model."""
    import torch
    from traffic_groups import counted_model

    from helpers.zoo import ZOO

    model = ZOO[name]
    attention = "sdpa" if "sdpa" in model.kinds else "eager"
    given = {"length": WORDS} if model.has_length else {"batch": IMAGES}
    with torch.no_grad():
        built = model.build(torch.float32, attention)
        inputs = model.inputs(**given, dtype=torch.float32)
    found = counted_model(built, inputs, plans)
    today = date.today().isoformat()
    own = {"name": name, "attention": attention, "date": today}
    return own | {"bytes": found.bytes, "groups": found.groups}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", metavar="WORD", default=[""])
    parser.add_argument("--plans", nargs="*", default=["kernels"], choices=["kernels", "default"])
    parser.add_argument("--missing", action="store_true")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
    warnings.simplefilter("ignore")

    from helpers.zoo import ZOO

    chosen = [name for name in ZOO if any(word in name for word in options.models)]
    if options.missing:
        wanted = {"unfused", *options.plans}
        known = {row["name"] for row in load(RESULTS)["rows"] if wanted <= {*row["bytes"]}}
        chosen = [name for name in chosen if name not in known]
    failed = 0
    for at, name in enumerate(chosen, 1):
        start = time.perf_counter()
        try:
            row = count(name, options.plans)
            keep(row, [*ZOO])
            told = ", ".join(f"{key} {_mebibytes(size)}" for key, size in row["bytes"].items())
        except Exception as error:
            failed += 1
            sentence = next(iter(str(error).strip().splitlines()), "")
            told = f"{type(error).__name__}: {sentence}"[:200]
        seconds = time.perf_counter() - start
        print(f"{at}/{len(chosen)} {name} {seconds:.0f} s: {told}", file=sys.stderr, flush=True)
    from pages import main as write_pages

    write_pages()
    if failed:
        sys.exit(f"{failed} of {len(chosen)} models could not be counted.")


if __name__ == "__main__":
    main()
