"""Charts of kept results, as SVG: each figure has its baseline beside it.

`CHARTS` has a function for each chart of docs/performance.md; `make pictures` writes them.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu

from blockbuster_fusion.pictures import svg

RESULTS = Path(__file__).parent / "results"
CHARACTER = 7.2
LINE = 20
PLOT = 330
"""The width of the plots, in pixels."""


@dataclass(frozen=True)
class Bar:
    """A figure with its name; `kind` is a colour, `note` stands behind it."""

    name: str
    value: float
    note: str = ""
    kind: str = "input"
    goal: float = 1.0
    """A ratio below it has the colour of what falls short."""


def bars(title: str, groups: Mapping[str, Sequence[Bar]], unit: str) -> str:
    """Bars from 0, in groups."""
    most = max(bar.value for group in groups.values() for bar in group)
    names = [len(bar.name) for group in groups.values() for bar in group]
    left = CHARACTER * max(names) + 24
    parts = [svg.text(8, 16, title, "title")]
    y = 30.0
    for name, group in groups.items():
        parts.append(svg.text(8, y + 14, name, "small quiet"))
        y += LINE
        for bar in group:
            width = max(1.0, PLOT * bar.value / most)
            parts.append(svg.text(left - 8, y + 14, bar.name, "small", "end"))
            parts.append(svg.rect(left, y + 3, width, LINE - 6, f"fill-{bar.kind}", 2))
            shown = f"{_short(bar.value)} {unit}{f', {bar.note}' if bar.note else ''}"
            parts.append(svg.text(left + width + 6, y + 14, shown, "small"))
            y += LINE
        y += 8
    return svg.svg(left + PLOT + 150, y, title, parts)


def dots(title: str, groups: Mapping[str, Sequence[Bar]], ticks: Sequence[float]) -> str:
    """Ratios on a logarithmic axis, from a line at 1: to its right Blockbuster is faster."""
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    names = [len(bar.name) for group in groups.values() for bar in group]
    notes = [len(bar.note) for group in groups.values() for bar in group]
    left = CHARACTER * max(names, default=0) + 24
    right = left + PLOT

    def x(ratio: float) -> float:
        inside = min(max(math.log(ratio), low), high)
        return left + PLOT * (inside - low) / (high - low)

    marks: list[str] = []
    y = 48.0
    for name, group in groups.items():
        marks.append(svg.text(8, y + 14, name, "small quiet"))
        y += LINE
        for bar in group:
            kind = "memory" if bar.value < bar.goal else "input"
            start, end = sorted((x(1), x(bar.value)))
            marks.append(svg.text(left - 8, y + 14, bar.name, "small", "end"))
            marks.append(svg.rect(start, y + 8, max(end - start, 1), 4, f"fill-{kind}", 1))
            marks.append(svg.rect(x(bar.value) - 4, y + 6, 8, 8, f"fill-{kind}", 4))
            shown = f"{bar.value:.2f} {bar.note}"
            marks.append(svg.text(right + 12, y + 14, shown, "small"))
            y += LINE
        y += 8
    lines = [svg.text(8, 16, title, "title")]
    for tick in ticks:
        lines.append(svg.text(x(tick), 40, f"{tick:g}", "small quiet", "middle"))
        lines.append(svg.path(f"M{svg.number(x(tick))} 46V{svg.number(y - 6)}", "axis"))
    width = right + 12 + CHARACTER * (max(notes, default=0) + 6)
    return svg.svg(max(width, len(title) * 8 + 16), y, title, [*lines, *marks])


def strip(title: str, series: Mapping[str, Sequence[float]], ticks: Sequence[float]) -> str:
    """Many ratios in order of size, one small bar each, on a logarithmic axis with a line at 1."""
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    height, left, step = 160.0, 44.0, 4.0
    parts = [svg.text(8, 16, title, "title")]
    top, width = 30.0, left

    def y(ratio: float) -> float:
        inside = min(max(math.log(ratio), low), high)
        return top + 22 + height * (high - inside) / (high - low)

    for name, ratios in series.items():
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        below = sum(ratio < 0.97 for ratio in ratios)
        told = f"{name}: {len(ratios)} cases, geometric mean {mean:.2f}, {below} below 0.97"
        parts.append(svg.text(8, top + 14, told, "small"))
        end = left + step * len(ratios)
        for tick in ticks:
            parts.append(svg.text(left - 8, y(tick) + 4, f"{tick:g}", "small quiet", "end"))
            at = svg.number(y(tick))
            parts.append(svg.path(f"M{svg.number(left)} {at}H{svg.number(end)}", "axis"))
        for number, ratio in enumerate(sorted(ratios)):
            upper, lower = sorted((y(1), y(ratio)))
            kind = "input" if ratio >= 1 else "memory"
            size = max(lower - upper, 1)
            parts.append(svg.rect(left + step * number, upper, 3, size, f"fill-{kind}", 0))
        top += height + 40
        width = max(width, end, 8 + CHARACTER * len(told))
    return svg.svg(max(width + 12, len(title) * 8 + 16), top, title, parts)


def _short(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def _load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------ the charts

LLAMA = {
    "inductor": "other",
    "inductor reduce-overhead": "other",
    "blockbuster": "input",
    "blockbuster reduce-overhead": "input",
}
CALLS = {
    "decode1": "one new word, 1 sequence",
    "decode16": "one new word, 16 sequences",
    "prefill2048": "2048 words at once",
}


def llama_h200() -> str:
    times = _load("llama_h200")["milliseconds"]
    groups = {
        CALLS[call]: [Bar(name, own[name], kind=kind) for name, kind in LLAMA.items()]
        for call, own in times.items()
    }
    return bars("Llama of 4 layers, H200, bfloat16: milliseconds a call", groups, "ms")


def llama_table() -> str:
    """The times of the chart, their ratios, and the first call."""
    kept = _load("llama_h200")
    lines = [
        "| | Inductor | with graphs | Blockbuster | with graphs | of Inductor | both with graphs |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for call, own in kept["milliseconds"].items():
        times = [own[name] for name in LLAMA]
        ratios = [times[0] / times[2], times[1] / times[3]]
        cells = [*(f"{t:.3f} ms" for t in times), *(f"{r:.2f}" for r in ratios)]
        lines.append(f"| {CALLS[call]} | {' | '.join(cells)} |")
    (first,) = (own for name, own in kept.items() if name.startswith("seconds of the first call"))
    theirs, ours = first["decode1"]["inductor"], first["decode1"]["blockbuster"]
    cells = [f"{theirs:.1f} s", "", f"{ours:.1f} s", "", f"{theirs / ours:.2f}", ""]
    lines.append(f"| the first call, with empty caches | {' | '.join(cells)} |")
    versions = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    told = f"{kept['machine']}, {versions}; {kept['clock']}. {kept['model']}."
    return "\n".join([*lines, "", told])


def cpu_speeds(threads: int) -> str:
    groups: dict[str, list[Bar]] = {}
    for result in cpu.load(cpu.RESULTS):
        found = cpu.speed(result, frozen=False)
        if result["threads"] == threads and found is not None:
            ratio, rival = found
            bar = Bar(result["case"], ratio, f"of {rival}")
            groups.setdefault(result["family"], []).append(bar)
    word = "thread" if threads == 1 else "threads"
    title = f"CPU, {threads} {word}, float32: time of the best baseline over ours"
    return dots(title, groups, (0.5, 1, 2, 4, 8))


def never_slower_h200() -> str:
    series: dict[str, list[float]] = {}
    for result in _load("never_slower_h200")["results"]:
        times = {
            name: own["microseconds"]
            for name, own in result["contenders"].items()
            if "microseconds" in own and not own.get("is_wrong")
        }
        rivals = [times[name] for name in ("eager", "inductor") if name in times]
        for mode, name in (("bb.compile", "bb.compile"), ("default", "torch.compile")):
            ours = times.get(f"blockbuster {mode}")
            if ours and rivals:
                series.setdefault(name, []).append(min(rivals) / ours)
    title = "H200, bfloat16: time of the better of eager and Inductor over ours"
    return strip(title, series, (0.25, 0.5, 1, 2, 4, 8))


def traffic() -> str:
    groups: dict[str, list[Bar]] = {}
    kinds = {"unfused": "other", "greedy": "other", "kernels": "input", "bound": "output"}
    for row in _load("traffic")["rows"]:
        if row["name"] in ("llama", "gpt2", "bloom", "mixtral", "vit", "t5"):
            own = row["bytes"]
            groups[row["name"]] = [Bar(n, own[n] / 2**20, kind=k) for n, k in kinds.items()]
    title = "Predicted bytes of two layers, 64 wide, 512 words or 64 images"
    return bars(title, groups, "MiB")


def gpu_limits() -> str:
    groups: dict[str, list[Bar]] = {}
    for result in _load("gpu_limits")["results"]:
        if result.get("share") and not result.get("tuned"):
            note = f"of {result['of']}, goal {result['goal']:g}"
            bar = Bar(result["case"], result["share"], note, goal=result["goal"])
            groups.setdefault(f"against {result['of']}", []).append(bar)
    title = "H200, generated kernels by themselves: share of the limit"
    return dots(title, groups, (0.25, 0.5, 1, 2, 4, 8))


CHARTS: Mapping[str, Callable[[], str]] = {
    "llama_h200": llama_h200,
    "cpu_1_thread": lambda: cpu_speeds(1),
    "cpu_16_threads": lambda: cpu_speeds(16),
    "never_slower_h200": never_slower_h200,
    "gpu_limits": gpu_limits,
    "traffic": traffic,
}
