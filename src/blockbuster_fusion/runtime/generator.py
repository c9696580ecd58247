"""The version of the generator of kernels: a digest of the sources that make them.

A number that people raise by hand would be forgotten, and times of other kernels would then count
as those of ours. A digest changes too often rather than too seldom: what is lost is measured again.
"""

import hashlib
from functools import cache
from pathlib import Path

from blockbuster_fusion.version import __version__

PACKAGE = Path(__file__).parents[1]
SOURCES = (
    *("ir", "rules", "fusion", "safety", "nest", "schedule", "printers"),
    *("choice.py", "compiler.py", "runtime/c/compiler.py", "runtime/c/kernels.py"),
    *("runtime/triton/launch.py", "runtime/triton/variants.py"),
)
"""From block programs to source text, and the options of the C compiler."""
LETTERS = 16


@cache
def generator_version() -> str:
    """The digest of the sources; the version of a package that comes without them."""
    return digest_of(PACKAGE) or __version__


def digest_of(package: Path) -> str:
    """The digest of the sources in a folder; an empty text if there are none."""
    files = [file for name in SOURCES for file in _files(package / name)]
    found = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        name = file.relative_to(package).as_posix()
        found.update(f"{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:LETTERS] if files else ""


def _files(place: Path) -> list[Path]:
    """A Python file, or those of a folder in the order of their paths."""
    return [place] if place.is_file() else sorted(place.rglob("*.py"))
