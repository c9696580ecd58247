"""The page of a program in a browser: where it is, and what it shows."""

import json

from helpers.chromium import Browser

HOSTILE = "</script><img src=x onerror=\"document.title='hit'\"><svg/onload=document.title='hit'>"
"""A name that would run a script if it became markup."""
FRAGMENT = "location.hash.slice(1)"
CURRENT = "document.querySelector('#steps [aria-current]').getAttribute('href')"
SETTLED = (
    "(document.getAnimations().forEach(x => x.finish()), document.getAnimations().length === 0)"
)
"""True if nothing moves; what does is brought to its end, also where no frame is drawn."""


def go(browser: Browser, moment: str) -> None:
    """Opens a moment by its address, and waits until nothing moves."""
    browser.value(f"location.hash = '#{moment}'")
    browser.wait(f"{CURRENT} === '#{moment}' && {SETTLED}")


def drawn(browser: Browser) -> int:
    """The number of cells in the page."""
    return int(browser.value("document.querySelectorAll('#world .cell[data-key]').length"))


def lines(browser: Browser) -> list[str]:
    """The lines beside the graph."""
    return list(
        browser.value("[...document.querySelectorAll('#lines li')].map(e => e.textContent)")
    )


def data_of(browser: Browser) -> dict:
    """The data of the page."""
    return dict(json.loads(browser.value("document.getElementById('data').textContent")))
