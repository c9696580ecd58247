"""From a graph of PyTorch operators to a plan: parts become kernels, the rest stays PyTorch's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from blockbuster_fusion.array.axes import Size, product
from blockbuster_fusion.array.records import FrameworkLayout
from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.select.parts import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.complex_pairs import pair_complex
from blockbuster_fusion.torch.capture.nodes import has_effect, name_of, tensor_of, tensors_of
from blockbuster_fusion.torch.capture.operators import concatenated
from blockbuster_fusion.torch.capture.results import (
    Placements,
    correct_strides,
    keep_apart,
    kept_whole,
    placements,
    storage_of,
    strides_of,
)
from blockbuster_fusion.torch.capture.simplify import simplify
from blockbuster_fusion.torch.capture.sizes import symbols
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.compile_parts import (
    Fused,
    Group,
    Grouping,
    Joined,
    Options,
    Unfused,
    device_of,
    distinct_names,
    log_sources,
)
from blockbuster_fusion.torch.plan.plan import Plan
from blockbuster_fusion.torch.plan.steps import (
    CopyStep,
    KernelStep,
    OperatorStep,
    Piece,
    RoomStep,
    Slot,
    Step,
    laid_out,
)
from blockbuster_fusion.torch.slices import move_slices
from blockbuster_fusion.torch.table.row import DTYPES
from blockbuster_fusion.torch.to_array_program import ElidedCast


@dataclass
class Planned:
    """A plan, and what became of each operator."""

    plan: Plan
    analysis: Analysis
    groups: list[Group]
    operated: list[Node]
    """The nodes that PyTorch runs, views too."""
    joined: list[Node]
    """The concatenations of which kernels store at least one piece in its place."""
    halved: list[str]
    """The parts for which there was no kernel as a whole, and why."""

    @property
    def fused(self) -> list[Fused]:
        return [g for g in self.groups if isinstance(g, Fused)]

    @property
    def unfused(self) -> list[Unfused]:
        return [g for g in self.groups if isinstance(g, Unfused)]

    @property
    def elided(self) -> list[ElidedCast]:
        found = {cast.name: cast for g in self.fused for cast in g.part.elided}
        return [*found.values()]


def plan(
    module: GraphModule, static: Sequence[int] = (), options: Options | None = None
) -> Planned:
    """The plan of a graph whose inputs number `static` are weights."""
    options = options or Options()
    target = options.target_of(module.graph.nodes)
    correct_strides(module)
    wanted = placements(module)
    simplify(module)
    pair_complex(module)
    given = module.graph.find_nodes(op="placeholder")
    analysis = Analysis(module, frozenset(given[i] for i in static if i < len(given)))
    stays = ""
    try:
        analysis = move_slices(analysis, kept_whole(module), splits=target != "cuda")
    except Exception as error:  # whatever it is: the model runs without, and `explain` says so
        if options.strict:
            raise
        stays = f"slices and concatenations stay where they are: {type(error).__name__}: {error}"
        log.warning(stays)
    if keep_apart(analysis.module, wanted):
        analysis = replace(analysis)  # without what was known of the graph before
    grouping = Grouping(analysis, options, target)
    planner = _Planner(analysis, static, grouping.grouped(), wanted)
    log_sources(planner.groups, planner.names)
    return planner.planned([*([stays] if stays else []), *grouping.halved])


class _Planner:
    def __init__(
        self,
        analysis: Analysis,
        static: Sequence[int],
        groups: list[Group],
        wanted: Placements,
    ) -> None:
        self.analysis, self.static, self.groups = analysis, frozenset(static), groups
        self.wanted = wanted
        self.strides = self.strides_given_out()
        """The strides, in eager mode, of what is given out or shows what is given out."""
        self.steps: list[Step] = []
        self.operated: list[Node] = []
        self.slots: dict[Node, int] = {n: i for i, n in enumerate(analysis.inputs)}
        self.count = len(analysis.inputs)
        self.names = distinct_names(groups)
        self.by_name = {n.name: n for n in analysis.module.graph.nodes}
        self.pieces: dict[Node, tuple[Node, Piece]] = {}
        """Which join a node is a piece of, once it is known where that lies."""
        self.rooms: dict[Node, None] = {}
        self.placed: set[Node] = set()
        self.in_place = self.stored_in_place()
        self.is_settled = False
        self.laid_out: set[Node] = set()
        """Results that are known to lie as they should."""

    def planned(self, halved: list[str]) -> Planned:
        analysis = self.analysis
        for group in self.groups:
            if isinstance(group, Joined):
                self.find_pieces(group.node)
        for group in self.groups:
            if isinstance(group, Unfused) and has_effect(group.node):
                self.settle()
            self.add(group)
        outputs = [self.result(x) for x in analysis.results]
        inputs = range(len(analysis.inputs))
        tensors = (p.tensor for p in self.wanted if p is not None)
        found, evaluate = symbols(analysis, (s for t in tensors for s in t.stride()))
        varying = [slot for slot, node in enumerate(analysis.inputs) if _varies(node)]
        made = Plan(self.steps, self.count, inputs, outputs, found, evaluate, self.static, varying)
        return Planned(made, analysis, self.groups, self.operated, [*self.rooms], halved)

    def settle(self) -> None:
        """Make the views that are still needed, before something is written into their bases.

        Views are made when they are asked for, which may be after that.
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
                self.follow(node, torch.Tensor.clone)

    def follow(self, node: Node, function: Callable[..., Any], *arguments: Any) -> None:
        """Put something that is done to a node's result in its place."""
        before, self.slots[node] = self.slots[node], self.new_slot()
        self.steps.append(
            OperatorStep(name_of(node), function, (Slot(before), *arguments), {}, self.slots[node])
        )

    def strides_given_out(self) -> dict[Node, tuple[Size, ...]]:
        made: dict[Node, tuple[Size, ...]] = {}
        pairs = [*zip(self.analysis.results, self.wanted, strict=True)]
        shown = {storage_of(n) for n, placement in pairs if placement is not None} - {None}
        for node in self.analysis.nodes:
            if storage_of(node) in shown:
                strides = strides_of(tensor_of(node))
                made |= {} if strides is None else {node: strides}
        for node, placement in pairs:
            strides = None if placement is None else strides_of(placement.tensor)
            made |= {} if strides is None else {node: strides}
        return made

    def result(self, given: Any) -> Any:
        """A result of the graph, laid out in memory as PyTorch would have it."""
        if not isinstance(given, Node) or not tensors_of(given) or given.op == "placeholder":
            return self.argument(given)
        self.slot(given)
        self.lay_out(given)
        return Slot(self.slots[given])

    def lay_out(self, node: Node) -> None:
        """See to it that a node's result has the strides of eager mode, if it is given out."""
        strides = self.strides.get(node)
        if strides and node not in self.laid_out:
            self.laid_out.add(node)
            self.follow(node, laid_out, strides)

    # ---------------------------------------------------------------- steps

    def find_pieces(self, join: Node) -> None:
        """Where each piece of a join is to lie."""
        pieces, dim = concatenated(join)
        dtype = tensor_of(join).dtype
        before: list[Size] = []
        for node in pieces:
            (tensor,) = tensors_of(node)
            length = as_size(tensor.shape[dim])
            if node not in self.pieces and tensor.dtype is dtype:
                self.pieces[node] = (join, Piece(-1, dim, tuple(before), length))
            before.append(length)

    def room(self, join: Node) -> int:
        """The slot of a join, with room made for it."""
        if join not in self.rooms:
            self.rooms[join] = None
            self.slots[join] = self.new_slot()
            (tensor,) = tensors_of(join)
            shape = tuple(map(as_size, tensor.shape))
            strides = self.strides.get(join)
            self.laid_out.add(join)
            self.steps.append(
                RoomStep(self.slots[join], shape, tensor.dtype, tensor.device, strides)
            )
        return self.slots[join]

    def join(self, join: Node) -> None:
        """The pieces that no kernel has stored in their place; without any, PyTorch joins."""
        if join not in self.rooms:
            self.operate(join)
            return
        pieces, dim = concatenated(join)
        before: list[Size] = []
        for node in pieces:
            length = as_size(tensor_of(node).shape[dim])
            home, piece = self.pieces.get(node, (None, None))
            stored = home is join and piece is not None and piece.before == tuple(before)
            if not stored or node not in self.placed:
                place = Piece(self.slots[join], dim, tuple(before), length)
                self.steps.append(CopyStep(self.slot(node), place))
            before.append(length)

    def add(self, group: Group) -> None:
        if isinstance(group, Joined):
            self.join(group.node)
            return
        if isinstance(group, Unfused):
            self.operate(group.node)
            return
        expressed = group.part.expressed
        inputs = []
        for layout in expressed.inputs:
            node = self.by_name[layout.source]
            wanted = group.part.storage[layout.name]
            seen = tensors_of(node)
            differs = not seen or DTYPES.get(seen[0].dtype) is not wanted
            inputs.append((self.slot(node), layout, STORED[wanted] if differs else None))
        outputs = []
        for node, layout in zip(group.part.results, expressed.outputs, strict=True):
            piece = self.place(node, layout)
            self.slots[node] = self.new_slot()
            outputs.append((self.slots[node], layout, piece))
        device = device_of(group.part.nodes)
        nest = group.executable.nest
        own = () if nest is None else nest.kernels
        names = {k.name: self.names[id(group.executable), k.name] for k in own}
        step = KernelStep(
            names, group.executable, tuple(inputs), tuple(outputs), expressed.sizes, device
        )
        self.steps.append(step)
        for node in group.part.results:
            self.lay_out(node)  # before views of it are made

    def place(self, node: Node, layout: FrameworkLayout) -> Piece | None:
        """Where in a larger array a result is to be stored, or in an array of its own order."""
        if not all(has for p in layout.positions for _, has in p):
            return None
        (tensor,) = tensors_of(node)
        shape = tuple(map(as_size, tensor.shape))
        if node in self.strides:  # it must not share memory with a join
            strides = self.strides[node]
            self.laid_out.add(node)
            if strides == contiguous_sizes(shape):
                return None
            slot = self.new_slot()
            self.steps.append(RoomStep(slot, shape, tensor.dtype, tensor.device, strides))
            return Piece(slot, 0, (), shape[0])
        if node not in self.pieces or self.analysis.has_returned_view(node):
            return None
        join, piece = self.pieces[node]
        self.placed.add(node)
        return replace(piece, slot=self.room(join))

    def new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def slot(self, node: Node) -> int:
        """Where the result of a node lies; views and arithmetic on sizes are made when asked."""
        stack = [node]
        while stack:
            n = stack[-1]
            missing = [m for m in n.all_input_nodes if m not in self.slots]
            if n in self.slots:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                self.operate(n)
        return self.slots[node]

    def stored_in_place(self) -> dict[Node, Node]:
        """Updates of an input that are copied back to it, and their copies.

        Where nobody else reads the input, the update is done on it in the first place: so a static
        cache of keys and values is written at the new positions alone.
        """
        found: dict[Node, Node] = {}
        for copy in self.analysis.nodes:
            if copy.target is not torch.ops.aten.copy_.default:
                continue
            target, update = copy.args[:2]
            if not isinstance(update, Node) or not isinstance(target, Node):
                continue
            is_update = update.target in _IN_PLACE and update.args[0] is target
            is_shown = update in self.analysis.outputs or self.analysis.has_returned_view(update)
            if is_update and not is_shown and set(target.users) == {copy, update}:
                found[update] = copy
        return found

    def operate(self, node: Node) -> None:
        if node in self.in_place.values():
            assert isinstance(node.args[0], Node)
            self.slots[node] = self.slot(node.args[0])  # it is there already
            return
        for source in node.all_input_nodes:
            if source not in self.slots:
                self.slot(source)
        function, arguments, options = node.target, node.args, node.kwargs
        if node.op == "get_attr":
            value = _attribute(self.analysis.module, str(node.target))
            function, arguments, options = (lambda: value), (), {}
        elif node.target in _COPYING:
            function = _COPYING[node.target]
        elif node.target is torch.ops.aten.as_strided.default:
            (source,) = node.all_input_nodes[:1]
            strides = strides_of(tensor_of(source))
            if source.op != "placeholder" and strides:
                self.follow(source, laid_out, strides)
        elif node in self.in_place:
            function = _IN_PLACE[node.target]
        assert callable(function)
        filled = tuple(self.argument(a) for a in arguments)
        named = {k: self.argument(v) for k, v in options.items()}
        self.slots[node] = self.new_slot()
        step = OperatorStep(name_of(node), function, filled, named, self.slots[node])
        self.steps.append(step)
        self.operated.append(node)
        if self.analysis.kind(node) is not Kind.VIEW and len(tensors_of(node)) == 1:
            self.lay_out(node)

    def argument(self, given: Any) -> Any:
        if isinstance(given, Node):
            return Slot(self.slot(given))
        if isinstance(given, list | tuple):
            return type(given)(self.argument(x) for x in given)
        return given


_COPYING: dict[Any, Any] = {
    torch.ops.aten.view.default: torch.Tensor.reshape,
    torch.ops.aten._unsafe_view.default: torch.Tensor.reshape,
    torch.ops.aten.permute.default: torch.Tensor.permute,
    torch.ops.aten.unsqueeze.default: torch.Tensor.unsqueeze,
    torch.ops.aten.expand.default: torch.Tensor.expand,
}
"""Views as methods, which cost less. What a kernel stores may lie otherwise than PyTorch would have
had it, so that a view may have to copy."""


def _replace_slice(x: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
    torch.ops.aten.slice.Tensor(x, *where).copy_(source)
    return x


_IN_PLACE: dict[Any, Any] = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.slice_scatter.default: _replace_slice,
}
"""Operators that give an array with a part replaced, and how to replace it in the array itself."""


def contiguous_sizes(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a contiguous array."""
    return tuple(product(shape[at + 1 :]) for at in range(len(shape)))


def _attribute(module: GraphModule, path: str) -> Any:
    found: Any = module
    for word in path.split("."):
        found = getattr(found, word)
    return found


def _varies(node: Node) -> bool:
    """Whether an input is a size, or has sizes or strides that depend on some."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt)
