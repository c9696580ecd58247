"""The page in a real Chromium: every control."""

import json
from pathlib import Path

import pytest

from helpers.chromium import Browser
from helpers.explored import CURRENT, FRAGMENT, SETTLED, data_of, go, lines


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


def test_the_text_is_as_wide_as_it_needs(attention: Browser) -> None:
    width = "document.getElementById('code').getBoundingClientRect().width"
    shown = "document.getElementById('graph').offsetParent !== null"
    assert attention.value(width) == 400
    go(attention, "snapshot-2-cuda-source")
    beside = attention.value(width)
    assert beside > 600
    assert attention.value(shown)
    attention.press("w")
    assert attention.value(width) > beside + 200
    assert not attention.value(shown)
    most = "document.getElementById('lines')"
    assert attention.value(f"{most}.scrollWidth <= {most}.clientWidth")
    attention.click("#wide")
    assert (attention.value(width), attention.value(shown)) == (beside, True)


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


@pytest.mark.parametrize("moment", ["snapshot-2-cpu-lower_to_nest", "snapshot-2-cuda-source"])
def test_names_of_a_kernel_lead_to_the_block_program(moment: str, attention: Browser) -> None:
    go(attention, moment)
    attention.click("#lines b[data-name=t17]")
    assert attention.value("document.querySelectorAll('.cell.picked').length") == 1
    assert "t17 = 1/t12" in attention.value("document.querySelector('.selected').textContent")
    attention.click("#lines b[data-name=t12]")
    told = attention.value("document.querySelector('.selected').textContent")
    assert told.startswith("t12 (accumulator)t11,t12,t13 = t14,t12*t15+t8*t16,")
    attention.click("#lines b.border[data-name=VT]")
    assert "VT" in attention.value("document.querySelector('.selected').textContent")


def test_panels_of_a_phone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(390, 844)
    browser.open(pages["attention"].as_uri())
    visible = "[...document.querySelectorAll('.panel')].filter(e => e.offsetParent).map(e => e.id)"
    for name in ("code", "about", "steps", "plot", "graph"):
        browser.click(f"#panels [data-panel={name}]")
        assert browser.value(visible) == [name]
    browser.open(pages["attention"].as_uri() + "#snapshot-2-cuda-source")
    assert browser.value(visible) == ["code"]
    titles = browser.value("[...document.querySelectorAll('#panels button')].map(e => e.innerText)")
    assert titles == ["Graph", "Source", "About", "Steps", "Snapshots"]
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
