"""The words by which a model calls its operators, and the modules in which it does."""

from torch.fx import Node

from blockbuster_fusion.torch.capture.nodes import name_of, short_name

PRODUCTS = ("mm", "addmm")
"""The operators that a captured graph has for a linear layer."""


def called(node: Node) -> str:
    """The word for an operator: `linear` for a product that is one, `softmax` for `_softmax`."""
    if short_name(node) in PRODUCTS and _is_linear(node):
        return "linear"
    return name_of(node).split(".")[1].strip("_").removeprefix("native_")


def _is_linear(node: Node) -> bool:
    """True if the model called `linear`: torch.compile and torch.export keep what it called."""
    stack = node.meta.get("source_fn_stack")
    if stack:
        source = stack[-1][1]
        return getattr(source, "__name__", str(source)).lower() == "linear"
    return str(node.meta.get("torch_fn", ("", ""))[1]).endswith(".linear")


def module_path(node: Node) -> tuple[str, ...]:
    """The names of the modules around a node, from the outermost one."""
    return path_of(module_of(node))


def module_of(node: Node) -> str:
    """The module that a node was captured in, as `L['self'].model.layers.3.mlp`."""
    stack = node.meta.get("nn_module_stack")
    return str(next(reversed(stack.values()))[0]) if stack else ""


def path_of(module: str) -> tuple[str, ...]:
    """The names of modules around one, without `L` and `self`."""
    path = module.replace("['", ".").replace("']", "")
    return tuple(word for word in path.split(".") if word not in ("", "L", "self"))
