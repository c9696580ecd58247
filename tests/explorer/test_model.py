"""The page of a model: its data, and the page in a real Chromium, each control of it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.explorer.model_page import model_page
from blockbuster_fusion.explorer.plan_data import plan_data
from blockbuster_fusion.plans.plan import SizePlan, Step
from blockbuster_fusion.report.collect import report_of
from blockbuster_fusion.report.report import Note
from helpers.chromium import Browser, started_browser
from helpers.plans import kernel_step, layered, library_step, misc_step, plan_of, stored

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from blockbuster_fusion.explorer.model import ModelExploration, model_data  # noqa: E402

KERNELS = {"library": "never", "materialise": ["add", "add_*"]}
"""Each layer ends with an array in memory."""
HOSTILE = "</script><img src=x onerror=\"document.title='hit'\"><svg/onload=document.title='hit'>"
X = torch.linspace(-1, 1, 35).reshape(5, 7)
FRAGMENT = "location.hash.slice(1)"
NAMES = (
    "[...document.querySelectorAll('#table .row b')].map(e => e.textContent.replace(/^[▸▾]/, ''))"
)
CHOSEN = "document.querySelector('#table [aria-selected=true] b').textContent"
ABOUT = "document.getElementById('about').textContent"
BOXES = "document.querySelectorAll('#steps-graph .step').length"


class Layer(torch.nn.Module):
    def __init__(self, gates: bool) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(7, 13), torch.nn.Linear(13, 7)
        self.gates = gates

    def forward(self, x):
        y = self.up(F.layer_norm(x, (7,)))
        return x + self.down(y.sigmoid() if self.gates else y.relu())


class Twelve(torch.nn.Module):
    """Twelve layers, of which one differs, and an operator that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(at == 5) for at in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.sort()[0]


@pytest.fixture(scope="module")
def twelve() -> tuple[Any, ModelExploration]:
    with torch.no_grad():
        explanation = bb.explain(Twelve().eval(), X, options=KERNELS)
    return explanation, bb.explore(explanation)


# ------------------------------------------------------------------------ data


def test_rows_are_those_of_the_report(twelve) -> None:
    explanation, made = twelve
    (section,) = explanation.report.sections
    data = made.data
    assert data["title"] == explanation.name == "Twelve"
    assert [x["title"] for x in data["sections"][0]["layers"]] == [x.title for x in section.layers]
    assert [row["name"] for row in data["rows"]] == [
        row.name for layers in section.layers for row in layers.rows
    ]
    steps = [number for row in data["rows"] for number in row["steps"]]
    assert sorted(steps) == [*range(1, len(explanation.plan.steps) + 1)]
    assert any("F.layer_norm(x, (7,))" in text for text in data["lines"].values())


def test_every_stored_array_is_there_with_its_reason(twelve) -> None:
    explanation, made = twelve
    arrays = made.data["arrays"]
    kept = [array for graph in explanation.plan.graphs for array in graph.plans[0].stored]
    assert sum(array["count"] for array in arrays) == len(kept)
    assert {array["reason"] for array in arrays} == {array.reason for array in kept}
    rows = made.data["rows"]
    crossing = [array for array in arrays if array["crosses"]]
    assert crossing  # a layer stores something for the next one
    assert all(rows[x["from"]]["layers"] == rows[x["to"]]["layers"] for x in crossing)


def test_equal_kernels_have_one_page_with_the_source_that_runs(twelve) -> None:
    explanation, made = twelve
    programs = made.data["programs"]
    parts = {id(f.executable): f.executable for g in explanation.graphs for f in g.fused}
    assert len(programs) == len(parts) < 12
    sources = {executable.source.strip() for executable in parts.values()}
    for program in programs:
        ids = [moment["id"] for moment in program["moments"]]
        doors = dict(program["doors"])
        assert doors["Block program"] == "step-0"
        assert {program["runs"], *doors.values()} <= {*ids}
        assert ids[-1] == doors["Source"]
        assert program["blocks"].endswith(", as it runs")
        assert program["moments"][-1]["text"].strip() in sources


def test_the_costliest_step_is_told_with_reasons(twelve) -> None:
    explanation, made = twelve
    first = made.data["answers"][0]
    costly = explanation.report.costliest(1)[0]
    assert first["name"] == costly.row.name
    assert made.data["rows"][first["row"]]["digest"] == costly.row.digest
    assert first["why"]


def test_models_of_every_form() -> None:
    model = torch.nn.Sequential(torch.nn.Softmax(-1)).eval()

    def softmax(x):
        return x.softmax(-1)

    exported = torch.export.export(model, (X,))
    with torch.no_grad():
        forms = {
            "Sequential": bb.explore(torch.compile(model), X),
            "softmax": bb.explore(softmax, X, dynamic=True),
            "ExportedProgram": bb.explore(exported, measure=True),
        }
    for title, made in forms.items():
        assert made.data["title"] == title
        assert [row["name"] for row in made.data["rows"]] == ["softmax"]
        assert made.data["programs"][0]["sizes"] == {"B": 5, "M": 7}
    assert forms["ExportedProgram"].data["rows"][0]["time"]["basis"] == "measured"
    assert "softmax: 1 row" in repr(forms["softmax"])
    with pytest.raises(WrongKind, match="inputs of the exported program"):
        bb.explore(_without_examples(exported), measure=True)


def _without_examples(program):
    program.example_inputs = None
    return program


def test_narrow_numbers_and_sections() -> None:
    def halves(x):
        y = x.softmax(-1)
        torch._dynamo.graph_break()
        return F.layer_norm(y, (7,))

    with torch.no_grad():
        made = bb.explore(halves, X.bfloat16())
    assert [x["title"] for x in made.data["sections"]] == ["graph 1", "graph 2"]
    assert [row["section"] for row in made.data["rows"]] == [0, 1]
    stages = [moment.get("stage") for moment in made.data["programs"][0]["moments"]]
    assert stages[-1] == "cpu"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "small.py", tmp_path / "small.html"
    file.write_text(
        "import torch\n\n\ndef make():\n"
        "    return torch.nn.Softmax(-1), (torch.ones(2, 3, requires_grad=True),)\n"
    )
    assert main(["explore", f"{file}:make", "--measure", "-o", str(page)]) == 0
    assert f"written: {page}" in capsys.readouterr().out
    assert "<title>Softmax · Blockbuster explorer</title>" in page.read_text(encoding="utf-8")
    assert main(["explore", f"{file}:make", "--size", "M=3", "-o", str(page)]) == 1
    assert "--size is for programs" in capsys.readouterr().err


# ------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as made:
        made.offline()
        yield made


@pytest.fixture(scope="module")
def files(twelve, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a model with kernels, and of a plan in which PyTorch runs some steps."""
    folder = tmp_path_factory.mktemp("models")
    plan = folder / "plan.html"
    plan.write_text(model_page(_plan(layered())), encoding="utf-8")
    return {"twelve": twelve[1].save(folder / "twelve.html"), "plan": plan}


def _plan(*sections: SizePlan) -> dict[str, Any]:
    plan = plan_of(*((each,) for each in sections))
    return plan_data(plan, report_of(plan, ["a sentence"], [Note("others", ("one",))]), "a plan")


@pytest.fixture
def plan(browser: Browser, files: dict[str, Path]) -> Iterator[Browser]:
    browser.look()
    browser.open(files["plan"].as_uri())
    yield browser
    assert browser.complaints == []
    assert all(url.startswith(("file:", "about:")) for url in browser.requests)


@pytest.fixture
def model(browser: Browser, files: dict[str, Path]) -> Iterator[Browser]:
    browser.look()
    browser.open(files["twelve"].as_uri())
    yield browser
    assert browser.complaints == []


def test_the_two_questions_are_answered_up_front(plan: Browser) -> None:
    first, second = plan.value("[...document.querySelectorAll('.answer')].map(e => e.textContent)")
    assert first.startswith("Which step costs most?linear (layers 0–11), run by PyTorch: 90.0%")
    assert "12 × 90 µs measured, 1080 µs in all" in first
    assert "Why is it not fused further?reads 3 kB that gelu stores" in first
    assert second.startswith("Which kernel costs most?gelu (layers 0–4, 6–11), run by 1 generated")
    plan.click(".answer .link")
    assert plan.value(CHOSEN) == "linear"


def test_folds_open_and_close(plan: Browser) -> None:
    assert plan.value(NAMES) == [
        *("layers 0–4, 6–11", "linear", "gelu", "layers.5", "linear", "relu"),
        *("around the layers", "topk"),
    ]
    boxes = plan.value(BOXES)
    plan.click("#table .fold")
    assert plan.value(NAMES)[:2] == ["layers 0–4, 6–11", "layers.5"]
    assert plan.value("document.querySelector('#table .fold').ariaExpanded") == "false"
    assert plan.value(BOXES) == boxes - 1  # two steps are one box
    plan.click("#steps-graph .step.fold")
    assert plan.value(BOXES) == boxes
    plan.press("ArrowLeft")
    assert plan.value(BOXES) == boxes - 1
    plan.press("ArrowRight")
    plan.press("ArrowDown")
    assert plan.value(CHOSEN) == "linear"
    plan.press("ArrowLeft")
    assert plan.value(CHOSEN).endswith("layers 0–4, 6–11")
    assert "Its steps by time" in plan.value(ABOUT)


def test_a_row_tells_times_bytes_lines_and_reasons(plan: Browser) -> None:
    plan.click("#table .row.library")
    told = plan.value(ABOUT)
    assert "11 × 90 µs measured, 990 µs in all82.5% of the whole" in told
    assert "Reads 4 kB, writes 3 kB" in told
    assert "Kernelsat least 60 µsPyTorchruns90 µs measured" in told
    assert "by less than the error of their time" in told
    assert "stores 3 kB for gelu" in told
    assert "Fused at least 61 µs, now 97 µs" in told
    assert "models/small.py:7" in told
    assert "aten.linear.default" in told
    plan.click("#about .reason .link")
    assert plan.value(CHOSEN) == "gelu"
    plan.press("Escape")
    assert "a sentence" in plan.value(ABOUT)


def test_sorting_and_the_filter(plan: Browser) -> None:
    plan.press("t")
    assert plan.value(NAMES) == ["linear", "gelu", "linear", "relu", "topk"]
    plan.press("t")
    assert plan.value("document.getElementById('order').value") == "plan"
    plan.press("/")
    for letter in "relu":
        plan.press(letter)
    assert plan.value(NAMES) == ["layers.5", "relu"]
    plan.press("Enter")
    plan.press("ArrowDown")
    assert plan.value(CHOSEN) == "relu"
    plan.value("document.getElementById('filter').focus()")
    plan.press("x")
    assert plan.value("document.getElementById('none').textContent") == "Nothing has this name."
    plan.press("Escape")
    assert len(plan.value(NAMES)) == 8
    order = "(o => { o.value = 'bytes'; o.dispatchEvent(new Event('change')); })"
    plan.value(f"{order}(document.getElementById('order'))")
    assert plan.value(NAMES)[0] == "linear"


def test_stored_arrays(plan: Browser) -> None:
    plan.click("#show-arrays")
    assert plan.value(NAMES)[0] == "linear → gelu"
    plan.press("ArrowDown")
    assert "3 kB that linear stores for gelu" in plan.value(ABOUT)
    assert plan.value("document.querySelectorAll('.way.picked').length") == 1
    plan.press("c")
    assert (plan.value(NAMES)[0], plan.value(CHOSEN)) == ("layers 0–4, 6–11", "linear")
    plan.press("a")
    plan.press("a")
    assert plan.value(NAMES)[0] == "layers 0–4, 6–11"
    plan.click("#steps-graph .way .wide")
    assert "stored array" in plan.value(ABOUT)


def test_the_address_names_the_step(browser: Browser, files: dict[str, Path]) -> None:
    browser.look()
    browser.open(files["plan"].as_uri() + "#step-12")
    assert browser.value(CHOSEN) == "relu"
    browser.press("c")
    assert browser.value(FRAGMENT) == "step-1"
    browser.value("location.hash = '#step-9'")  # the fifth of equal layers is in the row of all
    browser.wait(f"{FRAGMENT} === 'step-1' && {CHOSEN} === 'linear'")
    browser.open(files["plan"].as_uri() + "#step-999")
    assert browser.value("document.querySelector('[aria-selected=true]')") is None
    assert browser.complaints == []


def test_help(plan: Browser) -> None:
    plan.press("?")
    assert plan.value("document.getElementById('dialog').open")
    plan.click("#close")
    plan.click("#help")
    plan.click("#close")
    assert not plan.value("document.getElementById('dialog').open")


OPEN = "document.getElementById('kernel').hidden === false"
PRESSED = (
    "1 + [...document.querySelectorAll('#kernel-moments button')]"
    ".findIndex(e => e.ariaPressed === 'true')"
)


def test_a_kernel_s_page_opens_in_the_model_s(model: Browser, twelve) -> None:
    row = next(x for x in twelve[1].data["rows"] if x.get("program") is not None)
    number, source = row["steps"][0], row["doors"][-1][1]
    assert [title for title, _ in row["doors"]] == [
        *("Block program", "Fusion steps", "What runs", "Source")
    ]
    model.value(f"location.hash = '#step-{number}'")
    model.wait("document.querySelector('.doors') !== null")
    for door, (_, moment) in enumerate(row["doors"], start=1):
        model.click(f".doors button:nth-child({door})")
        model.wait(f"{OPEN} && {FRAGMENT} === 'step-{number}/{moment}'")
        model.wait("document.activeElement.tagName === 'IFRAME'")
        model.wait(f"{PRESSED} === {door}")
        if door == 1:  # its keys work at once
            model.press("ArrowRight")
            model.wait(f"!{FRAGMENT}.endsWith('/{moment}') && {PRESSED} === 2")
            model.click("#kernel-moments button:last-child")
            model.wait(f"{FRAGMENT}.endsWith('/{source}')")
            model.press("Escape")
        else:
            model.click("#return")
        model.wait(f"!({OPEN})")
        assert model.value(FRAGMENT) == f"step-{number}"
    model.value("document.getElementById('grid').focus()")
    model.press("Enter")
    model.wait(OPEN)


def test_an_address_opens_a_kernel(browser: Browser, files: dict[str, Path], twelve) -> None:
    row = next(x for x in twelve[1].data["rows"] if x.get("program") is not None)
    browser.look(390, 844)
    browser.open(f"{files['twelve'].as_uri()}#step-{row['steps'][-1]}/{row['doors'][-1][1]}")
    browser.wait(OPEN)
    moment = f"step-{row['steps'][0]}/{row['doors'][-1][1]}"
    browser.wait(f"{FRAGMENT} === '{moment}'")
    assert browser.complaints == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_is_wider_than_the_window(
    width: int, dark: bool, browser: Browser, files: dict[str, Path]
) -> None:
    browser.look(width, 844, dark=dark)
    browser.open(files["twelve"].as_uri() + "#step-1")
    wide = browser.value("document.documentElement.scrollWidth")
    tall = browser.value("document.documentElement.scrollHeight")
    assert (wide, tall) == (width, 844)
    if width == 390:
        panels = ["answers", "plan", "flow", "about"]
        visible = f"{panels}.filter(e => document.getElementById(e).offsetParent)"
        for name in panels:
            browser.click(f"#panels [data-panel={name}]")
            assert browser.value(visible) == [name]
        browser.click("#panels [data-panel=plan]")
        browser.click("#table .row.step")
        assert browser.value(visible) == ["about"]
    unnamed = browser.value(
        "[...document.querySelectorAll('button, input, select, svg[role], [tabindex], section')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.id)"
    )
    assert unnamed == []
    assert browser.complaints == []


def test_a_hostile_name_executes_nothing(browser: Browser, tmp_path: Path) -> None:
    def hostile(step: Step) -> Step:
        operators = {HOSTILE: HOSTILE}
        lost = replace(step.runner_up, reason=HOSTILE) if step.runner_up else None
        named = {"operators": operators, "lines": (HOSTILE,), "runner_up": lost}
        return replace(step, name=HOSTILE, region=f"layers.{HOSTILE}.0", reason=HOSTILE, **named)

    steps = [kernel_step("a", "", 0, 2e-6), library_step("b", "", 0, 1e-6), misc_step("c")]
    made = SizePlan(tuple(map(hostile, steps)), HOSTILE)
    between = replace(stored(*made.steps[:2], HOSTILE), array=HOSTILE)
    plan = plan_of((replace(made, stored=(between,)),), breaks=(HOSTILE,))
    report = report_of(plan, [HOSTILE], [Note(HOSTILE, (HOSTILE,))])
    data = plan_data(plan, report, HOSTILE) | {"lines": {HOSTILE: HOSTILE}}
    file = tmp_path / "hostile.html"
    file.write_text(model_page(data), encoding="utf-8")
    browser.look()
    browser.open(file.as_uri())
    for key in ("c", "a", "ArrowDown", "Escape", "a", "ArrowDown", "ArrowDown", "t"):
        browser.press(key)
    assert browser.value("document.getElementById('title').textContent") == HOSTILE
    assert browser.value("document.title").startswith(HOSTILE[:9])
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.complaints == []


def test_five_thousand_steps(browser: Browser, tmp_path: Path) -> None:
    """Only what the windows show is in the page."""
    steps = [kernel_step(f"step{at}", "", at, 1e-6 * (at + 1)) for at in range(5000)]
    arrays = [stored(one, two) for one, two in pairwise(steps)]
    arrays += [stored(steps[0], steps[-1]), stored(steps[10], steps[400])]
    file = tmp_path / "large.html"
    data = _plan(SizePlan(tuple(steps), stored=tuple(arrays)))
    file.write_text(model_page(data), encoding="utf-8")
    browser.look()
    browser.open(file.as_uri() + "#step-4321")
    browser.wait(f"{CHOSEN} === 'step4320'")
    assert browser.value("document.querySelectorAll('#table .row').length") < 100
    assert browser.value(BOXES) < 100
    browser.press("t")
    browser.press("Home")
    assert browser.value(CHOSEN) == "step4999"
    browser.value("document.getElementById('table').scrollTop = 44 * 3000")
    browser.wait("document.querySelector('#row-3005') !== null")
    assert browser.complaints == []


def test_a_notebook_s_frame(twelve, browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{twelve[1]._repr_html_()}</body>", encoding="utf-8")
    browser.look()
    browser.open(file.as_uri())
    assert browser.complaints == []


def test_data_is_plain(twelve) -> None:
    explanation, made = twelve
    assert json.loads(json.dumps(made.data)) == made.data
    assert model_data(explanation)["rows"] == made.data["rows"]
