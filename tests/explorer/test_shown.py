"""The page in a real Chromium: every example, sizes of windows, a hostile name, no network."""

import json
from pathlib import Path

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.explorer.page import page
from blockbuster_fusion.explorer.sizes import Sizes
from blockbuster_fusion.explorer.steps import frame
from blockbuster_fusion.ir.listing import listed
from helpers.chromium import Browser
from helpers.explored import FRAGMENT, HOSTILE, SETTLED, data_of, drawn, go, lines

PAPER = ["attention", "layernorm-matmul", "rmsnorm-swiglu"]


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


def test_costs_so_far(attention: Browser) -> None:
    go(attention, "step-17")
    shown = attention.value("document.querySelector('[data-cost=edges]').textContent")
    assert shown == "Buffered edges0of 10"


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
@pytest.mark.parametrize("width", [1280, 900, 390])
def test_nothing_is_wider_than_the_window(
    width: int, dark: bool, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.look(width, 844, dark=dark)
    for moment in ("step-17", "snapshot-2-cuda-source"):
        browser.open(f"{pages['attention'].as_uri()}#{moment}")
        if width == 390:
            browser.click("#panels [data-panel=about]")
            about = "document.getElementById('about')"
            assert browser.value(f"{about}.scrollWidth <= {about}.clientWidth")
            browser.click("#panels [data-panel=code]")
        wide = browser.value("document.documentElement.scrollWidth")
        tall = browser.value("document.documentElement.scrollHeight")
        assert (wide, tall) == (width, 844)
    ink = "getComputedStyle(document.body).color"
    assert (browser.value(ink) == "rgb(233, 232, 228)") is dark


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
    drawn_graph = frame(graph, Sizes({"M": 64, "N": 64}), listed(graph))
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


def test_all_that_a_step_changed_is_in_view(attention: Browser) -> None:
    """A node that moves to another place is seen with its neighbours before, if both fit."""
    attention.look(1280, 900)
    go(attention, "step-6")
    attention.press("ArrowRight")
    attention.wait(SETTLED)
    box = "(r => [r.top, r.bottom])(document.querySelector({}).getBoundingClientRect())"
    top, bottom = attention.value(box.format("'#canvas'"))
    for key in data_of(attention)["moments"][7]["made"]:
        cell = json.dumps(f'.cell[data-key="{key}"]')
        high, low = attention.value(box.format(cell))
        assert top <= high < low <= bottom, key


def test_a_notebook_s_frame(browser: Browser, tmp_path: Path) -> None:
    made = bb.explore(bb.examples.find("matmul-relu"), times=False)
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{made._repr_html_()}</body>", encoding="utf-8")
    browser.look()
    browser.open(file.as_uri())
    assert browser.complaints == []


def test_a_frame_is_drawn_when_it_gets_a_size(browser: Browser, tmp_path: Path) -> None:
    made = bb.explore(bb.examples.find("matmul-relu"), times=False)
    file = tmp_path / "hidden.html"
    file.write_text(f"<!doctype html><div hidden>{made._repr_html_()}</div>", encoding="utf-8")
    browser.look()
    browser.open(file.as_uri())
    points = "document.querySelectorAll('#chart .point').length"
    assert browser.value_in_frame(points) == 0
    browser.value("document.querySelector('div').hidden = false")
    browser.wait(f"{points} > 1", in_frame=True)
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
    for word in (
        "snapshot",
        "extension",
        "buffered edge",
        "Local memory",
        "forall",
        "⊕",
        "rule 1 · M",
    ):
        assert word in told
    assert attention.value("document.getElementById('dialog').scrollTop") == 0
    attention.click("#close")
    rows = attention.value("[...document.querySelectorAll('#steps a')].map(e => e.textContent)")
    assert "17join exp with dotrule 1 · N− I4snapshot 2" in rows
    assert "16move exp and row_sum into the loop over Lextension · L" in rows
    assert rows[-1].startswith(f"{count}The kernel in Triton")
    assert attention.value("document.querySelectorAll('#steps .hint').length") == 3
    chosen = attention.value("document.getElementById('chosen').textContent")
    assert chosen.startswith("Runs by default: snapshot 1 in C and Triton.")
    times = {each["name"]: [*each["times"].values()] for each in data["snapshots"]}
    fastest = min(times, key=lambda name: times[name])
    assert f"Fastest at this page's sizes: {fastest} (predicted" in chosen
    about = attention.value("document.getElementById('about').textContent")
    assert f"{defaults(chosen)} {' '.join(data['chosen_why'])}" in about
    assert "At this page's sizes (M=512, D=64, N=512, L=64), times are" in about


def defaults(chosen: str) -> str:
    return chosen[: chosen.index(".") + 1]


def test_the_choice_is_not_cut_off(browser: Browser, pages: dict[str, Path]) -> None:
    browser.look(1280, 900)
    browser.open(pages["attention"].as_uri())
    assert browser.value("(p => p.scrollHeight <= p.clientHeight)(document.getElementById('plot'))")


@pytest.mark.parametrize("moment", ["step-0", "step-17"])
def test_the_first_and_the_last_step_tell_the_whole(moment: str, attention: Browser) -> None:
    go(attention, moment)
    rows = attention.value(
        "[...document.querySelectorAll('#about .fates tbody tr')].map(e => e.innerText.split('\t'))"
    )
    assert [name for name, _, _ in rows] == [f"I{n}" for n in range(1, 11)]
    assert ["I4", "I4 = exp(I3)", "step 17"] in rows
    assert ["I10", "I10 += I9 since step 7", "step 12"] in rows
    tally = attention.value("document.querySelector('#about .tally').innerText").split("\n")
    assert tally[0] == "11 × rule 1: fuse consecutive maps"
    assert tally[-1] == "1 × further rule: extend map over producers"
    figures = attention.value(
        "[...document.querySelectorAll('#about .figures tbody tr')].map(e => e.innerText)"
    )
    assert [row.split("\t")[:2] for row in figures] == [
        ["unfused", "10"],
        ["snapshot 1", "1"],
        ["snapshot 2", "0"],
    ]
    attention.value("document.querySelector(\"#about .fates a[href='#step-12']\").click()")
    attention.wait(f"{FRAGMENT} === 'step-12'")


def test_steps_that_remove_an_array_are_marked(attention: Browser) -> None:
    marked = attention.value(
        "[...document.querySelectorAll('#steps a')].filter(e => e.querySelector('.removed'))"
        ".map(e => [e.getAttribute('href'), e.querySelector('.removed').textContent])"
    )
    assert marked[:3] == [["#step-4", "− I6"], ["#step-5", "− I7"], ["#step-7", "I8 → I10"]]
    moments = [m for m in data_of(attention)["moments"] if m.get("removes") or m.get("adds")]
    assert [f"#{m['id']}" for m in moments] == [where for where, _ in marked]
    fewer = "[...document.querySelectorAll('#steps .key-step')].map(e => e.getAttribute('href'))"
    assert attention.value(fewer) == [f"#{m['id']}" for m in moments if not m["adds"]]


def test_moments_are_counted_as_the_list_has_them(attention: Browser) -> None:
    last = len(data_of(attention)["moments"]) - 1
    numbers = attention.value(
        "[...document.querySelectorAll('#steps a i')].map(e => Number(e.textContent))"
    )
    assert numbers == [*range(last + 1)]
    go(attention, "snapshot-2-pairs")
    here = attention.value("document.querySelector('#steps [aria-current] i').textContent")
    assert attention.value("document.getElementById('where').textContent") == f"{here} / {last}"


@pytest.mark.parametrize(("step", "snapshot"), [("step-15", 1), ("step-17", 2)])
def test_a_snapshot_links_what_makes_it_safe(step: str, snapshot: int, attention: Browser) -> None:
    go(attention, step)
    links = attention.value(
        "[...document.querySelectorAll('#about .onward a')].map(e => e.textContent)"
    )
    assert links[0] == "Made safe: running maximum for exp (online softmax)"
    assert links[1:] == ["Source in C", "Source in Triton"]
    attention.value("document.querySelector('#about .onward a').click()")
    attention.wait(f"{FRAGMENT} === 'snapshot-{snapshot}-pairs'")


def test_a_step_links_what_it_prepares_and_what_makes_it_safe(attention: Browser) -> None:
    told = attention.value("document.getElementById('about').textContent")
    assert "As written, exp may overflow" in told
    assert "Each snapshot is made safe after fusion:" in told
    attention.value("document.querySelector(\"#about a[href='#snapshot-2-pairs']\").click()")
    attention.wait(f"{FRAGMENT} === 'snapshot-2-pairs'")
    go(attention, "step-6")
    change = attention.value("document.querySelector('#about .change').textContent")
    assert change == "No cost changes yet: the step prepares step 7 (move row_scale behind dot)."


def test_only_equal_costs_read_as_one(attention: Browser) -> None:
    moments = data_of(attention)["moments"]
    first = moments[0]["cost"]
    for moment in moments[:18]:
        text = "document.querySelector('.cost[data-cost={}] em').textContent"
        for name in ("traffic", "flops", "local"):
            shown = attention.value(text.format(name))
            assert (shown == "1× unfused") == (moment["cost"][name] == first[name]), moment["id"]
        attention.press("ArrowRight")


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
    assert left <= whole[0] < whole[2] <= right  # all of its width
    assert top <= whole[1]
    assert whole[3] > bottom  # it is too tall to be readable as a whole
    assert browser.value("document.getElementById('graph').classList.contains('below')")
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


def test_words_of_comments_have_no_colour(attention: Browser) -> None:
    """Also in a comment of several lines."""
    go(attention, "snapshot-2-cpu-source")
    shown = {moment["id"]: moment for moment in data_of(attention)["moments"]}
    text = shown["snapshot-2-cpu-source"]["text"].splitlines()
    start = next(at for at, line in enumerate(text) if line.startswith("/*") and "*/" not in line)
    end = next(at for at in range(start, len(text)) if "*/" in text[at])
    assert end > start
    assert " for " in "".join(text[start : end + 1])
    attention.value(f"document.getElementById('lines').scrollTop = {19 * start}")
    words = "document.querySelectorAll('#lines li[data-at=\"{}\"] .word').length"
    row = "document.querySelector('#lines li[data-at=\"{}\"]') !== null"
    for at in range(start, end + 1):
        attention.wait(row.format(at))
        assert attention.value(words.format(at)) == 0, text[at]
    loop = next(at for at, line in enumerate(text) if line.strip().startswith("for (int64_t"))
    attention.value(f"document.getElementById('lines').scrollTop = {19 * loop}")
    attention.wait(row.format(loop))
    assert attention.value(words.format(loop)) > 0
