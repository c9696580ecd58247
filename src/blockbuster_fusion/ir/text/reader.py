"""Reading the text form of a program: the statements."""

from collections.abc import Callable
from dataclasses import dataclass, field

from blockbuster_fusion.errors import IllTyped
from blockbuster_fusion.ir.axis import Axis, Dim, Extent, Symbol
from blockbuster_fusion.ir.combiner import Combiner, Mode
from blockbuster_fusion.ir.expr import arity
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Into,
    Iota,
    Join,
    Map,
    Misc,
    Node,
    Op,
    Output,
    Pick,
    Plain,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.text.parts import PartsReader, combiner_label
from blockbuster_fusion.ir.text.scanner import Scanner, Token, name_or_string
from blockbuster_fusion.ir.types import Type


@dataclass(slots=True)
class _Open:
    """A graph that is being read, and the head of the map around it."""

    opened: Token
    node: int = -1
    dim: Dim | None = None
    first: int = 0
    operands: tuple[Value, ...] = ()
    iterated: tuple[bool, ...] = ()
    nodes: dict[int, Node] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    order: list[int] | None = None
    outputs: list[Output] = field(default_factory=list)
    modes: list[Mode] = field(default_factory=list)
    yielded: bool = False


class Reader:
    """Reads statements one after another, with a stack of open graphs."""

    def __init__(self, text: str) -> None:
        self.scanner = Scanner(text)
        self.parts = PartsReader(self.scanner)
        self.ids: set[int] = set()
        self.open: list[_Open] = []
        self.operators: dict[str, Callable[[], tuple[Op, tuple[Value, ...]]]] = {
            "input": self.input,
            "apply": self.elementwise,
            "block_reduce": self.block_reduce,
            "scan": self.scan,
            "dot": self.dot,
            "take": self.take,
            "reduce": self.reduce,
            "rename": self.rename,
            "pick": self.pick,
            "join": self.join,
            "iota": self.iota,
            "misc": self.misc,
        }
        self.statements: dict[str, Callable[[], None]] = {
            "axis": self.axis_statement,
            "combiner": self.combiner_statement,
            "inputs": self.inputs_statement,
            "output": self.output_statement,
            "yield": self.yield_statement,
        }

    @property
    def here(self) -> _Open:
        """The innermost open graph."""
        return self.open[-1]

    def program(self) -> Graph:
        scanner = self.scanner
        scanner.skip_lines()
        if scanner.token.kind == "end":
            raise scanner.error("the text is empty: expected `program {`")
        scanner.expect("program", "at the beginning")
        self.open.append(_Open(scanner.token))
        scanner.expect("{", "after program")
        scanner.end_line()
        while True:
            scanner.skip_lines()
            if scanner.token.text == "}":
                closed = self.here
                graph = self.close()
                if not self.open:
                    break
                self.add_map(closed, graph)
            elif scanner.token.kind == "end":
                raise scanner.expected(f"`}}` for the `{{` of line {self.here.opened.line}")
            else:
                self.statement()
        scanner.skip_lines()
        if scanner.token.kind != "end":
            raise scanner.expected("nothing after the program's `}`")
        return graph

    # ---------------------------------------------------------------- statements

    def statement(self) -> None:
        scanner, token = self.scanner, self.scanner.token
        if self.here.yielded:
            raise scanner.expected("`}` after yield, which is the last line of a map's body")
        if token.kind == "value":
            self.node_statement()
        elif token.text in self.statements:
            if token.text in ("axis", "combiner") and len(self.open) > 1:
                raise scanner.error(f"{token} stands at the head of the program, not in a map")
            scanner.take()
            self.statements[token.text]()
        else:
            known = ", ".join(self.statements)
            raise scanner.expected(f"a node such as `%3 = …`, {known} or `}}`")

    def axis_statement(self) -> None:
        scanner, token = self.scanner, self.scanner.token
        name = scanner.visible_name("the name of an axis")
        if name in self.parts.axes:
            raise scanner.error(f"axis {name_or_string(name)} is declared already", token)
        scanner.expect("=", "after the axis")
        if scanner.token.text == "-":
            raise scanner.error("the extent of an axis cannot be negative")
        what = "an extent, which is a whole number or a symbol"
        extent: Extent
        if scanner.token.kind == "number":
            extent = scanner.integer(what)
        else:
            extent = Symbol(scanner.visible_name(what))
        self.parts.axes[name] = Axis(name, extent)
        scanner.end_line()

    def combiner_statement(self) -> None:
        scanner, token = self.scanner, self.scanner.token
        key = self.parts.combiner_name()
        if key in self.parts.combiners:
            raise scanner.error(f"combiner {combiner_label(key)} is known already", token)
        if key == ("stack", 1):
            raise scanner.error("a combiner cannot be called stack: write stack'2", token)
        scanner.expect("=", "after the combiner")
        scanner.expect("(", "before the identities")
        identity: list[float] = []
        while not scanner.accept(")"):
            if identity:
                scanner.expect(",", "or `)` after an identity")
            identity.append(self.parts.plain_number())
        exprs = self.parts.expr_block()
        if len(identity) != len(exprs):
            counts = f"{len(identity)} identities and {len(exprs)} expressions"
            raise scanner.error(f"a combiner has one of each for a component, not {counts}", token)
        if arity(*exprs) > 2 * len(exprs):
            problem = f"{len(exprs)} components have the arguments x0 to x{2 * len(exprs) - 1}"
            raise scanner.error(f"{problem}, not x{arity(*exprs) - 1}", token)
        self.parts.combiners[key] = Combiner(key[0], tuple(identity), exprs)
        scanner.end_line()

    def inputs_statement(self) -> None:
        scanner, token = self.scanner, self.scanner.token
        order: list[int] = []
        while not order or scanner.accept(","):
            order.append(self.operand().node)
        if self.here.order is not None:
            raise scanner.error("the order of the inputs is given already", token)
        self.here.order = order
        scanner.end_line()

    def output_statement(self) -> None:
        scanner = self.scanner
        if len(self.open) > 1:
            raise scanner.error("outputs are the program's: a map's body has yield", scanner.token)
        name = scanner.string("the output's name in quotes")
        scanner.expect("=", "after the output's name")
        value, layout = self.operand(), self.parts.layout()
        self.here.outputs.append(Output(name, value, layout, self.into()))
        scanner.end_line()

    def into(self) -> Into | None:
        """The place of an output in an input, if it has one."""
        scanner = self.scanner
        if not scanner.accept("into"):
            return None
        base = self.input_number()
        scanner.expect("along", "after the array that an output is written into")
        axis = self.parts.axis()
        scanner.expect("at", "after the axis along which an output is placed")
        return Into(base, self.input_number(), axis)

    def input_number(self) -> int:
        """The number of an input among those before."""
        token, node = self.scanner.token, self.operand().node
        inputs = self.here.order or self.here.inputs
        if node not in inputs:
            raise self.scanner.error(f"%{node} is no input of the program", token)
        return inputs.index(node)

    def yield_statement(self) -> None:
        scanner = self.scanner
        if len(self.open) == 1:
            raise scanner.error("yield stands in the body of a map: a program has outputs")
        while scanner.token.kind != "newline":
            if self.here.outputs:
                scanner.expect(",", "or the end of the line after a yield")
            value = self.operand()
            self.here.modes.append(self.parts.mode())
            name = scanner.string("a name") if scanner.token.kind == "string" else ""
            self.here.outputs.append(Output(name, value, self.parts.layout()))
        self.here.yielded = True
        scanner.end_line()

    def close(self) -> Graph:
        """The innermost graph, at the brace that ends it."""
        scanner, token, closed = self.scanner, self.scanner.take(), self.open.pop()
        if self.open and not closed.yielded:
            raise scanner.error("the map yields nothing: expected a yield line before `}`", token)
        inputs = closed.inputs
        if closed.order is not None:
            if sorted(closed.order) != sorted(inputs):
                raise scanner.error("`inputs` must list each input of the graph once", token)
            inputs = closed.order
        return Graph(closed.nodes, inputs, closed.outputs)

    # ---------------------------------------------------------------- nodes

    def node_statement(self) -> None:
        scanner = self.scanner
        node, port, token = scanner.value()
        if port is not None:
            raise scanner.error(f"a node is defined as %{node}, without a port", token)
        if node in self.ids:
            raise scanner.error(f"%{node} is defined already: ids are unique in a program", token)
        self.ids.add(node)
        scanner.expect("=", f"after %{node}")
        name = scanner.token
        if name.text == "map":
            scanner.take()
            self.map_head(node, token)
            return
        if name.text not in self.operators:
            known = ", ".join((*self.operators, "map"))
            raise scanner.error(f"unknown operator {name}: expected one of {known}")
        scanner.take()
        op, operands = self.operators[name.text]()
        scanner.end_line()
        self.add(node, token, op, operands)
        if isinstance(op, Input):
            self.here.inputs.append(node)

    def add(self, node: int, token: Token, op: Op, operands: tuple[Value, ...]) -> None:
        nodes = self.here.nodes
        try:
            types = infer(op, [nodes[v.node].types[v.port] for v in operands])
        except IllTyped as problem:
            raise self.scanner.error(str(problem), token) from problem
        nodes[node] = Node(op, operands, types)

    def map_head(self, node: int, token: Token) -> None:
        scanner = self.scanner
        scanner.expect("(", "before the operands")
        operands: list[Value] = []
        iterated: list[bool] = []
        while not scanner.accept(")"):
            if operands:
                scanner.expect(",", "or `)` after an operand")
            if scanner.token.text not in ("each", "whole"):
                raise scanner.expected("`each` or `whole` before the operand of a map")
            iterated.append(scanner.take().text == "each")
            operands.append(self.operand())
        dim = self.parts.over()
        first = scanner.integer("the first block, 0 or 1") if scanner.accept("from") else 0
        if first > 1:
            raise scanner.error(f"a map starts at block 0 or 1, not {first}", token)
        scanner.expect("{", "before the body of the map")
        scanner.end_line()
        self.open.append(_Open(token, node, dim, first, tuple(operands), tuple(iterated)))

    def add_map(self, closed: _Open, body: Graph) -> None:
        self.scanner.end_line()
        assert closed.dim is not None
        op = Map(closed.dim, body, closed.iterated, tuple(closed.modes), closed.first)
        self.add(closed.node, closed.opened, op, closed.operands)

    def input(self) -> tuple[Op, tuple[Value, ...]]:
        name = self.scanner.string("the input's name in quotes")
        self.scanner.expect(":", "and a type after the input's name")
        return Input(name, self.parts.type()), ()

    def elementwise(self) -> tuple[Op, tuple[Value, ...]]:
        token, operands = self.scanner.token, self.operands()
        if self.scanner.token.text == "{":
            exprs = self.parts.expr_block()
            if len(exprs) != 1:
                problem = f"apply returns one expression, not {len(exprs)}"
                raise self.scanner.error(problem, token)
            (expr,) = exprs
        else:
            expr = self.parts.expr({})
        if arity(expr) != len(operands):
            problem = f"the expression takes {arity(expr)} operands and has {len(operands)}"
            raise self.scanner.error(problem, token)
        return Elementwise(expr), operands

    def block_reduce(self) -> tuple[Op, tuple[Value, ...]]:
        operands, dim = self.operands(), self.parts.over()
        return BlockReduce(dim, self.parts.by()), operands

    def scan(self) -> tuple[Op, tuple[Value, ...]]:
        operands, dim = self.operands(), self.parts.over()
        return Scan(dim, self.parts.by()), operands

    def dot(self) -> tuple[Op, tuple[Value, ...]]:
        operands = self.operands()
        dim = self.parts.over()
        return Dot(dim, self.parts.dtype() if self.scanner.accept("in") else None), operands

    def take(self) -> tuple[Op, tuple[Value, ...]]:
        operands = self.operands()
        self.scanner.expect("along", "and an axis after the operands")
        return Take(self.parts.axis()), operands

    def reduce(self) -> tuple[Op, tuple[Value, ...]]:
        operands, dim = self.operands(), self.parts.over()
        return Reduce(dim, self.parts.by()), operands

    def rename(self) -> tuple[Op, tuple[Value, ...]]:
        operands, old = self.operands(), self.parts.axis()
        self.scanner.expect("->", "between the old axis and the new one")
        return Rename(old, self.parts.axis()), operands

    def pick(self) -> tuple[Op, tuple[Value, ...]]:
        operands, dim = self.operands(), self.parts.over()
        self.scanner.expect("at", "before the element's index")
        sign = -1 if self.scanner.accept("-") else 1
        return Pick(dim, sign * self.scanner.integer("the element's index")), operands

    def join(self) -> tuple[Op, tuple[Value, ...]]:
        operands = self.operands()
        return Join(self.parts.over()), operands

    def iota(self) -> tuple[Op, tuple[Value, ...]]:
        return Iota(self.parts.over()), ()

    def misc(self) -> tuple[Op, tuple[Value, ...]]:
        scanner, operands = self.scanner, self.operands()
        namespace = scanner.name("the operator's namespace")
        scanner.expect(".", "between namespace and name")
        name = scanner.name("the operator's name")
        attributes: list[tuple[str, Plain]] = []
        if scanner.accept("{"):
            while not scanner.accept("}"):
                if attributes:
                    scanner.expect(",", "or `}` after an attribute")
                key = scanner.name("the name of an attribute")
                scanner.expect("=", "after the attribute's name")
                attributes.append((key, self.parts.plain()))
        layouts: list[tuple[Axis, ...]] = []
        if scanner.accept("of"):
            while not layouts or scanner.accept(","):
                if scanner.token.text != "[":
                    raise scanner.expected("`[`, the order of an operand's axes")
                layouts.append(self.parts.layout())
        results: list[Type] = []
        if scanner.accept(":"):
            while not results or scanner.accept(","):
                results.append(self.parts.type())
        op = Misc(namespace, name, tuple(attributes), tuple(results), tuple(layouts))
        return op, operands

    def operands(self) -> tuple[Value, ...]:
        self.scanner.expect("(", "before the operands")
        operands: list[Value] = []
        while not self.scanner.accept(")"):
            if operands:
                self.scanner.expect(",", "or `)` after an operand")
            operands.append(self.operand())
        return tuple(operands)

    def operand(self) -> Value:
        node, port, token = self.scanner.value()
        value = Value(node, port or 0)
        if node not in self.here.nodes:
            if any(node in around.nodes for around in self.open):
                remedy = "list it among the map's operands and read the body's input"
                problem = f"%{node} is defined outside this map, and a body is closed: {remedy}"
            else:
                problem = f"%{node} is not defined above"
            raise self.scanner.error(problem, token)
        if value.port >= (count := len(self.here.nodes[node].types)):
            raise self.scanner.error(f"{value}: %{node} has {count} result(s)", token)
        return value
