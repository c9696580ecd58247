"""The page of a whole model: its plan as data, with the page of each kind of kernel in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from blockbuster_fusion.explorer.exploration import Exploration
from blockbuster_fusion.explorer.flow import arrays
from blockbuster_fusion.explorer.model_page import model_page
from blockbuster_fusion.explorer.parts import part_data
from blockbuster_fusion.explorer.steps import Data
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.plans.amounts import amount, counted, duration, timed
from blockbuster_fusion.plans.plan import Plan, SizePlan
from blockbuster_fusion.plans.records import to_data
from blockbuster_fusion.progress import doing
from blockbuster_fusion.report.report import Costly, Layers, Report, Row, Section
from blockbuster_fusion.report.text import CAPTURED, about, percent, sentences, totals
from blockbuster_fusion.torch.capture.sizes import ExpectedSizes
from blockbuster_fusion.torch.capture.source_lines import line_texts
from blockbuster_fusion.torch.compile_graph import CompiledGraph
from blockbuster_fusion.torch.explain import Explanation, explain
from blockbuster_fusion.torch.groups import Fused, distinct_names
from blockbuster_fusion.torch.model import CompiledModel

FORMAT = 1
ROW = (
    *("name", "kind", "by", "steps", "operators", "lines", "kernels", "bytes_read"),
    *("bytes_written", "flops", "time", "seconds", "share", "rival", "reason", "digest"),
)
"""The fields of a row that the page has; arrays are told apart from it."""


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
    return explored(explain(model, *inputs, **options), title_of(model))


def title_of(model: Any) -> str:
    """The name of a model: of its class, or of the function."""
    model = model.model if isinstance(model, CompiledModel) else getattr(model, "_orig_mod", model)
    own = getattr(model, "__name__", None)
    return own if isinstance(own, str) else type(model).__name__


@doing("drawing the model's kernels")
def explored(explanation: Explanation, title: str = "Model") -> ModelExploration:
    """The page of a model that was explained."""
    return ModelExploration(model_data(explanation, title))


def model_data(explanation: Explanation, title: str) -> Data:
    """The data of the page of a model: its rows, the arrays between them, and its kernels."""
    plan, report = explanation.plan, explanation.report
    parts = _parts(explanation.graphs)
    programs: dict[str, Data] = {}
    nodes = [n for g in explanation.graphs for n in g.analysis.module.graph.nodes]
    data = plan_data(plan, report, title)
    for row in data["rows"]:
        name = next((x for x in row["kernels"] if x in parts), None)
        if name is None:
            continue
        fused, lengths = parts[name]
        key = str(id(fused.executable))
        if key not in programs:
            programs[key] = part_data(fused, row["name"], lengths) | {"place": len(programs)}
        made = programs[key]
        row["program"] = made["place"]
        row["moments"] = {"runs": made["runs"], "source": made["source"]}
    texts = line_texts(nodes)
    known = {line for row in data["rows"] for line in row["lines"]}
    data["lines"] = {line: text for line, text in texts.items() if text and line in known}
    return data | {"programs": [*programs.values()]}


def plan_data(plan: Plan, report: Report, title: str) -> Data:
    """The same of a plan alone, without the pages of its kernels."""
    rows: list[Data] = []
    sections: list[Data] = []
    stored: list[Data] = []
    for section, own in zip(report.sections, _size_plans(plan), strict=True):
        stored += arrays(own, section, len(rows))
        sections.append(_section(section, rows, len(sections)))
    return {
        "format": FORMAT,
        "kind": "model",
        "title": title,
        "version": report.version,
        "target": report.target,
        "machine": report.machine,
        "totals": to_data(report.totals) | {"seconds": report.totals.seconds},
        "summary": [totals(report.totals), *report.summary],
        "breaks": [*report.graph_breaks],
        "notes": [{"title": x.title, "lines": [*x.lines]} for x in report.notes],
        "answers": [*_answers(report, rows)],
        "sections": sections,
        "rows": rows,
        "arrays": stored,
        "lines": {},
        "programs": [],
    }


def _size_plans(plan: Plan) -> Iterator[SizePlan]:
    """The plans of a model in the order of a report's sections."""
    return (own for graph in plan.graphs for own in graph.plans)


def _section(section: Section, rows: list[Data], place: int) -> Data:
    """A section whose rows are added to `rows`."""
    layers: list[Data] = []
    for each in section.layers:
        first = len(rows)
        rows += [_row(row, place, len(layers)) for row in each.rows]
        layers.append(_layers(each) | {"first": first, "end": len(rows)})
    other = section.otherwise
    return {
        "title": section.title,
        "totals": totals(section.totals),
        "proof": section.proof,
        "captured": CAPTURED if section.as_captured else "",
        "otherwise": "" if other is None else f"{other.words}: {other.reason}",
        "layers": layers,
    }


def _layers(layers: Layers) -> Data:
    return {
        "title": layers.title,
        "count": len(layers.regions),
        "around": layers.regions == ("",),
        "about": about(layers),
        "differs": layers.differs,
        "seconds": layers.seconds,
        "share": layers.share,
    }


def _row(row: Row, section: int, layers: int) -> Data:
    found = to_data(row)
    return {"section": section, "layers": layers, **{name: found.get(name) for name in ROW}}


def _answers(report: Report, rows: list[Data]) -> Iterator[Data]:
    """The costliest step in words, and the costliest kernel if that is another one."""
    found = report.costliest(len(rows))
    if not found:
        return
    kernel = next((x for x in found if x.row.kind == "kernels"), None)
    yield _answer(found[0], rows)
    if kernel is not None and kernel is not found[0]:
        yield _answer(kernel, rows)


def _answer(costly: Costly, rows: list[Data]) -> Data:
    """A costly step: which it is, what it costs, and why it is not fused further."""
    row = costly.row
    assert row.time is not None
    own = [at for at, x in enumerate(rows) if x["digest"] == row.digest]
    return {
        "row": max(own, key=lambda at: len(rows[at]["steps"])),
        "name": row.name,
        "kind": row.kind,
        "by": row.by,
        "layers": costly.title,
        "share": percent(costly.share),
        "cost": _spent(costly, timed(row.time.seconds, row.time.basis)),
        "moves": f"reads {amount(row.bytes_read)}, writes {amount(row.bytes_written)}",
        "lines": [*row.lines],
        "why": sentences(_without_results(row)),
    }


def _without_results(row: Row) -> Row:
    """A row without the arrays that are results of the model, unless it has no others."""
    others = tuple(kept for kept in row.kept if kept.decided != "result")
    return replace(row, kept=others or row.kept)


def _spent(costly: Costly, one: str) -> str:
    if costly.count == 1:
        return one
    return f"{costly.count} × {one}, {duration(costly.seconds)} in all"


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
