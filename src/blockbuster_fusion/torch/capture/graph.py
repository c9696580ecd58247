"""Graphs of PyTorch operators: what each node is, and which nodes become one array program."""

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import Max, Min

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.select.parts import Kind, Op
from blockbuster_fusion.torch.table import row_for
from blockbuster_fusion.torch.table.row import DTYPES, Row

INDEXED = {"slice", "select", "split", "split_with_sizes", "unbind", "narrow", "as_strided"}
"""Views that show a part of an array: zero-copy on what lies in memory, and on nothing else."""

DECIDING = frozenset(
    {
        *("floor", "ceil", "round", "trunc", "sign", "floor_divide", "argmax", "argmin"),
        *("eq", "ne", "lt", "le", "gt", "ge", "topk", "sort"),
    }
)
"""Operators whose result jumps: a float that is not rounded may fall on another side."""

GIVEN = ("placeholder", "get_attr")
"""Nodes that compute nothing: inputs, and tensors that the graph holds."""

CASTS = ("aten._to_copy.default", "prims.convert_element_type.default")

MOST_CHOSEN = 16
"""So many pieces of a concatenation are chosen from: for each element a kernel looks at all."""


UNPROMOTED = frozenset(
    {
        *("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linear", "matmul", "convolution"),
        *("native_layer_norm", "layer_norm"),
    }
)
"""Operators that do not promote the dtypes of their operands."""


def as_size(extent: Any) -> Size:
    """A size as a product of a number and of symbols."""
    if isinstance(extent, int):
        return Size(extent)
    return _monomial(expression_of(extent))


def expression_of(extent: Any) -> Any:
    """A symbolic size, in which a maximum or minimum that is known to be one of its terms is that.

    torch.export leaves 1 - max(0, 1 - n) where torch.compile decides that it is 1.
    """
    expr, known = extent.node.expr, extent.node.shape_env
    for term in expr.atoms(Max, Min):
        for x in term.args:
            bounds = [x >= y if isinstance(term, Max) else x <= y for y in term.args if y != x]
            if all(known._maybe_evaluate_static(sympy.sympify(bound)) for bound in bounds):
                expr = expr.xreplace({term: x})
                break
    return expr


def _monomial(expr: Any) -> Size:
    number, factors = factored(expr)
    return Size(number, tuple(sorted(str(factor) for factor in factors)))


def factored(expr: Any) -> tuple[int, list[Any]]:
    """A size as a number times symbols, and times what is no product."""
    number, factors = 1, list[Any]()
    for factor in sympy.Mul.make_args(sympy.sympify(expr)):
        if factor.is_Integer:
            number *= int(factor)
        elif factor.is_Pow and factor.exp.is_Integer and factor.exp > 0 and factor.base.is_Symbol:
            factors += [factor.base] * int(factor.exp)
        elif factor.is_Add and factor.primitive()[0].is_Integer:
            common, rest = factor.primitive()
            number *= int(common)
            factors.append(rest)
        else:
            factors.append(factor)
    return number, factors


def tensors_of(node: Node) -> list[torch.Tensor]:
    """What a node gives, as far as it is tensors."""
    value = node.meta.get("val")
    given = value if isinstance(value, tuple | list) else [value]
    return [x for x in given if isinstance(x, torch.Tensor)]


def storages_of(node: Node) -> set[int]:
    """Numbers for the memory that a node gives or shows."""
    tensors = (t for t in tensors_of(node) if t.layout is torch.strided and not t.is_nested)
    return {int(t.untyped_storage()._cdata) for t in tensors}


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether a tensor is known to have no elements."""
    return any(isinstance(s, int) and s == 0 for s in tensor.shape)


def has_effect(node: Node) -> bool:
    """Whether an operator writes into its operands."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def name_of(node: Node) -> str:
    """An operator's name, as PyTorch writes it: `aten.mm.default`."""
    return str(node.target)


@dataclass(frozen=True)
class Analysis:
    """What the nodes of a graph are."""

    module: GraphModule
    static: frozenset[Node]
    """The inputs that are weights."""

    @cached_property
    def kinds(self) -> dict[Node, Kind]:
        """What each operator does, as far as it has been asked."""
        return {}

    @cached_property
    def nodes(self) -> list[Node]:
        return [n for n in self.module.graph.nodes if n.op == "call_function"]

    @cached_property
    def inputs(self) -> list[Node]:
        return [n for n in self.module.graph.nodes if n.op == "placeholder"]

    @cached_property
    def results(self) -> list[Any]:
        output = next(n for n in self.module.graph.nodes if n.op == "output")
        return [*output.args[0]]

    @cached_property
    def outputs(self) -> set[Node]:
        return {n for n in self.results if isinstance(n, Node)}

    # ---------------------------------------------------------------- single nodes

    def row(self, node: Node) -> Row | None:
        """The row of the operator table, where its kernels can compute this node."""
        row = row_for(node.target)
        if row is None or self.refusal(node) is not None:
            return None
        return row

    def refusal(self, node: Node) -> str | None:
        """Why kernels cannot compute a node whose operator is known."""
        sources = node.all_input_nodes if short_name(node) != "cat" else self.joined(node)[0]
        seen = [*tensors_of(node), *(t for n in sources for t in tensors_of(n))]
        for tensor in seen:
            if tensor.dtype not in DTYPES:
                return f"kernels do not compute with {tensor.dtype}"
            if tensor.layout is not torch.strided or tensor.is_nested:
                return "sparse and nested tensors are not laid out in strides"
            if tensor.is_sparse or tensor.is_quantized:
                return "sparse and quantised tensors are not laid out in strides"
            if is_empty(tensor):
                return "an axis of length 0"
            if any(isinstance(s, torch.SymInt) and free_unbacked_symbols(s) for s in tensor.shape):
                return "sizes that depend on data"
        if _is_mixed(node):
            return "operands of several dtypes, which PyTorch refuses"
        devices = {t.device.type for t in seen if t.dim()}
        if len(devices) > 1 or not devices <= {"cpu", "cuda"}:
            return f"tensors on {', '.join(sorted(devices))}"
        return None

    def kind(self, node: Node) -> Kind:
        """What an operator does."""
        if node not in self.kinds:
            self.kinds[node] = self._kind(node)
        return self.kinds[node]

    def _kind(self, node: Node) -> Kind:
        if not tensors_of(node):
            return Kind.VIEW  # arithmetic on sizes
        if node.target is operator.getitem:
            source = node.args[0]
            assert isinstance(source, Node)
            return Kind.MISC if self.kind(source) is Kind.MISC else Kind.VIEW
        row = self.row(node)
        if row is None:
            known = row_for(node.target)
            is_view = known is not None and known.kind is Kind.VIEW
            return Kind.VIEW if is_view and all(map(is_empty, tensors_of(node))) else Kind.MISC
        if short_name(node) == "index" and not self.is_counted(node):
            return Kind.MISC if self.lookup_at(node) is None else Kind.POINTWISE
        is_misc = self.is_join(node) or (
            short_name(node) == "convolution" and not self.is_patchwise(node)
        )
        return Kind.MISC if is_misc else row.kind

    def is_patchwise(self, node: Node) -> bool:
        """Whether the windows of a convolution do not overlap, so that it is one product."""
        arguments: list[Any] = [*node.args]
        _, weight, _, stride, padding, dilation, transposed, _, groups = arguments
        window = [*tensors_of(weight)[0].shape[2:]]
        is_plain = not transposed and groups == 1 and not any(padding) and {*dilation} == {1}
        return is_plain and [*stride] == window

    def is_join(self, node: Node) -> bool:
        """Whether pieces are joined in memory: those of different lengths are, and many.

        Few of one length are chosen from, by the position of each element.
        """
        if short_name(node) != "cat" or self.refusal(node) is not None:
            return False
        pieces, dim = self.joined(node)
        if node.meta.get("is_join"):
            return True
        lengths = {as_size(tensors_of(p)[0].shape[dim]) for p in pieces}
        return len(lengths) > 1 or len(pieces) > MOST_CHOSEN

    def joined(self, node: Node) -> tuple[list[Node], int]:
        """The pieces of a concatenation that are not empty, and along which dimension."""
        given = node.args[0]
        assert isinstance(given, list | tuple)
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        assert isinstance(dim, int)
        rank = tensors_of(node)[0].dim()
        pieces = [p for p in given if isinstance(p, Node) and not is_empty(tensors_of(p)[0])]
        return pieces, dim % rank

    def is_counted(self, node: Node) -> bool:
        """Whether all that an index operator looks up are positions that are counted."""
        indices = node.args[1]
        assert isinstance(indices, list | tuple)
        return all(isinstance(i, Node) and self.is_positions(i) for i in indices)

    def table(self, node: Node) -> Node | None:
        """What a node looks something up in."""
        name = short_name(node)
        if name in ("embedding", "index_select", "gather", "constant_pad_nd") or (
            name == "index" and self.kind(node) is Kind.POINTWISE
        ):
            assert isinstance(node.args[0], Node)
            return node.args[0]
        return None

    def lookup_at(self, node: Node) -> int | None:
        """The one axis along which an index operator looks up at places that are data; it may walk
        along others beside it, whose indices are counted."""
        source, indices = node.args[:2]
        assert isinstance(source, Node)
        assert isinstance(indices, list | tuple)
        given = {at: i for at, i in enumerate(indices) if isinstance(i, Node)}
        shape = tensors_of(source)[0].shape
        walked = {
            at
            for at, i in given.items()
            if len(given) > 1 and self.is_positions(i)
            if as_size(tensors_of(i)[0].numel()) == as_size(shape[at])
        }
        data = [at for at in given if at not in walked]
        is_apart = max(given) - min(given) >= len(given)
        if len(data) != 1 or is_apart:
            return None
        dtype = tensors_of(given[data[0]])[0].dtype
        return data[0] if dtype in (torch.int64, torch.int32) else None

    def is_positions(self, node: Node) -> bool:
        while node.op == "call_function" and short_name(node) != "arange":
            row = self.row(node)
            is_sum = short_name(node) == "add" and node.args[1:] == (0,)
            if row is None or (row.kind is not Kind.VIEW and not is_sum):
                return False
            (node,) = (n for n in node.all_input_nodes if tensors_of(n))
        return (node.op == "call_function" and node.args[:1] in ((0,), ())) or (
            node.op == "call_function" and len(node.args) == 1
        )

    def is_indexed(self, node: Node) -> bool:
        """Whether a view shows only a part of its operand."""
        if node.target is operator.getitem:
            assert isinstance(node.args[0], Node)
            return not self.is_element(node) and self.is_indexed(node.args[0])
        if short_name(node) not in INDEXED:
            return False
        return not self.is_whole_slice(node)

    def is_whole_slice(self, node: Node) -> bool:
        if short_name(node) != "slice" or not isinstance(node.args[0], Node):
            return False
        before, after = tensors_of(node.args[0]), tensors_of(node)
        step = node.args[4] if len(node.args) > 4 else 1
        same = [as_size(s) for s in before[0].shape] == [as_size(s) for s in after[0].shape]
        return same and bool(step == 1)

    @cached_property
    def mobile(self) -> set[Node]:
        """What is cheap and depends on inputs alone: it is computed wherever it is needed."""
        found: set[Node] = set()
        for node in self.nodes:
            row = self.row(node)
            kind = self.kind(node)
            if row is not None and kind is not row.kind:
                continue  # a lookup, where the same operator is a view otherwise
            if kind is Kind.MISC or not tensors_of(node):
                continue
            cheap = node.target is operator.getitem or (row is not None and row.cheap)
            sources = [n for n in node.all_input_nodes if tensors_of(n)]
            if kind is Kind.GENERATOR:
                sources = []  # of a tensor that it is like it takes the shape alone
            is_free = kind in (Kind.VIEW, Kind.GENERATOR) or not self.is_demanded(node)
            if cheap and is_free and all(n in found or self.is_given(n) for n in sources):
                found.add(node)
        return found

    def is_given(self, node: Node) -> bool:
        """Whether a node lies in memory, whatever is fused: an input, or whole numbers and truths
        that PyTorch computes, of which masks are made."""
        if node.op in GIVEN:
            return True
        dtypes = {t.dtype for t in tensors_of(node)}
        return self.kind(node) is Kind.MISC and dtypes <= {torch.int64, torch.int32, torch.bool}

    def roots(self, node: Node) -> list[Node]:
        """The operators that a node depends on, seen through views and what is computed anew."""
        found: dict[Node, None] = {}
        stack, seen = [node], set[Node]()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if n in self.mobile or (n.op == "call_function" and self.kind(n) is Kind.VIEW):
                if self.is_element(n):
                    found[self.owner(n)] = None
                else:
                    stack.extend(m for m in n.all_input_nodes if tensors_of(m))
            elif n.op == "call_function":
                found[n] = None
        return [*found]

    def is_demanded(self, node: Node) -> bool:
        """Whether somebody other than a kernel reads a node, or a view of it, or a lookup does."""
        stack, seen = [node], set[Node]()
        while stack:
            n = stack.pop()
            for user in n.users:
                if user.op == "output" or self.kind(user) is Kind.MISC or self.table(user) is n:
                    return True
                if user not in seen and self.kind(user) is Kind.VIEW:
                    seen.add(user)
                    stack.append(user)
        return False

    def base(self, node: Node) -> Node:
        """What a chain of views shows."""
        while node.op == "call_function" and self.kind(node) is Kind.VIEW:
            if self.is_element(node):
                return node
            sources = [n for n in node.all_input_nodes if tensors_of(n)]
            if not sources:
                return node
            node = sources[0]
        return node

    def is_element(self, node: Node) -> bool:
        """Whether a node is one of several results that an operator computes."""
        if node.target is not operator.getitem:
            return False
        source = node.args[0]
        assert isinstance(source, Node)
        return self.kind(source) is not Kind.VIEW

    def owner(self, node: Node) -> Node:
        """The operator that computes a node: of one of several results, the one behind it."""
        if self.is_element(node):
            assert isinstance(node.args[0], Node)
            return node.args[0]
        return node

    def boundary(self, node: Node) -> Node:
        """The view on the way from its base to `node` that is stored, or the base itself.

        A permuted array that is then merged has to be stored in the new order: PyTorch copies it
        there (`clone`), and a part gives it out in that order in the first place.
        """
        path = [node]
        base = self.base(node)
        while path[-1] is not base:
            path.append(next(n for n in path[-1].all_input_nodes if tensors_of(n)))
        found, is_turned, is_copied = base, False, False
        for step in reversed(path[:-1]):
            name = short_name(step)
            if name == "expand" or self.is_indexed(step) or step.target is operator.getitem:
                break
            if is_copied and name not in _MERGING:
                break
            is_turned = is_turned or name in ("permute", "transpose", "t")
            is_copied = is_copied or (is_turned and name == "clone")
            if is_copied:
                found = step
        return found

    def is_counted_on(self, node: Node) -> bool:
        """Whether somebody decides by the exact value of a node, so that its rounding matters."""
        stack, seen = [node], set[Node]()
        while stack:
            for user in stack.pop().users:
                name = short_name(user)
                to_whole = name_of(user) in CASTS and not tensors_of(user)[0].is_floating_point()
                if name in DECIDING or to_whole:
                    return True
                is_same = name_of(user) in CASTS or self.kind(user) is Kind.VIEW
                if user.op == "call_function" and is_same and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return False

    def is_whole(self, node: Node) -> bool:
        """Whether a view shows all of what it is a view of, once."""
        base = self.base(node)
        while node is not base:
            if self.is_indexed(node) or short_name(node) in ("expand", "repeat"):
                return False
            node = next(n for n in node.all_input_nodes if tensors_of(n))
        return True

    def needed(self, node: Node, inside: set[Node]) -> list[Node]:
        """What of a node's result is stored for those outside a part: itself, or views of it."""
        found: dict[Node, None] = {}
        several = isinstance(node.meta.get("val"), tuple | list)
        stack, seen = [*node.users] if several else [node], set[Node]()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            for user in n.users:
                if user in inside:
                    continue
                if user.op == "call_function" and self.is_join(user) and self.is_whole(n):
                    found[n] = None  # it is stored right where it is joined
                elif user.op == "output" or self.kind(user) is not Kind.VIEW:
                    found[self.boundary(n)] = None
                elif user.op == "call_function":
                    stack.append(user)
        return [*found]

    # ---------------------------------------------------------------- the whole graph

    @cached_property
    def operators(self) -> list[Node]:
        """The nodes that a selection deals with."""
        return [
            n
            for n in self.nodes
            if tensors_of(n) or n.target is not operator.getitem
            if (self.kind(n) is not Kind.VIEW and n not in self.mobile and tensors_of(n))
            or has_effect(n)
        ]

    def regions(self) -> dict[Node, str]:
        """The region of each node: a layer of the model, or what lies around the layers."""
        paths = {node: _module_path(node) for node in self.module.graph.nodes}
        inner = {path[:end] for path in paths.values() for end in range(1, len(path))}
        made: dict[Node, str] = {}
        for node, path in paths.items():
            sources = [made[n] for n in node.all_input_nodes if n in made and n.op not in GIVEN]
            made[node] = _layer(path, inner) if path else (sources[0] if sources else "")
        return made

    def described(self) -> list[Op]:
        """The operators as a selection sees them."""
        number = {node: i for i, node in enumerate(self.operators)}
        regions = self.regions()
        indexed = [n for n in self.nodes if tensors_of(n) and self.is_indexed(n)]
        stored = {self.owner(self.base(n)) for n in indexed}
        made = []
        for node in self.operators:
            bases = [self.base(n) for n in node.all_input_nodes]
            if self.kind(node) is Kind.MISC:
                stored.update(map(self.owner, bases))
            elif (table := self.table(node)) is not None:
                stored.add(self.owner(self.base(table)))
        for node in self.operators:
            roots = [r for n in node.all_input_nodes if tensors_of(n) for r in self.roots(n)]
            operands = tuple(dict.fromkeys(number[r] for r in roots if r in number))
            made.append(
                Op(
                    self.kind(node),
                    operands,
                    regions[node],
                    has_weight=self.has_weight(node),
                    is_stored=node in stored,
                    is_output=node in self.outputs or self.is_shown_of(node),
                )
            )
        return made

    def is_shown_of(self, node: Node) -> bool:
        """Whether a view of a node's result is given out."""
        return any(self.is_shown(user) for user in node.users)

    def is_shown(self, node: Node) -> bool:
        """Whether a view of a result is given out."""
        stack, seen = [node], set[Node]()
        while stack:
            n = stack.pop()
            if n in seen or n.op != "call_function" or self.kind(n) is not Kind.VIEW:
                continue
            if n in self.outputs:
                return True
            seen.add(n)
            stack.extend(n.users)
        return False

    def has_weight(self, node: Node) -> bool:
        """Whether one side of a contraction depends on weights alone."""
        if self.kind(node) is not Kind.CONTRACTION:
            return False
        return any(self.is_static(n) for n in node.all_input_nodes[-2:])

    def is_static(self, node: Node) -> bool:
        stack = [node]
        while stack:
            n = stack.pop()
            if n.op in GIVEN:
                if n.op == "placeholder" and n not in self.static and tensors_of(n):
                    return False
            elif n not in self.mobile:
                return False
            else:
                stack.extend(m for m in n.all_input_nodes if tensors_of(m))
        return True


_MERGING = ("view", "_unsafe_view", "reshape", "clone", "unsqueeze", "squeeze", "alias")


def short_name(node: Node) -> str:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    return str(target._schema.name.split("::")[1])


def _is_mixed(node: Node) -> bool:
    """Whether an operator that does not promote dtypes has operands of several."""
    if short_name(node) not in UNPROMOTED:
        return False
    first, *others = [t.dtype for n in node.all_input_nodes for t in tensors_of(n)]
    is_norm = short_name(node).endswith("layer_norm")
    if is_norm and first in (torch.float16, torch.bfloat16):
        return bool({*others} - {first, torch.float32})  # parameters may be wide
    return any(dtype is not first for dtype in others)


def _module_path(node: Node) -> tuple[str, ...]:
    """The names of the modules around a node: `L['self'].model.layers.3.mlp`, of which each one."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ()
    path = str([*stack.values()][-1][0]).replace("['", ".").replace("']", "")
    return tuple(word for word in path.split(".") if word not in ("", "L", "self"))


def _layer(path: tuple[str, ...], inner: set[tuple[str, ...]]) -> str:
    """The first module of a path that is one of several, and has modules of its own."""
    for end, word in enumerate(path, 1):
        if word.isdigit() and path[:end] in inner:
            return ".".join(path[:end])
    return ""
