"""Demand analysis: the axes over which each exponential is summed, and uses of plain numbers.

The analysis looks at the program before the rewrite. It follows values through maps in both
directions: into the bodies that read a value, and out of the body that computes it.
"""

from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, ANY
from blockbuster_fusion.ir.expr import contains
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Map,
    Pick,
    Reduce,
    Value,
)
from blockbuster_fusion.safety.linearity import (
    is_inverse,
    is_linear,
    is_power,
    is_summand,
    takes_log,
)


@dataclass(frozen=True, slots=True)
class Demand:
    """The uses of a value: summed over `axes`, by linear operators only, or used otherwise.

    `multiplied`: before the sum it is multiplied by factors that may have exponents to cancel. A
    factor that varies along an axis of the sum is another use: it may enlarge small elements.
    `alone`: the axes along which it is summed without such a factor. `logged`: the program takes
    the logarithm of it, or of a sum of a few such values.
    """

    axes: frozenset[Axis] = frozenset()
    otherwise: bool = False
    multiplied: bool = False
    alone: frozenset[Axis] = frozenset()
    logged: bool = False

    @property
    def needs_exponent(self) -> bool:
        return bool(self.axes) or self.multiplied or self.logged

    def __or__(self, other: "Demand") -> "Demand":
        return Demand(
            self.axes | other.axes,
            self.otherwise or other.otherwise,
            self.multiplied or other.multiplied,
            self.alone | other.alone,
            self.logged or other.logged,
        )


SUMS = ("add", "sub")
NONE = Demand()
OTHERWISE = Demand(otherwise=True)


def summed_over(axis: Axis) -> Demand:
    """The demand of a sum."""
    return Demand(frozenset({axis}), alone=frozenset({axis}))


class Demands:
    """The demands in one graph; for a body, `outer` has the demands around its map."""

    def __init__(self, graph: Graph, outer: "tuple[Demands, int] | None" = None) -> None:
        self.graph = graph
        self.outer = outer
        self._inside: dict[int, Demands] = {}
        self._filled = False
        self._known: dict[Value, Demand] = {}
        self._plain: dict[Value, bool] = {}
        self._any_form: dict[Value, bool] = {}

    def inside(self, node: int) -> "Demands":
        """The demands in the body of a map."""
        if node not in self._inside:
            self._inside[node] = Demands(self.graph.map(node).body, (self, node))
        return self._inside[node]

    def of(self, value: Value) -> Demand:
        """The uses of a value."""
        self._fill()
        if value not in self._known:
            self._known[value] = self._found(value)
        return self._known[value]

    def _fill(self) -> None:
        """Finds all demands, users before operands."""
        if self._filled:
            return
        if self.outer is not None:
            self.outer[0]._fill()
        self._filled = True
        for i, node in reversed(list(self.graph.nodes.items())):
            for port in range(len(node.types)):
                self.of(Value(i, port))

    def _found(self, value: Value) -> Demand:
        made = NONE
        for user, port in self.graph.uses(value):
            made |= self._through(user, port)
        for number, out in enumerate(self.graph.outputs):
            if out.value == value:
                made |= self._beyond(number)
        return made

    def _through(self, user: int, port: int) -> Demand:
        op = self.graph.op(user)
        match op:
            case Elementwise():
                return self._through_elementwise(user, port, op)
            case BlockReduce() | Reduce():
                summed = op.combiner is ADD
                return summed_over(op.dim.axis) if summed else OTHERWISE
            case Dot():
                return summed_over(op.dim.axis)
            case Pick():
                return self.of(Value(user))
            case Map():
                return self.inside(user).of(Value(op.body.inputs[port]))
        return OTHERWISE

    def _through_elementwise(self, user: int, port: int, op: Elementwise) -> Demand:
        found = self.of(Value(user))
        others = [v for at, v in enumerate(self.graph[user].inputs) if at != port]
        if is_linear(op.expr, port):
            axes = {dim.axis for v in others for dim in self.graph.type(v).items}
            return Demand(
                found.axes,
                found.otherwise or bool(axes & found.axes),
                found.multiplied or bool(others),
                found.alone - axes,
                found.logged,
            )
        if is_inverse(op.expr, port):
            return Demand(found.axes, otherwise=True, multiplied=True, logged=found.logged)
        if is_power(op.expr, port) and found.needs_exponent:
            return Demand(otherwise=True, multiplied=True, logged=found.logged)
        if op.expr.op in SUMS and any(self.sums_exponentials(v) for v in others):
            return Demand(otherwise=True, multiplied=True)  # at that sum's exponent, or its own
        logged = takes_log(op.expr, port) or (found.logged and is_summand(op.expr, port))
        return Demand(otherwise=True, logged=logged)

    def sums_exponentials(self, value: Value) -> bool:
        """True if a value is computed from sums of exponentials, which have an exponent."""
        pending: list[tuple[Demands, Value, bool]] = [(self, value, False)]
        done: set[tuple[int, Value, bool]] = set()
        while pending:
            level, v, summed = pending.pop()
            if (id(level), v, summed) in done:
                continue
            done.add((id(level), v, summed))
            node = level.graph[v.node]
            match node.op:
                case Elementwise(expr=expr):
                    if summed and contains(expr, "exp", "exp2"):
                        return True
                    pending += [
                        (level, operand, summed)
                        for at, operand in enumerate(node.inputs)
                        if expr.op in SUMS or is_linear(expr, at)
                    ]
                case BlockReduce() | Reduce() if node.op.combiner is ADD:
                    pending.append((level, node.inputs[0], True))
                case Dot():
                    pending += [(level, operand, True) for operand in node.inputs]
                case Pick():
                    pending.append((level, node.inputs[0], summed))
                case Map(body=body, modes=modes):
                    mode = modes[v.port]
                    carried = mode is not None and mode.combiner is ADD
                    out = body.outputs[v.port].value
                    pending.append((level.inside(v.node), out, summed or carried))
                case Input() if level.outer is not None:
                    outer, at = level.outer
                    port = level.graph.inputs.index(v.node)
                    pending.append((outer, outer.graph[at].inputs[port], summed))
        return False

    def _beyond(self, number: int) -> Demand:
        if self.outer is None:
            return OTHERWISE
        level, node = self.outer
        op = level.graph.map(node)
        mode = op.modes[number]
        if mode is None or mode.combiner is ANY:
            return level.of(Value(node, number))
        return summed_over(op.dim.axis) if mode.combiner is ADD else OTHERWISE

    # ---------------------------------------------------------------- in which form

    def wants_plain(self, value: Value) -> bool:
        """True if a use needs plain numbers: an output, a misc operator or a rename."""
        if value not in self._plain:
            users = any(self._plain_through(*use) for use in self.graph.uses(value))
            self._plain[value] = users or any(
                self._plain_beyond(number)
                for number, out in enumerate(self.graph.outputs)
                if out.value == value
            )
        return self._plain[value]

    def takes_any_form(self, value: Value) -> bool:
        """True if a use accepts any form."""
        if value not in self._any_form:
            users = any(not self._plain_through(*use) for use in self.graph.uses(value))
            self._any_form[value] = users or any(
                self._any_form_beyond(number)
                for number, out in enumerate(self.graph.outputs)
                if out.value == value
            )
        return self._any_form[value]

    def _plain_through(self, user: int, port: int) -> bool:
        op = self.graph.op(user)
        match op:
            case Elementwise() | BlockReduce() | Dot():
                return False
            case Pick():
                return self.wants_plain(Value(user))
            case Reduce():
                return op.combiner is not ADD
            case Map():
                inner = Value(op.body.inputs[port])
                return op.body.type(inner).is_list and self.inside(user).wants_plain(inner)
        return True

    def _plain_beyond(self, number: int) -> bool:
        if self.outer is None:
            return True
        level, node = self.outer
        mode = level.graph.map(node).modes[number]
        if mode is None:
            return level.wants_plain(Value(node, number))
        return mode.combiner not in (ADD, ANY)

    def _any_form_beyond(self, number: int) -> bool:
        if self.outer is None:
            return False
        level, node = self.outer
        mode = level.graph.map(node).modes[number]
        return mode is not None or level.takes_any_form(Value(node, number))
