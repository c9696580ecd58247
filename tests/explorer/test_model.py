"""The page of a model in a real Chromium: each control of it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blockbuster_fusion.explorer.model_page import model_page
from blockbuster_fusion.explorer.plan_data import plan_data
from blockbuster_fusion.plans.plan import SizePlan, Step
from blockbuster_fusion.report.collect import report_of
from blockbuster_fusion.report.report import Note
from blockbuster_fusion.select.certificate import Certificate
from helpers.chromium import Browser
from helpers.explored import FRAGMENT, HOSTILE
from helpers.plans import kernel_step, layered, library_step, misc_step, plan_of, stored

NAMES = (
    "[...document.querySelectorAll('#table .row b')].map(e => e.textContent.replace(/^[▸▾]/, ''))"
)
CHOSEN = "document.querySelector('#table [aria-selected=true] b').textContent"
ABOUT = "document.getElementById('about').textContent"
BOXES = "document.querySelectorAll('#steps-graph .step').length"


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
    assert first.startswith("Which step costs most?linear in layers 0–11, run by PyTorch: 90.0%")
    assert "12 × 90 µs measured, 1080 µs in all" in first
    assert "Why is it not fused further?reads 3 kB that gelu stores" in first
    assert second.startswith("Which kernel costs most?gelu in layers 0–4, 6–11, run by 1 generated")
    assert "which kernels do not reach" in first
    plan.click(".answer .link")
    assert plan.value(CHOSEN) == "linear"
    assert "11 × 90 µs measured, 990 µs in all82.5% of the whole" in plan.value(ABOUT)
    same = plan.value("document.querySelector('#about .alike').textContent")
    assert same == "The same step runs in layers.5: 12 × in all, 1080 µs, 90.0% of the whole."


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


def test_a_step_of_pytorch_s_has_no_kernel_page(plan: Browser) -> None:
    plan.click("#table .row.library")
    plan.value("document.getElementById('grid').focus()")
    plan.press("Enter")
    status = "document.getElementById('none').textContent"
    assert plan.value(status) == "linear has no kernel page: PyTorch runs it."
    plan.press("ArrowDown")
    assert plan.value(status) == ""


def test_the_proof_stays_in_view(browser: Browser, tmp_path: Path) -> None:
    certificate = Certificate(3.0, 2.0, 3, 4, 2, 1, ("a limit",))
    data = _plan(replace(layered(), certificate=certificate))
    for row in data["rows"]:
        row["modules"] = ["mlp.up"]
    file = tmp_path / "proof.html"
    file.write_text(model_page(data), encoding="utf-8")
    browser.look()
    browser.open(file.as_uri() + "#step-1")
    proof = browser.value("document.getElementById('proof').textContent")
    assert proof.startswith("not proven to be the least: at most 50 %, 1000 ms, above the least")
    assert browser.value("document.querySelector('#about h2').textContent").startswith(
        "linear (mlp.up)"
    )
    assert "linear (mlp.up)" in browser.value("document.getElementById('steps-graph').textContent")
    assert browser.complaints == []


def test_a_row_has_the_name_of_its_module(browser: Browser, tmp_path: Path) -> None:
    data = _plan(layered())
    data["rows"][0]["modules"] = ["qkv"]
    data["rows"][1]["modules"] = ["one", "two"]
    file = tmp_path / "named.html"
    file.write_text(model_page(data), encoding="utf-8")
    browser.look()
    browser.open(file.as_uri())
    assert browser.value(NAMES)[1:3] == ["linear (qkv)", "gelu"]
    kernel = browser.value("document.querySelectorAll('.answer')[1].textContent")
    assert "that linear (qkv) stores" in kernel
    smalls = "[...document.querySelectorAll('#table .step .cell-name small')].map(e => e.innerText)"
    first, second, *_ = browser.value(smalls)
    assert not first.startswith("qkv")
    assert second.startswith("one, two: ")
    assert browser.complaints == []


def test_a_phone_has_the_total_and_the_whole_proof(browser: Browser, tmp_path: Path) -> None:
    certificate = Certificate(3.0, 2.0, 3, 4, 2, 1, ("a limit that takes many words",))
    file = tmp_path / "phone.html"
    data = _plan(replace(layered(), certificate=certificate))
    file.write_text(model_page(data), encoding="utf-8")
    browser.look(390, 844)
    browser.open(file.as_uri())
    for name in ("subtitle", "proof"):
        own = f"document.getElementById('{name}')"
        assert browser.value(f"{own}.offsetParent !== null && {own}.textContent.length > 40")
        assert browser.value(f"{own}.scrollWidth <= {own}.clientWidth")
        assert browser.value(f"{own}.scrollHeight <= {own}.clientHeight + 1")
    assert browser.complaints == []


def test_the_help_defines_its_words(plan: Browser) -> None:
    plan.press("?")
    words = plan.value("[...document.querySelectorAll('.words dt')].map(e => e.textContent)")
    assert {"stored array", "region", "snapshot", "tiles", "grid", "at least"} <= {*words}
    plan.click("#close")


def test_the_legend_looks_like_the_graph(plan: Browser) -> None:
    dashed = "getComputedStyle(document.querySelector('#legend .library')).borderTopStyle"
    assert plan.value(dashed) == "dashed"
    drawn = "getComputedStyle(document.querySelector('.step.library .body')).strokeDasharray"
    assert plan.value(drawn) != "none"


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
        model.wait("document.querySelectorAll('#chart .point').length > 1", in_frame=True)
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
