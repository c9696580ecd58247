"""The data of the page of a plan: its rows, the arrays between them, and the costliest in words."""

from collections.abc import Iterator, Sequence

from blockbuster_fusion.explorer.attention_words import attention_words
from blockbuster_fusion.explorer.flow import arrays
from blockbuster_fusion.explorer.steps import Data
from blockbuster_fusion.explorer.whole_words import whole_words
from blockbuster_fusion.plans.amounts import amount, counted, duration, timed
from blockbuster_fusion.plans.plan import Plan, SizePlan, Step
from blockbuster_fusion.plans.records import to_data
from blockbuster_fusion.report.report import Costly, Layers, Report, Row, Section
from blockbuster_fusion.report.text import CAPTURED, about, percent, totals
from blockbuster_fusion.schedule.cost import ERRORS

FORMAT = 1
ROW = (
    *("name", "kind", "by", "steps", "operators", "lines", "kernels", "bytes_read"),
    *("bytes_written", "flops", "time", "seconds", "share", "rival", "reason", "digest"),
)
"""The fields of a row that the page has; arrays are told apart from it."""


BOUND = (
    "A time “at least” is a bound from bytes and operations, which kernels do not reach: fusing "
    "may lose although the bound is below the time now. No fused kernels were timed there."
)
"""The meaning of a time of fused kernels that is a bound."""


def plan_data(plan: Plan, report: Report, title: str) -> Data:
    """The data of the page of a plan, without source lines and the pages of its kernels."""
    rows: list[Data] = []
    sections: list[Data] = []
    stored: list[Data] = []
    for section, own in zip(report.sections, _size_plans(plan), strict=True):
        stored += arrays(own, section, len(rows))
        sections.append(_section(section, own.steps, rows, len(sections)))
    return {
        "format": FORMAT,
        "kind": "model",
        "title": title,
        "version": report.version,
        "target": report.target,
        "machine": report.machine,
        "totals": to_data(report.totals) | {"seconds": report.totals.seconds},
        "summary": [*whole_words(plan), *report.summary],
        "breaks": [*report.graph_breaks],
        "notes": [{"title": x.title, "lines": [*x.lines]} for x in report.notes],
        "answers": [*_answers(report, rows)],
        "margin": _margin(report.target),
        "bound": BOUND,
        "sections": sections,
        "rows": rows,
        "arrays": stored,
        "attention": [*attention_words(rows, stored)],
        "lines": {},
        "programs": [],
    }


def _size_plans(plan: Plan) -> Iterator[SizePlan]:
    """The plans of a model in the order of a report's sections."""
    return (own for graph in plan.graphs for own in graph.plans)


def _section(section: Section, steps: Sequence[Step], rows: list[Data], place: int) -> Data:
    """A section whose rows are added to `rows`."""
    layers: list[Data] = []
    for each in section.layers:
        first = len(rows)
        where = {"section": place, "layers": len(layers)}
        rows += [where | _row(row) | _choice(steps[row.steps[0] - 1]) for row in each.rows]
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


def _row(row: Row) -> Data:
    found = to_data(row)
    return {name: found.get(name) for name in ROW}


def _choice(step: Step) -> Data:
    """The launches and the configuration of a step's kernels, and its predicted time."""
    spent, kernels = step.predicted, step.kernels
    predicted = None if spent is None or step.measured is None else spent.total()
    if kernels is None:
        return {"predicted": predicted}
    config = "" if kernels.config is None else str(kernels.config)
    launches = [to_data(launch) for launch in kernels.launches]
    return {"predicted": predicted, "launches": launches, "config": config}


def _margin(target: str) -> str:
    """The reason why a shorter time that is only predicted may lose, in words."""
    if target not in ERRORS:
        return ""
    plain, products = ERRORS[target]
    other = "" if plain == products else f", or {products:g} with products"
    return f"A predicted time has to win by more than its error: a factor of {plain:g}{other}."


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
    """A costly step: which it is, and what it costs; the page has the arrays that it keeps."""
    row = costly.row
    assert row.time is not None
    own = [at for at, x in enumerate(rows) if x["digest"] == row.digest]
    return {
        "row": max(own, key=lambda at: len(rows[at]["steps"])),
        "name": row.name,
        "kind": row.kind,
        "by": counted(len(row.kernels), "generated kernel") if row.kernels else row.by,
        "layers": costly.title,
        "share": percent(costly.share),
        "cost": _spent(costly, timed(row.time.seconds, row.time.basis)),
        "moves": f"reads {amount(row.bytes_read)}, writes {amount(row.bytes_written)}",
        "lines": [*row.lines],
    }


def _spent(costly: Costly, one: str) -> str:
    if costly.count == 1:
        return one
    return f"{costly.count} × {one}, {duration(costly.seconds)} in all"
