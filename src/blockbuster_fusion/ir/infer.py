"""Type inference: the types of an operator's results from those of its operands."""

from collections.abc import Sequence

from blockbuster_fusion.errors import IllTyped
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import ADD, MUL, Combiner
from blockbuster_fusion.ir.expr import arity
from blockbuster_fusion.ir.expr_dtypes import result_dtype
from blockbuster_fusion.ir.ops import (
    BlockReduce,
    Dot,
    Elementwise,
    Input,
    Iota,
    Join,
    Map,
    Misc,
    Op,
    Pick,
    Reduce,
    Rename,
    Scan,
    Take,
)
from blockbuster_fusion.ir.types import DType, Type, promote


def infer(op: Op, operands: Sequence[Type]) -> tuple[Type, ...]:
    """The result types of `op`, or IllTyped with the reason why the operands do not fit."""
    match op:
        case Input():
            return (op.type,)
        case Elementwise():
            return (_elementwise(op, operands),)
        case BlockReduce():
            return (_block_reduce(op, operands),)
        case Scan():
            return (_scan(op, operands),)
        case Dot():
            return (_dot(op, operands),)
        case Take():
            return (_take(op, operands),)
        case Map():
            return _map(op, operands)
        case Reduce():
            return _reduce(op, operands)
        case Rename():
            return (_rename(op, operands),)
        case Pick():
            (listed,) = _lists_over("pick", op.dim, operands, 1)
            return (listed.iterate(op.dim),)
        case Join():
            return (_join(op, operands),)
        case Iota():
            items = (op.dim,) if op.dim.packed else ()
            return (Type((op.dim,), items, DType.int64, virtual=True),)
        case Misc():
            return op.results


def _elementwise(op: Elementwise, operands: Sequence[Type]) -> Type:
    wanted = arity(op.expr)
    if len(operands) != wanted:
        raise IllTyped(op=op.expr, problem=f"takes {wanted} operands and has {len(operands)}")
    _all_items(op.expr, operands)
    # with the layout of the widest operand, so that a broadcast never transposes a block
    widest_first = sorted(operands, key=lambda t: -len(t.items))
    dims = tuple(dict.fromkeys(dim for t in widest_first for dim in t.items))
    _no_axis_twice(op.expr, dims)
    return Type((), dims, result_dtype(op.expr, [t.dtype for t in operands]))


def _block_reduce(op: BlockReduce, operands: Sequence[Type]) -> Type:
    block = _combined(f"block {op.combiner} over {op.dim.label}", op, operands)
    return Type((), tuple(d for d in block.items if d is not op.dim), block.dtype)


def _scan(op: Scan, operands: Sequence[Type]) -> Type:
    return _combined(f"scan {op.combiner} over {op.dim.label}", op, operands)


def _combined(name: str, op: BlockReduce | Scan, operands: Sequence[Type]) -> Type:
    """The block whose elements are combined along a dim; truth values are counted."""
    if len(operands) != 1:
        raise IllTyped(op=name, problem=f"takes one operand and has {len(operands)}")
    _all_items(name, operands)
    (block,) = operands
    if op.dim not in block.items:
        raise IllTyped(op=name, problem=f"the block {block} has no axis {op.dim.label}")
    counts = block.dtype is DType.bool_ and op.combiner in (ADD, MUL)
    return Type((), block.items, DType.int64) if counts else block


def _dot(op: Dot, operands: Sequence[Type]) -> Type:
    name = f"dot over {op.dim.label}"
    if len(operands) != 2:
        raise IllTyped(op=name, problem=f"takes two operands and has {len(operands)}")
    _all_items(name, operands)
    for which, block in zip(("left", "right"), operands, strict=True):
        if op.dim not in block.items:
            problem = f"the {which} block {block} has no axis {op.dim.label} to contract"
            raise IllTyped(op=name, problem=problem)
    kept = (d for t in operands for d in t.items if d is not op.dim)
    dims = tuple(dict.fromkeys(kept))
    _no_axis_twice(name, dims)
    return Type((), dims, promote(*(t.dtype for t in operands)))


def _take(op: Take, operands: Sequence[Type]) -> Type:
    name = f"take along {op.axis}"
    if len(operands) != 2:
        problem = f"takes a table and the places to look up, and has {len(operands)} operands"
        raise IllTyped(op=name, problem=problem)
    table, places = operands
    unfit = _no_table(table, op.axis) or _no_places(places, op.axis)
    if unfit is not None:
        raise IllTyped(op=name, problem=unfit)
    kept = (d for d in table.items if d.axis is not op.axis)
    dims = tuple(dict.fromkeys((*places.items, *kept)))
    _no_axis_twice(name, dims)
    return Type((), dims, table.dtype)


def _no_table(kind: Type, axis: Axis) -> str | None:
    """The reason why a type is not a table along an axis, or None."""
    if axis not in (d.axis for d in kind.lists):
        return f"the table {kind} is no list over {axis}, which has to lie in memory whole"
    if kind.virtual:
        return f"the table {kind} is virtual and lies nowhere: its elements are the places"
    for dim in kind.lists:
        if dim.axis is not axis:
            return f"the table {kind} is a list over {dim.label} as well: put it in a map over it"
        if dim.packed and dim not in kind.items:
            return f"the table {kind} has one element for each block of {dim.label} only"
    return None


def _no_places(kind: Type, axis: Axis) -> str | None:
    """The reason why a type is not an index along an axis, or None."""
    if kind.is_list:
        return f"the places are a list, {kind}: put it in a map that iterates the list"
    if kind.dtype not in (DType.int64, DType.int32):
        return f"the places are {kind.dtype}, not int64 or int32: cast them"
    if axis in kind.axes:
        return f"the places {kind} have the axis {axis} themselves: rename the table's"
    return None


def _map(op: Map, operands: Sequence[Type]) -> tuple[Type, ...]:
    name = f"map {op.dim.label}"
    body = op.body
    if op.dim.is_free:
        raise IllTyped(op=name, problem="a loop needs a dim of its own, and this one is free")
    if not len(operands) == len(op.iterated) == len(body.inputs):
        counts = f"{len(operands)} operands, {len(op.iterated)} flags, {len(body.inputs)} inputs"
        raise IllTyped(op=name, problem=f"the body's inputs are the operands in order: {counts}")
    for port, (outer, iterated) in enumerate(zip(operands, op.iterated, strict=True)):
        if iterated and outer.list_dim(op.dim) is None:
            problem = f"port {port} is iterated, but {outer} is no list over {op.dim.label}"
            raise IllTyped(op=name, problem=f"{problem}; mark the port whole")
        wanted = outer.iterate(op.dim) if iterated else outer
        found = body.type_of_input(port)
        if found is not wanted:
            problem = f"port {port}: the body expects {found}, the edge brings {wanted}"
            raise IllTyped(op=name, problem=problem)
    if len(op.modes) != len(body.outputs):
        counts = f"{len(op.modes)} modes for {len(body.outputs)} outputs"
        raise IllTyped(op=name, problem=f"each output of the body has a mode: {counts}")
    _check_tuples(name, op)
    return map_types(op)


def map_types(op: Map) -> tuple[Type, ...]:
    """The result types of a map, from its body's outputs and their modes."""
    return tuple(
        op.body.type(out.value) if mode is not None else op.body.type(out.value).stack(op.dim)
        for out, mode in zip(op.body.outputs, op.modes, strict=True)
    )


def _check_tuples(name: str, op: Map) -> None:
    expected: list[tuple[Combiner, int]] = []
    for port, (out, mode) in enumerate(zip(op.body.outputs, op.modes, strict=True)):
        kind = op.body.type(out.value)
        if mode is None:
            if kind.virtual:
                raise IllTyped(op=name, problem=f"output {port}: a virtual list cannot be stacked")
            if op.dim in kind.lists:
                raise IllTyped(op=name, problem=f"output {port}: {kind} has {op.dim.label} already")
        elif kind.is_list:
            raise IllTyped(op=name, problem=f"output {port}: only items are reduced, not {kind}")
        if not expected and mode is not None:
            expected = [(mode.combiner, i) for i in range(mode.combiner.arity)]
        if expected:
            combiner, component = expected.pop(0)
            if mode is None or (mode.combiner, mode.component) != (combiner, component):
                problem = f"output {port}: component {component} of {combiner} belongs here"
                raise IllTyped(op=name, problem=problem)
    if expected:
        raise IllTyped(op=name, problem=f"components of {expected[0][0]} are missing at the end")


def _reduce(op: Reduce, operands: Sequence[Type]) -> tuple[Type, ...]:
    name = f"reduce {op.combiner} over {op.dim.label}"
    lists = _lists_over(name, op.dim, operands, op.combiner.arity)
    made = tuple(t.iterate(op.dim) for t in lists)
    for t in made:
        if t.is_list:
            raise IllTyped(op=name, problem=f"only lists of items are reduced, not {t}")
    return made


def _rename(op: Rename, operands: Sequence[Type]) -> Type:
    name = f"rename {op.old}->{op.new}"
    if len(operands) != 1:
        raise IllTyped(op=name, problem=f"takes one operand and has {len(operands)}")
    (kind,) = operands
    if op.old not in (d.axis for d in kind.dims if d in kind.lists or d.unit):
        raise IllTyped(op=name, problem=f"{kind} is no list over {op.old}")
    if op.old.extent is not op.new.extent and op.old.extent != op.new.extent:
        problem = f"the extents {op.old.extent} and {op.new.extent} differ"
        raise IllTyped(op=name, problem=problem)
    # arrays in memory are not tiled: a unit dim may be read in several blocks
    stored = (*kind.lists, *(d for d in kind.items if d.unit and d not in kind.lists))
    freed = {d: Dim(op.new if d.axis is op.old else d.axis, None, d.packed) for d in stored}
    made = Type(stored, kind.items, kind.dtype).substitute(freed)
    _no_axis_twice(name, made.dims)
    return made


def _join(op: Join, operands: Sequence[Type]) -> Type:
    name = f"join over {op.dim.label}"
    if len(operands) != 2:
        raise IllTyped(op=name, problem="takes the first element and the list of the others")
    first, rest = operands
    if op.dim not in rest.lists or rest.iterate(op.dim) is not first:
        raise IllTyped(op=name, problem=f"{first} is no element of {rest}")
    return rest


def _lists_over(name: str, dim: Dim, operands: Sequence[Type], count: int) -> Sequence[Type]:
    if len(operands) != count:
        raise IllTyped(op=name, problem=f"takes {count} operands and has {len(operands)}")
    for kind in operands:
        if kind.list_dim(dim) is None:
            raise IllTyped(op=name, problem=f"{kind} is no list over {dim.label}")
    return operands


def _all_items(name: object, operands: Sequence[Type]) -> None:
    for port, kind in enumerate(operands):
        if kind.is_list:
            problem = f"operand {port} is a list, {kind}: functional operators work on items"
            raise IllTyped(op=name, problem=f"{problem}; put it in a map that iterates the list")


def _no_axis_twice(name: object, dims: Sequence[Dim]) -> None:
    axes = [d.axis for d in dims]
    if len(set(axes)) < len(axes):
        twice = next(d for d in dims if axes.count(d.axis) > 1)
        clash = " and ".join(d.label for d in dims if d.axis is twice.axis)
        problem = f"the result would have the axis {twice.axis} twice, as {clash}"
        raise IllTyped(op=name, problem=f"{problem}; rename it on one side")
