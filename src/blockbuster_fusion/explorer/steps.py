"""The steps of a fusion as data for the page: each with its rule, its costs and its picture."""

import difflib
import inspect
import re
from collections.abc import Collection, Iterable
from typing import Any

from blockbuster_fusion.cost.counters import Traffic
from blockbuster_fusion.explorer.array_names import ArrayNames
from blockbuster_fusion.explorer.picture import array_key, picture
from blockbuster_fusion.explorer.rule_words import WORDS
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.step_words import step_words
from blockbuster_fusion.fusion.fuse import Fusion
from blockbuster_fusion.fusion.trace import Step, Trace
from blockbuster_fusion.fusion.why_not import Reason
from blockbuster_fusion.ir.buffered import buffered
from blockbuster_fusion.ir.graph import Graph, Path
from blockbuster_fusion.ir.listing import Labels, Listed
from blockbuster_fusion.ir.ops import Map, Pick, Rename, Value

Data = dict[str, Any]
ROOM = 30_000
"""The most nodes in all pictures of a page together. Steps between two pictures share one."""
LONGEST_DIFFERENCE = 1500
"""Longer listings are not compared line by line."""
_NUMBER = re.compile(r"\b(t)\d+\b")


def array_names(trace: Trace) -> ArrayNames:
    """The names of the arrays of all programs of a trace that have a picture."""
    return ArrayNames.of([trace.initial, *(trace[i - 1].after for i in _shown(trace))])


def fusion_moments(
    fusion: Fusion, sizes: Sizes, frames: list[Data], names: ArrayNames
) -> list[Data]:
    """A moment for the initial program and for each step; pictures are added to `frames`."""
    trace = fusion.trace
    found = names.listed(trace.initial)
    frames.append(frame(trace.initial, sizes, found))
    first = {
        "id": "step-0",
        "group": "fusion",
        "title": "The block program, unfused",
        "about": "Every operator has loops of its own. Lists between them lie in global memory.",
        "frame": len(frames) - 1,
        "cost": frames[-1].pop("cost"),
    }
    moments = [first | _snapshot_here(trace, 0)]
    shown = set(_shown(trace))
    since = 0
    for step in trace:
        if step.index not in shown:
            continue
        before = found if step.index == since + 1 else names.listed(step.before)
        program = step.after
        found = names.listed(program)
        after = frame(program, sizes, found)
        short, said = step_words(step, sizes, before)
        moment = {
            "id": f"step-{step.index}",
            "group": "fusion",
            "title": step.rule,
            "short": short,
            "said": said,
            "rule": _rule(step),
            "frame": len(frames),
            "cost": after.pop("cost"),
            "prepares": _prepared(step, trace[step.index :], shown),
            **_changes(step, frames[-1], after, (before, found)),
            **_snapshot_here(trace, step.index),
        }
        if step.index > since + 1:
            moment["together"] = [since + 1, step.index]
        since = step.index
        frames.append(after)
        moments.append(moment)
    return moments


def _shown(trace: Trace) -> list[int]:
    """The steps that have a picture: all, or some of a large program's, and every snapshot."""
    size = sum(len(graph.nodes) for _, graph in trace.initial.walk())
    stride = max(1, -(-len(trace) * size // ROOM))
    return [i for i in range(1, len(trace) + 1) if i % stride == 0 or i in trace.snapshots]


def _prepared(step: Step, later: Iterable[Step], shown: Collection[int]) -> str:
    """The moment of the first later step whose nodes come into one graph by this step."""
    both = (step.before, step.after)
    before, after = ({i: path for path, graph in x.walk() for i in graph.nodes} for x in both)
    for other in later:
        nodes = other.firing.nodes
        apart, together = ({known.get(i) for i in nodes} for known in (before, after))
        if _is_one(together) and not _is_one(apart):
            return f"step-{other.index}" if other.index in shown else ""
    return ""


def _is_one(paths: Collection[Path | None]) -> bool:
    """True if nodes with these paths lie in one graph."""
    return len(paths) == 1 and None not in paths


def _snapshot_here(trace: Trace, index: int) -> Data:
    found = [number for number, at in enumerate(trace.snapshots, 1) if at == index]
    return {"snapshot": found[-1]} if found else {}


def frame(graph: Graph, sizes: Sizes, found: Listed) -> Data:
    """The picture of a program with its costs; `found` is its listing."""
    traffic = sizes.traffic(graph)
    return picture(graph, traffic, found) | {"cost": cost(graph, traffic)}


def cost(graph: Graph, traffic: Traffic) -> Data:
    """The figures that are compared from step to step."""
    return {
        "edges": len(buffered(graph)),
        "traffic": traffic.loaded + traffic.stored,
        "flops": traffic.flops,
        "local": traffic.peak_local,
    }


def _rule(step: Step) -> Data:
    """The rule of a step, its pattern and what it stands for."""
    doc = inspect.getdoc(type(step.firing.rule)) or ""
    pattern, _, rest = doc.partition("\n\n")
    return {
        "name": step.rule,
        "number": step.number,
        "pattern": re.sub(r"^Rule \d+: ", "", " ".join(pattern.split())),
        "doc": " ".join(rest.split()),
        "words": WORDS.get(step.rule, ""),
        "dim": str(step.dim) if step.dim is not None else "",
        "variant": step.variant,
        "extends": step.firing.rule in step.trace.rules.extending,
    }


def _changes(step: Step, before: Data, after: Data, found: tuple[Listed, Listed]) -> Data:
    """The nodes and lines that a step replaces, and those that it makes.

    `found` are the listings before the step and after it.
    """
    old, new = (listing.labels for listing in found)
    firing = step.firing
    matched = [str(i) for i in firing.nodes]
    made = made_cells(before, after, matched)
    fresh = {int(key) for key in made if key.isdecimal()}
    return {
        "replaced": _described(step.before, firing.path, firing.nodes, old),
        "became": _described(step.after, firing.path, sorted({*firing.nodes, *fresh}), new),
        "matched": matched,
        "made": made,
        "focus": _focus(before, after, matched, made),
        **difference(before, after, made),
    }


def made_cells(before: Data, after: Data, changed: Collection[str] = ()) -> list[str]:
    """The cells of operators and maps that are new in a picture, or that were changed."""
    known = {box["key"] for box in before["boxes"]}
    operators = (
        box["key"]
        for box in after["boxes"]
        if box["text"] and box["kind"] not in ("input", "output", "array")
    )
    return [key for key in operators if key not in known or key in changed]


def _focus(before: Data, after: Data, matched: list[str], made: list[str]) -> str:
    """The cell to look at: the first that came from the last node of the match, or that is new."""
    moved = _inside(before, matched[-1:]) - set(matched)
    drawn = [box for box in after["boxes"] if box["text"]]
    kept = sorted((box["at"][1], box["key"]) for box in drawn if box["key"] in moved)
    return kept[0][1] if kept else (made or matched)[-1]


def _described(program: Graph, path: Path, nodes: Iterable[int], labels: Labels) -> list[str]:
    """Nodes of the graph at a path in the words of the program's listing."""
    graph = program.at(path)
    return [_words(graph, path, node, labels) for node in nodes if node in graph.nodes]


def _words(graph: Graph, path: Path, node: int, names: Labels) -> str:
    op = graph.op(node)
    ports = range(len(graph[node].types))
    made = [name for port in ports if (name := names.name(path, Value(node, port)))]
    if isinstance(op, Map):
        return f"the loop over {op.dim} that makes {', '.join(dict.fromkeys(made))}"
    return names.line(path, Value(node)) or f"the operator that makes {', '.join(made)}"


def difference(before: Data, after: Data, made: Collection[str]) -> Data:
    """The lines of the listing that are gone, and those of the nodes that a step makes.

    Lines that differ by the numbers of local values alone are the same, wherever they stand.
    """
    old, new = ([_NUMBER.sub(r"\1", line) for line, _ in each["lines"]] for each in (before, after))
    inside = _inside(after, made)
    lines = {at for at, (_, key) in enumerate(after["lines"]) if key in inside}
    if len(old) + len(new) > LONGEST_DIFFERENCE:
        return {"gone": [], "new": sorted(lines)}
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    gone, known = list[int](), {line.strip() for line in old}
    for what, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if what != "equal":
            gone += range(old_start, old_end)
            lines |= {at for at in range(new_start, new_end) if new[at].strip() not in known}
    return {"gone": gone, "new": sorted(lines)}


def _inside(drawn: Data, keys: Collection[str]) -> set[str]:
    """The cells with these keys and those inside them; outer cells are drawn before inner ones."""
    found = set(keys)
    for box in drawn["boxes"]:
        if box.get("parent") in found:
            found.add(box["key"])
    return found


def reasons(fusion: Fusion, snapshot: int, names: Labels) -> list[Data]:
    """The reason and remedy for each list that a snapshot leaves in global memory."""
    graph = fusion.fused[snapshot]
    return [_reason(graph, found) for found in fusion.why_not(snapshot, shown=names)]


def _reason(graph: Graph, found: Reason) -> Data:
    return {
        "array": array_key(_stored(graph, found)),
        "title": found.title,
        "causes": [*found.causes, *([found.barrier] if found.barrier else [])],
        "refusals": [str(refusal) for refusal in found.refusals],
        "remedy": found.remedy,
    }


def _stored(graph: Graph, found: Reason) -> Value:
    """The value that is stored, behind renames and picks."""
    inner, value = graph.at(found.edge.path), found.edge.value
    while isinstance(inner.op(value.node), Rename | Pick):
        (value,) = inner[value.node].inputs
    return value
