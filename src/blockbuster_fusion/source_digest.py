"""The digest of a choice's kernels, by which a measurement is known to be of the same kernels."""

from collections.abc import Mapping
from dataclasses import replace

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.runtime.disk_cache import digest
from blockbuster_fusion.schedule.schedule import Schedule

LETTERS = 16
"""The letters of a digest."""


def source_digest(choice: Choice) -> str:
    """The digest of the source of a choice's kernels and of their tiles, whatever their name is.

    Nothing is compiled. Kernels of one digest and one configuration take the same time.
    """
    nest, tiles = replace(choice, name="kernel").scheduled()
    shown = ",".join(sorted(f"{dim.label}={tile}" for dim, tile in tiles.items()))
    return digest(_source(nest, tiles, choice.schedule, choice.target), shown)[:LETTERS]


def _source(nest: Nest, tiles: Mapping[Dim, int], schedule: Schedule, target: str) -> str:
    if target == "cpu":
        from blockbuster_fusion.runtime.c.kernels import source_of

        return source_of(nest, tiles, schedule.chunk, schedule.past)
    from blockbuster_fusion.printers.triton.kernel import print_triton

    return print_triton(nest)
