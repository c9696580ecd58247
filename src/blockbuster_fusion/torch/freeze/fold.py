"""Folds constant factors and terms into the weights of products and convolutions.

    (z * c) @ W       =  z @ (c * W)              a norm's weight
    (z + c) @ W + b   =  z @ W + (b + c @ W)      a norm's bias
    (x @ W + b) * c   =  x @ (W * c) + b * c      a scale behind a layer

A batch norm behind a layer is a scale and a term. A factor before products is folded if nothing
else reads what it scales, so that it is gone. A weight that others read too stays as it is: a tied
embedding would be in memory twice. Folded weights are rounded once, from float64. In 16 bits that
rounding would count beside the error of the model, so these are left as they are.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from blockbuster_fusion.torch.capture.fakes import fake_result, inserted, meta_like
from blockbuster_fusion.torch.capture.nodes import storages_of, tensor_of
from blockbuster_fusion.torch.freeze.folded import batch_scale, carried, scaled, scaled_bias
from blockbuster_fusion.torch.freeze.split import constant_nodes

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
MM, ADDMM, CONVOLUTION = aten.mm.default, aten.addmm.default, aten.convolution.default
LAYER_NORM, RMS_NORM = aten.native_layer_norm.default, aten._fused_rms_norm.default
BATCH_NORM = aten._native_batch_norm_legit_no_training.default
MUL, ADD = aten.mul.Tensor, aten.add.Tensor
WIDE = (torch.float32, torch.float64)


def fold(graph: Graph, weights: Iterable[Node]) -> list[Node]:
    """Folds what is constant into the weights of a graph.

    Gives copies of the operators that are gone.
    """
    folding = _Folding(graph, set(constant_nodes(graph, weights)))
    for node in reversed([*graph.nodes]):  # a term that follows a factor goes first
        if node.target in (LAYER_NORM, RMS_NORM):
            folding.norm(node)
        elif node.target in (MUL, ADD):
            folding.row(node)
    for node in [*graph.nodes]:
        if node.target is BATCH_NORM:
            folding.batch_norm(node)
        elif node.target is MUL:
            folding.scale(node)
    return folding.gone


class _Folding:
    """Replaces the weights of a graph by functions of them."""

    def __init__(self, graph: Graph, constants: set[Node]) -> None:
        self.graph, self.constants = graph, constants
        self.gone: list[Node] = []

    # ---------------------------------------------------------------- before products

    def norm(self, node: Node) -> None:
        """Folds the weight and the bias of a norm along the last axis into what reads it."""
        arguments: list[Any] = [*node.args]
        count = 2 if node.target is LAYER_NORM else 1
        given = [*arguments[2 : 2 + count], None][:2]
        result = _only_result(node)
        if result is None or len(arguments[1]) != 1 or not self.are_foldable(given):
            return
        if any(n is not None for n in given) and self.fold_before(result, *given):
            arguments[2 : 2 + count] = [None] * count
            node.args = tuple(arguments)

    def row(self, node: Node) -> None:
        """Folds a row that an array is multiplied by, or that is added to it."""
        x, row = self.array_and_row(node)
        if row is None or not self.are_foldable([row]):
            return
        if self.fold_before(node, *((row, None) if node.target is MUL else (None, row))):
            self.replace(node, x)

    def fold_before(self, x: Node, factor: Node | None, term: Node | None) -> bool:
        """Folds a factor and a term of an array into the products behind it, if it can."""
        products = self.products_of(x)
        if term is not None and not all(map(self.has_foldable_bias, products)):
            return False
        for product in products:
            left, right = product.args[-2:]
            bias = product.args[0] if product.target is ADDMM else None
            with self.graph.inserting_before(product):
                if term is not None:
                    bias = self.made(carried, (term, right, bias))
                if factor is not None:
                    right = self.scaled(right, factor, 0)
                self.rewrite(product, left, right, bias)
        return bool(products)

    def products_of(self, x: Node) -> list[Node]:
        """The products with constants that read an array; none if anything else reads it."""
        found: dict[Node, None] = {}
        stack, length = [x], tensor_of(x).shape[-1]
        while stack:
            node = stack.pop()
            for user in node.users:
                if user.target in VIEWS and tensor_of(user).shape[-1] == length:
                    stack.append(user)
                elif user.target in (MM, ADDMM) and self.is_left_operand(node, user):
                    found[user] = None
                else:
                    return []
        return [*found]

    def is_left_operand(self, x: Node, product: Node) -> bool:
        """True if a product has an array on its left, and a constant on its right."""
        *_, left, right = product.args
        is_left = left is x and product.args.count(x) == 1 and not product.kwargs
        return is_left and self.are_foldable([right]) and _is_own(right)

    # ---------------------------------------------------------------- behind layers

    def scale(self, node: Node) -> None:
        """Folds a row by which the result of a product is multiplied."""
        x, row = self.array_and_row(node)
        layer = self.layer_of(x)
        if layer is None or layer.target is CONVOLUTION or not self.are_foldable([row]):
            return
        self.fold_behind(layer, row)
        self.replace(node, x)

    def batch_norm(self, node: Node) -> None:
        """Folds a batch norm into the layer whose result it norms."""
        x, weight, bias, mean, variance, _, eps = node.args
        result = _only_result(node)
        if result is None or not self.are_foldable([weight, bias, mean, variance]):
            return
        layer = self.layer_of(x)
        if layer is not None and layer is x:
            with self.graph.inserting_before(layer):
                factor = self.made(batch_scale, (variance, weight, eps))
            self.fold_behind(layer, factor, mean, bias)
            self.replace(result, layer)
            self.erase(node)

    def fold_behind(self, layer: Node, factor: Node, mean: Any = None, term: Any = None) -> None:
        """Makes the result of a layer (result - mean) * factor + term."""
        is_product = layer.target is not CONVOLUTION
        x, weight = layer.args[-2:] if is_product else layer.args[:2]
        bias = layer.args[2] if not is_product else layer.args[0] if layer.target is ADDMM else None
        with self.graph.inserting_before(layer):
            weight = self.scaled(weight, factor, 1 if is_product else 0)
            if any(n is not None for n in (bias, mean, term)):
                bias = self.made(scaled_bias, (weight, factor, bias, mean, term))
            if is_product:
                self.rewrite(layer, x, weight, bias)
            else:
                layer.args = (x, weight, bias, *layer.args[3:])

    def layer_of(self, x: Any) -> Node | None:
        """The product or convolution that an array is the result of, if nothing else reads it."""
        while isinstance(x, Node) and len(x.users) == 1 and x.target in VIEWS:
            x, length = x.args[0], tensor_of(x).shape[-1]
            if tensor_of(x).shape[-1] != length:
                return None
        if not isinstance(x, Node) or len(x.users) != 1 or x.kwargs:
            return None
        if x.target is CONVOLUTION:
            is_transposed, weight = x.args[6], x.args[1]
            is_layer = not is_transposed and self.are_foldable(x.args[1:3]) and _is_own(weight)
            return x if is_layer else None
        is_layer = x.target in (MM, ADDMM) and self.are_foldable(x.args[-1:])
        is_layer = is_layer and _is_own(x.args[-1])
        return x if is_layer and self.has_foldable_bias(x) else None

    # ---------------------------------------------------------------- nodes

    def array_and_row(self, node: Node) -> tuple[Any, Any]:
        """The operands of a sum or product, if one of them is a constant row."""
        if len(node.args) != 2 or node.kwargs or not all(isinstance(n, Node) for n in node.args):
            return None, None
        given: Any = node.args
        for x, row in (given, given[::-1]):
            whole, array, found = map(tensor_of, (node, x, row))
            is_row = found.dim() > 0 and found.numel() == found.shape[-1]
            is_like = whole.shape == array.shape and whole.dtype == array.dtype == found.dtype
            if row in self.constants and is_row and is_like and found.shape[-1] == whole.shape[-1]:
                return x, row
        return None, None

    def are_foldable(self, given: Iterable[Any]) -> bool:
        """True if all that is given is constant, and of a dtype in which it is folded."""
        nodes = [n for n in given if n is not None]
        return all(n in self.constants and tensor_of(n).dtype in WIDE for n in nodes)

    def has_foldable_bias(self, product: Node) -> bool:
        """True if a product has no bias, or a constant one for each column."""
        if product.target is MM:
            return True
        bias: Any = product.args[0]
        return self.are_foldable([bias]) and tensor_of(bias).shape == tensor_of(product).shape[1:]

    def scaled(self, weight: Any, factor: Node, dim: int) -> Node:
        """A weight, its slices along a dimension multiplied; a transposed one stays transposed."""
        if weight.target is aten.permute.default and [*weight.args[1]] == [1, 0]:
            return self.made(weight.target, (self.scaled(weight.args[0], factor, 1 - dim), [1, 0]))
        return self.made(scaled, (weight, factor, dim))

    def made(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Node:
        """A constant that a function computes."""
        node = inserted(self.graph, function, arguments, arguments[0])
        self.constants.add(node)
        return node

    def rewrite(self, product: Node, left: Any, right: Any, bias: Any) -> None:
        """Gives a product other operands, and perhaps a bias; its result stays where it is."""
        product.target, product.args = (
            (MM, (left, right)) if bias is None else (ADDMM, (bias, left, right))
        )

    def replace(self, node: Node, by: Node) -> None:
        """Puts another node in the place of one, which is gone."""
        shown = storages_of(node)
        node.replace_all_uses_with(by)
        stack = [by]
        while stack:  # views of it are now views of the other
            for user in stack.pop().users:
                if storages_of(user) & shown and user.op == "call_function":
                    target = torch.Tensor.reshape if user.target in VIEWS else user.target
                    value = fake_result(target, user.args, user, user.kwargs)
                    user.meta = meta_like(user, value)
                    stack.append(user)
        self.erase(node)

    def erase(self, node: Node) -> None:
        """Removes a node, and keeps a copy of the operator."""
        scratch = Graph()

        def given(n: Node) -> Node:
            made = scratch.placeholder(n.name)
            made.meta = n.meta
            return made

        if isinstance(node.target, torch._ops.OpOverload):
            self.gone.append(scratch.node_copy(node, given))
        self.graph.erase_node(node)


def _is_own(weight: Any) -> bool:
    """True if one product alone reads a weight: of another reader's there would be two copies."""
    while len(weight.users) == 1 and weight.target is aten.permute.default:
        weight = weight.args[0]
    return len(weight.users) == 1


def _only_result(node: Node) -> Node | None:
    """The first result of an operator with several, if no other one is read."""
    users = [*node.users]
    return users[0] if len(users) == 1 and users[0].args[1] == 0 else None
