"""The code in the documentation runs, and prints the output that the page shows."""

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.array import table
from blockbuster_fusion.cli import main as cli
from blockbuster_fusion.torch.table import row as torch_table
from helpers.pages import BLOCK, agreed, run_page
from helpers.pages import blocks as blocks_of

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]
LANGUAGES = {"", "python", "text", "console", "sh", "c", "{toctree}", "{eval-rst}"}


def blocks(page: str, language: str) -> list[str]:
    """The code of a page in a language."""
    found = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    return [block.code for block in found if block.language == language]


@pytest.fixture(autouse=True)
def _changes_nothing() -> Iterator[None]:
    """Undoes the changes of a page: other tests look through the tables, and take gradients."""
    with patch.dict(table.TABLE), patch.dict(torch_table.TABLE), torch.enable_grad():
        yield


RUN = [page for page in PAGES if blocks(page, "python") or blocks(page, "console")]


@pytest.mark.parametrize("page", RUN)
def test_code_runs_and_prints_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Every block as it stands, one after the other; --update-golden writes the output."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    found = run_page(text, tmp_path)
    if request.config.getoption("--update-golden"):
        (ROOT / page).write_text(found, encoding="utf-8")
    else:
        assert found == text


@pytest.mark.parametrize(
    ("shown", "printed", "is_agreed"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("...\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\nd\n", "a\nb\n", False),
        (".*\n", "a\n", False),
        ("", "a\n", False),
    ],
)
def test_dots_stand_for_any_lines(shown: str, printed: str, is_agreed: bool) -> None:
    assert (agreed(shown, printed) == shown) == is_agreed


def test_the_first_block_needs_the_package_alone() -> None:
    """A fresh install has NumPy and no PyTorch; the block is run in a process of its own."""
    first = blocks("README.md", "python")[0]
    hidden = "import sys; sys.modules['torch'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", hidden + first], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("(500, 64)\nforall m in range(M):\n")
    assert "I1" not in done.stdout


FILES = {
    f"{folder}/{file.relative_to(ROOT / folder).as_posix()}".removeprefix("src/blockbuster_fusion/")
    for folder in ("src/blockbuster_fusion", "tests", "benchmarks")
    for file in (ROOT / folder).rglob("*.py")
}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    """A path is whole, but for the rules, which a table lists by their names."""
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    named = set(re.findall(r"`([a-z_/]+\.py)`", text))
    known = {*FILES, *(file.removeprefix("rules/") for file in FILES)}
    assert named <= known, sorted(named - known)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_have_a_known_language(page: str) -> None:
    found = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    assert {block.language for block in found} <= LANGUAGES


QUICK = ("list", "show", "trace", "fuse", "emit")
"""Commands that are run; the others are parsed only, because they measure."""


def commands() -> list[str]:
    lines = [line for page in PAGES for code in blocks(page, "sh") for line in code.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("blockbuster ")]


@pytest.mark.parametrize("command", dict.fromkeys(commands()))
def test_commands_run(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command)[1:]
    if arguments[0] in QUICK:
        assert cli.main(arguments) == 0, capsys.readouterr().err
    else:
        assert cli._parser().parse_args(arguments).run is not None


def test_the_header_in_the_docs_is_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["emit", "attention", "--size", "D=64,L=64", "--header"]) == 0
    (shown,) = blocks("docs/commands.md", "c")
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_files_that_the_docs_name_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), link


def test_figures_are_the_kept_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of speeds are made from the results that the benchmark has kept."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pages = importlib.import_module("pages")
    tables = {name: made() for name, made in pages.TABLES.items()}
    shown = set()
    for page in pages.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert pages.filled(text, tables) == text, f"{page}: run benchmarks/pages.py"
        shown |= {name for name in tables if f"<!-- {name} -->" in text}
    assert shown == set(tables)


def test_every_figure_names_its_baseline() -> None:
    """A page that gives a speed names its baseline, and the way to measure it again."""
    for page in ("README.md", "docs/kernels.md", "docs/pytorch.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for sentence in re.split(r"(?<=[.:;])\s", text):
            if re.search(r"\d times as fast|\d times slower", sentence):
                assert re.search(r"eager|SDPA|Inductor|PyTorch|Flash", sentence), sentence
        if "| against " in text or "times as fast" in text:
            assert "benchmarks/" in text, page


def test_terms_are_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = ["block program", "snapshot", "interior buffered edge", "unit dim", "misc operator"]
    terms += ["significand", "pivot", "list", "item", "dim", "tile", "window", "lanes", "SDPA"]
    for term in terms:
        assert re.search(rf"^\| {term}\b", glossary, re.MULTILINE), term


def test_the_package_says_what_it_is() -> None:
    """One source of the version, addresses for the project, documentation in the archive."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{bb.__version__}"' in source.read_text(encoding="utf-8")
    assert "version" in project["project"]["dynamic"]
    urls = project["project"]["urls"]
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith("https://") for url in urls.values())
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/docs", "/LICENSE", "/CHANGELOG.md", "/src", "/tests"} <= set(included)
    assert all((ROOT / name.lstrip("/")).exists() for name in included)


def test_pictures_are_those_of_the_project(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The files in docs/pictures are what `make pictures` writes, and no other."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    made = dict(importlib.import_module("make_pictures").pictures())
    kept = {
        file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "docs/pictures").iterdir()
    }
    assert set(kept) == set(made)
    assert [name for name in made if kept[name] != made[name]] == [], "run make pictures"
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"pictures/(\w+)\.svg", (ROOT / page).read_text(encoding="utf-8"))
    }
    assert shown == set(made)
