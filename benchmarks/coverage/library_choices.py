"""The operators of a model that PyTorch runs by choice, with the reasons: a part of coverage.py."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

Choices = dict[str, object]
Chosen = defaultdict[str, dict[str, list[float]]]
"""Of each operator and reason: how often, and the microseconds of kernels and of PyTorch in sum."""

REASONS = {
    "slower": "kernels are predicted to be slower",
    "error": "they are predicted to be faster, by less than the error of a prediction",
    "least": "even the least time of a kernel, for bytes, products and a launch, wins by no more",
    "call": "all kernels of the model together gain less than a call of the plan costs",
}
"""The classes of reasons why PyTorch runs an operator."""
SIZES = {"24 words, or 2 images": (24, 2), "512 words, or 64 images": (512, 64)}
"""The words of each text, and the images where there are no words."""
MOST_SHOWN = 16
"""The number of operators that have a line of their own."""


def library_choices(name: str, dtype_name: str, attention: str) -> Choices:
    """Counts the operators that kernels and PyTorch run, on one thread, for each size."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {
            size: choices_for(name, dtype_name, attention, *lengths)
            for size, lengths in SIZES.items()
        }
    finally:
        torch.set_num_threads(threads)
    return {"library": found}


def choices_for(name: str, dtype_name: str, attention: str, words: int, images: int) -> Choices:
    """Counts the operators that kernels and PyTorch run for inputs of a size."""
    import torch

    import blockbuster_fusion as bb
    from helpers.zoo import ZOO

    dtype = getattr(torch, dtype_name)
    torch._dynamo.reset()
    given = {"length": words} if ZOO[name].has_length else {"batch": images}
    with torch.no_grad():
        model = ZOO[name].build(dtype, attention)
        inputs = ZOO[name].inputs(**given, dtype=dtype)
        found = bb.explain(model, **inputs, options={"library": "auto"})
    return counted(found.graphs)


def counted(graphs: Iterable[object]) -> Choices:
    """The operators of compiled graphs, counted by what runs them."""
    kernels: Counter[str] = Counter()
    chosen: Chosen = defaultdict(dict)
    parts = [0, 0]
    collapsed: Counter[str] = Counter()
    for graph in graphs:
        parts[0] += len(graph.fused)
        parts[1] += len(graph.library)
        kernels.update(short(n) for f in graph.fused for n in f.part.nodes)
        collapsed.update(short(n) for n in graph.collapsed)
        for group in graph.groups:
            if type(group).__name__ == "Library":
                choice = group.choice
                times = [choice.kernels.total() * 1e6, choice.library.total() * 1e6]
                add(chosen[short(group.node)], {reason(choice): [1, *times]})
    return {
        "parts": parts,
        "kernels": dict(kernels),
        "chosen": dict(chosen),
        "recognised": dict(collapsed),
        "runs_plan": all(graph.gains for graph in graphs),
    }


def add(sums: dict[str, list[float]], more: Mapping[str, list[float]]) -> None:
    """Adds counts and times of reasons to others."""
    for name, numbers in more.items():
        before = sums.get(name, [0, 0.0, 0.0])
        sums[name] = [round(a + b, 1) for a, b in zip(before, numbers, strict=True)]


def short(node: object) -> str:
    """The name of a node's operator without its namespace and overload."""
    words = str(node.target).split(".")
    return words[1] if len(words) > 1 else words[0]


def reason(choice: object) -> str:
    """The class of the reason for a choice."""
    from blockbuster_fusion.torch.rivals import reasons

    known = {reasons.LEAST: "least", reasons.SLOWER: "slower", reasons.CLOSE: "error"}
    return known.get(choice.reason, "call")


# ---------------------------------------------------------------- the page


def section(rows: Iterable[Mapping[str, object]]) -> str:
    """The section of the page: how often each operator goes to PyTorch, and why."""
    rows = [row for row in rows if "library" in row]
    if not rows:
        return ""
    tables = [_table(size, [row["library"][size] for row in rows]) for size in SIZES]
    return _opening(rows) + "".join(tables)


def _opening(rows: list[Mapping[str, object]]) -> str:
    kinds = ", ".join(dict.fromkeys(f"{row['dtype']} with {row['attention']}" for row in rows))
    models = ", ".join(dict.fromkeys(row["name"] for row in rows))
    reasons = "".join(f"- **{name}**: {sentence}.\n" for name, sentence in REASONS.items())
    return f"""
## Operators that PyTorch runs by choice

By default PyTorch's operators run what no kernel is predicted to be faster at, as
[pytorch.md](pytorch.md) has it. `--parts library` counts them, on one thread, for {kinds}:
{models}.

{reasons}
The last columns are the mean times of the parts that PyTorch runs, by kernels and by PyTorch.
"""


def _table(size: str, found: list[Choices]) -> str:
    kernels = sum((Counter(x["kernels"]) for x in found), Counter[str]())
    chosen: Chosen = defaultdict(dict)
    for x in found:
        for operator, reasons in x["chosen"].items():
            add(chosen[operator], reasons)
    names = sorted({*kernels, *chosen}, key=lambda n: (-_count(chosen[n]), -kernels[n], n))
    shown, rest = names[:MOST_SHOWN], names[MOST_SHOWN:]
    lines = [_line(f"`{n}`", kernels[n], chosen[n]) for n in shown]
    others: dict[str, list[float]] = {}
    for name in rest:
        add(others, chosen[name])
    lines.append(_line(f"{len(rest)} others", sum(kernels[n] for n in rest), others))
    return _summary(size, found) + TABLE + "".join(lines)


def _summary(size: str, found: list[Choices]) -> str:
    parts = [sum(x["parts"][i] for x in found) for i in (0, 1)]
    recognised = sum((Counter(x["recognised"]) for x in found), Counter[str]())
    words = ", ".join(f"{n} `{name}`" for name, n in sorted(recognised.items())) or "none"
    plans = sum(x["runs_plan"] for x in found)
    return f"""
### {size}

Kernels run {parts[0]} parts, PyTorch {parts[1]}. {plans} of {len(found)} models run by a plan,
the others as they were captured. Composites that are recognised and run as one operator: {words}.

"""


TABLE = """\
| operator | by kernels | by PyTorch | slower | error | least | call | kernels, µs | PyTorch, µs |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def _count(reasons: Mapping[str, list[float]]) -> int:
    return sum(int(numbers[0]) for numbers in reasons.values())


def _line(name: str, kernels: int, reasons: Mapping[str, list[float]]) -> str:
    count = _count(reasons)
    counts = [str(int(reasons[r][0])) if r in reasons else "0" for r in REASONS]
    sums = [sum(numbers[i] for numbers in reasons.values()) for i in (1, 2)]
    times = [f"{total / count:.0f}" if count else "–" for total in sums]
    return "| " + " | ".join([name, str(kernels), str(count), *counts, *times]) + " |\n"
