"""The site of the documentation: made without a warning, with no dead link and no network."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import blockbuster_fusion as bb

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` makes it."""
    folder = tmp_path_factory.mktemp("site")
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--keep-going",
        "-q",
        "-b",
        "html",
    ]
    done = subprocess.run(
        [*build, "-d", str(folder / "trees"), "docs", str(folder / "html")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


class _Page(HTMLParser):
    """The anchors of a page, its links, and the files that it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(given["href"])
        if "src" in given:
            self.loads.append(given["src"])


@cache
def page(file: Path) -> _Page:
    return _Page(file)


def pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    return ((file, page(file)) for file in sorted(site.rglob("*.html")))


def test_links_lead_to_pages_and_anchors(site: Path) -> None:
    dead = []
    for file, found in pages(site):
        for link in found.links:
            address = urlsplit(link)
            if address.scheme:
                assert address.scheme == "https", f"{file.name}: {link}"
                assert re.fullmatch(r"[\w.-]+\.[a-z]+", address.netloc), f"{file.name}: {link}"
                continue
            target = (file.parent / unquote(address.path)) if address.path else file
            anchor = unquote(address.fragment)
            is_page = target.suffix == ".html" and target.is_file()
            if not target.is_file() or (anchor and is_page and anchor not in page(target).anchors):
                dead.append(f"{file.name}: {link}")
    assert not dead, "\n".join(dead)


def test_pages_need_no_network(site: Path) -> None:
    for file, found in pages(site):
        for load in found.loads:
            address = urlsplit(load)
            assert not address.netloc, f"{file.name} loads {load}"
            assert (file.parent / unquote(address.path)).is_file(), f"{file.name} loads {load}"
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), sheet.name


def test_every_page_is_in_the_site(site: Path) -> None:
    for source in (ROOT / "docs").glob("*.md"):
        assert (site / source.with_suffix(".html").name).is_file()


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = page(site / "api.html").anchors
    for name in bb.__all__:
        if name != "__version__":
            prefix = "module-" if inspect.ismodule(getattr(bb, name)) else ""
            assert f"{prefix}blockbuster_fusion.{name}" in anchors, name


def test_pictures_are_in_the_page(site: Path) -> None:
    """So they follow its theme; each has a text for those who do not see it."""
    text = (site / "flash_attention.html").read_text(encoding="utf-8")
    figures = re.findall(r'<figure class="picture" role="img" aria-label="([^"]*)">', text)
    assert len(figures) == 21
    assert all(figures)
    assert "<img" not in text.partition("<article")[2].partition("</article>")[0]
    assert (site / "_static" / "pictures.css").is_file()
