"""The page of a whole model: its plan as data, with the page of each kind of kernel in it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blockbuster_fusion.explorer.exploration import Exploration
from blockbuster_fusion.explorer.model_page import model_page
from blockbuster_fusion.explorer.parts import part_data
from blockbuster_fusion.explorer.plan_data import plan_data
from blockbuster_fusion.explorer.steps import Data
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.messages import log
from blockbuster_fusion.plans.amounts import counted
from blockbuster_fusion.progress import doing
from blockbuster_fusion.torch.capture.called import module_path
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes
from blockbuster_fusion.torch.capture.source_lines import line_texts
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain import Explanation, explain
from blockbuster_fusion.torch.groups import Fused, distinct_names
from blockbuster_fusion.torch.rivals.composites import captured_names


@dataclass(frozen=True)
class ModelExploration(Exploration):
    """The data of the page of a model; `html` is the page, in one file that needs no network."""

    @cached_property
    def _page(self) -> str:
        return model_page(dict(self.data))

    def __repr__(self) -> str:
        rows = counted(len(self.data["rows"]), "row")
        return f"<exploration of {self.data['title']}: {rows}; .save(path) writes its page>"


def explore(model: Any, *inputs: Any, **options: Any) -> ModelExploration:
    """The page of a model, a function or an exported program; options are those of `explain`."""
    return explored(explain(model, *inputs, **options))


@doing("drawing the model's kernels")
def explored(explanation: Explanation) -> ModelExploration:
    """The page of a model that was explained."""
    return ModelExploration(model_data(explanation))


def model_data(explanation: Explanation) -> Data:
    """The data of the page of a model: its rows, the arrays between them, and its kernels."""
    plan, report = explanation.plan, explanation.report
    parts = _parts(explanation.graphs)
    programs: dict[str, Data] = {}
    nodes = [n for g in explanation.graphs for n in g.analysis.module.graph.nodes]
    data = plan_data(plan, report, explanation.name)
    for row, modules in zip(data["rows"], _modules(explanation), strict=True):
        row["modules"] = modules
    names = _names(data["rows"], parts)
    for row in data["rows"]:
        name = next((x for x in row["kernels"] if x in parts), None)
        if name is None:
            continue
        fused, lengths = parts[name]
        key = str(id(fused.executable))
        if key not in programs:
            own = _program(fused, names[key], lengths)
            programs[key] = own | {"place": len(programs)}
        made = programs[key]
        if "doors" in made:
            row |= {"program": made["place"], "runs": made["runs"], "doors": made["doors"]}
    texts = line_texts(nodes)
    known = {line for row in data["rows"] for line in row["lines"]}
    data["lines"] = {line: text for line, text in texts.items() if text and line in known}
    return data | {"programs": [*programs.values()]}


def _names(rows: Sequence[Data], parts: Mapping[str, tuple[Fused, Any]]) -> dict[str, str]:
    """The title of each kind of kernel: the name of its step, with the module if that is one."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for name in (x for x in row["kernels"] if x in parts):
            own = found.setdefault(str(id(parts[name][0].executable)), {})
            titled = f"{row['name']} ({row['modules'][0]})" if len(row["modules"]) == 1 else ""
            own[titled or row["name"]] = None
    return {key: next(iter(own)) if len(own) == 1 else _common(own) for key, own in found.items()}


def _common(titles: Iterable[str]) -> str:
    """The name of steps of several modules, which run one kind of kernel."""
    return next(iter(titles)).partition(" (")[0]


def _modules(explanation: Explanation) -> Iterator[list[str]]:
    """The modules of each row's operators, without the path of its layer: `attention.out`."""
    graphs = zip(explanation.graphs, explanation.plan.graphs, strict=True)
    paths = [_paths(graph) for graph, own in graphs for _ in own.plans]
    for section, known in zip(explanation.report.sections, paths, strict=True):
        for layers in section.layers:
            around = layers.regions[0]
            for row in layers.rows:
                found = (_within(known.get(name, ""), around) for name in row.operators)
                yield [*dict.fromkeys(path for path in found if path not in ("", around))]


def _within(path: str, around: str) -> str:
    """The path of a module without that of its layer, which may be the next one."""
    layers, _, number = around.rpartition(".")
    later = f"{layers}.{int(number) + 1}." if layers and number.isdecimal() else ""
    if later and path.startswith(later):
        return f"{path.removeprefix(later)} of the next layer"
    return path.removeprefix(f"{around}.")


def _paths(graph: CompiledGraph) -> dict[str, str]:
    """The path of the module of each operator, by its name in the captured graph."""
    nodes = graph.analysis.module.graph.nodes
    return {name: ".".join(module_path(node)) for node in nodes for name in captured_names(node)}


def _program(fused: Fused, name: str, lengths: Mapping[str, int]) -> Data:
    """The data of a kernel's page; of one that cannot be drawn, none, and the log tells why."""
    try:
        return part_data(fused, name, lengths)
    except Exception as error:  # whatever it is: the page shows the others
        log.warning("%s has no page: %s: %s", name, type(error).__name__, error)
        return {}


def _parts(graphs: tuple[CompiledGraph, ...]) -> dict[str, tuple[Fused, Mapping[str, int]]]:
    """The part of each kernel, by the kernel's name in the plan, and the lengths of its symbols."""
    ranged = [own for graph in graphs for own in graph.ranged]
    names = distinct_names(f for own in ranged for f in own.fused)
    found: dict[str, tuple[Fused, Mapping[str, int]]] = {}
    for own in ranged:
        length = ExpectedSizes(own.analysis, own.span).captured
        for fused in own.fused:
            lengths = {
                axis.extent.name: length(size)
                for axis, size in fused.part.expressed.sizes
                if isinstance(axis.extent, Symbol)
            }
            for (executable, _), name in names.items():
                if executable == id(fused.executable):
                    found.setdefault(name, (fused, lengths))
    return found
