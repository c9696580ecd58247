"""Pages and a browser that the tests of the explorer share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import blockbuster_fusion as bb
from helpers.chromium import Browser, started_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser without a network."""
    with started_browser() as made:
        made.offline()
        yield made


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of the paper's examples."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name in ("attention", "layernorm-matmul", "rmsnorm-swiglu"):
        made = bb.explore(bb.examples.find(name), times=name == "attention")
        found[name] = made.save(folder / f"{name}.html")
    return found


@pytest.fixture
def attention(browser: Browser, pages: dict[str, Path]) -> Iterator[Browser]:
    """The page of attention at its first step; at the end nothing has gone wrong."""
    browser.look()
    browser.open(pages["attention"].as_uri())
    yield browser
    assert browser.complaints == []


@pytest.fixture(scope="session")
def twelve() -> tuple[Any, Any]:
    """The explanation and the page of a model of twelve layers."""
    torch = pytest.importorskip("torch")
    from helpers.twelve_layers import KERNELS, Twelve, X

    with torch.no_grad():
        explanation = bb.explain(Twelve().eval(), X, options=KERNELS)
    return explanation, bb.explore(explanation)
