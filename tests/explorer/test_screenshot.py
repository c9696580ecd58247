"""The screenshot in the README: a command makes it, in a real Chromium."""

import importlib
from pathlib import Path

import pytest

from helpers.chromium import chromium

ROOT = Path(__file__).parents[2]
MOST_BYTES = 150_000


def size_of(file: Path) -> tuple[int, int]:
    """The width and height of a picture in WebP: 14 bits each, after the start code."""
    data = file.read_bytes()
    assert (data[:4], data[8:15]) == (b"RIFF", b"WEBPVP8")
    at = data.index(b"\x9d\x01\x2a") + 3
    return tuple(int.from_bytes(data[x : x + 2], "little") & 0x3FFF for x in (at, at + 2))


def test_the_command_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chromium()
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    make_screenshot = importlib.import_module("make_screenshot")
    made = tmp_path / "explorer.webp"
    make_screenshot.write(made)
    assert size_of(made) == size_of(make_screenshot.FILE) == (1280, 800)
    assert max(made.stat().st_size, make_screenshot.FILE.stat().st_size) < MOST_BYTES


def test_the_readme_shows_it() -> None:
    assert "](docs/screenshots/explorer.webp)" in (ROOT / "README.md").read_text(encoding="utf-8")
