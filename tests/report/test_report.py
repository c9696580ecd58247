"""Reports of plans: rows, folds, totals and shares; and what their printers make of them."""

import json
import re
from dataclasses import FrozenInstanceError, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.plans.plan import SizePlan
from blockbuster_fusion.plans.words import aligned, columns
from blockbuster_fusion.report.collect import report_of
from blockbuster_fusion.report.page import fragment, page
from blockbuster_fusion.report.report import Note, Report, Row, Time
from blockbuster_fusion.report.save import save
from blockbuster_fusion.report.text import text
from helpers.plans import (
    LOST,
    hostile,
    kernel_step,
    layered,
    library_step,
    misc_step,
    plan_of,
)


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(plan_of((layered(),)), ["a sentence"], [Note("others", ("one", "two"))])


def rows(report: Report) -> dict[tuple[str, str], Row]:
    """The rows of the first section by layers and names."""
    found = report.sections[0].layers
    return {(layers.title, row.name): row for layers in found for row in layers.rows}


def shown(report: Report) -> str:
    return "\n".join(text(report))


# ------------------------------------------------------------------------ data


def test_rows_are_folded_by_that_which_runs(report: Report) -> None:
    assert [(x.title, len(x.regions)) for x in report.sections[0].layers] == [
        ("layers 0–4, 6–11", 11),
        ("layers.5", 1),
        ("around the layers", 1),
    ]
    found = rows(report)
    assert found["layers 0–4, 6–11", "linear"].steps == (1, 3, 5, 7, 9, 13, 15, 17, 19, 21, 23)
    assert found["layers.5", "relu"].steps == (12,)
    assert report.sections[0].layers[1].differs.endswith("relu in place of gelu")


def test_shares_are_of_the_whole(report: Report) -> None:
    found = rows(report)
    linear = found["layers 0–4, 6–11", "linear"]
    assert linear.seconds == pytest.approx(11 * 90e-6)
    assert linear.share == pytest.approx(11 * 90 / (12 * 100))
    known = [row.share for row in found.values() if row.share is not None]
    assert sum(known) == pytest.approx(1)
    assert found["around the layers", "topk"].share is None
    assert found["around the layers", "topk"].time is None


def test_totals(report: Report) -> None:
    totals = report.totals
    assert (totals.steps, totals.kernels, totals.untimed) == (25, 12, 1)
    assert totals.measured == pytest.approx(12 * 90e-6)
    assert totals.predicted == pytest.approx(12 * 10e-6)
    assert totals.bytes_read == 12 * 6000 + 10
    assert totals.bytes_written == 12 * 4000 + 20
    assert totals.flops == 12 * 1400


def test_both_figures_of_a_choice(report: Report) -> None:
    found = rows(report)
    linear, gelu = found["layers.5", "linear"].rival, found["layers.5", "relu"].rival
    assert linear is not None
    assert gelu is not None
    assert (linear.by, linear.kernels, linear.library) == (
        "kernels",
        Time(60e-6, "at least"),
        Time(90e-6, "measured"),
    )
    assert (gelu.by, gelu.kernels, gelu.library) == (
        "library",
        Time(10e-6, "predicted"),
        Time(20e-6, "measured"),
    )


def test_measured_times_are_marked() -> None:
    found = rows(report_of(plan_of((layered(measured=True),))))
    gelu = found["layers 0–4, 6–11", "gelu"]
    others = [12 + at for at in range(12) if at != 5]
    assert gelu.time == Time(pytest.approx(sorted(others)[5] * 1e-6), "measured")  # the median
    assert gelu.seconds == pytest.approx(sum(others) * 1e-6)
    some = [replace(s, measured=None) if s.region == "layers.3" else s for s in layered().steps]
    mixed = [replace(s, measured=s.predicted) if s.region == "layers.1" else s for s in some]
    found = rows(report_of(plan_of((SizePlan(tuple(mixed)),))))
    assert found["layers 0–4, 6–11", "gelu"].time == Time(10e-6, "partly measured")


def test_arrays_have_the_steps_of_both_sides(report: Report) -> None:
    kept = rows(report)["layers.5", "relu"].kept
    assert [(x.side, x.other, x.bytes) for x in kept] == [
        ("reads", "linear", 3000),
        ("writes", "linear", 3000),
    ]
    assert {x.fused for x in kept} == {Time(61e-6, "at least")}


def test_an_array_of_one_step() -> None:
    one, two = kernel_step("exp", "", 0, 1e-6), kernel_step("add", "", 1, 1e-6)
    array = layered().stored[0]
    inside = replace(array, array="add.I1", written_by="add", read_by="add", region="")
    found = rows(report_of(plan_of((SizePlan((one, two), stored=(inside,)),))))
    assert [x.side for x in found["around the layers", "add"].kept] == ["within"]
    assert found["around the layers", "exp"].kept == ()


def test_the_plan_of_a_program_has_a_report() -> None:
    """Its kernels are steps, and its arrays are between all of them."""
    program = bb.examples.find("self-attention")
    made = report_of(bb.plan(program, sizes={"M": 64, "D": 32, "E": 48}, target="cuda"))
    found = [row for layers in made.sections[0].layers for row in layers.rows]
    assert [row.name for row in found] == [row.kernels[0] for row in found]
    assert sum(row.share or 0 for row in found) == pytest.approx(1)
    assert len(found) > 1
    assert all({(x.side, x.other) for x in row.kept} == {("within", program.name)} for row in found)
    assert made.sections[0].otherwise is not None
    assert made.sections[0].otherwise.library is None
    assert f"{program.name} stores " in shown(made)


def test_equal_steps_of_all_layers_cost_together(report: Report) -> None:
    first, second, third = report.costliest()
    assert (first.row.name, first.title, first.count) == ("linear", "layers 0–11", 12)
    assert first.share == pytest.approx(0.9)
    assert (second.row.name, second.title, second.count) == ("gelu", "layers 0–4, 6–11", 11)
    assert (third.row.name, third.title, third.count) == ("relu", "layers.5", 1)
    assert len(report.costliest(1)) == 1


def test_a_report_does_not_change(report: Report) -> None:
    with pytest.raises(FrozenInstanceError):
        report.target = "cuda"  # type: ignore[misc]
    assert report == report_of(plan_of((layered(),)), report.summary, report.notes)


# ------------------------------------------------------------------------ text


def test_text(report: Report, golden) -> None:
    golden(shown(report))


def test_text_of_graphs_and_ranges(golden) -> None:
    ranges = (layered(2, None), replace(layered(2), sizes="s0 from 128", as_captured=True))
    first = replace(ranges[0], sizes="s0 up to 127")
    graphs = ((first, ranges[1]), (SizePlan((misc_step("sort"),)),))
    made = report_of(plan_of(*graphs, breaks=("a call of print",)))
    assert made.totals == made.sections[0].totals.__class__(
        *(a + b for a, b in zip(*map(figures, (made.sections[0], made.sections[2])), strict=True))
    )
    golden(shown(made))


def figures(section) -> list[float]:
    return [getattr(section.totals, name) for name in section.totals.__dataclass_fields__]


def test_nothing_is_told_of_nothing() -> None:
    made = report_of(plan_of((SizePlan(()),)))
    assert shown(made).splitlines()[0].startswith("cpu (four cores): 0 steps, 0 kernels; 0 B read")
    assert "costliest" not in shown(made)
    assert report_of(plan_of()).sections == ()
    assert "<table>" not in page(made)


def test_columns_of_ragged_widths() -> None:
    """Wide characters, long names and empty cells leave the columns where they are."""
    names = ["a", "ein_sehr_langer_name_" * 4, "注意力", "e\u0301clair", "µ"]
    steps = [kernel_step(name, "", at, 10.0 ** (at - 7)) for at, name in enumerate(names)]
    made = report_of(plan_of((SizePlan((*steps, misc_step("topk"))),)))
    lines = shown(made).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("   step"))
    table = lines[start : start + 7]
    places = [columns(line[: line.index("1 kernel")]) for line in table[1:6]]
    assert places == [columns(table[0][: table[0].index("by")])] * 5
    assert all(line == line.rstrip() for line in lines)
    assert "…" in table[2]
    assert [*aligned([("a", "注"), "a line that is longer than all", ("bb", "x")], {0})] == [
        "a   注",
        "a line that is longer than all",
        "bb   x",
    ]


# ------------------------------------------------------------------------ HTML


class Tags(HTMLParser):
    """The tags of a page that are open at its end, and those that it has; its text."""

    EMPTY = ("meta", "br", "wbr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    return tags


def test_hostile_names_are_text() -> None:
    for html in (page(hostile()), fragment(hostile())):
        found = parsed(html)
        tags = {tag for tag, _ in found.seen}
        assert not tags & {"script", "img", "iframe", "object", "link", "a", "base", "form"}
        names = {name for _, attributes in found.seen for name in attributes}
        assert not any(name.startswith("on") or name in ("src", "href") for name in names)
        assert "".join(found.words).count("<script>alert(1)</script>") > 20
        assert html.count("</style>") == len([tag for tag, _ in found.seen if tag == "style"])


def test_a_page_loads_nothing(report: Report) -> None:
    html = page(report)
    assert not re.search(r"https?:|url\(|@import|src=|href=", html)
    policies = [x["content"] for tag, x in parsed(html).seen if x.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert html.isascii() is False
    assert '<meta charset="utf-8">' in html


def test_a_page_has_what_the_text_has(report: Report) -> None:
    words = " ".join("".join(parsed(page(report)).words).split())
    for told in ("layers 0–4, 6–11", "82.5%", "90 µs × 11", "measured", "predicted", LOST):
        assert told in words
    assert "kernels at least 60 µs; PyTorch 90 µs measured" in words
    assert "kernels 10 µs predicted; PyTorch 20 µs measured" in words
    assert "12 × 90 µs measured, 1080 µs in all, 90.0% of the whole; models/small.py:7" in words
    assert "models/small.py:0, 1, 2, 3, 4, 6" in words
    assert "a sentence" in words


def test_a_fragment_brings_its_style(report: Report) -> None:
    """Every rule is for the report alone, so that another page can hold it."""
    html = fragment(report)
    assert html in page(report)
    style = html.partition("<style>")[2].partition("</style>")[0]
    for rule in re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", style)):
        assert all(x.strip().startswith(".bb-report") for x in rule.split(",")), rule


# ------------------------------------------------------------------------ files


def test_files(report: Report, tmp_path: Path) -> None:
    for suffix, start in ((".txt", "a sentence\n"), (".html", "<!doctype html>"), (".JSON", "{")):
        save(report, tmp_path / f"model{suffix}")
        assert (tmp_path / f"model{suffix}").read_text(encoding="utf-8").startswith(start)
    data = json.loads((tmp_path / "model.JSON").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(report.data()))
    assert (data["kind"], data["format"]) == ("blockbuster report", 1)
    first = data["sections"][0]["layers"][0]
    assert first["title"] == "layers 0–4, 6–11"
    assert first["rows"][0]["time"] == {"seconds": 90e-6, "basis": "measured"}


@pytest.mark.parametrize("name", ["model.pdf", "model", "model.html.gz"])
def test_other_files_are_refused(report: Report, tmp_path: Path, name: str) -> None:
    with pytest.raises(WrongKind, match=r"a file that ends in \.txt, \.html or \.json, not model"):
        save(report, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_library_step_that_is_alone() -> None:
    made = report_of(plan_of((SizePlan((library_step("linear", "", 0, 9e-5),)),)))
    assert "it reads inputs of the model alone, and no other step reads its results" in shown(made)
