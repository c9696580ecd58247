"""The page of a report in a real Chromium: it fits its window, and nothing in it is executed."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from blockbuster_fusion.report.collect import report_of
from blockbuster_fusion.report.page import page
from blockbuster_fusion.report.report import Report
from helpers.chromium import QUIET, chromium
from helpers.plans import hostile, layered, plan_of

WIDTHS = "<script>document.title = `${document.documentElement.scrollWidth} ${innerWidth}`</script>"
"""A script that a test adds to a page to learn how wide it is."""


def title(html: str, folder: Path, width: int) -> str:
    """The title of a page after it was shown in a window of some width."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    command = [chromium(), *QUIET, f"--user-data-dir={folder / 'user'}"]
    command += [f"--window-size={width},1500", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert found is not None
    return found[1]


def long_names() -> Report:
    """A report with names and paths that are longer than a column."""
    own = layered()
    lines = (f"{'folder/' * 12}{'a' * 60}.py:12",)
    steps = tuple(replace(step, name=step.name * 20, lines=lines) for step in own.steps)
    return report_of(plan_of((replace(own, steps=steps),)), ["a sentence about all of it " * 9])


@pytest.mark.parametrize("width", [500, 1280])
def test_a_page_fits_its_window(width: int, tmp_path: Path) -> None:
    html = re.sub("<meta http-equiv[^>]*>", "", page(long_names()))
    html = html.replace("</body>", f"{WIDTHS}</body>")
    shown, window = map(int, title(html, tmp_path, width).split())
    assert window >= width - 20
    assert shown <= window


def test_nothing_of_a_hostile_page_is_executed(tmp_path: Path) -> None:
    """Not even where the page has no policy: names are text."""
    html = page(hostile()).replace("alert(1)", "document.title=1").replace("alert(2)", "title=2")
    for own in (html, re.sub("<meta http-equiv[^>]*>", "", html)):
        assert title(own, tmp_path, 1280).startswith("Explanation for &lt;script&gt;")


def test_a_page_has_a_policy_against_scripts(tmp_path: Path) -> None:
    """A script that is put into the page by hand does not run."""
    html = page(long_names()).replace("</body>", f"{WIDTHS}</body>")
    assert title(html, tmp_path, 1280) == "Explanation for cpu (four cores)"
