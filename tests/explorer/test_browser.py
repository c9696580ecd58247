"""The page in a real Chromium: every control, every example, a hostile name, no network."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.explorer.page import page
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.steps import frame
from helpers.chromium import Browser, started_browser

PAPER = ["attention", "layernorm-matmul", "rmsnorm-swiglu"]
HOSTILE = "</script><img src=x onerror=\"document.title='hit'\"><svg/onload=document.title='hit'>"
FRAGMENT = "location.hash.slice(1)"
CURRENT = "document.querySelector('#steps [aria-current]').getAttribute('href')"
SETTLED = "document.getAnimations().length === 0"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as made:
        made.offline()
        yield made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        name: bb.explore(bb.examples.find(name), times=name == "attention").save(
            folder / f"{name}.html"
        )
        for name in PAPER
    }


@pytest.fixture
def attention(browser: Browser, pages: dict[str, Path]) -> Iterator[Browser]:
    """The page of attention at its first step; at the end nothing has gone wrong."""
    browser.look()
    browser.open(pages["attention"].as_uri())
    yield browser
    assert browser.complaints == []


def go(browser: Browser, moment: str) -> None:
    """Opens a moment by its address, and waits until nothing moves."""
    browser.value(f"location.hash = '#{moment}'")
    browser.wait(f"{CURRENT} === '#{moment}' && {SETTLED}")


def drawn(browser: Browser) -> int:
    return int(browser.value("document.querySelectorAll('#world .cell[data-key]').length"))


def lines(browser: Browser) -> list[str]:
    return list(
        browser.value("[...document.querySelectorAll('#lines li')].map(e => e.textContent)")
    )


def data_of(browser: Browser) -> dict:
    return dict(json.loads(browser.value("document.getElementById('data').textContent")))


@pytest.mark.parametrize("name", PAPER)
def test_every_moment_of_an_example(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.look()
    browser.open(pages[name].as_uri())
    data = data_of(browser)
    for moment in data["moments"]:
        assert browser.value(FRAGMENT) == moment["id"]
        frame = data["frames"][moment["frame"]]
        assert drawn(browser) == len(frame["boxes"])
        count = browser.value("document.querySelectorAll('#world .edge').length")
        assert count == len(frame["edges"])
        text = moment.get("text") or "\n".join(line for line, _ in frame["lines"])
        assert [line.rstrip() for line in lines(browser)] == [
            line.rstrip() for line in text.rstrip("\n").split("\n")
        ]
        browser.press("ArrowRight")
    assert browser.complaints == []
    assert browser.requests == [pages[name].as_uri()]


def test_buttons_and_slider(attention: Browser) -> None:
    last = data_of(attention)["moments"][-1]["id"]
    for selector, where in [
        ("#next", "step-1"),
        ("#next", "step-2"),
        ("#back", "step-1"),
        ("#last", last),
        ("#first", "step-0"),
    ]:
        attention.click(selector)
        assert attention.value(FRAGMENT) == where, selector
    assert attention.value("document.getElementById('back').disabled")
    attention.value(
        "(s => { s.value = 9; s.dispatchEvent(new Event('input')); })"
        "(document.getElementById('slider'))"
    )
    assert attention.value(FRAGMENT) == "step-9"


def test_keys(attention: Browser) -> None:
    last = data_of(attention)["moments"][-1]["id"]
    for key, where in [
        ("ArrowRight", "step-1"),
        ("ArrowRight", "step-2"),
        ("ArrowLeft", "step-1"),
        ("n", "step-15"),
        ("n", "step-17"),
        ("n", "step-0"),
        ("End", last),
        ("ArrowRight", last),
        ("Home", "step-0"),
        ("ArrowLeft", "step-0"),
    ]:
        attention.press(key)
        assert attention.value(FRAGMENT) == where, key


def test_play_and_stop(attention: Browser) -> None:
    attention.press(" ")
    attention.wait(f"{FRAGMENT} !== 'step-0'")
    attention.press(" ")
    assert attention.value("document.getElementById('play').getAttribute('aria-label')") == "Play"
    here = attention.value(FRAGMENT)
    attention.click("#play")
    attention.wait(f"{FRAGMENT} !== '{here}'")
    attention.click("#play")
    assert attention.value("document.getElementById('play').textContent").endswith("play")


def test_help(attention: Browser) -> None:
    attention.press("?")
    assert attention.value("document.getElementById('dialog').open")
    attention.press("ArrowRight")
    assert attention.value(FRAGMENT) == "step-0"
    attention.click("#close")
    attention.click("#help")
    assert attention.value("document.getElementById('dialog').open")
    attention.click("#close")
    assert not attention.value("document.getElementById('dialog').open")


def test_an_address_opens_its_step(browser: Browser, pages: dict[str, Path]) -> None:
    address = pages["attention"].as_uri()
    browser.open(f"{address}#step-7")
    assert "swap scale dot" in browser.value("document.getElementById('about').textContent")
    go(browser, "snapshot-2-cuda-source")
    assert browser.value("document.getElementById('code-title').textContent") == "Source in Triton"
    browser.open(f"{address}#there-is-none")
    assert browser.value(FRAGMENT) == "step-0"
    assert browser.complaints == []


def test_steps_are_links(attention: Browser) -> None:
    attention.click("#steps a[href='#step-5']")
    attention.wait(f"{CURRENT} === '#step-5'")
    assert attention.value(FRAGMENT) == "step-5"


def test_a_node_highlights_its_line_and_a_line_its_node(attention: Browser) -> None:
    attention.press("End")
    go(attention, "step-17")
    picked = "[...document.querySelectorAll('.cell.picked')].map(e => e.dataset.key)"
    chosen = "[...document.querySelectorAll('.selected-line')].map(e => e.textContent.trim())"
    attention.click("#world .cell[data-key='21'] rect")
    assert attention.value(picked) == ["21"]
    assert attention.value(chosen) == ["t4 = exp(t3*(DD**-0.5))"]
    attention.click("#lines li:nth-child(12)")
    assert attention.value(picked) == ["31"]
    assert "t8 = 1/t5" in attention.value("document.querySelector('.selected').textContent")
    attention.value("document.getElementById('lines').focus()")
    attention.press("ArrowDown")
    assert attention.value(picked) == ["53"]
    attention.press("ArrowUp")
    assert attention.value(picked) == ["31"]
    attention.press("Escape")
    assert attention.value(picked) == []
    attention.click("#lines b[data-name='VT']")
    assert attention.value(picked) == ["2"]
    assert attention.value("document.querySelectorAll('.edge.picked').length") > 1


def test_an_array_that_is_left_tells_why(attention: Browser) -> None:
    go(attention, "step-15")
    attention.click("#world .cell.array rect")
    told = attention.value("document.querySelector('.selected').textContent")
    assert "stored" in told
    assert "complete only after the last step" in told
    assert "refused: fuse_consecutive_maps (rule 1)" in told
    attention.press("Escape")
    attention.click("#about .reason button")
    assert attention.value("document.querySelectorAll('.cell.array.picked').length") == 1


def test_before_and_after(attention: Browser) -> None:
    assert attention.value("document.getElementById('before').hidden")
    attention.press("ArrowRight")
    after = lines(attention)
    attention.press("b")
    assert lines(attention) != after
    assert attention.value("document.querySelectorAll('.cell.matched').length") == 2
    assert attention.value("document.querySelectorAll('#lines .gone').length") > 0
    attention.click("#before")
    assert lines(attention) == after
    assert attention.value("document.querySelectorAll('.cell.made').length") > 0


def test_zoom(attention: Browser) -> None:
    scale = "Number(document.getElementById('world').style.transform.match(/scale\\((.*)\\)/)[1])"
    at_first = attention.value(scale)
    attention.click("#zoom-in")
    assert attention.value(scale) > at_first
    attention.press("-")
    assert attention.value(scale) == pytest.approx(at_first)
    attention.press("+")
    attention.click("#zoom-out")
    attention.press("0")
    box = "document.getElementById('world').getBoundingClientRect().height"
    attention.wait(SETTLED)
    assert attention.value(box) <= attention.value(
        "document.getElementById('canvas').getBoundingClientRect().height"
    )
    attention.click("#zoom-fit")


def test_the_wheel_and_the_mouse_move_the_graph(attention: Browser) -> None:
    transform = "document.getElementById('world').style.transform"
    before = attention.value(transform)
    point = {"x": 560, "y": 400}
    attention.call("Input.dispatchMouseEvent", type="mouseWheel", **point, deltaX=0, deltaY=80)
    attention.wait(f"{transform} !== {json.dumps(before)}")
    before = attention.value(transform)
    attention.call("Input.dispatchMouseEvent", type="mousePressed", **point, button="left")
    attention.call("Input.dispatchMouseEvent", type="mouseMoved", x=600, y=440, button="left")
    attention.call("Input.dispatchMouseEvent", type="mouseReleased", x=600, y=440, button="left")
    attention.wait(f"{transform} !== {json.dumps(before)}")


def test_snapshots_are_plotted_and_open(attention: Browser) -> None:
    points = "document.querySelectorAll('#chart .point').length"
    assert attention.value(points) == 3
    measures = attention.value("[...document.querySelectorAll('#measure option')].length")
    for number in range(measures):
        attention.value(
            f"(m => {{ m.value = '{number}'; m.dispatchEvent(new Event('change')); }})"
            "(document.getElementById('measure'))"
        )
        assert attention.value(points) == 3
    attention.click("#chart .point:nth-of-type(2) path")
    assert attention.value(FRAGMENT) == "step-15"
    attention.value("document.querySelectorAll('#chart .point')[2].focus()")
    attention.press("Enter")
    assert attention.value(FRAGMENT) == "step-17"
    assert attention.value("document.querySelectorAll('#chart .current').length") == 1


def test_costs_so_far(attention: Browser) -> None:
    go(attention, "step-17")
    shown = attention.value("document.querySelector('[data-cost=edges]').textContent")
    assert shown == "Buffered edges0of 10"


def test_names_of_a_nest_lead_to_the_block_program(attention: Browser) -> None:
    go(attention, "snapshot-2-cpu-lower_to_nest")
    attention.click("#lines b.same")
    assert attention.value("document.querySelectorAll('.cell.picked').length") == 1


def test_survivors_move_by_the_same_elements(attention: Browser) -> None:
    attention.value(
        "window.kept = new Map([...document.querySelectorAll('.cell[data-key]')]"
        ".map(e => [e.dataset.key, e]))"
    )
    attention.press("ArrowRight")
    same = attention.value(
        "[...document.querySelectorAll('.cell[data-key]')]"
        ".filter(e => window.kept.get(e.dataset.key) === e).length"
    )
    assert same > drawn(attention) / 2


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(
    width: int, dark: bool, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.look(width, 844, dark=dark)
    browser.open(pages["attention"].as_uri() + "#step-15")
    wide = browser.value("document.documentElement.scrollWidth")
    tall = browser.value("document.documentElement.scrollHeight")
    assert (wide, tall) == (width, 844)
    ink = "getComputedStyle(document.body).color"
    assert (browser.value(ink) == "rgb(233, 232, 228)") is dark


def test_panels_of_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(390, 844)
    browser.open(pages["attention"].as_uri())
    visible = "[...document.querySelectorAll('.panel')].filter(e => e.offsetParent).map(e => e.id)"
    for name in ("code", "about", "steps", "plot", "graph"):
        browser.click(f"#panels [data-panel={name}]")
        assert browser.value(visible) == [name]
    assert browser.complaints == []


def test_controls_have_names_and_focus(attention: Browser) -> None:
    unnamed = attention.value(
        "[...document.querySelectorAll('button, input, select, svg[role], [tabindex]')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.id)"
    )
    assert unnamed == []
    attention.value("document.getElementById('canvas').focus()")
    attention.press("Tab")
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert attention.value("document.activeElement.id") == "zoom-in"
    assert attention.value(ring) == "solid"


def test_a_hostile_name_executes_nothing(browser: Browser, tmp_path: Path) -> None:
    program = bb.trace(lambda X: {HOSTILE: bb.ops.exp(X)}, X="M N", name=HOSTILE)
    file = bb.explore(program, times=False).save(tmp_path / "hostile.html")
    browser.look()
    browser.open(file.as_uri())
    browser.press("End")
    assert browser.value("document.getElementById('title').textContent") == HOSTILE
    assert browser.value("document.title").startswith(HOSTILE[:9])
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.complaints == []


def test_markup_that_gets_in_is_not_run(browser: Browser, tmp_path: Path) -> None:
    """The policy of the page stops a script even in markup."""
    data = bb.explore(bb.examples.find("matmul-relu"), times=False).data
    text = page(dict(data)).replace("<body ", "<body onload=\"document.title='hit'\" ")
    file = tmp_path / "changed.html"
    file.write_text(text, encoding="utf-8")
    browser.open(file.as_uri())
    assert browser.value("document.title") != "hit"
    assert any("Content Security Policy" in text for text in browser.complaints)


def test_five_thousand_nodes(browser: Browser, tmp_path: Path) -> None:
    def program(X):
        for _ in range(300):
            X = bb.ops.exp(X) + X
        return {"O": X}

    graph = bb.lower(bb.trace(program, X="M N", name="large"))
    drawn_graph = frame(graph, Sizes({"M": 64, "N": 64}))
    cost = drawn_graph.pop("cost")
    moment = {"group": "fusion", "title": "large", "frame": 0, "cost": cost}
    data = bb.explore(bb.examples.find("matmul-relu"), times=False).data
    moments = [{"id": "step-0", **moment}, {"id": "step-1", **moment}]
    file = tmp_path / "large.html"
    large = {"frames": [drawn_graph], "moments": moments, "snapshots": data["snapshots"][:1]}
    file.write_text(page({**data, **large}), encoding="utf-8")
    browser.look()
    browser.open(file.as_uri())
    assert len(drawn_graph["boxes"]) >= 5000
    label = browser.value("document.getElementById('canvas').getAttribute('aria-label')")
    assert f"{len(drawn_graph['boxes'])} cells" in label
    assert 5 < drawn(browser) < 500  # what the window shows
    browser.press("ArrowRight")
    assert browser.value(FRAGMENT) == "step-1"
    browser.value("document.getElementById('lines').scrollTop = 19 * 900")
    assert browser.value("document.getElementById('lines').scrollTop") == 19 * 900
    browser.wait("document.querySelector('#lines li[data-at=\"905\"]') !== null")
    browser.click("#lines li[data-at='905']")
    browser.wait("document.querySelectorAll('.cell.picked').length === 1")
    browser.press("0")
    browser.wait("document.querySelectorAll('#world .cell.map').length > 50")
    assert browser.complaints == []


def test_a_notebook_s_frame(browser: Browser, tmp_path: Path) -> None:
    made = bb.explore(bb.examples.find("matmul-relu"), times=False)
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{made._repr_html_()}</body>", encoding="utf-8")
    browser.look()
    browser.open(file.as_uri())
    assert browser.complaints == []


def test_results_that_become_accumulators_have_a_dot(attention: Browser) -> None:
    """Cells keep their elements from step to step, so a ring may change its kind."""
    dots = (
        "[...document.querySelectorAll('#world .inner')]"
        ".filter(e => getComputedStyle(e).display !== 'none')"
        ".map(e => e.closest('.cell').dataset.key).sort()"
    )
    rings = "[...document.querySelectorAll('.cell.accumulate')].map(e => e.dataset.key).sort()"
    for _ in range(17):
        attention.press("ArrowRight")
        assert attention.value(dots) == attention.value(rings), attention.value(FRAGMENT)
    assert len(attention.value(rings)) == 3


def test_the_listing_opens_at_what_a_step_made(attention: Browser) -> None:
    marked = "[...document.querySelectorAll('#lines li.new')].map(e => e.textContent.trim())"
    go(attention, "step-17")
    made = attention.value(marked)
    assert made[0] == "for n in range(N):"
    assert made[-1] == "t7 += dot(t4,t6)"
    assert "t8 = 1/t5" not in made
    first = (
        "(([a, b]) => a.top >= b.top - 1 && a.bottom <= b.bottom)(['#lines li.new', '#lines']"
        ".map(s => document.querySelector(s).getBoundingClientRect()))"
    )
    for number in range(1, 18):
        go(attention, f"step-{number}")
        assert attention.value(first), number


def test_the_page_explains_itself(attention: Browser) -> None:
    data = data_of(attention)
    attention.press("?")
    told = attention.value("document.getElementById('dialog').textContent")
    steps = sum("rule" in moment for moment in data["moments"])
    count = len(data["moments"]) - 1
    assert f"The page has {count} moments" in told
    assert f"{steps} are steps of fusion; the other {count - steps}" in told
    for word in ("snapshot", "extension", "buffered edge", "Local memory"):
        assert word in told
    assert attention.value("document.getElementById('dialog').scrollTop") == 0
    attention.click("#close")
    rows = attention.value("[...document.querySelectorAll('#steps a')].map(e => e.textContent)")
    assert "17join exp with dotrule 1 · Nsnapshot 2" in rows
    assert attention.value("document.querySelectorAll('#steps .hint').length") == 3
    assert data["chosen_why"] in attention.value("document.getElementById('chosen').textContent")


def test_figures_that_look_the_same_are_no_change(attention: Browser) -> None:
    for _ in data_of(attention)["moments"]:
        for change in attention.value(
            "[...document.querySelectorAll('#about .change')].map(e => e.textContent)"
        ):
            for part in change.split("; ") if "→" in change else ():
                before, after = part.partition(": ")[2].split(" → ")
                assert before != after
        attention.press("ArrowRight")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_graph_fits_and_its_changed_part_is_in_view(
    width: int, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.look(width, 844)
    browser.open(pages["rmsnorm-swiglu"].as_uri())
    data = data_of(browser)
    box = "(r => [r.left, r.top, r.right, r.bottom])({}.getBoundingClientRect())"
    canvas = box.format("document.getElementById('canvas')")
    whole = browser.value(box.format("document.getElementById('world')"))
    left, top, right, bottom = browser.value(canvas)
    assert left <= whole[0] < whole[2] <= right
    assert top <= whole[1] < whole[3] <= bottom
    for moment in data["moments"]:
        if "focus" in moment:
            browser.wait(SETTLED)
            cell = f"document.querySelector('[data-key=\"{moment['focus']}\"]')"
            _, high, _, low = browser.value(box.format(cell))
            _, top, _, bottom = browser.value(canvas)
            assert top <= high < bottom, moment["id"]
            assert min(low, high + 16) <= bottom, moment["id"]
        browser.press("ArrowRight")
    assert browser.complaints == []
