"""Names of a loop nest as names of the block program's listing."""

import re

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import labels
from blockbuster_fusion.ir.ops import Value
from blockbuster_fusion.nest.lower import values_by_name


def block_names(graph: Graph, choice: Choice) -> dict[str, str]:
    """The name in the listing of `graph` of each tile and buffer of its nest that has one."""
    names: dict[Value, str] = {value: name for (_, value), name in labels(graph).names.items()}
    found = values_by_name(graph, grid=choice.schedule.grid)
    return {own: names[value] for own, value in found.items() if value in names}


def still_there(names: dict[str, str], text: str) -> dict[str, str]:
    """The names that a nest still has after a pass: a later one may use a lost name for its own."""
    words = set(re.findall(r"\w+", text))
    return {own: name for own, name in names.items() if own in words}
