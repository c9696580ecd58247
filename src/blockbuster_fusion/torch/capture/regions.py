"""Regions of a model: its layers, and what lies around them."""

from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.called import module_of, path_of
from blockbuster_fusion.torch.capture.nodes import GIVEN

ModulePath = tuple[str, ...]
"""The names of the modules around a node, from the outermost one."""


def regions_of(graph: Graph) -> dict[Node, str]:
    """The region of each node: the path of its layer, or the empty string around the layers."""
    modules = {node: module_of(node) for node in graph.nodes}
    paths = {module: path_of(module) for module in {*modules.values()}}
    inner = {path[:end] for path in paths.values() for end in range(1, len(path))}
    layers = {module: _layer(path, inner) if path else None for module, path in paths.items()}
    found: dict[Node, str] = {}
    for node, module in modules.items():
        layer = layers[module]
        if layer is None:
            sources = [found[n] for n in node.all_input_nodes if n in found and n.op not in GIVEN]
            layer = sources[0] if sources else ""
        found[node] = layer
    return found


def _layer(path: ModulePath, inner: set[ModulePath]) -> str:
    """The first module of a path that is an element of a list and has modules of its own."""
    for end, word in enumerate(path, 1):
        if word.isdigit() and path[:end] in inner:
            return ".".join(path[:end])
    return ""
