"""Regions of a model: its layers, and what lies around them."""

from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.called import module_path
from blockbuster_fusion.torch.capture.nodes import GIVEN

ModulePath = tuple[str, ...]
"""The names of the modules around a node, from the outermost one."""


def regions_of(graph: Graph) -> dict[Node, str]:
    """The region of each node: the path of its layer, or the empty string around the layers."""
    paths = {node: module_path(node) for node in graph.nodes}
    inner = {path[:end] for path in paths.values() for end in range(1, len(path))}
    found: dict[Node, str] = {}
    for node, path in paths.items():
        sources = [found[n] for n in node.all_input_nodes if n in found and n.op not in GIVEN]
        found[node] = _layer(path, inner) if path else (sources[0] if sources else "")
    return found


def _layer(path: ModulePath, inner: set[ModulePath]) -> str:
    """The first module of a path that is an element of a list and has modules of its own."""
    for end, word in enumerate(path, 1):
        if word.isdigit() and path[:end] in inner:
            return ".".join(path[:end])
    return ""
