"""Lowering of a block program to its loop nest, with one kernel for each map at the top.

The grid is the map at the top and the maps below it whose results are all that it yields. Nodes
between them are computed by every program again. Lists inside a kernel lie in scratch memory.
"""

from collections.abc import Iterable, Sequence

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.fusion.cut import LARGEST, statements
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    Elementwise,
    Input,
    Into,
    Iota,
    Map,
    Misc,
    Node,
    Output,
    Pick,
    Rename,
    Value,
)
from blockbuster_fusion.naming import word
from blockbuster_fusion.nest.lower_body import (
    BodyBuilder,
    Counted,
    InMemory,
    Placement,
    buffer_axes,
    in_memory,
    open_slots,
)
from blockbuster_fusion.nest.names import NestNames
from blockbuster_fusion.nest.nest import (
    Buffer,
    Call,
    Kernel,
    Launchable,
    Nest,
    NestStep,
    Space,
    Span,
    View,
)

MOST_LIGHT = 16
"""An item that takes more operators than this is stored rather than computed again."""


def lower_to_nest(graph: Graph, name: str = "kernel", *, grid: str = "all") -> Nest:
    """The program as kernels, before any pass over them.

    `grid` is the part of nested parallel loops that becomes the grid. "all" gives the most
    programs. "outer" ends with the first loop over blocks, or before it if other loops stand beside
    it in the grid: nothing is computed twice. With "one" there is no grid: one program runs all
    maps between two misc operators.
    """
    return _Program(graph, name, grid).nest()


class _Program:
    """The lowering of one program: its steps, and the placements of the top graph's values."""

    def __init__(self, graph: Graph, name: str, grid: str) -> None:
        self.graph, self.name, self.grid = graph, word(name, "kernel"), grid
        self.names = NestNames(graph)
        self.light = _light(graph) if grid != "one" else frozenset()
        self.places: dict[Value, Placement] = {}
        self.steps: list[NestStep] = []

    def nest(self) -> Nest:
        graph = self.graph
        inputs = [op for i in graph.inputs if isinstance(op := graph.op(i), Input)]
        wanted = [*(op.name or "X" for op in inputs), *(out.name or "O" for out in graph.outputs)]
        names = self.names.own(wanted)
        given = []
        for i, op, name in zip(graph.inputs, inputs, names, strict=False):
            buffer = Buffer(name, buffer_axes(op.type), op.type.dtype)
            given.append(buffer)
            self.places[Value(i)] = InMemory(buffer, op.type.dims)
        self.wanted = dict[Value, str]()
        self.placed = {out.value: out.into for out in graph.outputs if out.into is not None}
        for out, name in zip(graph.outputs, names[len(inputs) :], strict=True):
            self.wanted.setdefault(out.value, name)
        for group in _groups(graph, self.light, alone=self.grid != "one"):
            self.step(group)
        outputs = [self.output(out) for out in graph.outputs]
        known = {*given, *(view.buffer for view in outputs)}
        between = [b for step in self.steps for b in _global_buffers(step) if b not in known]
        return Nest(
            self.name,
            _named(self.steps, self.name),
            tuple(given),
            tuple(outputs),
            tuple(self.layout(out) for out in graph.outputs),
            tuple(dict.fromkeys(between)),
        )

    def view(self, value: Value) -> View:
        """The buffer that holds a value, with the value's own axes."""
        return View(in_memory(self.places, value).buffer, self.graph.type(value).axes)

    def output(self, out: Output) -> View:
        """The buffer that holds an output: one of its own, or that of the input it is put into."""
        return self.view(out.value if out.into is None else Value(self.graph.inputs[out.into.base]))

    def layout(self, out: Output) -> tuple[Axis, ...]:
        """The order of axes in which an output's array is laid out."""
        if out.into is not None:
            return self.graph.type_of_input(out.into.base).axes
        return out.axes or self.graph.type(out.value).axes

    def place(self, value: Value, into: Into) -> InMemory:
        """The place of an output in the buffer of an input."""
        own = {dim.axis: dim for dim in self.graph.type(value).dims}
        base, index = (self.places[Value(self.graph.inputs[i])] for i in (into.base, into.index))
        assert isinstance(base, InMemory)
        assert isinstance(index, InMemory)
        outputs = sum(out.value == value for out in self.graph.outputs)
        if self.graph.uses(value) or outputs > 1:
            raise NoKernel(what=f"{value} is read and written into an input", remedy="make a copy")
        slots = [
            Span(a.dim.as_unit, 0) if a.dim.axis is into.axis else own[a.dim.axis]
            for a in base.buffer.axes
        ]
        places = InMemory(index.buffer, tuple(own[a.dim.axis] for a in index.buffer.axes))
        return InMemory(base.buffer, tuple(slots), places, into.axis)

    def home(self, value: Value) -> InMemory:
        """The memory of a value of the top graph: a new buffer, or its place in an input."""
        kind = self.graph.type(value)
        if value in self.placed:
            return self.place(value, self.placed[value])
        name = self.wanted.get(value) or self.names.of("I", value)
        buffer = Buffer(name, buffer_axes(kind), kind.dtype)
        return InMemory(buffer, open_slots(buffer, {}))

    def step(self, group: Sequence[int]) -> None:
        first = self.graph[group[0]]
        if self.grid == "one" and not isinstance(first.op, Misc):
            self.kernel(group)
        elif isinstance(first.op, Rename):
            source = in_memory(self.places, first.inputs[0])
            self.places[Value(group[0])] = source.renamed(first.op.old, first.op.new)
        elif isinstance(first.op, Pick):
            dim, index = first.op.dim, first.op.index
            if isinstance(self.places[first.inputs[0]], Counted):
                self.places[Value(group[0])] = Counted(Span(dim, index))
            else:
                source = in_memory(self.places, first.inputs[0])
                self.places[Value(group[0])] = source.at(dim, index)
        elif isinstance(first.op, Iota):
            self.places[Value(group[0])] = Counted(None)
        elif isinstance(first.op, Misc):
            self.call(group[0], first, first.op)
        else:
            self.kernel(group)

    def call(self, i: int, node: Node, op: Misc) -> None:
        operands = [self.view(value) for value in node.inputs]
        results = []
        for port, kind in enumerate(node.types):
            home = self.home(Value(i, port))
            self.places[Value(i, port)] = home
            results.append(View(home.buffer, kind.axes))
        self.steps.append(Call(op, tuple(operands), tuple(results)))

    def kernel(self, group: Sequence[int]) -> None:
        """Lowers a map, or a run of other nodes, which have no grid, to a kernel."""
        inside = set(group)
        grid = None if self.grid == "one" else self.grid
        frame = BodyBuilder(self.graph, self.names, dict(self.places), grid=grid)
        for i in self.light_before(group):
            frame.node(i, self.graph[i])
        homes: dict[Value, InMemory] = {}
        for i in group:
            for port in range(len(self.graph[i].types)):
                value = Value(i, port)
                leaves = value in self.graph.output_values or any(
                    user not in inside for user, _ in self.graph.uses(value)
                )
                if leaves:
                    homes[value] = self.home(value)
                    frame.send(value, homes[value])
        for i in group:
            frame.node(i, self.graph[i])
        self.places.update(homes)
        self.steps.append(Kernel("", tuple(frame.grid_indices), tuple(frame.block)))

    def light_before(self, group: Sequence[int]) -> list[int]:
        """The light items that a kernel needs, in order."""
        needed: set[int] = set()
        stack = [v.node for i in group for v in self.graph[i].inputs]
        while stack:
            i = stack.pop()
            if i in self.light and i not in needed:
                needed.add(i)
                stack.extend(v.node for v in self.graph[i].inputs)
        return sorted(needed, key=self.graph.position.__getitem__)


def _light(graph: Graph) -> frozenset[int]:
    """Elementwise items of inputs and positions that are cheaper to compute again than to store.

    Weights that are widened as they are loaded are such items, and so are masks of one block.
    """
    found: dict[int, int] = {}
    """The light items, each with the number of operators that compute it."""
    given = {Value(i) for i in graph.inputs}
    stored = {value.node for value in graph.output_values}
    for i, node in graph.nodes.items():
        readers = [graph.op(user) for user, _ in graph.uses(Value(i))]
        is_placed = any(isinstance(op, Rename | Pick | Misc) for op in readers)
        if isinstance(node.op, Elementwise) and not is_placed and i not in stored:
            makers = [v for v in node.inputs if v not in given and v.node not in found]
            operators = 1 + sum(found.get(v.node, 0) for v in node.inputs)
            is_source = all(isinstance(graph.op(v.node), Pick | Iota) for v in makers)
            if is_source and operators <= MOST_LIGHT:
                found[i] = operators
    return frozenset(found)


def _groups(graph: Graph, light: frozenset[int], *, alone: bool) -> list[list[int]]:
    """The nodes of each step: a map, a misc operator, or the other nodes between them.

    Unless maps are `alone`, a step has all nodes between two misc operators.
    """
    whole = Map | Misc | Rename | Pick | Iota if alone else Misc
    made: list[list[int]] = []
    run: list[int] = []
    weight = 0
    for i, node in graph.nodes.items():
        if isinstance(node.op, Input) or i in light:
            continue
        if isinstance(node.op, whole):
            made += [run] if run else []
            made.append([i])
            run, weight = [], 0
        else:
            if run and weight + statements(node) > LARGEST:
                made.append(run)
                run, weight = [], 0
            run.append(i)
            weight += statements(node)
    return [*made, run] if run else made


def _global_buffers(step: NestStep) -> Iterable[Buffer]:
    if isinstance(step, Launchable):
        return [b for b in step.buffers if b.space is Space.GLOBAL]
    if isinstance(step, Call):
        return [v.buffer for v in (*step.operands, *step.results)]
    return [step.buffer]


def _named(steps: Sequence[NestStep], name: str) -> tuple[NestStep, ...]:
    """The steps with kernels named after the program, and numbered if there are several."""
    kernels = [step for step in steps if isinstance(step, Kernel)]
    made: list[NestStep] = []
    number = 0
    for step in steps:
        if isinstance(step, Kernel):
            number += 1
            own = name if len(kernels) == 1 else f"{name}_{number}"
            made.append(Kernel(own, step.grid, step.body))
        else:
            made.append(step)
    return tuple(made)
