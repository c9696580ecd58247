"""Expressions as Triton."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, axes_in, evaluate, postorder, varying
from blockbuster_fusion.ir.expr_dtypes import node_dtypes, result_dtype
from blockbuster_fusion.ir.signs import is_share
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.operators import (
    ATOM,
    COMPARE,
    OPERATORS,
    PLUS,
    POWER,
    SAME,
    TIMES,
    TRITON_TYPES,
    UNARY,
    TextForm,
)

Fragment = tuple[str, int]
"""A text, and how tightly it binds."""

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_PLAIN = ("add", "sub", "mul", "div", "neg", "pow", "floordiv", *_COMPARISONS)
"""The functions that Python computes when a kernel is compiled, where sizes are known."""
_LARGE = 1e30
_FLUSHED = TextForm(f"tl.exp2({{0}} * {math.log2(math.e)!r})", needs=(TIMES,))
"""An exponential in three instructions: exp(x) takes three more for results below 2**-126."""
_LOG1P_OF_SHARE = TextForm("log1p_of_share({0})", part="log1p_of_share")
_NEGATIVE_ZERO = TextForm("negative_zero()", part="negative_zero")


def number_text(value: float, dtype: DType = DType.float32) -> str:
    """A number as a Python literal; beyond 1e30 it is rounded to float32."""
    if isinstance(value, bool | int) and not dtype.is_float:
        return repr(value)
    value = float(value)
    if dtype is not DType.float64 and math.isfinite(value) and abs(value) > _LARGE:
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    if math.isfinite(value):
        return repr(value)
    return f'float("{value}")'


DEEP, LENGTHY = 24, 400
"""A part with more levels than this, or longer and used twice, becomes a variable."""


class ExpressionWriter:
    """Writes expressions; `size` gives the text of an axis' extent, and whether it is constant.

    `fresh` gives names for parts that become variables: Python refuses deeply nested expressions.
    The lines that define them are in `defined`, until `definitions` takes them.
    """

    def __init__(
        self, size: Callable[[Axis], tuple[str, bool]], fresh: Callable[[], str] | None = None
    ) -> None:
        self.size, self.fresh = size, fresh
        self.helpers: set[str] = set()
        self.libdevice = False
        self.defined: list[str] = []

    def definitions(self) -> list[str]:
        """The definitions that the last expression needs before it."""
        lines, self.defined = self.defined, []
        return lines

    def write(
        self,
        expr: Expr,
        operands: Sequence[str],
        dtypes: Sequence[DType],
        flushed: Iterable[Expr] = (),
    ) -> str:
        """The expression over operands of these texts.

        Of `flushed` exponentials those below the least normal number may be 0.
        """
        known = node_dtypes(expr, dtypes)
        wide = DType.float64 if DType.float64 in dtypes else DType.float32
        made: dict[Expr, Fragment] = {}
        varies = varying(expr)
        levels: dict[Expr, int] = {}
        nodes = list(postorder(expr))
        uses = Counter(a for node in nodes for a in node.args)
        may_vanish = {*flushed, *_beside_numbers(nodes)}
        for node in nodes:
            levels[node] = 1 + max((levels[a] for a in node.args), default=0)
            if known[node] is None and node not in varies:
                made[node] = self.number(node, wide, made)
                continue
            if node in may_vanish and known[node] is DType.float32:
                made[node] = self.filled(_FLUSHED, [made[a] for a in node.args])
            else:
                made[node] = self.node(node, made, known, operands)
            is_long = len(made[node][0]) > LENGTHY and uses[node] > 1
            if self.fresh is not None and (levels[node] > DEEP or is_long) and node is not expr:
                name = self.fresh()
                self.defined.append(f"{name} = {made[node][0]}")
                made[node], levels[node] = (name, ATOM), 0
        return made[expr][0]

    # ---------------------------------------------------------------------- numbers

    def number(self, expr: Expr, wide: DType, made: Mapping[Expr, Fragment]) -> Fragment:
        """An expression of numbers and sizes alone; `made` has its operands."""
        axes = axes_in(expr)
        dtype = result_dtype(expr, ())
        if all(isinstance(axis.extent, int) for axis in axes):
            value = evaluate(expr, [], lambda a: int(str(a.extent)), lambda x, _: x)
            if dtype is DType.bool_:
                return repr(bool(value)), ATOM
            value = float(value) if dtype.is_float else int(value)
            if dtype.is_float and value == 0 and math.copysign(1, value) < 0:
                return self.filled(_NEGATIVE_ZERO, [])
            return number_text(value, dtype), UNARY if value < 0 else ATOM
        return self.sized(expr, dtype, wide, made)

    def sized(
        self, expr: Expr, dtype: DType, wide: DType, made: Mapping[Expr, Fragment]
    ) -> Fragment:
        if expr.op == "size":
            return self.size(expr.axis)[0], ATOM
        plain = expr.op in _PLAIN
        constant = all(self.size(axis)[1] for axis in axes_in(expr))
        inner = [made[a] for a in expr.args]
        if plain and constant and expr.op in ("pow", "floordiv"):
            sign = "**" if expr.op == "pow" else "//"
            return f"{_held(inner[0], ATOM)} {sign} {_held(inner[1], ATOM)}", POWER - 3
        if dtype.is_float and not (plain and constant):
            # whole numbers at run time: Triton's functions want floats
            inner = [
                (f"tl.cast({text}, {TRITON_TYPES[wide]})", ATOM) if axes_in(a) else (text, p)
                for a, (text, p) in zip(expr.args, inner, strict=True)
            ]
        dtypes: dict[Expr, DType | None] = {a: result_dtype(a, ()) for a in expr.args}
        dtypes[expr] = wide if dtype.is_float else dtype
        if dtype.is_float:
            dtypes.update(dict.fromkeys(expr.args, wide))
        return self.function(expr, inner, dtypes)

    # ---------------------------------------------------------------------- tensors

    def node(
        self,
        node: Expr,
        made: dict[Expr, Fragment],
        dtypes: dict[Expr, DType | None],
        operands: Sequence[str],
    ) -> Fragment:
        if node.op == "arg":
            return operands[node.index], ATOM
        inner = [made[a] for a in node.args]
        if node.op == "cast":
            return self.cast(inner[0], dtypes[node.args[0]], node.dtype)
        form = _of_error_function(node) if dtypes[node] is DType.float32 else None
        if form is not None:
            (error_function,) = (a for a in node.args if a.op == "erf")
            return self.filled(form, [made[error_function.args[0]]])
        if node.op == "log1p" and dtypes[node] is DType.float32 and is_share(node.args[0]):
            kinds = (dtypes[x] for x in postorder(node.args[0]))
            if all(kind is None or kind.is_float for kind in kinds):  # whole numbers may overflow
                return self.filled(_LOG1P_OF_SHARE, inner)
        return self.function(node, inner, dtypes)

    def cast(self, inner: Fragment, old: DType | None, new: DType) -> Fragment:
        if old is new:
            return inner
        if new is DType.bool_:
            return f"{_held(inner, PLUS)} != 0", COMPARE
        if inner[0].isidentifier() and old is not None:
            return f"{inner[0]}.to({TRITON_TYPES[new]})", ATOM
        return f"tl.cast({inner[0]}, {TRITON_TYPES[new]})", ATOM

    def function(
        self, node: Expr, inner: list[Fragment], dtypes: dict[Expr, DType | None]
    ) -> Fragment:
        """A call of a function; `inner` are the texts of its operands."""
        kinds = [dtypes[a] for a in node.args]
        form = _power(node, inner[0][0]) if node.op == "pow" else None
        form = form or OPERATORS[node.op].triton.of(_dtype_of_call(node, kinds, dtypes[node]))
        if form is SAME:
            return inner[0]
        if form.truths:
            inner = [_truth(w, d) for w, d in zip(inner, kinds, strict=True)]
        elif node.op == "where":
            inner = [_truth(inner[0], kinds[0]), *inner[1:]]
        elif FUNCTIONS[node.op].result == "float" and node.op != "div":
            inner = [_as_float(w, d) for w, d in zip(inner, kinds, strict=True)]
        return self.filled(form, inner)

    def filled(self, form: TextForm, inner: Sequence[Fragment]) -> Fragment:
        """A form with its operands filled in; the helpers that it calls are noted."""
        if form.part is not None:
            self.helpers.add(form.part)
        self.libdevice |= form.libdevice
        texts = [_held(fragment, form.need(at)) for at, fragment in enumerate(inner)]
        return form.pattern.format(*texts), form.binds

    def reduction(self, form: TextForm, *texts: str, axis: int) -> str:
        """A reduction of a block along an axis."""
        if form.part is not None:
            self.helpers.add(form.part)
        return form.pattern.format(*texts, axis=axis)


def _dtype_of_call(node: Expr, operands: Sequence[DType | None], result: DType | None) -> DType:
    """The dtype by which the form of a function is chosen."""
    if all(dtype is DType.bool_ for dtype in operands):
        return DType.bool_
    if not any(dtype is not None and dtype.is_float for dtype in (*operands, result)):
        return DType.int64
    if node.op in ("maximum", "minimum") and any(map(_is_bound, node.args)):
        return DType.int64  # no NaN has to come through a bound
    return DType.float64 if result is DType.float64 else DType.float32


def _power(node: Expr, base: str) -> TextForm | None:
    """The form of a power with a constant exponent, or of a constant above 0."""
    first, exponent = node.args
    if first.op == "const" and first.number > 0:
        return TextForm(f"tl.exp2({{1}} * {math.log2(first.number)!r})", needs=(0, TIMES))
    value = exponent.value if exponent.op == "const" else None
    if exponent.op == "neg" and exponent.args[0].op == "const":
        value = -exponent.args[0].number
    if not isinstance(value, int | float):
        return None
    match value:
        case 0:
            return TextForm("({0} * 0 + 1)", needs=(TIMES,))
        case 0.5:
            return TextForm("tl.sqrt({0})")
        case -0.5:
            return TextForm("tl.rsqrt({0})")
        case 1:
            return SAME
        case -1:
            return TextForm("1 / {0}", TIMES, (TIMES + 1,))
        case 2 if base.isidentifier():
            return TextForm("{0} * {0}", TIMES)
        case 2:
            return TextForm("square({0})", part="square")
    if value == int(value) and 2 <= abs(value) <= 64:
        call = f"whole_power({{0}}, {int(abs(value))})"
        if value > 0:
            return TextForm(call, part="whole_power")
        return TextForm(f"1 / {call}", TIMES, part="whole_power")
    return TextForm(f"tl.exp2({value!r} * tl.log2({{0}}))")


def _of_error_function(node: Expr) -> TextForm | None:
    """The form of 1 + erf(x) or 1 - erf(x), which is computed without erf(x) itself."""
    match node.op, [_is_one(a) for a in node.args], [a.op == "erf" for a in node.args]:
        case ("add", [True, False], [False, True]) | ("add", [False, True], [True, False]):
            return TextForm("one_plus_erf({0})", part="one_plus_erf")
        case "sub", [True, False], [False, True]:
            return TextForm("one_plus_erf(-{0})", needs=(UNARY,), part="one_plus_erf")
    return None


def _beside_numbers(nodes: Sequence[Expr]) -> Iterator[Expr]:
    """The exponentials of an expression that are only added to numbers, as in a sigmoid."""
    users: dict[Expr, list[Expr]] = {}
    for node in nodes:
        for a in node.args:
            users.setdefault(a, []).append(node)
    for node in nodes:
        if node.op == "exp" and node in users and all(map(_adds_a_number, users[node])):
            yield node


def _adds_a_number(node: Expr) -> bool:
    return node.op == "add" and any(a.op == "const" and a.number >= 1 for a in node.args)


def _is_one(expr: Expr) -> bool:
    return expr.op == "const" and expr.number == 1


def _is_bound(expr: Expr) -> bool:
    """True for a constant near the limit of float32, which only guards against overflow."""
    return expr.op == "const" and isinstance(expr.value, float) and abs(expr.value) > _LARGE


def _held(fragment: Fragment, needed: int) -> str:
    text, binds = fragment
    return text if binds >= needed else f"({text})"


def _as_float(fragment: Fragment, dtype: DType | None) -> Fragment:
    """An operand as a float, for a function that takes no integers."""
    if dtype is None or dtype.is_float:
        return fragment
    return f"tl.cast({fragment[0]}, tl.float32)", ATOM


def _truth(fragment: Fragment, dtype: DType | None) -> Fragment:
    if dtype is DType.bool_ or dtype is None:
        return fragment
    return f"{_held(fragment, PLUS)} != 0", COMPARE
