"""What numerical safety costs: flops and traffic of safe against raw programs, and the pass's time.

    python benchmarks/safety_price.py [--size 512] [--tile 64] [--save benchmarks/results/….json]

Flops and traffic are counted by the meter, not timed: they are the same on every machine. An
exponential counts as one operation. The pass is timed beside fusion itself, interleaved.
"""

import argparse
import json
import platform
import statistics
import time
from datetime import date
from pathlib import Path

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.safety.pipeline import make_safe


def metered(graph: bb.Graph, size: int, tile: int) -> tuple[int, int]:
    """Flops and traffic, all extents equal but for batch axes."""
    batch = {dim.axis.extent for dim in graph.dims if not dim.packed}
    extents = {dim.axis.extent for dim in graph.dims if not isinstance(dim.axis.extent, int)}
    sizes = {str(extent): 4 if extent in batch else size for extent in extents}
    tiles = {dim.name: tile for dim in graph.dims if dim.packed and not dim.is_free}
    found = bb.meter(graph, sizes, tiles)
    return found.flops, found.loaded + found.stored


def measure(size: int, tile: int, rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in bb.examples.EXAMPLES:
        program = bb.examples.find(name)
        fused = bb.fuse(program).fused
        raw = [metered(graph, size, tile) for graph in fused]
        safe = [metered(make_safe(graph).graph, size, tile) for graph in fused]
        fusing, securing = [], []
        for _ in range(rounds):
            graph = bb.lower(program)
            start = time.perf_counter()
            made = bb.fuse(graph).fused
            middle = time.perf_counter()
            for snapshot in made:
                make_safe(snapshot)
            fusing.append(middle - start)
            securing.append(time.perf_counter() - middle)
        rows.append(
            {
                "program": name,
                "flops": [b[0] / a[0] for a, b in zip(raw, safe, strict=True)],
                "traffic": [b[1] / a[1] for a, b in zip(raw, safe, strict=True)],
                "fuse_ms": 1e3 * statistics.median(fusing),
                "safety_ms": 1e3 * statistics.median(securing) / len(fused),
                "safety_all_ms": 1e3 * statistics.median(securing),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--tile", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", type=Path, help="keep the result as JSON")
    options = parser.parse_args()
    rows = measure(options.size, options.tile, options.rounds)
    print(f"{'program':<27}{'flops, safe/raw':<34}{'traffic':<34}{'pass/fusion':>11}")
    for row in rows:
        flops, traffic = (" ".join(f"{x:.3f}" for x in row[key]) for key in ("flops", "traffic"))
        ratio = row["safety_ms"] / row["fuse_ms"]
        print(f"{row['program']:<27}{flops:<34}{traffic:<34}{ratio:>11.2f}")
    if options.save:
        kept = {
            "rows": rows,
            "size": options.size,
            "tile": options.tile,
            "date": date.today().isoformat(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
        }
        options.save.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
