"""Lowering: an array program to its initial, fully unfused block program.

Each primitive becomes one nest of maps. Nests have loops of their own. Two loops share a dim only
if one stores a list that the other iterates.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from blockbuster_fusion.array.primitives import (
    AxisPositions,
    Contraction,
    External,
    Given,
    Pointwise,
    Primitives,
    PrimitiveStep,
    Ref,
    Renaming,
    RunningSummary,
    Summary,
    TableLookup,
)
from blockbuster_fusion.array.program import ArrayProgram, ArrayType, check_program
from blockbuster_fusion.array.table import expand
from blockbuster_fusion.errors import IllTyped
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import Expr, arg, substitute
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.infer import infer
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Iota,
    Misc,
    Reduce,
    Rename,
    Scan,
    Take,
    Value,
)
from blockbuster_fusion.ir.types import Type
from blockbuster_fusion.ir.verify import verify

SHORT = 512
"""The elements of a block below which pointwise programs pack one more axis."""


def lower(program: ArrayProgram) -> Graph:
    """The initial block program of an array program."""
    check_program("lower", program)
    steps, outputs = expand_program(program)
    check_batch(program, steps)
    packed = packed_axes(program, steps)
    lowering = _Lowering(steps, _tie_loops(steps, packed), loop_order(program, steps), packed)
    for i in range(len(steps)):
        lowering.lower(i)
    for out, step in zip(program.outputs, outputs, strict=True):
        lowering.builder.output(out.name, lowering.values[step], out.axes, out.into)
    graph = lowering.builder.build()
    verify(graph)
    return graph


def expand_program(program: ArrayProgram) -> tuple[list[PrimitiveStep], list[int]]:
    """The primitives that the outputs need, and the numbers of the outputs among them."""
    p = Primitives()
    refs: list[Ref] = [p.given(i.name, i.type) for i in program.inputs]
    for op in program.operators:
        refs.append(expand(p, op.name, [refs[v] for v in op.operands], dict(op.attributes)))
    outputs: list[int] = []
    for out in program.outputs:
        ref = refs[out.value]
        if isinstance(p.steps[ref.step].primitive, AxisPositions):
            ref = p.elementwise(lambda t: t, ref)  # positions have no memory of their own
        outputs.append(ref.step)
    return _without_dead_steps(p.steps, outputs)


def _without_dead_steps(
    steps: Sequence[PrimitiveStep], outputs: Sequence[int]
) -> tuple[list[PrimitiveStep], list[int]]:
    needed, stack = {i for i, s in enumerate(steps) if isinstance(s.primitive, Given)}, [*outputs]
    while stack:
        i = stack.pop()
        if i not in needed:
            needed.add(i)
            stack.extend(steps[i].operands)
    number = {old: new for new, old in enumerate(sorted(needed))}
    kept = [
        PrimitiveStep(
            steps[i].primitive, tuple(number[v] for v in steps[i].operands), steps[i].type
        )
        for i in sorted(needed)
    ]
    return kept, [number[i] for i in outputs]


def check_batch(program: ArrayProgram, steps: Sequence[PrimitiveStep]) -> None:
    """IllTyped if a batch axis is reduced, under its own name or another."""
    for axis in sorted(reduced_axes(steps) & batch_axes(program, steps), key=str):
        problem = f"the batch axis {axis} is summed or contracted over, so it has to lie in blocks"
        raise IllTyped(op=program.name, problem=f"{problem}: leave it out of batch")


def batch_axes(program: ArrayProgram, steps: Sequence[PrimitiveStep]) -> set[Axis]:
    """The program's batch axes, under all their names."""
    names = other_names(steps)
    return {name for axis in program.batch for name in names.get(axis, {axis})}


def other_names(steps: Sequence[PrimitiveStep]) -> dict[Axis, set[Axis]]:
    """For each renamed axis, all its names."""
    names: dict[Axis, set[Axis]] = {}
    for s in steps:
        if isinstance(s.primitive, Renaming):
            old, new = s.primitive.old, s.primitive.new
            both = names.get(old, {old}) | names.get(new, {new})
            names.update(dict.fromkeys(both, both))
    return names


def reduced_axes(steps: Sequence[PrimitiveStep]) -> set[Axis]:
    """The axes that some step sums over, scans or contracts."""
    return {
        s.primitive.axis
        for s in steps
        if isinstance(s.primitive, Summary | RunningSummary | Contraction)
    }


def loop_order(program: ArrayProgram, steps: Sequence[PrimitiveStep]) -> dict[Axis, int]:
    """One order of axes for the whole program, in which every nest runs its parallel loops.

    A step that reduces or scans an axis prefers it inside its parallel loops. A lookup of rows of a
    computed table prefers whole rows. A greedy order violates few of these preferences; ties are
    broken by the program's outputs, then by first appearance. Batch axes of the user come first.
    """
    appearing = [a for out in program.outputs for a in out.axes]
    appearing += [a for s in steps for a in s.type.axes]
    axes = list(dict.fromkeys(appearing))
    wishes: Counter[Axis] = Counter()
    inside: defaultdict[Axis, Counter[Axis]] = defaultdict(Counter)
    for s in steps:
        if isinstance(s.primitive, Summary | RunningSummary | Contraction):
            for outer in _parallel(s):
                inside[outer][s.primitive.axis] += 1
                wishes[s.primitive.axis] += 1
        elif isinstance(s.primitive, TableLookup) and _has_loops(steps[s.operands[0]]):
            table, places = (steps[v].type.axes for v in s.operands)
            for inner in set(table).difference(places, {s.primitive.axis}):
                inside[s.primitive.axis][inner] += 1
                wishes[inner] += 1
    order: dict[Axis, int] = {}
    while axes:
        chosen = min(axes, key=lambda a: (a not in program.batch, wishes[a]))
        axes.remove(chosen)
        wishes.subtract(inside[chosen])
        order[chosen] = len(order)
    return order


def packed_axes(program: ArrayProgram, steps: Sequence[PrimitiveStep]) -> set[Axis]:
    """The axes that stay in blocks; loops over the others (batch, heads) take one index at a time.

    Packed are the axes that are reduced or scanned, and of each contraction the last axis that
    belongs to one operand alone, its rows and columns, unless one of these is packed for another:
    heads in groups are walked one by one, in whatever order their axes stand. An array with fewer
    than two of these packs its last axes as well, unless they are batch axes of a contraction, or
    the array is a part of a larger one, as row sums are of rows. Arrays that outputs are written
    into do not count. Without reductions and contractions, further axes are packed while those of
    an array are known to be short, as the halves of a head are. What is packed under one name is
    packed under all: a renamed array is the same array.
    """
    reduced, batch = reduced_axes(steps), batch_axes(program, steps)
    packed, rows, shared = set(reduced), set[Axis](), set(batch)
    for s in steps:
        if isinstance(s.primitive, Contraction):
            left, right = (steps[v].type.axes for v in s.operands)
            shared |= set(left) & set(right)
            for side, other in ((left, right), (right, left)):
                alone = [a for a in side if a not in other and a not in batch]
                if not any(a in rows for a in alone):
                    # a reduced axis is packed anyway
                    rows.update([a for a in alone if a not in reduced][-1:] or alone[-1:])
    packed |= rows
    is_pointwise = not packed
    bases = {out.into.base for out in program.outputs if out.into is not None}
    arrays = list(dict.fromkeys(s.type.axes for i, s in enumerate(steps) if i not in bases))
    for axes in arrays:
        if any(set(axes) < set(other) for other in arrays):
            continue
        for axis in [a for a in reversed(axes) if a not in packed and a not in shared]:
            count, length = sum(a in packed for a in axes), _length(packed, axes)
            if count < 2 or (is_pointwise and length < SHORT):
                packed.add(axis)
    names = other_names(steps)
    return {name for axis in packed for name in names.get(axis, {axis})}


def _length(packed: set[Axis], axes: Sequence[Axis]) -> float:
    """The elements along the packed axes of an array; without end if a length is unknown."""
    extents = [axis.extent for axis in axes if axis in packed]
    return math.prod(n if isinstance(n, int) else math.inf for n in extents)


_Loop = tuple[int, Axis]
"""The number of a step and an axis: one loop of the step's nest."""


def _tie_loops(steps: Sequence[PrimitiveStep], packed: set[Axis]) -> dict[_Loop, Dim]:
    """The dim of every loop; loops that share an intermediate array have the same one."""
    parent: dict[_Loop, _Loop] = {}

    def root(loop: _Loop) -> _Loop:
        while parent.setdefault(loop, loop) != loop:
            parent[loop] = parent[parent[loop]]
            loop = parent[loop]
        return loop

    for i, step in enumerate(steps):
        if not _has_loops(step):
            continue
        walked = _loops(steps, step)
        for axis in walked:
            root((i, axis))
        for operand in step.operands:
            if _has_loops(steps[operand]):
                for axis in steps[operand].type.axes:
                    if axis in walked:
                        parent[root((i, axis))] = root((operand, axis))
    dims: dict[_Loop, Dim] = {}
    counts: dict[Axis, int] = {}
    for loop in sorted(parent, key=lambda loop: loop[0]):
        representative = root(loop)
        if representative not in dims:
            axis = loop[1]
            dims[representative] = Dim(axis, counts.get(axis, 0), axis in packed)
            counts[axis] = counts.get(axis, 0) + 1
        dims[loop] = dims[representative]
    return dims


def _has_loops(step: PrimitiveStep) -> bool:
    return isinstance(
        step.primitive, Pointwise | Summary | RunningSummary | Contraction | TableLookup
    )


def _parallel(step: PrimitiveStep) -> list[Axis]:
    """The axes of a step's result along which its elements are computed independently."""
    scanned = step.primitive.axis if isinstance(step.primitive, RunningSummary) else None
    return [axis for axis in step.type.axes if axis is not scanned]


def _loops(steps: Sequence[PrimitiveStep], step: PrimitiveStep) -> list[Axis]:
    """The axes that a step iterates: those of its result and the one that it reduces."""
    if isinstance(step.primitive, TableLookup):
        return list(step.type.axes)
    walked = [a for v in step.operands for a in steps[v].type.axes]
    return list(dict.fromkeys([*step.type.axes, *walked]))


class _Lowering:
    """Builds the block program step by step."""

    def __init__(
        self,
        steps: Sequence[PrimitiveStep],
        dims: dict[_Loop, Dim],
        order: dict[Axis, int],
        packed: set[Axis],
    ) -> None:
        self.steps, self.dims, self.order, self.packed = steps, dims, order, packed
        self.builder = Builder()
        self.values: list[Value] = []
        self.iotas: dict[Axis, Value] = {}

    def lower(self, i: int) -> None:
        """Appends the nest of step i."""
        step = self.steps[i]
        operands = [self.values[v] for v in step.operands]
        match step.primitive:
            case Given(name):
                made = self.builder.input(name, self.array(step.type))
            case AxisPositions(axis):
                if axis not in self.iotas:
                    self.iotas[axis] = self.builder.one(Iota(self.free(axis)))
                made = self.iotas[axis]
            case Renaming(old, new):
                made = self.builder.one(Rename(old, new), *operands)
            case External(namespace, name, attributes, layouts):
                results = (self.array(step.type),)
                op = Misc(namespace, name, attributes, results, layouts)
                made = self.builder.one(op, *operands)
            case _:
                axes = sorted(_parallel(step), key=self.order.__getitem__)
                made = self.builder.nest(
                    [self.dims[i, axis] for axis in axes],
                    operands,
                    lambda builder, *elements: self.innermost(builder, i, elements),
                )
        self.values.append(made)

    def innermost(self, builder: Builder, i: int, operands: Sequence[Value]) -> Value:
        """The result of step i inside its parallel loops."""
        match self.steps[i].primitive:
            case Pointwise(expr):
                return builder.one(*self.laid_out(builder, expr, operands))
            case Summary(axis, combiner):
                dim = self.dims[i, axis]
                block = BlockReduce(dim, combiner)
                parts = builder.nest([dim], operands, lambda inner, x: inner.one(block, x))
                return builder.one(Reduce(dim, combiner), parts)
            case RunningSummary(axis, combiner):
                scan = Scan(self.dims[i, axis], combiner)
                return builder.nest([scan.dim], operands, lambda inner, x: inner.one(scan, x))
            case Contraction(axis, rounds_to):
                dim = self.dims[i, axis]
                dot = Dot(dim, rounds_to)
                parts = builder.nest([dim], operands, lambda inner, *xy: inner.one(dot, *xy))
                return builder.one(Reduce(dim, ADD), parts)
            case TableLookup(axis):
                return builder.one(Take(axis), *operands)
            case other:
                raise AssertionError(f"{other} has no loops")

    def laid_out(
        self, builder: Builder, expr: Expr, operands: Sequence[Value]
    ) -> tuple[Elementwise, *tuple[Value, ...]]:
        """The operator with its operands so ordered that the result's axes are in loop order.

        A block has the axes of its operands in order: positions n <= m would give a block (n, m).
        """
        types = [builder.type(v) for v in operands]
        (made,) = infer(Elementwise(expr), types)
        if self.ranks(made) == sorted(self.ranks(made)):
            return Elementwise(expr), *operands
        at = sorted(range(len(operands)), key=lambda i: self.ranks(types[i]))
        moved = substitute(expr, {old: arg(new) for new, old in enumerate(at)})
        return Elementwise(moved), *(operands[i] for i in at)

    def ranks(self, kind: Type) -> list[int]:
        """The ranks of a block's axes in the loop order."""
        return [self.order[d.axis] for d in kind.items]

    def array(self, kind: ArrayType) -> Type:
        """The type of a whole array in memory, without tiles."""
        lists = tuple(self.free(a) for a in kind.axes)
        return Type(lists, tuple(d for d in lists if d.packed), kind.dtype)

    def free(self, axis: Axis) -> Dim:
        return Dim(axis, None, axis in self.packed)
