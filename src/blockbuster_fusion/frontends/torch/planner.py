"""From a graph of PyTorch operators to a plan: parts become kernels, the rest stays PyTorch's."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.printers import PythonPrinter

from blockbuster_fusion.array.axes import Size
from blockbuster_fusion.array.records import Layout
from blockbuster_fusion.compiler import compile as compile_program
from blockbuster_fusion.frontends.torch.complexes import pair_complex
from blockbuster_fusion.frontends.torch.express import ElidedCast, Expression, Part, Unexpressed
from blockbuster_fusion.frontends.torch.graph import (
    Analysis,
    as_size,
    expression_of,
    factored,
    name_of,
    tensors_of,
)
from blockbuster_fusion.frontends.torch.pieces import move_pieces
from blockbuster_fusion.frontends.torch.rows import row_for
from blockbuster_fusion.frontends.torch.simplify import simplify
from blockbuster_fusion.frontends.torch.table import DTYPES
from blockbuster_fusion.runtime.executable import Executable
from blockbuster_fusion.runtime.torch_arrays import STORED, kit_on
from blockbuster_fusion.runtime.torch_plan import Plan, SymbolSource
from blockbuster_fusion.runtime.torch_steps import (
    CopyStep,
    KernelStep,
    OperatorStep,
    Piece,
    RoomStep,
    Slot,
    Step,
    in_order,
)
from blockbuster_fusion.select.parts import Kind, Layerwise, Selection

log = logging.getLogger("blockbuster_fusion")


@dataclass(frozen=True)
class Options:
    """What a caller may say about how a model is compiled."""

    target: str | None = None
    """"cpu", "cuda" or "interpret"; by default where the model's tensors are."""
    strict: bool = False
    """Keep every conversion where the model has it, and raise instead of running eagerly."""
    threads: int | None = None
    selection: Selection | None = None
    """How a graph is cut into parts; by default by the policy of select/parts.py."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


@dataclass(frozen=True)
class Fused:
    """A part with its kernels."""

    part: Part
    region: str
    executable: Executable


@dataclass(frozen=True)
class Unfused:
    """An operator that PyTorch runs, and why."""

    node: Node
    region: str
    reason: str
    is_fallback: bool
    """Whether the operator table knows it, so that a kernel was to be expected."""

    @property
    def operator(self) -> str:
        return name_of(self.node)


@dataclass(frozen=True)
class Joined:
    """Arrays put behind one another in memory: kernels store them there in the first place."""

    node: Node
    region: str


Group = Fused | Unfused | Joined


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
    target = options.target or _device_of(module)
    simplify(module)
    pair_complex(module)
    stays = ""
    try:
        module = move_pieces(module, static, splits=target != "cuda")
    except Exception as error:  # whatever it is: the model runs without, and `explain` says so
        if options.strict:
            raise
        stays = f"slices and concatenations stay where they are: {type(error).__name__}: {error}"
        log.warning(stays)
    made = _Planner(module, static, options).planned()
    made.halved += [stays] if stays else []
    return made


def _device_of(module: GraphModule) -> str:
    tensors = (t for n in module.graph.nodes for t in tensors_of(n) if t.dim())
    return next((t.device.type for t in tensors), "cpu")


_COMPILED: dict[Any, Executable] = {}
"""The executables of this process: equal layers share theirs."""


class _Planner:
    def __init__(self, module: GraphModule, static: Sequence[int], options: Options) -> None:
        given = [n for n in module.graph.nodes if n.op == "placeholder"]
        weights = frozenset(given[i] for i in static if i < len(given))
        self.analysis = Analysis(module, weights)
        self.static, self.options = frozenset(static), options
        self.groups: list[Group] = []
        self.steps: list[Step] = []
        self.operated: list[Node] = []
        self.slots: dict[Node, int] = {n: i for i, n in enumerate(given)}
        self.count = len(given)
        self.regions = self.analysis.regions()
        self.by_name = {n.name: n for n in module.graph.nodes}
        self.pieces: dict[Node, tuple[Node, Piece]] = {}
        """Which join a node is a piece of, once it is known where that lies."""
        self.rooms: dict[Node, None] = {}
        self.placed: set[Node] = set()
        self.in_place = self.stored_in_place()
        self.is_settled = False
        self.halved: list[str] = []
        self.laid_out: set[Node] = set()
        """Results that are known to lie as they should."""

    def planned(self) -> Planned:
        analysis = self.analysis
        described = analysis.described()
        for numbers in self.selection().parts(described):
            nodes = [analysis.operators[i] for i in numbers]
            if analysis.is_join(nodes[0]):
                self.groups.append(Joined(nodes[0], self.regions[nodes[0]]))
            elif described[numbers[0]].kind is Kind.MISC:
                self.leave(nodes[0])
            else:
                self.groups += self.fused(nodes)
        for group in self.groups:
            if isinstance(group, Joined):
                self.find_pieces(group.node)
        for group in self.groups:
            if isinstance(group, Unfused) and analysis.has_effect(group.node):
                self.settle()
            self.add(group)
        outputs = [self.result(x) for x in analysis.results]
        inputs = range(len(analysis.inputs))
        symbols, evaluate = _symbols(analysis)
        varying = [slot for slot, node in enumerate(analysis.inputs) if _varies(node)]
        made = Plan(
            self.steps, self.count, inputs, outputs, symbols, evaluate, self.static, varying
        )
        return Planned(made, analysis, self.groups, self.operated, [*self.rooms], self.halved)

    def settle(self) -> None:
        """Make the views that are still needed, before something is written into their bases.

        Views are made when they are asked for, which may be after that.
        """
        if self.is_settled:
            return
        self.is_settled = True
        effects = [n for n in self.analysis.operators if self.analysis.has_effect(n)]
        written = {n.args[0] for n in effects}
        wanted = [m for n in effects for m in n.all_input_nodes]
        wanted += [n for n in self.analysis.results if isinstance(n, Node)]
        for node in dict.fromkeys(wanted):
            known = all(root in self.slots for root in self.analysis.roots(node))
            if node in self.slots or not known or self.analysis.has_effect(node):
                continue
            self.slot(node)
            if self.analysis.base(node) in written:
                self.follow(node, torch.Tensor.clone)

    def follow(self, node: Node, function: Callable[..., Any], *arguments: Any) -> None:
        """Put something that is done to a node's result in its place."""
        before, self.slots[node] = self.slots[node], self.new_slot()
        self.steps.append(
            OperatorStep(name_of(node), function, (Slot(before), *arguments), {}, self.slots[node])
        )

    def result(self, given: Any) -> Any:
        """A result of the graph, laid out in memory as PyTorch would have it."""
        if not isinstance(given, Node) or not tensors_of(given) or given.op == "placeholder":
            return self.argument(given)
        self.slot(given)
        if given not in self.laid_out:
            self.laid_out.add(given)
            order = _order(tensors_of(given)[0])
            if order is not None:
                self.follow(given, in_order, order)
        return Slot(self.slots[given])

    def selection(self) -> Selection:
        target = self.options.target or _device(self.analysis.operators).type
        return self.options.selection or Layerwise(apart=target == "cuda")

    # ---------------------------------------------------------------- groups

    def leave(self, node: Node, reason: str | None = None) -> None:
        self.groups.append(self.unfused(node, reason))

    def unfused(self, node: Node, reason: str | None = None) -> Unfused:
        known = row_for(node.target) is not None
        if reason is None:
            refusal = self.analysis.refusal(node) if known else None
            reason = refusal or "not in the operator table"
            known = False  # its dtype or its layout, or an index that is data
        if known and self.options.strict:
            raise Unexpressed(operator=name_of(node), reason=reason, node=node)
        if known:
            log.warning("%s runs eagerly: %s", name_of(node), reason)
        return Unfused(node, self.regions[node], reason, known)

    def fused(self, nodes: Sequence[Node]) -> list[Group]:
        """Nodes as one part, or as several where they do not go together."""
        made: list[Group] = []
        stack = [[*nodes]]
        while stack:
            group = stack.pop()
            try:
                made.append(self.compiled(group))
            except Unexpressed as error:
                log.debug("cut at %s", error)
                stack += reversed(self.cut(group, error.at, str(error.reason), made))
            except Exception as error:  # whatever it is: the model runs, and `explain` says why
                if self.options.strict:
                    raise
                half = len(group) // 2
                if not half:
                    made.append(self.unfused(group[0], f"{type(error).__name__}: {error}"))
                else:
                    reason = f"{len(group)} operators from {name_of(group[0])} on: {error}"
                    log.warning("a part has no kernel and is halved: %s", reason)
                    self.halved.append(reason)
                    stack += [group[half:], group[:half]]
        return made

    def cut(self, group: list[Node], at: Node, reason: str, made: list[Group]) -> list[list[Node]]:
        """The parts of a group that has no form because of one node."""
        if len(group) == 1:
            made.append(self.unfused(at, reason))
            return []
        after = {at}
        for node in group:
            bases = {self.analysis.owner(self.analysis.base(n)) for n in node.all_input_nodes}
            if bases & after:
                after.add(node)
        before = [n for n in group if n not in after]
        rest = [n for n in group if n in after]
        return [before, rest] if before else [[at], [n for n in rest if n is not at]]

    def compiled(self, group: list[Node]) -> Fused:
        inside = set(group)
        results = [needed for n in group for needed in self.analysis.needed(n, inside)]
        strict = self.options.strict
        part = Expression(self.analysis, group, self.name(group), strict).part(results)
        target = self.options.target or _device(group).type
        threads = self.options.threads or torch.get_num_threads()
        storage = tuple((name, str(dtype)) for name, dtype in part.storage.items())
        key = (part.expressed.program, storage, target, threads)
        if key not in _COMPILED:
            made = compile_program(
                part.expressed.program,
                target=target,
                dtype=part.storage,
                threads=threads if target == "cpu" else None,
            )
            if target == "cuda":  # Triton compiles when a kernel is first launched
                self.try_out(part, made, _device(group))
            _COMPILED[key] = made
        return Fused(part, self.regions[group[0]], _COMPILED[key])

    def try_out(self, part: Part, executable: Executable, device: torch.device) -> None:
        """Run a part once on zeros, so that what fails in it fails now and not in the model."""
        symbols, evaluate = _symbols(self.analysis)
        hints = {s.symbol: _hint(self.analysis.inputs[s.slot], s.dim) for s in symbols}

        def length(size: Size) -> int:
            return math.prod([size.number, *(evaluate(s, hints) for s in size.symbols)])

        with _disable_current_modes(), torch.no_grad():
            given = [
                torch.zeros(
                    [length(size) for position in layout.positions for size, _ in position],
                    dtype=STORED[part.storage[layout.name]],
                    device=device,
                )
                for layout in part.expressed.inputs
            ]
            sizes = tuple((axis, length(size)) for axis, size in part.expressed.sizes)
            executable.runner.run(given, sizes, kit_on(device))

    def name(self, group: Sequence[Node]) -> str:
        """A name for a part that is the same in every layer."""
        kinds = [
            name_of(n).split(".")[1].strip("_")
            for n in group
            if self.analysis.kind(n) in (Kind.CONTRACTION, Kind.REDUCTION)
        ]
        return "_".join(dict.fromkeys(kinds)) or "pointwise"

    # ---------------------------------------------------------------- steps

    def find_pieces(self, join: Node) -> None:
        """Where each piece of a join is to lie."""
        pieces, dim = self.analysis.joined(join)
        dtype = tensors_of(join)[0].dtype
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
            self.steps.append(RoomStep(self.slots[join], shape, tensor.dtype, tensor.device))
        return self.slots[join]

    def join(self, join: Node) -> None:
        """The pieces that no kernel has stored in their place; without any, PyTorch joins."""
        if join not in self.rooms:
            self.operate(join)
            return
        pieces, dim = self.analysis.joined(join)
        before: list[Size] = []
        for node in pieces:
            length = as_size(tensors_of(node)[0].shape[dim])
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
        name = expressed.program.name
        device = _device(group.part.nodes)
        step = KernelStep(
            name, group.executable, tuple(inputs), tuple(outputs), expressed.sizes, device
        )
        self.steps.append(step)

    def place(self, node: Node, layout: Layout) -> Piece | None:
        """Where in a larger array a result is to be stored, or in an array of its own order."""
        if not all(has for p in layout.positions for _, has in p):
            return None
        (tensor,) = tensors_of(node)
        if node in self.analysis.outputs:  # it must not share memory with a join
            order = _order(tensor)
            if order is not None:
                self.laid_out.add(node)
            if order is None or order == [*range(tensor.dim())]:
                return None
            slot, shape = self.new_slot(), tuple(map(as_size, tensor.shape))
            self.steps.append(RoomStep(slot, shape, tensor.dtype, tensor.device, tuple(order)))
            return Piece(slot, 0, (), shape[0])
        if node not in self.pieces or self.analysis.is_shown_of(node):
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
            if is_update and set(target.users) == {copy, update}:
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
            order = _order(tensors_of(source)[0])
            if source.op != "placeholder" and order is not None:
                self.follow(source, in_order, order)
        elif node in self.in_place:
            function = _IN_PLACE[node.target]
        assert callable(function)
        filled = tuple(self.argument(a) for a in arguments)
        named = {k: self.argument(v) for k, v in options.items()}
        self.slots[node] = self.new_slot()
        step = OperatorStep(name_of(node), function, filled, named, self.slots[node])
        self.steps.append(step)
        self.operated.append(node)

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


def _order(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions from the one with the longest steps in memory to that with the shortest.

    None where the tensor is not dense, so that no order gives its strides.
    """

    def hint(x: Any) -> int:
        return int(x) if isinstance(x, int) else int(x.node.hint or 2)

    strides = [hint(s) for s in tensor.stride()]
    lengths = [hint(s) for s in tensor.shape]
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], -lengths[d], d))
    step = 1
    for d in reversed(order):
        if lengths[d] != 1 and strides[d] != step:
            return None
        step *= lengths[d]
    plain = [d for d in order if lengths[d] != 1]
    return [*range(tensor.dim())] if plain == sorted(plain) else order


def _attribute(module: GraphModule, path: str) -> Any:
    found: Any = module
    for word in path.split("."):
        found = getattr(found, word)
    return found


def _device(group: Sequence[Node]) -> torch.device:
    devices = (t.device for n in group for t in tensors_of(n) if t.dim())
    return next(devices, torch.device("cpu"))


def _hint(node: Node, dim: int | None) -> int:
    """What a symbol was when the graph was captured."""
    value = node.meta["val"]
    extent = value if dim is None else value.shape[dim]
    hint = extent.node.hint
    return 2 if hint is None else int(hint)


def _varies(node: Node) -> bool:
    """Whether an input is a size, or has sizes or strides that depend on some."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, torch.SymInt)


class _SizePrinter(PythonPrinter):
    """Expressions as Python, in which `sizes` has the values of the symbols that are not derived
    from others."""

    def __init__(self, derived: Mapping[str, Any]) -> None:
        super().__init__()
        self.derived = derived

    def _print_Symbol(self, symbol: sympy.Symbol) -> str:
        name = str(symbol)
        if name in self.derived:
            return f"({self.doprint(self.derived[name])})"
        return f"sizes[{name!r}]"


def _symbols(analysis: Analysis) -> tuple[list[SymbolSource], Any]:
    """Where the symbols of a graph get their values, and what sizes are in terms of them."""
    found: dict[str, SymbolSource] = {}
    expressions: dict[str, Any] = {}
    derived: list[tuple[Any, SymbolSource]] = []

    def note(expr: Any, slot: int, dim: int | None) -> None:
        source = SymbolSource(str(expr), slot, dim)
        if expr.is_Symbol:
            found.setdefault(str(expr), source)
        elif len(expr.free_symbols) == 1:
            derived.append((expr, source))

    for slot, node in enumerate(analysis.inputs):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            note(value.node.expr, slot, None)
        elif isinstance(value, torch.Tensor):
            for dim, extent in enumerate(value.shape):
                if isinstance(extent, torch.SymInt):
                    note(extent.node.expr, slot, dim)
    for expr, source in derived:  # torch.export has sizes such as 2*n + 1 of an n that is no size
        (symbol,) = expr.free_symbols
        factor = expr.coeff(symbol)
        rest = expr - factor * symbol
        if str(symbol) not in found and str(symbol) not in expressions and rest.is_Integer:
            found[source.symbol] = source
            expressions[str(symbol)] = (sympy.Symbol(source.symbol) - rest) / factor
    for node in analysis.module.graph.nodes:
        for tensor in tensors_of(node):
            for extent in tensor.shape:
                if isinstance(extent, torch.SymInt):
                    for factor in factored(expression_of(extent))[1]:
                        if not factor.is_Symbol:
                            expressions.setdefault(str(factor), factor)

    functions: dict[str, Callable[[Mapping[str, int]], int]] = {}

    def evaluate(symbol: str, sizes: Mapping[str, int]) -> int:
        if symbol in sizes:
            return sizes[symbol]
        if symbol not in functions:
            derived = {name: x for name, x in expressions.items() if name not in found}
            text = _SizePrinter(derived).doprint(expressions[symbol])
            functions[symbol] = eval(f"lambda sizes: int({text})", {"math": math})
        return functions[symbol](sizes)

    return [*found.values()], evaluate
