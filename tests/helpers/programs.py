"""Random array programs: batch axes, grouped heads, shared axes, several outputs."""

import random
from collections.abc import Sequence

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.array.primitives import Primitives
from blockbuster_fusion.array.program import (
    ArrayInput,
    ArrayOutput,
    ArrayProgram,
    ArrayType,
    Operator,
)
from blockbuster_fusion.array.table import expand
from blockbuster_fusion.ir.axis import Axis, Symbol
from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX
from blockbuster_fusion.ir.expr import Expr, arg, call, size
from blockbuster_fusion.ir.types import DType

UNARY = [
    call("sin", arg(0)),
    call("tanh", arg(0)),
    call("cos", arg(0)) ** 2,
    arg(0) * 0.5,
    -arg(0) + 1.0,
    call("maximum", arg(0), 0),
    call("exp", call("sin", arg(0))),
    1 / (1 + arg(0) ** 2),
    arg(0) / (1 + call("exp", -call("tanh", arg(0)))),
]
"""Functions that keep values of moderate size: the sine of a large number is only noise."""

LINEAR = [
    arg(0) * arg(1),
    arg(1) * arg(0),
    arg(0) / arg(1),
    arg(0) + arg(1),
    arg(1) + arg(0),
    arg(0) - arg(1),
]
"""Scales and shifts of the first operand by the second, which is not zero."""

BATCH = ("B", "G", "R")
ROWS = ("M", "N")
COLUMNS = ("D", "E", "K", "L")
PAIRED = 0.15
"""The probability of a pair: two values of which each has an axis that the other lacks."""


def extents(name: str) -> tuple[int, ...]:
    """The lengths of an axis: small, since a program of many loops is run step by step."""
    return (1, 2, 2, 3) if name in BATCH else (1, 2, 3, 3, 4, 5)


class RandomProgram:
    """Grows a program operator by operator; every choice comes from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pairing = random.Random(f"pairs {seed}")
        """Decides where values are paired, so that programs without pairs stay the same."""
        self.scanning = random.Random(f"scans {seed}")
        """Decides which operators of NumPy are scans of block programs instead."""
        self.inputs: list[ArrayInput] = []
        self.operators: list[tuple[str, tuple[int, ...], dict[str, object], ArrayType]] = []
        self.values: dict[int, ArrayType] = {}
        self.used: set[int] = set()
        self.renamed = 0
        symbolic = self.random.random() < 0.5
        self.axes = {
            name: Axis(name, Symbol(name * 2) if symbolic else self.random.choice(extents(name)))
            for name in (*BATCH, *ROWS, *COLUMNS)
        }

    # ---------------------------------------------------------------- parts

    def input(self, axes: Sequence[Axis]) -> int:
        """A new input, or one with the same axes that is there already."""
        kind = ArrayType(tuple(axes), DType.float32)
        same = [-1 - i for i, given in enumerate(self.inputs) if given.type == kind]
        if same and self.random.random() < 0.3:
            return self.random.choice(same)
        self.inputs.append(ArrayInput(f"X{len(self.inputs)}", kind))
        self.values[-len(self.inputs)] = kind
        return -len(self.inputs)

    def apply(self, name: str, /, *operands: int, **attributes: object) -> int:
        """A new operator; operands that are equal are one operand."""
        p = Primitives()
        refs = [p.given(str(v), self.values[v]) for v in operands]
        kind = expand(p, name, refs, dict(attributes)).type
        self.operators.append((name, operands, attributes, kind))
        self.used.update(operands)
        self.values[len(self.operators) - 1] = kind
        return len(self.operators) - 1

    def elementwise(self, expr: Expr, *operands: int) -> int:
        return self.apply("elementwise", *operands, expr=expr)

    def axis_of(self, value: int) -> Axis | None:
        """An axis of a value that may be reduced."""
        axes = [a for a in self.values[value].axes if a.name not in BATCH]
        return self.random.choice(axes) if axes else None

    def pick(self) -> int:
        """A value to go on with; mostly a late one."""
        made = sorted(v for v in self.values if v >= 0)
        if made and self.random.random() < 0.75:
            return self.random.choice(made[-3:])
        return self.random.choice(list(self.values))

    # ---------------------------------------------------------------- operators

    def grow(self) -> None:
        x = self.pick()
        axis = self.axis_of(x)
        if axis is not None and self.pairing.random() < PAIRED:
            self.paired(x, axis)
            return
        choices = [self.unary, self.binary, self.weight, self.mask] + [self.chain] * 3
        if axis is not None:
            choices += [self.matmul, self.norm, self.softmax, self.scale_by_sum, self.shift_by_sum]
            choices += [self.total, self.self_product, self.misc]
            choices += [self.shared_scale] * 6 + [self.scaled_matmul] * 5
        self.random.choice(choices)(x, axis)

    def finish(self) -> int:
        """An end after which everything can be extended into one map: a matmul, mostly."""
        x = self.pick()
        axis = self.axis_of(x)
        if axis is None:
            return self.chain(x, None)
        ends = [self.scaled_matmul, self.attention, self.attention, self.two_matmuls]
        return self.random.choice(ends)(x, axis)

    def unary(self, x: int, _axis: Axis | None) -> int:
        expr = self.random.choice(UNARY)
        if self.values[x].dtype is DType.bool_:
            expr = call("where", arg(0), 0.5, -1.0)  # a mask has no negative
        return self.elementwise(expr, x)

    def binary(self, x: int, _axis: Axis | None) -> int:
        """With another value whose axes this one has, or the other way round."""
        axes = set(self.values[x].axes)
        fitting = [
            v
            for v, kind in self.values.items()
            if v != x and (set(kind.axes) <= axes or axes <= set(kind.axes))
        ]
        y = self.random.choice(fitting) if fitting else self.input(self.values[x].axes)
        if y == x:
            return self.unary(x, None)
        kinds = [arg(0) + arg(1), arg(0) * arg(1), arg(0) - arg(1), arg(0) / (1 + arg(1) ** 2)]
        return self.elementwise(self.random.choice(kinds), x, y)

    def paired(self, x: int, axis: Axis) -> int:
        """A scale or shift by a value that lacks an axis and has another: all pairs of the two.

        An operator follows that rules look for: a softmax, a sum of squares or a matmul.
        """
        mine = self.values[x].axes
        free = [a for a in self.axes.values() if a not in mine and a.name not in BATCH]
        if not free or len(mine) > 3:
            return self.unary(x, axis)
        shared = [a for a in mine if a is not axis and self.pairing.random() < 0.8]
        own = [*shared, self.pairing.choice(free)]
        self.pairing.shuffle(own)
        fitting = [
            v
            for v, kind in self.values.items()
            if axis not in kind.axes and not set(kind.axes) <= set(mine) and kind.dtype.is_float
            if len({*kind.axes, *mine}) <= 4
        ]
        if not fitting or self.pairing.random() < 0.7:
            fitting = [self.input(own)]
        y = self.pairing.choice(fitting)
        x = self.elementwise(call("sin", arg(0)), x)
        made = self.elementwise(self.pairing.choice(LINEAR[:2] + LINEAR[3:]), x, y)
        end = self.pairing.choice([self.written_softmax, self.summed_squares, self.matmul])
        return end(made, axis) if self.pairing.random() < 0.8 else made

    def written_softmax(self, x: int, axis: Axis | None) -> int:
        e = self.elementwise(call("exp", arg(0)), x)
        return self.elementwise(
            arg(0) / arg(1), e, self.apply("reduce", e, axis=axis, combiner=ADD)
        )

    def summed_squares(self, x: int, axis: Axis | None) -> int:
        squares = self.elementwise(arg(0) ** 2, x)
        return self.unary(self.apply("reduce", squares, axis=axis, combiner=ADD), None)

    def weight(self, x: int, _axis: Axis | None) -> int:
        """A scale or shift by an input with some of the axes."""
        axes = self.values[x].axes
        if not axes:
            return self.unary(x, None)
        some = self.random.sample(axes, self.random.randint(1, len(axes)))
        w = self.input([a for a in axes if a in some])
        kinds = [arg(0) * arg(1), arg(0) + arg(1), arg(1) * arg(0), arg(0) - arg(1)]
        return self.elementwise(self.random.choice(kinds), x, w) if w != x else x

    def matmul(self, x: int, axis: Axis | None) -> int:
        """With a weight, or with another value that has the axis and shares only batch axes."""
        assert axis is not None
        mine = set(self.values[x].axes)
        fitting = [
            v
            for v, kind in self.values.items()
            if axis in kind.axes
            and all(a.name in BATCH or a is axis for a in mine & set(kind.axes))
            and len(mine | set(kind.axes)) <= 5
            and v != x
        ]
        if fitting and self.random.random() < 0.4:
            y = self.random.choice(fitting)
        else:
            free = [a for a in self.axes.values() if a not in mine and a.name not in BATCH]
            if not free:
                return self.total(x, axis)
            own = [self.random.choice(free), axis]
            if self.random.random() < 0.5:
                own.reverse()
            batch = [a for a in self.values[x].axes if a.name in BATCH]
            if batch and self.random.random() < 0.5:
                own = [*self.random.sample(batch, self.random.randint(1, len(batch))), *own]
            y = self.input(own)
        return self.apply("matmul", *((x, y) if self.random.random() < 0.8 else (y, x)), axis=axis)

    def norm(self, x: int, axis: Axis | None) -> int:
        assert axis is not None
        parameters = [self.input([axis]) for _ in range(self.random.randint(0, 2))]
        if len(set(parameters)) < len(parameters):
            parameters = parameters[:1]
        if self.random.random() < 0.5:
            return self.apply("rmsnorm", x, *parameters[:1], axis=axis, eps=0.1)
        count = len(parameters)
        flags = {"weight": count > 0, "bias": count > 1}
        return self.apply("layernorm", x, *parameters, axis=axis, eps=1.0, **flags)

    def softmax(self, x: int, axis: Axis | None) -> int:
        assert axis is not None
        bounded = self.elementwise(call("sin", arg(0)) * 2.0, x)
        return self.apply(self.random.choice(["softmax", "log_softmax"]), bounded, axis=axis)

    def scale_by_sum(self, x: int, axis: Axis | None) -> int:
        assert axis is not None
        squares = self.apply("reduce", self.unary(x, axis), axis=axis, combiner=ADD)
        return self.elementwise(arg(0) / (1 + arg(1) ** 2), x, squares)

    def shift_by_sum(self, x: int, axis: Axis | None) -> int:
        assert axis is not None
        total = self.apply("reduce", x, axis=axis, combiner=ADD)
        mean = self.elementwise(-arg(0) / size(axis), total)
        return self.elementwise(self.random.choice([arg(0) + arg(1), arg(0) - arg(1)]), x, mean)

    def chain(self, x: int, _axis: Axis | None) -> int:
        """Functions in a row."""
        for _ in range(self.random.randint(2, 3)):
            x = self.unary(x, None)
        return x

    def moved_by_sum(self, x: int, axis: Axis) -> int:
        """A scale or shift by an item that has no `axis`."""
        combiner = self.random.choice([ADD, ADD, MAX])
        total = self.apply("reduce", x, axis=axis, combiner=combiner)
        factor = self.elementwise(call("tanh", arg(0)) + 1.5, total)
        return self.elementwise(self.random.choice(LINEAR), x, factor)

    def shared_scale(self, x: int, axis: Axis | None) -> int:
        """One scale or shift with several uses, some of them matmuls."""
        assert axis is not None
        moved = self.moved_by_sum(x, axis)
        made = [self.matmul(moved, axis) for _ in range(self.random.randint(1, 3))]
        if len(made) == 1 or self.random.random() < 0.3:
            made.append(self.unary(moved, axis))
        if len(made) == 2 and set(self.values[made[0]].axes) == set(self.values[made[1]].axes):
            return self.elementwise(arg(0) * arg(1), *made)
        return made[0]

    def scaled_matmul(self, x: int, axis: Axis | None) -> int:
        """Scales and shifts that may move behind a matmul; a norm, now and then."""
        assert axis is not None
        if self.random.random() < 0.3:
            moved = self.norm(x, axis)
        else:
            moved = self.moved_by_sum(x, axis)
            if self.random.random() < 0.5:
                moved = self.moved_by_sum(moved, axis)
        return self.matmul(moved, axis)

    def two_matmuls(self, x: int, axis: Axis | None) -> int:
        """A matmul, a function, and a matmul over the axis that the first has made."""
        assert axis is not None
        first = self.matmul(x, axis)
        inner = self.axis_of(self.unary(first, None))
        return first if inner is None else self.matmul(len(self.operators) - 1, inner)

    def attention(self, x: int, axis: Axis | None) -> int:
        """A product, its softmax, and a product with that."""
        assert axis is not None
        scores = self.matmul(x, axis)
        summed = self.axis_of(scores)
        return scores if summed is None else self.matmul(self.softmax(scores, summed), summed)

    def total(self, x: int, axis: Axis | None) -> int:
        return self.apply("reduce", x, axis=axis, combiner=self.random.choice([ADD, MAX]))

    def mask(self, x: int, _axis: Axis | None) -> int:
        axes = self.values[x].axes
        if len(axes) < 2:
            return self.unary(x, None)
        first, second = self.random.sample(axes, 2)
        rows, columns = (self.apply("index", axis=a) for a in (first, second))
        if self.random.random() < 0.5:
            visible = self.elementwise(arg(0) >= arg(1), rows, columns)
            return self.elementwise(call("where", arg(1), arg(0), -1.0), x, visible)
        expr = call("where", arg(2) <= arg(1), arg(0), 0.25)
        return self.elementwise(expr, x, rows, columns)

    def self_product(self, x: int, axis: Axis | None) -> int:
        """x·xᵀ: every other axis stands twice, so that one side is renamed."""
        assert axis is not None
        y = x
        for a in self.values[x].axes:
            if a is not axis and a.name not in BATCH:
                self.renamed += 1
                new = Axis(f"{a.name}_{self.renamed}", a.extent)
                y = self.apply("rename", y, old=a, new=new)
        if y == x or len({*self.values[x].axes, *self.values[y].axes}) > 5:
            return self.total(x, axis)
        return self.apply("matmul", x, y, axis=axis)

    def misc(self, x: int, axis: Axis | None) -> int:
        assert axis is not None
        if self.random.random() < 0.6:
            return self.unary(x, axis)
        kind = self.values[x]
        layout = list(kind.axes)
        self.random.shuffle(layout)
        if self.scanning.random() < 0.7:
            combiner = self.scanning.choice([ADD, ADD, MAX, LOGADDEXP])
            return self.apply("scan", x, axis=axis, combiner=combiner)
        return self.apply(
            "misc",
            x,
            namespace="numpy",
            name="cumsum",
            arguments=(("axis", layout.index(axis)),),
            layouts=(tuple(layout),),
            result=ArrayType(tuple(layout), kind.dtype),
        )

    # ---------------------------------------------------------------- the whole

    def build(self) -> ArrayProgram:
        batch = [self.axes[n] for n in BATCH if self.random.random() < 0.2]
        core = self.random.sample([self.axes[n] for n in (*ROWS, *COLUMNS)], 2)
        self.input([*batch, *core])
        for _ in range(self.random.randint(1, 4)):
            self.grow()
        end = self.finish() if self.random.random() < 0.6 else None
        count = len(self.inputs)

        def number(v: int) -> int:
            return -1 - v if v < 0 else count + v

        ends = [v for v in self.values if v >= 0 and v not in self.used]
        extra = [v for v in self.values if v >= 0 and v in self.used]
        if end is not None and self.random.random() < 0.8:
            ends = [end]
        elif extra and self.random.random() < 0.3:
            ends.append(self.random.choice(extra))
        outputs = []
        for n, v in enumerate(ends):
            axes = list(self.values[v].axes)
            self.random.shuffle(axes)
            outputs.append(ArrayOutput(f"O{n}", number(v), tuple(axes)))
        operators = [
            Operator(name, tuple(number(v) for v in operands), tuple(attributes.items()), kind)
            for name, operands, attributes, kind in self.operators
        ]
        return ArrayProgram("random", tuple(self.inputs), tuple(operators), tuple(outputs))


class ExtendedProgram(RandomProgram):
    """A random program that matches the extended rules more often than others do."""

    def grow(self) -> None:
        x = self.pick()
        axis = self.axis_of(x)
        if axis is not None and self.pairing.random() < PAIRED:
            self.paired(x, axis)
            return
        if axis is None or self.random.random() < 0.3:
            super().grow()
            return
        choices = [
            self.safe_softmax,
            self.safe_softmax,
            self.softmax,
            self.two_pass_norm,
            self.two_pass_norm,
            self.weighted_matmul,
            self.weighted_matmul,
            self.read_twice,
            self.transposed,
            *[self.residual] * 3,
        ]
        self.random.choice(choices)(x, axis)

    def safe_softmax(self, x: int, axis: Axis) -> int:
        """A softmax written out, with a shift by the maximum or by another item."""
        bounded = self.elementwise(call("sin", arg(0)) * 2.0, x)
        top = self.apply("reduce", bounded, axis=axis, combiner=self.random.choice([MAX, MAX, ADD]))
        if self.random.random() < 0.7:
            shifted = self.elementwise(arg(0) - arg(1), bounded, top)
        else:
            shifted = self.elementwise(arg(1) + arg(0), bounded, self.elementwise(-arg(0), top))
        e = self.elementwise(call("exp", arg(0)), shifted)
        total = self.apply("reduce", e, axis=axis, combiner=ADD)
        if self.random.random() < 0.5:
            made = self.elementwise(arg(0) / arg(1), e, total)
        else:
            made = self.elementwise(arg(0) * arg(1), e, self.elementwise(1 / arg(0), total))
        if self.random.random() < 0.2:  # a reason not to drop the shift
            self.elementwise(call("tanh", arg(0)), self.random.choice([shifted, e, total]))
        return self.matmul(made, axis) if self.random.random() < 0.5 else made

    def two_pass_norm(self, x: int, axis: Axis) -> int:
        """The variance as the mean of squared differences from the mean, or from another item."""
        total = self.apply("reduce", x, axis=axis, combiner=self.random.choice([ADD, ADD, MAX]))
        mean = self.elementwise(call("tanh", arg(0) / size(axis)), total)
        centred = self.elementwise(self.random.choice([arg(0) - arg(1), arg(1) + arg(0)]), x, mean)
        square = self.random.choice([arg(0) ** 2, arg(0) * arg(0)])
        squares = self.elementwise(square, centred)
        variance = self.apply("reduce", squares, axis=axis, combiner=ADD)
        inverse = self.elementwise((arg(0) / size(axis) + 1.0) ** -0.5, variance)
        if self.random.random() < 0.15:  # a reason not to expand the squares
            self.elementwise(call("tanh", arg(0)), squares)
        made = self.elementwise(arg(0) * arg(1), centred, inverse)
        return self.matmul(made, axis) if self.random.random() < 0.5 else made

    def weighted_matmul(self, x: int, axis: Axis) -> int:
        """A scale by an item, then one by a weight along the axis, then a matmul, or two."""
        total = self.apply("reduce", x, axis=axis, combiner=ADD)
        factor = self.elementwise(call("tanh", arg(0)) + 1.5, total)
        kinds = [arg(0) * arg(1), arg(1) * arg(0), arg(0) / arg(1)]
        scaled = self.elementwise(self.random.choice(kinds), x, factor)
        others = [a for a in self.values[x].axes if a is not axis and self.random.random() < 0.2]
        weight = self.input([*others, axis])
        if weight == x:
            return scaled
        times = self.random.choice([arg(0) * arg(1), arg(1) * arg(0)])
        weighted = self.elementwise(times, scaled, weight)
        if self.random.random() < 0.2:
            inner = self.axis_of(weighted)
            assert inner is not None
            self.matmul(weighted, inner)
        return self.matmul(weighted, axis)

    def read_twice(self, x: int, axis: Axis) -> int:
        """A list that is reduced, and read again together with its reduction."""
        e = self.elementwise(call("sin", arg(0)), x)
        total = self.apply("reduce", e, axis=axis, combiner=self.random.choice([ADD, MAX]))
        return self.elementwise(arg(0) / (1 + arg(1) ** 2), e, total)

    def transposed(self, x: int, axis: Axis) -> int:
        """Reductions along two axes, one after the other, of one list."""
        e = self.unary(x, axis)
        first = self.axis_of(e)
        assert first is not None
        total = self.apply("reduce", e, axis=first, combiner=self.random.choice([ADD, MAX]))
        if first is axis:
            return total
        self.apply("reduce", e, axis=axis, combiner=self.random.choice([ADD, MAX]))
        return total

    def residual(self, x: int, axis: Axis) -> int:
        """Two layers with residuals; the second starts with a weight along the axis, or a norm."""
        mine = self.values[x].axes
        free = [a for a in self.axes.values() if a not in mine and a.name not in BATCH]
        if not free:
            return self.read_twice(x, axis)
        hidden = self.random.choice(free)
        inner = self.unary(self.linear(x, axis, hidden), None)
        middle = self.elementwise(arg(0) + arg(1), x, self.linear(inner, hidden, axis))
        normed = middle
        if self.random.random() < 0.4:
            squares = self.elementwise(arg(0) ** 2, middle)
            total = self.apply("reduce", squares, axis=axis, combiner=ADD)
            inverse = self.elementwise((arg(0) / size(axis) + 1.0) ** -0.5, total)
            normed = self.elementwise(arg(0) * arg(1), middle, inverse)
        times = self.random.choice([arg(0) * arg(1), arg(1) * arg(0), arg(0) + arg(1)])
        weighted = self.elementwise(times, normed, self.input([axis]))
        inner = self.unary(self.linear(weighted, axis, hidden), None)
        return self.elementwise(arg(0) + arg(1), middle, self.linear(inner, hidden, axis))

    def linear(self, x: int, old: Axis, new: Axis) -> int:
        """A matmul with a weight, from one axis to another."""
        return self.apply("matmul", x, self.input([old, new]), axis=old)


def random_program(seed: int, *, extended: bool = False) -> ArrayProgram:
    """The random program of a seed."""
    return (ExtendedProgram if extended else RandomProgram)(seed).build()


class Case:
    """A random program with inputs, tiles and expected results."""

    def __init__(self, seed: int, *, extended: bool = False) -> None:
        self.seed = seed
        self.program = random_program(seed, extended=extended)
        self.inputs = random_inputs(self.program, seed)
        self.expected = bb.evaluate(self.program, self.inputs)

    def check(self, graph: bb.Graph, place: object) -> None:
        """The graph is sound, and gives the results of the array program."""
        bb.verify(graph)
        found = bb.interpret(graph, self.inputs, random_tiles(graph, self.seed))
        assert list(found.keys()) == list(self.expected), f"seed {self.seed}, {place}"
        for name, wanted in self.expected.items():
            assert found[name].shape == wanted.shape, f"seed {self.seed}, {place}: {name}"
            error = np.abs(np.subtract(found[name], wanted, dtype=float)).max(initial=0.0)
            bound = 1e-9 * np.abs(wanted).max(initial=1)
            assert error <= bound, f"seed {self.seed}, {place}: {name} is off by {error}"


def random_inputs(program: ArrayProgram, seed: int) -> dict[str, np.ndarray]:
    """Arrays for a program: small, non-square, sizes from the seed."""
    rng = np.random.default_rng(seed)
    sizes: dict[object, int] = {}
    arrays = {}
    for given in program.inputs:
        shape = []
        for axis in given.type.axes:
            known = axis.extent
            if not isinstance(known, int):
                length = int(rng.choice(extents(axis.name.partition("_")[0])))
                known = sizes.setdefault(axis.extent, length)
            shape.append(known)
        arrays[given.name] = rng.standard_normal(shape)
    return arrays


def random_tiles(graph: bb.Graph, seed: int) -> dict[str, int]:
    """A tile for every loop: ragged, several blocks, one block; a dim has the same all along."""
    labels = sorted(d.label for d in graph.dims if d.packed and not d.is_free and not d.unit)
    return {label: random.Random(f"{seed} {label}").choice((1, 2, 2, 3, 3)) for label in labels}


def random_unit(program: ArrayProgram, seed: int) -> tuple[str, ...]:
    """Axes that are to have one block: some of those that are tiled."""
    rng = random.Random(f"unit {seed}")
    dims = bb.lower(program).dims
    names = sorted({d.name for d in dims if d.packed and not d.is_free})
    return tuple(name for name in names if rng.random() < 0.4)
