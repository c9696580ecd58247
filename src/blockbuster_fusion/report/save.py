"""Writes a report to a file, in the form that its name ends in."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.plans.records import to_text
from blockbuster_fusion.report.page import page
from blockbuster_fusion.report.report import Report
from blockbuster_fusion.report.text import text

PRINTERS: dict[str, Callable[[Report], str]] = {
    ".txt": lambda report: "\n".join(text(report)) + "\n",
    ".html": page,
    ".json": lambda report: to_text(report.data()) + "\n",
}
"""The printers of files, by suffix."""


def save(report: Report, file: str | PathLike[str]) -> None:
    """Writes a report as text, as HTML or as JSON: .txt, .html or .json."""
    Path(file).write_text(printer(file)(report), encoding="utf-8")


def printer(file: str | PathLike[str]) -> Callable[[Report], str]:
    """The printer of a file, or WrongKind for a suffix that none has."""
    suffix = Path(file).suffix.lower()
    if suffix not in PRINTERS:
        raise WrongKind(
            function="save",
            wanted="a file that ends in .txt, .html or .json",
            given=Path(file).name,
            remedy="choose one of these",
        )
    return PRINTERS[suffix]
