"""Arrays while a function is traced: NumPy's positions over named axes.

An array's operators make arrays, so the class and the functions that they call are one module.
"""

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blockbuster_fusion.errors import TraceError, UntracedAttribute
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import Expr, arg, arguments, as_expr, call, is_scalar, size
from blockbuster_fusion.ir.expr import cast as cast_expr
from blockbuster_fusion.ir.types import DType

if TYPE_CHECKING:
    from blockbuster_fusion.array.trace import Tracing

AxisNumbers = int | Sequence[int] | None
"""The axes to reduce: one, several, or all."""

UFUNCS: dict[Any, Callable[..., Any]] = {}
"""The operators that NumPy's ufuncs record for a traced array; `ops` fills it."""

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""The operators that NumPy's other functions record."""

_Method = Callable[[Any, Any], "Array"]


def _infix(name: str, masks: bool = False) -> tuple[_Method, _Method]:
    """The methods of a binary operator: with the array on the left, and on the right."""

    def on_the_left(self: Any, other: Any) -> "Array":
        return of_masks(name, self, other) if masks else apply(name, self, other)

    def on_the_right(self: Any, other: Any) -> "Array":
        return on_the_left(other, self)

    return on_the_left, on_the_right


_UNTRACED = "not traced; see blockbuster_fusion.ops for what is, or use ops.misc"


class Array:
    """An array in a traced function: it records the operators that it is given to.

    `axes` gives each position its axis, or None for an axis of length 1.
    """

    def __init__(self, tracing: "Tracing", value: int, axes: Sequence[Axis | None]) -> None:
        self.tracing = tracing
        self.value = value
        self._axes = tuple(axes)

    @property
    def axes(self) -> tuple[Axis | None, ...]:
        return tuple(a and self.tracing.resolve(a) for a in self._axes)

    @property
    def shape(self) -> tuple[int | Expr, ...]:
        """Each extent: a number, or an expression of the symbol that stands for it."""
        return tuple(_extent(a) for a in self.axes)

    @property
    def ndim(self) -> int:
        return len(self._axes)

    @property
    def dtype(self) -> DType:
        return self.tracing.types[self.value].dtype

    @property
    def T(self) -> "Array":  # NumPy's name
        return self.transpose()

    def transpose(self, *order: Any) -> "Array":
        """The positions in another order, `x.transpose(0, 2, 1)`; reversed when none is given."""
        if len(order) == 1 and (order[0] is None or isinstance(order[0], tuple | list)):
            order = tuple(order[0] or ())
        wanted = order or tuple(reversed(range(self.ndim)))
        places = [self.position(i, "transpose") for i in wanted]
        if sorted(places) != list(range(self.ndim)):
            problem = f"{wanted} is no order of the {self.ndim} axes of {self}"
            raise TraceError(op="transpose", problem=problem)
        return self.at([self._axes[i] for i in places])

    def swapaxes(self, axis1: int, axis2: int) -> "Array":
        """Two positions exchanged."""
        order = list(range(self.ndim))
        a, b = self.position(axis1, "swapaxes"), self.position(axis2, "swapaxes")
        order[a], order[b] = order[b], order[a]
        return self.transpose(order)

    def position(self, axis: int, op: str) -> int:
        """A checked position, counted from the front."""
        try:
            place = operator.index(axis)
        except TypeError:
            problem = f"an axis is given by its number, not by {axis!r}"
            raise TraceError(op=op, problem=problem) from None
        if not -self.ndim <= place < self.ndim:
            raise TraceError(op=op, problem=f"there is no axis {axis} in {self}")
        return place % self.ndim

    def positions(self, axes: AxisNumbers, op: str) -> list[int]:
        """The positions of the given axes, last first."""
        if axes is None:
            return list(reversed(range(self.ndim)))
        given: Sequence[Any] = axes if isinstance(axes, tuple | list) else [axes]
        places = sorted((self.position(a, op) for a in given), reverse=True)
        if len(set(places)) < len(places):
            raise TraceError(op=op, problem=f"{axes} names an axis of {self} twice")
        return places

    def along(self, axis: int, op: str) -> Axis:
        """The axis at a position, where there is one."""
        found = self.axes[self.position(axis, op)]
        if found is None:
            problem = f"axis {axis} of {self} has length 1, and nothing lies along it"
            raise TraceError(op=op, problem=f"{problem}; say another axis")
        return found

    def at(self, axes: Sequence[Axis | None]) -> "Array":
        """The same value under other positions."""
        return Array(self.tracing, self.value, axes)

    def __getitem__(self, key: Any) -> "Array":
        """`None` (a new axis of length 1), `:` and `...`, as in `x[:, None]`.

        Or an array of places, which are looked up along the first axis: an embedding `W[ids]`.
        """
        if isinstance(key, Array) and key.dtype in (DType.int64, DType.int32):
            looked_up: Array = FUNCTIONS[np.take](self, key, 0)
            return looked_up
        keys = key if isinstance(key, tuple) else (key,)
        for k in keys:
            whole = isinstance(k, slice) and k.start is None and k.stop is None and k.step is None
            if k is not None and k is not ... and not whole:
                shown = repr(k) if isinstance(k, int | str) else f"a {type(k).__name__}"
                traced = "only `:`, `...`, `None` and an array of whole numbers are traced"
                problem = f"{traced} in an index, not {shown}"
                raise TraceError(op=f"index of {self}", problem=f"{problem}; use where or ops.misc")
        fill = self.ndim - sum(isinstance(k, slice) for k in keys)
        ellipses = sum(k is ... for k in keys)
        if fill < 0 or ellipses > 1:
            problem = "more than one `...`" if ellipses > 1 else f"more than {self.ndim} axes"
            raise TraceError(op=f"index of {self}", problem=problem)
        axes: list[Axis | None] = []
        left = list(self._axes)
        for k in keys if ellipses else (*keys, ...):
            count = 0 if k is None else fill if k is ... else 1
            axes += [None] if k is None else left[:count]
            left = left[count:]
        return self.at(axes)

    def sum(self, axis: AxisNumbers = None, keepdims: bool = False) -> "Array":
        return reduce(self, ADD, axis, keepdims)

    def prod(self, axis: AxisNumbers = None, keepdims: bool = False) -> "Array":
        return reduce(self, MUL, axis, keepdims)

    def max(self, axis: AxisNumbers = None, keepdims: bool = False) -> "Array":
        return reduce(self, MAX, axis, keepdims)

    def min(self, axis: AxisNumbers = None, keepdims: bool = False) -> "Array":
        return reduce(self, MIN, axis, keepdims)

    def mean(self, axis: AxisNumbers = None, keepdims: bool = False) -> "Array":
        return mean(self, axis, keepdims)

    def astype(self, dtype: str | DType) -> "Array":
        wanted = as_dtype(dtype)
        return elementwise(lambda t: cast_expr(t, wanted), self)

    def __matmul__(self, other: Any) -> "Array":
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> "Array":
        return matmul(other, self)

    __add__, __radd__ = _infix("add")
    __sub__, __rsub__ = _infix("sub")
    __mul__, __rmul__ = _infix("mul")
    __truediv__, __rtruediv__ = _infix("div")
    __floordiv__, __rfloordiv__ = _infix("floordiv")
    __mod__, __rmod__ = _infix("mod")
    __pow__, __rpow__ = _infix("pow")
    __and__, __rand__ = _infix("and_", masks=True)
    __or__, __ror__ = _infix("or_", masks=True)
    __xor__, __rxor__ = _infix("ne", masks=True)
    __lt__, __gt__ = _infix("lt")[0], _infix("gt")[0]
    __le__, __ge__ = _infix("le")[0], _infix("ge")[0]
    __eq__, __ne__ = _infix("eq")[0], _infix("ne")[0]  # type: ignore[assignment]

    def __neg__(self) -> "Array":
        return apply("neg", self)

    def __pos__(self) -> "Array":
        return self

    def __abs__(self) -> "Array":
        return apply("abs", self)

    def __invert__(self) -> "Array":
        return of_masks("not_", self)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        problem = "an array that is traced has no truth value: use where(condition, x, y)"
        raise TraceError(op=str(self), problem=problem)

    def __float__(self) -> float:
        problem = "an array that is traced is no number: use NumPy's functions or blockbuster's ops"
        raise TraceError(op=str(self), problem=problem)

    def __array__(self, *_: object, **__: object) -> Any:
        problem = "an array that is traced has no elements yet: compute with it as it is"
        raise TraceError(op=str(self), problem=problem)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # Python and NumPy ask for protocols in this way
        raise UntracedAttribute(op=f"{self}.{name}", problem=_UNTRACED)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        if method != "__call__" or ufunc not in UFUNCS:
            raise TraceError(op=name, problem=_UNTRACED)
        if options:
            raise TraceError(op=name, problem=f"{', '.join(options)}= is not traced: leave it out")
        return UFUNCS[ufunc](*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        name = f"{function.__module__}.{function.__name__}"
        if function not in FUNCTIONS:
            raise TraceError(op=name, problem=_UNTRACED)
        signature = inspect.signature(FUNCTIONS[function])
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            known = ", ".join(signature.parameters)
            raise TraceError(op=name, problem=f"{error}; traced are {known}") from None
        return FUNCTIONS[function](*args, **options)

    def __repr__(self) -> str:
        return f"Array[{' '.join('1' if a is None else a.name for a in self.axes)}]"


def _extent(axis: Axis | None) -> int | Expr:
    if axis is None:
        return 1
    return axis.extent if isinstance(axis.extent, int) else size(axis)


def as_dtype(dtype: Any) -> DType:
    """A dtype by its name, or as NumPy has it."""
    if isinstance(dtype, DType):
        return dtype
    known = {d.value: d for d in DType}
    if isinstance(dtype, str) and dtype in known:
        return known[dtype]
    try:
        return known[str(np.dtype(dtype)) if dtype is not None else ""]  # NumPy: None is float64
    except (KeyError, TypeError, ValueError):
        problem = f"{dtype!r} is not one of {', '.join(known)}"
        raise TraceError(op="dtype", problem=problem) from None


def one_trace(op: str, *operands: Any) -> "Tracing":
    """The trace that all of the operands belong to."""
    for x in operands:
        if not isinstance(x, Array):
            problem = f"got {type(x).__name__}, not an array of this trace"
            raise TraceError(op=op, problem=f"{problem}: make it an argument of the function")
        if x.tracing is not operands[0].tracing:
            problem = f"{operands[0]} and {x} come from two traces"
            raise TraceError(op=op, problem=f"{problem}: make both arguments of one function")
    tracing: Tracing = operands[0].tracing
    return tracing


# ---------------------------------------------------------------- elementwise


def apply(name: str, *operands: Any) -> Array:
    """The scalar function called `name` of arrays and numbers, with NumPy's broadcasting."""
    return elementwise(lambda *xs: call(name, *xs), *operands, name=name)


def of_masks(name: str, *operands: Any) -> Array:
    """`&`, `|`, `^` and `~` of masks; of numbers NumPy means bits."""
    for x in operands:
        if isinstance(x, Array) and x.dtype is DType.bool_:
            continue
        if not isinstance(x, bool | np.bool_ | Expr):
            shown = f"{x} of {x.dtype}" if isinstance(x, Array) else repr(x)
            problem = f"{shown} is no mask, and bits are not traced"
            raise TraceError(op="& | ^ ~", problem=f"{problem}; compare it, or use logical_and")
    return apply(name, *operands)


def elementwise(
    function: Callable[..., Expr | int | float], *operands: Any, name: str = "elementwise"
) -> Array:
    """`function` of every element, as one operator: `elementwise(lambda s: -s / K, sums)`.

    The function is called once, with an expression per operand. `name` is for messages.
    """
    arrays = [x for x in operands if isinstance(x, Array)]
    if not arrays:
        raise TraceError(op=name, problem="none of the operands is an array of a trace")
    tracing = one_trace(name, *arrays)
    numbers = {i: _number(name, x) for i, x in enumerate(operands) if not isinstance(x, Array)}
    aligned, axes = broadcast(name, arrays)
    values = list(dict.fromkeys(x.value for x in aligned))
    places = iter(values.index(x.value) for x in aligned)
    leaves = [numbers[i] if i in numbers else arg(next(places)) for i in range(len(operands))]
    expr = as_expr(function(*leaves))
    if len(arguments(expr)) < len(values):
        problem = f"{expr} ignores some of its {len(values)} arrays, whose shape would be lost"
        raise TraceError(op=name, problem=problem)
    unique = [next(x for x in aligned if x.value == v) for v in values]
    return Array(tracing, tracing.record("elementwise", unique, expr=expr), axes)


def _number(op: str, x: Any) -> Expr:
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x[()]
    if not is_scalar(x):
        problem = f"got {type(x).__name__}, neither an array of this trace nor a number"
        raise TraceError(op=op, problem=f"{problem}: make arrays arguments of the function")
    made = as_expr(x)
    if arguments(made):
        problem = f"{made} is an element of another operator, which cannot be mixed with arrays"
        raise TraceError(op=op, problem=f"{problem}; give elementwise all arrays as operands")
    return made


# ---------------------------------------------------------------- axes that have to agree


def broadcast(op: str, arrays: Sequence[Array]) -> tuple[list[Array], list[Axis | None]]:
    """The arrays with axes that agree, aligned from the right, and the axes of the result."""
    op = f"{op} of {', '.join(map(str, arrays))}"
    arrays = without_units(arrays)
    rank = max(x.ndim for x in arrays)
    result: list[Axis | None] = [None] * rank
    aligned = []
    for x in arrays:
        for at in range(x.ndim):
            axis, wanted = x.axes[at], result[rank - x.ndim + at]
            if axis is None or axis is wanted:
                continue
            if wanted is not None:
                # if the two were merged, an axis of another position would occur twice
                x = claim(op, x, at, wanted, unify=axis not in result)
            elif axis in result:
                x = other_name(x, axis)  # one axis at two positions, as in x + x.T
            result = [a and x.tracing.resolve(a) for a in result]
            result[rank - x.ndim + at] = x.axes[at]
        aligned.append(x)
    return aligned, result


def without_units(arrays: Sequence[Array], first: int = 1) -> list[Array]:
    """The arrays without the axes of extent 1 that are stretched, from the right."""
    made = list(arrays)
    for back in range(first, max(x.ndim for x in arrays) + 1):
        here = [_from_right(x, back) for x in made]
        if any(a is not None and a.extent != 1 for a in here):
            made = [
                without_unit(x, -back) if a is not None and a.extent == 1 else x
                for x, a in zip(made, here, strict=True)
            ]
    return made


def without_unit(x: Array, at: int) -> Array:
    """`x` without an axis of extent 1, whose position stays."""
    return reduce(x, MAX, at, keepdims=True)


def _from_right(x: Array, back: int) -> Axis | None:
    return x.axes[-back] if back <= x.ndim else None


def claim(op: str, x: Array, position: int, axis: Axis, unify: bool = True) -> Array:
    """`x` with the axis at `position` renamed to `axis`."""
    have, axis = x.axes[position], x.tracing.resolve(axis)
    assert have is not None
    if have is axis:
        return x
    if axis in x.axes and have.extent == axis.extent:
        x = other_name(x, axis)
    return x.tracing.agree(op, x, have, axis, unify)


def other_name(x: Array, axis: Axis) -> Array:
    """`x` with one of its axes under a new name."""
    return x.tracing.rename(x, axis, x.tracing.fresh_axis(axis.name, axis.extent))


# ---------------------------------------------------------------- matmul and reductions


def matmul(x: Array, y: Array) -> Array:
    """NumPy's `x @ y`: the last axis of `x` against the last but one of `y`, batch axes aligned."""
    one_trace("matmul", x, y)
    if x.ndim == 0 or y.ndim == 0:
        raise TraceError(op="matmul", problem="a scalar has no axis to contract: use *")
    made = _product(f"{x} @ {y}", x if x.ndim > 1 else x[None], y if y.ndim > 1 else y[:, None])
    rows = made.axes[-2:-1] if x.ndim > 1 else ()
    columns = made.axes[-1:] if y.ndim > 1 else ()
    return made.at((*made.axes[:-2], *rows, *columns))


def _product(op: str, x: Array, y: Array) -> Array:
    x, y = without_units([x, y], first=3)
    contracted = x.axes[-1]
    if contracted is None or y.axes[-2] is None:
        return _outer(op, x, y)
    y = claim(op, y, y.ndim - 2, contracted)
    shared = {2}
    batch = range(max(x.ndim, y.ndim), 2, -1)
    for back in batch:
        mine = _from_right(x, back)
        if mine is not None and _from_right(y, back) is not None:
            y = claim(op, y, y.ndim - back, mine)
            shared.add(back)
    for back in range(1, y.ndim + 1):
        axis = y.axes[-back]
        if back not in shared and axis is not None and axis in x.axes:
            # rows and columns over one axis, as in self-attention: the columns take a new name
            y = other_name(y, axis)
    value = x.tracing.record("matmul", [x, y], axis=x.tracing.resolve(contracted))
    leading = [_from_right(x, back) or _from_right(y, back) for back in batch]
    return Array(x.tracing, value, (*leading, x.axes[-2], y.axes[-1]))


def _outer(op: str, x: Array, y: Array) -> Array:
    """The product over an axis of length 1: broadcasting does it."""
    for axis in (x.axes[-1], y.axes[-2]):
        if axis is not None and axis.extent != 1:
            problem = f"an axis of length 1 and the axis {axis} ({axis.extent}) do not fit"
            raise TraceError(op=op, problem=problem)
    return without_unit(x, -1) * without_unit(y, -2)


def reduce(x: Array, combiner: Combiner, axis: AxisNumbers = None, keepdims: bool = False) -> Array:
    """The elements along one axis, several, or all of them combined."""
    tracing = one_trace(f"reduce by {combiner}", x)
    if combiner in (ADD, MUL) and x.dtype in (DType.bool_, DType.int32):
        x = x.astype(DType.int64)  # as NumPy does: a sum of bools counts
    places = x.positions(axis, f"reduce by {combiner}")
    for at in places:
        reduced = x.axes[at]
        left = [None if i == at else a for i, a in enumerate(x.axes)]
        if reduced is not None:
            x = Array(tracing, tracing.record("reduce", [x], axis=reduced, combiner=combiner), left)
    return x if keepdims else _without(x, places)


def scan(x: Array, combiner: Combiner, axis: int | None = None) -> Array:
    """Each element combined with those before it along an axis; the only one may be left out."""
    tracing = one_trace(f"scan by {combiner}", x)
    if axis is None and x.ndim != 1:
        raise TraceError(op=f"scan by {combiner}", problem=f"say along which axis of {x}")
    if combiner in (ADD, MUL) and x.dtype in (DType.bool_, DType.int32):
        x = x.astype(DType.int64)  # as NumPy does: a sum of bools counts
    along = x.axes[x.position(axis or 0, f"scan by {combiner}")]
    if along is None:
        return x
    return Array(tracing, tracing.record("scan", [x], axis=along, combiner=combiner), x.axes)


def mean(x: Array, axis: AxisNumbers = None, keepdims: bool = False) -> Array:
    """The mean along one axis, several, or all of them."""
    tracing = one_trace("mean", x)
    places = x.positions(axis, "mean")
    axes = tuple(a for at in places if (a := x.axes[at]) is not None)
    left = [None if i in places else a for i, a in enumerate(x.axes)]
    made = Array(tracing, tracing.record("mean", [x], axes=axes), left)
    return made if keepdims else _without(made, places)


def _without(x: Array, places: Sequence[int]) -> Array:
    return x.at([a for i, a in enumerate(x.axes) if i not in places])
