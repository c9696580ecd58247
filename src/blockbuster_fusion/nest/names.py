"""Names in a loop nest: those of the block program's listing, wherever a value has one there."""

import re
from collections.abc import Mapping
from functools import lru_cache

from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import listed
from blockbuster_fusion.ir.names import Names
from blockbuster_fusion.ir.ops import Value

MOST_LISTED = 64
_NUMBERED = re.compile(r"\b[tI]\d+\b")


class NestNames(Names):
    """Names of tiles and buffers; a name of the listing stands for the same value here."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.listed, self.parts, names = _of_listing(graph)
        self.taken |= names
        self.given: set[str] = set()

    def of(self, letter: str, value: Value | None) -> str:
        """The name of a value in the listing, or the next of t1, t2, … or of I1, I2, …"""
        name = "" if value is None else self.listed.get(value, "")
        is_free = _NUMBERED.fullmatch(name) is not None and name not in self.given
        if not is_free or name[0] != letter:
            return self.numbered(letter)
        self.given.add(name)
        return name


@lru_cache(maxsize=MOST_LISTED)
def _of_listing(
    graph: Graph,
) -> tuple[Mapping[Value, str], Mapping[Value, Mapping[Expr, str]], frozenset[str]]:
    """The names of values and of combiners' parts in the listing, and all numbered names there.

    They are kept, as a search asks again.
    """
    found = listed(graph)
    named = {value: name for (_, value), name in found.labels.names.items()}
    parts = {value: own for (_, value), own in found.labels.parts.items()}
    taken = frozenset(name for line in found.lines for name in _NUMBERED.findall(line))
    return named, parts, taken
