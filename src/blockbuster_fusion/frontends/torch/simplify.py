"""Operators of which only a part is read, as the simpler ones that give that part."""

import operator

import torch
from torch.fx import GraphModule, Node

_VALUES = {
    torch.ops.aten.max.dim: torch.ops.aten.amax.default,
    torch.ops.aten.min.dim: torch.ops.aten.amin.default,
}
"""Reductions that give places as well, and those that do not."""


def simplify(module: GraphModule) -> None:
    """Leave out the results that nobody reads: `x.max(-1).values` is `amax`."""
    graph = module.graph
    for node in [n for n in graph.nodes if n.op == "call_function" and n.target in _VALUES]:
        users = [*node.users]
        if not all(u.target is operator.getitem and u.args[1] == 0 for u in users):
            continue
        source, dim, *keep = node.args
        assert isinstance(source, Node)
        for user in users:
            with graph.inserting_before(user):
                made = graph.call_function(_VALUES[node.target], (source, [dim], *keep))
            made.meta = dict(user.meta)
            user.replace_all_uses_with(made)
            graph.erase_node(user)
        graph.erase_node(node)
