"""Verdicts on the results, and a page of them in Markdown."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from never_slower.contenders import DIRECT, DYNAMO, EAGER, FROZEN, INDUCTOR, MODES, OURS
from never_slower.timing import REPLAYS, Result

BETTER = "the better of eager and Inductor"
BARS = {
    "default": (EAGER, 0.97),
    DIRECT: (EAGER, 0.97),
    FROZEN: (EAGER, 0.97),
    "reduce-overhead": (EAGER, 0.97),
    "max-autotune": (BETTER, 0.95),
}
"""For each mode, what it is measured against, and the least speed that is no miss."""
REPLAYED = (BETTER, 0.97)
"""The same for every mode where all contenders are replayed as CUDA graphs."""

Causes = Mapping[str, Any]
"""The known cause of a miss, by case: a sentence, or a sentence for each mode."""


@dataclass(frozen=True)
class Verdict:
    """The result of one mode in one case."""

    result: Result
    mode: str

    @property
    def own(self) -> Result:
        return self.result["contenders"].get(f"{OURS} {self.mode}", {})

    def against(self, baseline: str) -> Result | None:
        """The ratio and its interval, if both were measured."""
        ratios = self.result["ratios"].get(f"{OURS} {self.mode}", {})
        return ratios.get(self.better if baseline == BETTER else baseline)

    @property
    def better(self) -> str:
        """The name of the faster one of eager and Inductor."""
        contenders = self.result["contenders"]
        ratios = self.result["ratios"].get(f"{OURS} {self.mode}", {})
        rivals = [name for name in ratios if name != DYNAMO]
        return min(rivals, key=lambda name: contenders[name]["microseconds"], default="")

    @property
    def capturing(self) -> str:
        """The speed of torch.compile with nothing compiled, against eager."""
        times = self.result["contenders"]
        if any("microseconds" not in times.get(name, {}) for name in (EAGER, DYNAMO)):
            return "–"
        return f"{times[EAGER]['microseconds'] / times[DYNAMO]['microseconds']:.2f}"

    @property
    def usual_cause(self) -> str:
        """The cause of a miss: nothing but the call differs from eager mode, or Inductor wins."""
        found, times = self.against(DYNAMO), self.result["contenders"]
        if self.mode == DIRECT and self.own.get("kernels") == 0:
            own = self.own["microseconds"] - times[EAGER]["microseconds"]
            return f"bb.compile's own call, {own:.1f} µs"
        if self.baseline == BETTER and self.better != EAGER:
            rival = times[self.better]["microseconds"]
            return f"Inductor is faster: {rival:.0f} µs, not {self.own['microseconds']:.0f}"
        if found is None or found["interval"][1] < self.bar[1]:
            return ""
        own = times[DYNAMO]["microseconds"] - times[EAGER]["microseconds"]
        return f"torch.compile's own call, {own:.0f} µs" if own > 0 else ""

    @property
    def bar(self) -> tuple[str, float]:
        """The baseline, and the least speed that is no miss."""
        return REPLAYED if self.result["clock"] == REPLAYS else BARS[self.mode]

    @property
    def baseline(self) -> str:
        return self.bar[0]

    @property
    def is_wrong(self) -> bool:
        return bool(self.own.get("is_wrong"))

    @property
    def has_failed(self) -> bool:
        """True if this mode was not measured, though eager was."""
        eager = self.result["contenders"].get(EAGER, {})
        return "failed" in self.own and "failed" not in eager

    @property
    def is_slow(self) -> bool:
        found = self.against(self.baseline)
        return found is not None and found["interval"][1] < self.bar[1]

    @property
    def is_miss(self) -> bool:
        return self.is_wrong or self.has_failed or self.is_slow

    def cause(self, causes: Causes) -> str:
        """The fault of a case, or the known cause of its slowness."""
        if self.has_failed:
            return self.own["failed"]
        known = causes.get(self.result["case"], "")
        slow = known.get(self.mode, "") if isinstance(known, Mapping) else known
        if not self.is_wrong:
            return slow or self.usual_cause
        error, limit = (shown_error(self.own[name]) for name in ("error", "allowed_error"))
        return f"wrong: error {error}, allowed {limit}"


def verdicts(results: Iterable[Result]) -> list[Verdict]:
    """A verdict for each mode of each case."""
    return [
        Verdict(result, mode)
        for result in results
        for mode in MODES
        if f"{OURS} {mode}" in result["contenders"]
    ]


def unmeasured(results: Iterable[Result]) -> list[Result]:
    """The cases in which eager mode itself was not measured."""
    return [r for r in results if "failed" in r["contenders"].get(EAGER, {"failed": ""})]


def line(result: Result) -> str:
    """One case in one line."""
    parts = []
    for verdict in verdicts([result]):
        if "failed" in verdict.own:
            parts.append(f"{verdict.mode} {verdict.own['failed']}")
            continue
        speeds = [
            f"{found['ratio']:.2f} of {name}"
            for name in result["contenders"]
            if not name.startswith(OURS) and (found := verdict.against(name))
        ]
        words = [", ".join(speeds), *["WRONG"] * verdict.is_wrong, *["MISS"] * verdict.is_slow]
        parts.append(f"{verdict.mode} {' '.join(words)}")
    return f"{result['case']}: {'; '.join(parts)} ({result['rounds']} rounds)"


# ---------------------------------------------------------------- the page


def page(results: Sequence[Result], causes: Causes, note: str = "") -> str:
    """The results as a page: figures of each family, misses, and every case."""
    judged = verdicts(results)
    parts = [
        "# Never slower",
        "Written by `benchmarks/never_slower.py`. A ratio is the time of a baseline over ours, so "
        "above 1 we are faster. Brackets hold the 95% interval of the median of the rounds. "
        '"Better" is the better of eager and Inductor. "torch.compile alone" has a backend that '
        "runs the graph as it was captured: it shows what a call of torch.compile costs.",
        *([note] if note else []),
        "\n".join(conditions(results)),
        "## Summary",
        summary(judged),
        "## Misses",
        misses(judged, causes),
    ]
    broken = unmeasured(results)
    if broken:
        rows = [(label(r), r["contenders"].get(EAGER, {}).get("failed", "")) for r in broken]
        parts += ["## Not measured", table(["case", "why"], rows)]
    failed = [
        (label(r), name, own["failed"])
        for r in results
        if r not in broken
        for name, own in r["contenders"].items()
        if "failed" in own and not name.startswith(OURS)
    ]
    if failed:
        parts += ["## Baselines that failed", table(["case", "baseline", "why"], failed)]
    for family in dict.fromkeys(r["family"] for r in results):
        own = [r for r in results if r["family"] == family]
        parts += [f"## {family[0].upper()}{family[1:]}", family_table(own)]
    return "\n\n".join(parts) + "\n"


def conditions(results: Sequence[Result]) -> list[str]:
    """Machines, versions, dates and bars."""

    def all_of(values: Iterable[str]) -> str:
        return "; ".join(f"{value} ({n} cases)" for value, n in Counter(values).items())

    lines = [f"- Machine: {all_of(r['machine'] for r in results)}"]
    if any(r["threads"] for r in results):
        lines.append(f"- Threads: {all_of(str(r['threads']) for r in results)}")
    written = (" ".join(f"{k} {v}" for k, v in r["versions"].items()) for r in results)
    lines.append(f"- Versions: {all_of(written)}")
    lines.append(f"- Dates: {all_of(r['date'] for r in results)}")
    lines.append(f"- What counts: {all_of(r['clock'] for r in results)}")
    for mode, (baseline, bar) in dict.fromkeys((v.mode, v.bar) for v in verdicts(results)):
        lines.append(f"- A miss in mode {mode}: the whole interval is below {bar} of {baseline}.")
    return lines


def summary(judged: Sequence[Verdict]) -> str:
    """Geometric means and misses, for each mode, in all and by family."""
    rows = []
    for mode in MODES:
        own = [v for v in judged if v.mode == mode]
        families = dict.fromkeys(v.result["family"] for v in own)
        groups = {"all": own} | {f: [v for v in own if v.result["family"] == f] for f in families}
        for name, group in groups.items():
            if not group:
                continue
            means = [mean(group, baseline) for baseline in (EAGER, DYNAMO, BETTER)]
            slow = sum(v.is_slow and not (v.is_wrong or v.has_failed) for v in group)
            wrong, failed = (sum(getattr(v, w) for v in group) for w in ("is_wrong", "has_failed"))
            rows.append((mode, name, len(group), *means, slow, wrong, failed))
    means = [f"mean against {name}" for name in ("eager", "torch.compile alone", "better")]
    return table(["mode", "family", "cases", *means, "slow", "wrong", "failed"], rows)


def mean(group: Iterable[Verdict], baseline: str) -> str:
    """The geometric mean of the ratios against a baseline."""
    ratios = [found["ratio"] for v in group if (found := v.against(baseline))]
    if not ratios:
        return "–"
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}"


def misses(judged: Iterable[Verdict], causes: Causes) -> str:
    """Every miss, the slowest first."""
    rows = []
    for v in judged:
        if v.is_miss:
            found = v.against(v.baseline)
            ratio = found["ratio"] if found else 0.0
            shown = shown_ratio(found)
            names = label(v.result), v.mode, v.baseline
            rows.append((ratio, (*names, *shown, v.capturing, v.cause(causes))))
    if not rows:
        return "None."
    columns = ["case", "mode", "against", "ratio", "interval", "capturing alone", "cause"]
    return table(columns, [row for _, row in sorted(rows, key=lambda pair: pair[0])])


def family_table(results: Sequence[Result]) -> str:
    """Every case of a family."""
    modes = [m for m in MODES if any(f"{OURS} {m}" in r["contenders"] for r in results)]
    columns = ["case", "dtype", "eager µs", "Inductor µs"]
    for mode in modes:
        columns += [f"{mode} µs", "against eager", "against better", "kernels + operators"]
    rows = []
    for result in results:
        contenders = result["contenders"]
        inductor = [
            own["microseconds"]
            for name, own in contenders.items()
            if name.startswith(INDUCTOR) and "microseconds" in own
        ]
        row = [label(result), result["dtype"], shown_time(contenders.get(EAGER, {}))]
        row.append(f"{min(inductor):.1f}" if inductor else "–")
        for mode in modes:
            verdict = Verdict(result, mode)
            row.append(shown_time(verdict.own))
            for baseline in (EAGER, BETTER):
                row.append(" ".join(shown_ratio(verdict.against(baseline))))
            counts = [str(verdict.own.get(name, "–")) for name in ("kernels", "operators")]
            row.append(" + ".join(counts))
        rows.append(row)
    return table(columns, rows)


def label(result: Result) -> str:
    """The name of a case, with its threads if these are several."""
    threads = result["threads"] or 1
    return result["case"] if threads == 1 else f"{result['case']}, {threads} threads"


def shown_time(own: Result) -> str:
    return f"{own['microseconds']:.1f}" if "microseconds" in own else "–"


def shown_error(error: float | None) -> str:
    return "without bound" if error is None else f"{error:.1e}"


def shown_ratio(found: Result | None) -> tuple[str, str]:
    if found is None:
        return "–", ""
    low, high = found["interval"]
    return f"{found['ratio']:.2f}", f"[{low:.2f}, {high:.2f}]"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', '¦') for cell in row)} |" for row in lines
    )
