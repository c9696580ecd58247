"""Makes the pictures of the documentation: `make pictures` writes them to docs/pictures.

Programs are drawn by the package, charts from the kept results of benchmarks, and the ideals of
docs/selection.md from the code on that page.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import blockbuster_fusion as bb
from blockbuster_fusion.pictures import draw, draw_side_by_side, draw_step, svg

HERE = Path(__file__).parent
FOLDER = HERE / "pictures"


def pictures() -> Iterator[tuple[str, str]]:
    """The name and text of each picture."""
    yield from _attention()
    yield "layernorm_matmul", _before_and_after(bb.examples.layernorm_matmul())
    yield "rmsnorm_swiglu", _before_and_after(bb.examples.rmsnorm_swiglu())
    yield "ideals", _ideals()
    sys.path.insert(0, str(HERE.parent / "benchmarks"))
    try:
        import charts
    finally:
        sys.path.pop(0)
    for name, made in charts.CHARTS.items():
        yield name, made()


def _attention() -> Iterator[tuple[str, str]]:
    fusion = bb.fuse(bb.examples.attention(), rules="paper")
    written, fused = fusion.initial, fusion.fused[-1]
    beside = [("as written: 10 edges through memory", written), ("fused: none", fused)]
    yield "attention", draw_side_by_side(beside, title="attention, before and after fusion")
    yield "attention_00", draw(written, title="the initial block program: 10 buffered edges")
    for step in fusion.trace:
        yield f"attention_{step.index:02}", draw_step(step)
    yield "attention_safe", draw(fusion.snapshots[-1], title="numerically safe: online softmax")


def _before_and_after(program: bb.ArrayProgram) -> str:
    """A program before fusion by the paper's rules, and its most fused form."""
    fusion = bb.fuse(program, rules="paper")
    edges = len(bb.buffered(fusion.initial))
    beside = [
        (f"as written: {edges} buffered edges", fusion.initial),
        (f"after {len(fusion.trace)} steps: none", fusion.fused[-1]),
    ]
    return draw_side_by_side(beside, title=f"{program.name}, before and after fusion")


def _ideals() -> str:
    """The ideals of docs/selection.md from top to bottom, and the cheapest path through them."""
    page: dict[str, Any] = {}
    text = (HERE / "selection.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:4]:
        with contextlib.redirect_stdout(None):
            exec(code, page)
    ideals, cost, best, names = (page[name] for name in ("ideals", "cost", "best", "names"))
    chain = [frozenset[str]()]
    for part in best[frozenset(names)][1]:
        chain.append(chain[-1] | part)
    levels: dict[int, list[frozenset[str]]] = {}
    for ideal in ideals:
        levels.setdefault(len(ideal), []).append(ideal)
    place = {
        ideal: (250 + 210 * (n - (len(level) - 1) / 2), 44 + 62 * size)
        for size, level in levels.items()
        for n, ideal in enumerate(level)
    }

    def line(small: frozenset[str], large: frozenset[str], kind: str) -> str:
        (x, y), (to_x, to_y) = place[small], place[large]
        span = len(large) - len(small)
        side = x + 75 * (span - 1) if x == to_x else max(x, to_x) if to_x > x else min(x, to_x)
        bend = f"{side:g} {(y + to_y) / 2:g}"
        return svg.path(f"M{x:g} {y + 12:g}Q{bend} {to_x:g} {to_y - 12:g}", kind)

    pairs = [(a, b) for a in ideals for b in ideals if a < b and b - a in cost]
    chosen = list(pairwise(chain))
    parts = [svg.text(8, 16, "ideals of a SwiGLU block, and the cheapest path", "title")]
    parts += [line(a, b, "local") for a, b in pairs if (a, b) not in chosen]
    parts += [line(a, b, "chosen") for a, b in chosen]
    for ideal, (x, y) in place.items():
        label = " ".join(sorted(ideal, key=names.index)) or "nothing has run"
        width = len(label) * 7.2 + 16
        kind = "row changed" if ideal in chain else "row"
        parts.append(svg.rect(x - width / 2, y - 12, width, 24, kind))
        parts.append(svg.text(x, y + 4, label, "", "middle"))
    for small, large in chosen:
        y = (place[small][1] + place[large][1]) / 2
        part = " + ".join(sorted(large - small, key=names.index))
        parts.append(svg.text(440, y + 4, f"{part}: {cost[large - small]} µs", "small"))
    total = best[frozenset(names)][0]
    parts.append(svg.text(440, place[frozenset(names)][1] + 4, f"{total} µs in all", "small"))
    return svg.svg(640, 44 + 62 * 5 + 24, "the ideals of five operators", parts)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures():
        (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
