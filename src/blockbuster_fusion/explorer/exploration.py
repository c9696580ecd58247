"""The page that `explore` returns: it can be saved, and a notebook shows it."""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.compiler import Program, Request
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.explorer.collect import program_data
from blockbuster_fusion.explorer.page import page
from blockbuster_fusion.ir.axis import Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.tools.bench import default_lengths


@dataclass(frozen=True)
class Exploration:
    """The data of a page; `html` is the page itself, in one file that needs no network."""

    data: Mapping[str, Any]

    def html(self) -> str:
        """The page, as one text."""
        return self._page

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file, and returns its path."""
        file = Path(path)
        file.write_text(self._page, encoding="utf-8")
        return file

    @cached_property
    def _page(self) -> str:
        return page(dict(self.data))

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for a notebook."""
        frame = 'width="100%" height="760" sandbox="allow-scripts" style="border: 0"'
        return (
            f'<iframe title="Blockbuster explorer" {frame} srcdoc="{escape(self._page)}"></iframe>'
        )

    def __repr__(self) -> str:
        title, moments = self.data["title"], len(self.data["moments"])
        return f"<exploration of {title}: {moments} moments; .save(path) writes its page>"


def explore_program(
    program: Program,
    *specs: Any,
    sizes: Mapping[str, int] | None = None,
    rules: str = "extended",
    unit: Collection[str] | None = None,
    name: str | None = None,
    note: str | None = None,
    times: bool = True,
    measure: bool = False,
    **named: Any,
) -> Exploration:
    """The page of a program: every step from its block program to its kernels.

    A function is traced with `specs`. `note` stands under the title; by default it is the docstring
    of the function. `sizes` has lengths for the figures, by axis or symbol. With
    `times`, the time of each snapshot's best configuration is predicted, which takes seconds; with
    `measure`, each is compiled and measured on this CPU.
    """
    traced = Request(program, specs, named, name=name).traced()
    given = dict(sizes or {})
    if isinstance(traced, ArrayProgram):
        lengths = default_lengths(traced, "cpu", given)
    else:
        lengths = _lengths(traced, given)
    text = _docstring(program) if note is None else note
    kept = {"times": times, "measure": measure}
    data = program_data(traced, lengths, rules=rules, unit=unit, name=name, note=text, **kept)
    return Exploration(data)


def _docstring(program: Program) -> str:
    return (inspect.getdoc(program) or "") if inspect.isfunction(program) else ""


def _lengths(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    """The lengths of a block program's symbols: given ones, or 512 (4 for batches)."""
    found = {}
    for dim in sorted(graph.dims, key=lambda dim: dim.label):
        extent = dim.axis.extent
        if isinstance(extent, Symbol):
            usual = 512 if dim.packed else 4
            found[extent.name] = given.get(dim.name, given.get(extent.name, usual))
    unknown = set(given) - set(found) - {dim.name for dim in graph.dims}
    if unknown:
        raise BlockbusterError(message=f"sizes: the program has no axis {min(unknown)}")
    return found
