"""Turns the groups of a graph into the steps of a plan."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import Size, product
from blockbuster_fusion.array.records import FrameworkLayout
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.collectives import needs_contiguous
from blockbuster_fusion.torch.capture.nodes import (
    attribute_of,
    has_effect,
    name_of,
    operand,
    tensor_of,
    tensor_operands,
    tensors_of,
)
from blockbuster_fusion.torch.capture.operators import as_slice, concatenated
from blockbuster_fusion.torch.capture.results import ResultPlacements, storage_of, strides_of
from blockbuster_fusion.torch.capture.sizes import SymbolTable
from blockbuster_fusion.torch.capture.symbolic import as_size, sizes_of
from blockbuster_fusion.torch.capture.updates import IN_PLACE
from blockbuster_fusion.torch.groups import (
    Fused,
    Group,
    Joined,
    KernelNames,
    Library,
    Unfused,
)
from blockbuster_fusion.torch.options import device_of
from blockbuster_fusion.torch.plan.plan import ModelPlan
from blockbuster_fusion.torch.plan.steps import (
    AllocateStep,
    CopyStep,
    KernelStep,
    OperatorStep,
    Piece,
    PlanStep,
    Slot,
    with_strides,
)
from blockbuster_fusion.torch.table.row import DTYPES


class Planner:
    """A plan in the making: each node that is needed gets a slot, and a step that fills it."""

    def __init__(
        self,
        analysis: Analysis,
        groups: Sequence[Group],
        placements: ResultPlacements,
        names: KernelNames,
    ) -> None:
        """`names` has the name of each kernel, by its executable's id and its own name."""
        self.analysis, self.groups = analysis, groups
        self.placements, self.names = placements, names
        self.strides = self.strides_of_results()
        """The strides in eager mode of results, and of what they are views of."""
        self.wanted = self.strides_for_operators()
        """The strides in eager mode of what kernels compute for PyTorch's operators."""
        self.has_strides: set[Node] = set()
        """Nodes whose values are known to have the strides of eager mode."""
        self.steps: list[PlanStep] = []
        self.operated: dict[Node, PlanStep] = {}
        """The nodes that PyTorch runs, with their steps."""
        self.slots: dict[Node, int] = {n: i for i, n in enumerate(analysis.inputs)}
        self.count = len(analysis.inputs)
        self.pieces: dict[Node, tuple[Node, Piece]] = {}
        """The join that a node is a piece of, and its position in it."""
        self.joins: dict[Node, None] = {}
        """The joins that are allocated."""
        self.stored: set[Node] = set()
        """The pieces that a kernel stores in their place."""
        self.in_place = analysis.updates
        self.is_settled = False

    def plan(self) -> ModelPlan:
        """The plan."""
        analysis = self.analysis
        for group in self.groups:
            if isinstance(group, Joined):
                self.note_pieces(group.node)
        for group in self.groups:
            if isinstance(group, Unfused) and has_effect(group.node):
                self.settle()
            self.add(group)
        outputs = [self.result(x) for x in analysis.results]
        inputs = range(len(analysis.inputs))
        tensors = (p.tensor for p in self.placements if p is not None)
        table = SymbolTable(analysis, (s for t in tensors for s in t.stride()))
        varying = {n: _shape(x) for n, x in enumerate(analysis.inputs) if _varies(x)}
        weights = [slot for slot, node in enumerate(analysis.inputs) if node in analysis.static]
        return ModelPlan(
            self.steps,
            self.count,
            inputs,
            outputs,
            table.sources,
            table.evaluate,
            weights,
            varying,
        )

    def add(self, group: Group) -> None:
        """Adds the steps of a group."""
        match group:
            case Joined(node):
                self.join(node)
            case Unfused(node) | Library(node):
                self.operate(node)
            case Fused():
                self.launch(group)

    # ---------------------------------------------------------------- slots

    def new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def slot(self, node: Node) -> int:
        """The slot of a node; views and arithmetic on sizes are computed when first asked for."""
        stack = [node]
        while stack:
            n = stack[-1]
            missing = [m for m in _read(n) if m not in self.slots]
            if n in self.slots:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                self.operate(n)
        return self.slots[node]

    def argument(self, given: Any) -> Any:
        """An argument with slots in place of nodes."""
        if isinstance(given, Node):
            return Slot(self.slot(given))
        if isinstance(given, list | tuple):
            return type(given)(self.argument(x) for x in given)
        return given

    def apply(self, function: Callable[..., Any], node: Node, *arguments: Any) -> None:
        """Adds a step that replaces the value of a node by a function of it."""
        before, self.slots[node] = self.slots[node], self.new_slot()
        self.steps.append(
            OperatorStep(name_of(node), function, (Slot(before), *arguments), {}, self.slots[node])
        )

    def settle(self) -> None:
        """Adds steps for the views that are still needed, before their bases are written into.

        Without this, they would be computed when they are asked for, which may be after that.
        """
        if self.is_settled:
            return
        self.is_settled = True
        effects = [n for n in self.analysis.operators if has_effect(n)]
        written = {storage_of(n.args[0]) for n in effects} - {None}
        wanted = [m for n in effects for m in n.all_input_nodes]
        wanted += [n for n in self.analysis.results if isinstance(n, Node)]
        for node in dict.fromkeys(wanted):
            known = all(root in self.slots for root in self.analysis.roots(node))
            if node in self.slots or not known or has_effect(node):
                continue
            self.slot(node)
            if storage_of(node) in written:
                self.apply(torch.Tensor.clone, node)

    # ---------------------------------------------------------------- strides of results

    def strides_of_results(self) -> dict[Node, tuple[Size, ...]]:
        """The strides in eager mode of the results, and of the nodes that share their memory."""
        found: dict[Node, tuple[Size, ...]] = {}
        pairs = [*zip(self.analysis.results, self.placements, strict=True)]
        shown = {storage_of(n) for n, placement in pairs if placement is not None} - {None}
        tensors = [(n, tensor_of(n)) for n in self.analysis.nodes if storage_of(n) in shown]
        tensors += [(n, placement.tensor) for n, placement in pairs if placement is not None]
        for node, tensor in tensors:
            strides = strides_of(tensor)
            if strides is not None:
                found[node] = strides
        return found

    def strides_for_operators(self) -> dict[Node, tuple[Size, ...]]:
        """The strides of what kernels compute and PyTorch's operators read, where not contiguous.

        PyTorch's operators are timed with such operands, and results often lie as operands do.
        """
        parts = (group.part for group in self.groups if isinstance(group, Fused))
        computed = {node for part in parts for node in part.results}
        read = (
            self.analysis.base(source)
            for group in self.groups
            if isinstance(group, Library | Unfused)
            for source in group.node.all_input_nodes
        )
        found: dict[Node, tuple[Size, ...]] = {}
        for node in dict.fromkeys(x for x in read if x in computed):
            strides, shape = strides_of(tensor_of(node)), tuple(sizes_of(node))
            if strides and strides != contiguous_sizes(shape) and is_dense(strides, shape):
                found[node] = strides
        return found

    def result(self, given: Any) -> Any:
        """A result of the graph, with the strides that it has in eager mode."""
        if not isinstance(given, Node) or not tensors_of(given) or given.op == "placeholder":
            return self.argument(given)
        self.slot(given)
        self.restride(given)
        return Slot(self.slots[given])

    def restride(self, node: Node) -> None:
        """Gives the value of a node the strides of eager mode, if it is a result."""
        strides = self.strides.get(node)
        if strides and node not in self.has_strides:
            self.has_strides.add(node)
            self.apply(with_strides, node, strides)

    # ---------------------------------------------------------------- joins

    def note_pieces(self, join: Node) -> None:
        """Notes the position of each piece of a join."""
        dtype = tensor_of(join).dtype
        for node, piece in _pieces(join, -1):
            if node not in self.pieces and tensor_of(node).dtype is dtype:
                self.pieces[node] = (join, piece)

    def allocated(self, join: Node) -> int:
        """The slot of a join, with a step that allocates it."""
        if join not in self.joins:
            self.joins[join] = None
            self.slots[join] = self.allocate(join, self.strides.get(join))
            self.has_strides.add(join)
        return self.slots[join]

    def allocate(self, node: Node, strides: tuple[Size, ...] | None) -> int:
        """Adds a step that allocates an array like a node, and returns its slot."""
        slot, tensor = self.new_slot(), tensor_of(node)
        shape = tuple(map(as_size, tensor.shape))
        self.steps.append(AllocateStep(slot, shape, tensor.dtype, tensor.device, strides))
        return slot

    def join(self, join: Node) -> None:
        """Copies the pieces that no kernel has stored in place; without any, PyTorch joins."""
        if join not in self.joins:
            self.operate(join)
            return
        for node, piece in _pieces(join, self.slots[join]):
            home, known = self.pieces.get(node, (None, None))
            is_home = home is join and known is not None and known.before == piece.before
            if not is_home or node not in self.stored:
                self.steps.append(CopyStep(self.slot(node), piece))

    # ---------------------------------------------------------------- kernels

    def launch(self, group: Fused) -> None:
        """Adds the step of a part's kernels."""
        expressed = group.part.expressed
        inputs = []
        for layout in expressed.inputs:
            node = self.analysis.by_name[layout.source]
            wanted = group.part.storage[layout.name]
            seen = tensors_of(node)
            differs = not seen or DTYPES.get(seen[0].dtype) is not wanted
            inputs.append((self.slot(node), layout, STORED[wanted] if differs else None))
        outputs: list[tuple[int, FrameworkLayout, Piece | None]] = []
        for node, layout in zip(group.part.results, expressed.outputs, strict=True):
            if self.analysis.is_scattered(node):
                self.slots[node] = self.slot(operand(node))
                outputs.append((self.slots[node], layout, None))
                continue
            piece = self.destination(node, layout)
            self.slots[node] = self.new_slot()
            outputs.append((self.slots[node], layout, piece))
        kernels = [k for nest in group.executable.nests for k in nest.launches]
        names = {k.name: self.names[id(group.executable), k.name] for k in kernels}
        self.steps.append(
            KernelStep(
                names,
                group.executable,
                tuple(inputs),
                tuple(outputs),
                expressed.sizes,
                device_of(group.part.nodes),
                {n: x.into.base for n, x in enumerate(expressed.program.outputs) if x.into},
            )
        )
        for node in group.part.results:
            self.restride(node)  # before views of it are made

    def destination(self, node: Node, layout: FrameworkLayout) -> Piece | None:
        """The larger array, or the array with other strides, that a result is stored into."""
        if not all(has for p in layout.positions for _, has in p):
            return None
        if node in self.strides:  # it must not share memory with a join
            strides, shape = self.strides[node], tuple(sizes_of(node))
            self.has_strides.add(node)
            if strides == contiguous_sizes(shape):
                return None
            return Piece(self.allocate(node, strides), 0, (), shape[0])
        if node not in self.pieces or self.analysis.has_returned_view(node):
            wanted = self.wanted.get(node)
            if wanted is None:
                return None
            return Piece(self.allocate(node, wanted), 0, (), sizes_of(node)[0])
        join, piece = self.pieces[node]
        self.stored.add(node)
        return replace(piece, slot=self.allocated(join))

    # ---------------------------------------------------------------- PyTorch's operators

    def is_order(self, node: Node) -> bool:
        """True for a copy that is there to lie in order: it can share an array that does.

        Nobody sees that the two share memory, if neither is a result, an input or written into.
        """
        if node.target is not torch.ops.aten.clone.default:
            return False
        source = self.analysis.base(operand(node))
        results = {storage_of(x) for x in self.analysis.results if isinstance(x, Node)}
        effects = [n.args[0] for n in self.analysis.operators if has_effect(n)]
        written = {storage_of(x) for x in (*effects, *self.analysis.updates) if isinstance(x, Node)}
        is_in_order = node.kwargs.get("memory_format") is torch.contiguous_format
        own = storage_of(node)
        is_own = own is not None and own not in results | written
        return (
            is_in_order
            and is_own
            and storage_of(source) not in written
            and source.op != "placeholder"
        )

    def operate(self, node: Node) -> None:
        """Adds the step of an operator that PyTorch runs."""
        if node in self.in_place.values():
            self.slots[node] = self.slot(operand(node))  # it is there already
            return
        for source in _read(node):
            if source not in self.slots:
                self.slot(source)
        function, arguments, options = node.target, node.args, node.kwargs
        piece = as_slice(node)
        if piece is not None:
            function, arguments = piece
        elif node.op == "get_attr":
            value = attribute_of(self.analysis.module, str(node.target))
            function, arguments, options = (lambda: value), (), {}
        elif node.target in _COPYING:
            function = _COPYING[node.target]
        elif node.target is torch.ops.aten.as_strided.default:
            source = operand(node)
            strides = strides_of(tensor_of(source))
            if source.op != "placeholder" and strides:
                self.apply(with_strides, source, strides)
        elif node in self.in_place:
            function = IN_PLACE[node.target]
        elif self.is_order(node):
            function, options = torch.Tensor.contiguous, {}
        if needs_contiguous(node.target):
            for source in tensor_operands(node):
                if source.op == "call_function":  # a kernel may have stored it otherwise
                    self.apply(torch.Tensor.contiguous, source)
        assert callable(function)
        filled = tuple(self.argument(a) for a in arguments)
        named = {k: self.argument(v) for k, v in options.items()}
        self.slots[node] = self.new_slot()
        name = name_of(node) if piece is None else str(function)
        step = OperatorStep(name, function, filled, named, self.slots[node])
        self.steps.append(step)
        self.operated[node] = step
        if self.analysis.kind(node) is not Kind.VIEW and len(tensors_of(node)) == 1:
            self.restride(node)


def _read(node: Node) -> list[Node]:
    """The nodes that the step of a node reads: a piece of a split is a slice of what is split."""
    piece = as_slice(node)
    return node.all_input_nodes if piece is None else [n for n in piece[1] if isinstance(n, Node)]


def is_dense(strides: Sequence[Size], shape: Sequence[Size]) -> bool:
    """True if strides are those of a contiguous array with its dimensions in some order."""
    left, made = [*range(len(shape))], Size(1)
    while left:
        at = next((at for at in reversed(left) if strides[at] == made), None)
        if at is None:
            return all(shape[n] == Size(1) for n in left)
        left.remove(at)
        made = product((made, shape[at]))
    return True


def _pieces(join: Node, slot: int) -> list[tuple[Node, Piece]]:
    """The pieces of a join, each with its position in the array in a slot."""
    nodes, dim = concatenated(join)
    lengths = [as_size(tensor_of(node).shape[dim]) for node in nodes]
    return [
        (node, Piece(slot, dim, tuple(lengths[:at]), lengths[at])) for at, node in enumerate(nodes)
    ]


_COPYING: dict[Any, Any] = {
    torch.ops.aten.view.default: torch.Tensor.reshape,
    torch.ops.aten._unsafe_view.default: torch.Tensor.reshape,
    torch.ops.aten.permute.default: torch.Tensor.permute,
    torch.ops.aten.unsqueeze.default: torch.Tensor.unsqueeze,
    torch.ops.aten.expand.default: torch.Tensor.expand,
}
"""Views as methods, which cost less. A kernel may store an array with other strides than PyTorch
would, so that a view may have to copy."""


def contiguous_sizes(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a contiguous array."""
    return tuple(product(shape[at + 1 :]) for at in range(len(shape)))


def _shape(node: Node) -> tuple[Size, ...] | None:
    """The shape of an input, if it is a plain tensor."""
    value = node.meta.get("val")
    is_tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return tuple(sizes_of(node)) if is_tensor else None


def _varies(node: Node) -> bool:
    """True if an input is a symbolic size, or has symbolic sizes or strides."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt)
