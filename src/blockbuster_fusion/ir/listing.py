"""Printing a block program as the paper's listings: `forall`/`for`, `load`/`store`, t1, I1.

As in the paper, accumulators start with the combiner's identity (0 for a sum), and an item is
loaded just before its first use.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ADD, MUL, SIMPLE, Combiner
from blockbuster_fusion.ir.expr import Expr, arg, format_expr, postorder, tree_size, with_operands
from blockbuster_fusion.ir.graph import Graph, Path, check_graph
from blockbuster_fusion.ir.names import Names
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Pick,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.paper_names import Functional, ItemText, write
from blockbuster_fusion.ir.places import (
    Accumulation,
    ArraySlice,
    Item,
    ListingScope,
    Location,
    MemoryArray,
    bind,
    element,
    inputs_read,
    item_axes,
    laid_out,
)

_LONG = 200
"""The most parts of an expression without separate lines for shared parts."""


def show(graph: Graph, *, reductions: str = "serial") -> str:
    """The program as a listing; `reductions="lock"`: loops that accumulate are `forall` as well."""
    if reductions not in ("serial", "lock"):
        raise ValueError(f"reductions={reductions!r}: print them 'serial' or with a 'lock'")
    check_graph("show", graph)
    listing = _Listing(Names(graph), lock=reductions == "lock")
    listing.program(graph)
    return "".join(f"{line}\n" for line in listing.lines)


@dataclass(frozen=True, slots=True)
class Labels:
    """The names in the listing of a program: t5, I1, O.

    The key of a value is the path of its maps and its value there.
    """

    names: Mapping[tuple[Path, Value], str]
    lines: Mapping[tuple[Path, Value], str]
    """The statement that computes a value: `t5 += row_sum(t4)`."""
    parts: Mapping[tuple[Path, Value], Mapping[Expr, str]]
    """The names of parts of a combiner, by the first of the values that it accumulates."""

    def name(self, path: Path, value: Value) -> str:
        return self.names.get((path, value), "")

    def line(self, path: Path, value: Value) -> str:
        return self.lines.get((path, value), "")


@dataclass(frozen=True, slots=True)
class Listed:
    """The listing of a program, with the node that each line belongs to."""

    lines: tuple[str, ...]
    nodes: tuple[int, ...]
    """The node of each line: a load belongs to the node that needs it first."""
    labels: Labels


def labels(graph: Graph) -> Labels:
    """The names that `show` gives the values of a program."""
    return listed(graph).labels


def listed(graph: Graph, arrays: Mapping[str, str] | None = None) -> Listed:
    """The lines that `show` prints, their nodes, and the names of values.

    `arrays` has other names for I1, I2, … of that listing.
    """
    listing = _Listing(Names(graph, arrays), lock=False)
    listing.program(graph)
    names: dict[tuple[Path, Value], str] = {}
    lines: dict[tuple[Path, Value], str] = {}
    parts: dict[tuple[Path, Value], Mapping[Expr, str]] = {}
    for scope in listing.scopes:
        for value, place in scope.places.items():
            name = place.array.name if isinstance(place, ArraySlice) else place.name
            if name:
                names[scope.path, value] = name
            if isinstance(place, Item) and id(place) in listing.made:
                lines[scope.path, value] = listing.made[id(place)]
            if isinstance(place, Item) and id(place) in listing.parts:
                parts[scope.path, value] = listing.parts[id(place)]
    return Listed(tuple(listing.lines), tuple(listing.nodes), Labels(names, lines, parts))


class _Listing:
    """The lines printed so far."""

    def __init__(self, names: Names, *, lock: bool) -> None:
        self.names = names
        self.lock = lock
        self.lines: list[str] = []
        self.nodes: list[int] = []  # of each line
        self.current = -1  # the node whose lines are printed
        self.read: dict[Graph, frozenset[int]] = {}
        self.scopes: list[ListingScope] = []  # keep items alive, so that their ids stay unique
        self.made: dict[int, str] = {}  # by the id of an item: its statement
        self.parts: dict[int, dict[Expr, str]] = {}  # by the id of an accumulator

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)
        self.nodes.append(self.current)

    def line_of(self, depth: int, item: Item, text: str) -> None:
        """Prints the statement that computes an item."""
        self.made[id(item)] = text
        self.line(depth, text)

    def program(self, graph: Graph) -> None:
        inputs = [op for i in graph.inputs if isinstance(op := graph.op(i), Input)]
        wanted = [*(op.name or "X" for op in inputs), *(out.name or "O" for out in graph.outputs)]
        names = iter(self.names.own(wanted))
        ports: list[Location] = []
        for op in inputs:
            array = MemoryArray(next(names), item_axes(op.type))
            ports.append(element(ArraySlice(array, op.type.lists), op.type))
        scope = ListingScope(graph, bind(graph, ports))
        for out in graph.outputs:
            scope.send(out.value, ArraySlice(MemoryArray(next(names)), laid_out(graph, out)))
        self.graph(scope)

    def graph(self, scope: ListingScope) -> None:
        self.scopes.append(scope)
        scope.join_in_place()
        for i, node in scope.graph.nodes.items():
            self.current = i
            if i not in scope.inlined:
                self.node(scope, i, node)
            self.current = i  # again, after the body of a map
            for port in range(len(node.types)):
                self.store(scope, Value(i, port))
            for fold in scope.folds.get(i, ()):
                written = [self.value(scope, v) for v in fold.values]
                self.fold(scope.depth, fold.combiner, fold.accumulators, written)

    def node(self, scope: ListingScope, i: int, node: Node) -> None:
        places, value = scope.places, Value(i)
        match node.op:
            case Input():
                pass
            case Elementwise() | BlockReduce() | Scan() | Dot() as op:
                text, axes = self.call(scope, op, node)
                item = places[value] = Item(axes, self.names.numbered("t"))
                self.line_of(scope.depth, item, f"{item.name} = {text}")
            case Take() as op:
                text, axes = self.take(scope, op, node)
                item = places[value] = Item(axes, self.names.numbered("t"))
                self.line_of(scope.depth, item, f"{item.name} = {text}")
            case Map() as op:
                self.map(scope, i, node, op)
            case Reduce() as op:
                self.reduce(scope, i, node, op)
            case Rename() as op:
                places[value] = self.rename(scope, node, op)
            case Pick() as op:
                places[value] = scope.iterated(node.inputs[0], op.dim, str(op.index))
            case Join():
                home = places[value] = scope.home(value)
                if i not in scope.joined:
                    first, rest = (self.value(scope, v).text for v in node.inputs)
                    self.line(scope.depth, f"{self.text(home)} = join({first},{rest})")
            case Iota() as op:
                array = MemoryArray(axes=item_axes(node.types[0]), virtual=True)
                places[value] = ArraySlice(array, (op.dim,))
            case Misc() as op:
                self.misc(scope, i, node, op)

    # ------------------------------------------------------------------ values

    def text(self, part: ArraySlice) -> str:
        """The array and its indices, `:` for one that is open."""
        array = part.array
        if array.virtual:
            texts = (self.names.bound(i) if isinstance(i, Dim) else i for i in part.indices)
            return f"index({','.join(texts)})"
        array.name = array.name or self.names.numbered("I")
        if len(part.open) == len(part.indices):
            return array.name
        return f"{array.name}[{','.join(':' if isinstance(i, Dim) else i for i in part.indices)}]"

    def value(self, scope: ListingScope, value: Value) -> ItemText:
        """A value as an operand."""
        if value.node in scope.inlined:
            return self.call(scope, scope.inlined[value.node], scope.graph[value.node])
        place = scope.places[value]
        if isinstance(place, Item):
            return self.load(scope.depth, place)
        items = item_axes(scope.graph.type(value)) if place.array.axes is None else place.array.axes
        return ItemText(self.text(place), items)

    def load(self, depth: int, item: Item) -> ItemText:
        """The name of an item, after a line that loads it if it is not loaded yet."""
        if not item.name:
            assert item.source is not None
            array, text = item.source.array, self.text(item.source)
            item.axes = item.axes if array.axes is None else array.axes
            item.name = self.names.numbered("t")
            self.line(depth, f"{item.name} = {text if array.virtual else f'load({text})'}")
        return ItemText(item.name, item.axes)

    def call(self, scope: ListingScope, op: Functional, node: Node) -> ItemText:
        operands = [self.value(scope, v) for v in node.inputs]
        if isinstance(op, Elementwise) and tree_size(op.expr, limit=_LONG) > _LONG:
            names = [o.text for o in operands]
            (expr,) = self.shared(scope.depth, [op.expr], names, {})
            return ItemText(format_expr(expr, names), item_axes(node.types[0]))
        return write(op, operands, scope.axes)

    def take(self, scope: ListingScope, op: Take, node: Node) -> ItemText:
        table, places = (self.value(scope, v) for v in node.inputs)
        kept = (axis for axis in table.axes if axis is not op.axis)
        axes = tuple(dict.fromkeys((*places.axes, *kept)))
        return ItemText(f"take({table.text},{places.text})", axes)

    def store(self, scope: ListingScope, value: Value) -> None:
        """Stores a value in each requested place in which it was not built."""
        for target in scope.stores.get(value, ()):
            place, (text, axes) = scope.places[value], self.value(scope, value)
            target.array.axes = axes
            if isinstance(place, Item):
                self.line(scope.depth, f"store({text},{self.text(target)})")
            else:
                word = "copy" if place.open == target.open else "transpose"
                self.line(scope.depth, f"{self.text(target)} = {word}({text})")

    # ------------------------------------------------------------------- loops

    def loop(self, depth: int, dim: Dim, variable: str, first: int, *, serial: bool) -> None:
        word = "for" if serial and not self.lock else "forall"
        start = f"{first}," if first else ""
        self.line(depth, f"{word} {variable} in range({start}{self.names.bound(dim)}):")

    def map(self, scope: ListingScope, i: int, node: Node, op: Map) -> None:
        variable = self.names.variable(op.dim, scope.loops)
        read = inputs_read(op.body, self.read)
        ports: list[Location] = []
        for port, (value, iterated) in enumerate(zip(node.inputs, op.iterated, strict=True)):
            place = scope.places[value]
            if iterated:
                place = scope.iterated(value, op.dim, variable)
            elif isinstance(place, Item) and port in read:
                self.load(scope.depth, place)  # before the loop, not in it
            ports.append(place)
        self.loop(scope.depth, op.dim, variable, op.first, serial=op.reduces or op.scans)
        loops, axes = (*scope.loops, variable), (*scope.axes, op.dim.axis)
        inner = ListingScope(op.body, bind(op.body, ports), loops, axes, (*scope.path, i))
        gathered: list[tuple[Value, Item]] = []
        for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
            value = Value(i, port)
            if mode is None:
                home = scope.places[value] = scope.home(value)
                inner.send(out.value, home.at(op.dim, variable))
                continue
            accumulator = scope.places[value] = Item(())
            gathered.append((out.value, accumulator))
            if len(gathered) == mode.combiner.arity:
                values, accumulators = zip(*gathered, strict=True)
                inner.accumulate(
                    Accumulation(mode.combiner, values, accumulators), inline=not self.lock
                )
                gathered = []
        self.graph(inner)

    def reduce(self, scope: ListingScope, i: int, node: Node, op: Reduce) -> None:
        variable = self.names.variable(op.dim, scope.loops)
        makers = [scope.graph.op(v.node) for v in node.inputs]
        peeled = [m.first for m in makers if isinstance(m, Map) and m.dim is op.dim]
        self.loop(scope.depth, op.dim, variable, max(peeled, default=0), serial=True)
        written: list[ItemText] = []
        for value in node.inputs:
            source = scope.slice_at(value, op.dim, variable)
            item = Item(item_axes(scope.graph.type(value).iterate(op.dim)), source=source)
            written.append(self.load(scope.depth + 1, item))
        accumulators = [Item(()) for _ in node.types]
        self.fold(scope.depth + 1, op.combiner, accumulators, written)
        scope.places.update((Value(i, port), item) for port, item in enumerate(accumulators))

    def fold(
        self, depth: int, combiner: Combiner, into: Sequence[Item], written: Sequence[ItemText]
    ) -> None:
        """Adds the results of one iteration to the accumulators, which are named here."""
        for accumulator, (_, axes) in zip(into, written, strict=True):
            accumulator.axes, accumulator.name = axes, self.names.numbered("t")
        if self.lock:
            self.line(depth, "with lock:")
            depth += 1
        target, text = into[0].name, written[0].text
        if combiner in (ADD, MUL):
            self.line_of(depth, into[0], f"{target} {'+' if combiner is ADD else '*'}= {text}")
        elif combiner in SIMPLE.values():
            self.line_of(depth, into[0], f"{target} = {combiner}({target},{text})")
        else:
            names = [*(a.name for a in into), *(w.text for w in written)]
            self.parts[id(into[0])] = self.fold_tuple(depth, combiner, names)

    def fold_tuple(self, depth: int, combiner: Combiner, names: list[str]) -> dict[Expr, str]:
        """Prints dependent components: shared parts first, then all at once; names the parts."""
        parts: dict[Expr, str] = {}
        made = self.shared(depth, combiner.combine, names, parts)
        results = ",".join(format_expr(e, names) for e in made)
        self.line(depth, f"{','.join(names[: combiner.arity])} = {results}")
        return parts

    def shared(
        self, depth: int, exprs: Sequence[Expr], names: list[str], parts: dict[Expr, str]
    ) -> list[Expr]:
        """The expressions after a line for each part that is used twice.

        `names` and `parts` get their names.
        """
        nodes = list(postorder(*exprs))
        uses = Counter(exprs) + Counter(a for node in nodes for a in node.args)
        made: dict[Expr, Expr] = {}
        for node in nodes:
            made[node] = with_operands(node, (made[a] for a in node.args))
            if node.args and uses[node] > 1:
                text = format_expr(made[node], names)
                made[node] = arg(len(names))
                names.append(self.names.numbered("t"))
                parts[node] = names[-1]
                self.line(depth, f"{names[-1]} = {text}")
        return [made[expr] for expr in exprs]

    # ------------------------------------------------------------ other operators

    def rename(self, scope: ListingScope, node: Node, op: Rename) -> ArraySlice:
        """The list under an alias: nothing moves."""
        (value,) = node.inputs
        part, kind = scope.places[value], scope.graph.type(value)
        whole = tuple(d for d in kind.items if d.unit and d not in kind.lists)
        dims = dict(zip((*kind.lists, *whole), node.types[0].lists, strict=True))
        text, axes = self.value(scope, value)
        axes = tuple(op.new if axis is op.old else axis for axis in axes)
        if isinstance(part, ArraySlice) and part.array.virtual:
            alias = MemoryArray(axes=axes, virtual=True)
        else:
            name = part.array.name if isinstance(part, ArraySlice) else self.names.numbered("I")
            alias = MemoryArray(self.names.claim(f"{name}R"), axes)
            self.line(scope.depth, f"{alias.name} = rename({text}, {op.old}->{op.new})")
        walked = part.open if isinstance(part, ArraySlice) else kind.lists
        return ArraySlice(alias, tuple(dims[d] for d in (*walked, *whole)))

    def misc(self, scope: ListingScope, i: int, node: Node, op: Misc) -> None:
        layouts = op.layouts or (None,) * len(node.inputs)
        arguments = [
            self.handed_over(scope, value, layout)
            for value, layout in zip(node.inputs, layouts, strict=True)
        ]
        arguments += [f"{name}={value!r}" for name, value in op.attributes]
        targets: list[str] = []
        for port, kind in enumerate(op.results):
            value = Value(i, port)
            if kind.is_list:
                home = scope.places[value] = scope.home(value)
                home.array.axes = item_axes(kind)
                targets.append(self.text(home))
            else:
                item = scope.places[value] = Item(item_axes(kind), self.names.numbered("t"))
                targets.append(item.name)
        call = f"{op.namespace}.{op.name}({', '.join(arguments)})"
        self.line(scope.depth, f"{','.join(targets)} = {call}" if targets else call)

    def handed_over(
        self, scope: ListingScope, value: Value, layout: tuple[Axis, ...] | None
    ) -> str:
        """An operand of a misc operator, transposed if it needs another order of axes."""
        place, (text, axes) = scope.places[value], self.value(scope, value)
        lists = tuple(dim.axis for dim in place.open) if isinstance(place, ArraySlice) else ()
        shown = (*lists, *(axis for axis in axes if axis not in lists))
        if layout is None or layout == shown:
            return text
        if layout == shown[::-1]:
            return f"{text}.T"
        return (
            f"transpose({text}, {'->'.join(','.join(map(str, axes)) for axes in (shown, layout))})"
        )
