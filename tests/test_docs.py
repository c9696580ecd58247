"""The code in the documentation runs, and prints what the page says."""

import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from blockbuster_fusion.array import table
from blockbuster_fusion.frontends.torch import table as torch_table

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", "docs/programs.md", "docs/pytorch.md"]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _registers_nothing() -> Iterator[None]:
    """Operators that a page adds are gone behind it: other tests look through the tables."""
    with patch.dict(table.TABLE), patch.dict(torch_table.TABLE):
        yield


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert any(language == "python" for language, _ in blocks)
    for language, code in blocks:
        if language == "python":
            exec(compile(code, page, "exec"), namespace)


def test_the_readme_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    first = next(at for at, (language, _) in enumerate(blocks) if language == "python")
    exec(compile(blocks[first][1], "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == blocks[first + 1][1].strip()


@pytest.mark.parametrize("page", [*PAGES, "docs/architecture.md"])
def test_files_that_the_docs_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), link
