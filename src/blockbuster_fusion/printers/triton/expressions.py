"""Expression trees as Triton writes them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import (
    FUNCTIONS,
    Expr,
    axes_in,
    evaluate,
    node_dtypes,
    postorder,
    result_dtype,
    varying,
)
from blockbuster_fusion.ir.types import DType

Written = tuple[str, int]
"""A text, and how tightly it binds."""

ATOM, POWER, UNARY, TIMES, PLUS, AND, OR, COMPARE = 10, 8, 7, 6, 5, 4, 3, 2

INFIX = {
    "add": ("+", PLUS),
    "sub": ("-", PLUS),
    "mul": ("*", TIMES),
    "div": ("/", TIMES),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
    "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE),
}
DIRECT = {
    **{name: f"tl.{name}" for name in ("exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "erf")},
    **{name: f"tl.{name}" for name in ("abs", "floor", "ceil")},
}
LIBDEVICE = {
    **{name: name for name in ("expm1", "log10", "log1p", "cbrt", "tan", "sinh", "cosh")},
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
}
_LARGE = 1e30


def tl_dtype(dtype: DType) -> str:
    """Triton's name of a dtype."""
    return "tl.int1" if dtype is DType.bool_ else f"tl.{dtype.value}"


def number_text(value: float, dtype: DType = DType.float32) -> str:
    """A number as Python writes it; one that float32 cannot tell from its largest is that."""
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
"""A part of an expression with so many levels, or so long and used twice, is a variable."""


class ExprWriter:
    """Writes expressions; `size` gives the text of an axis' extent, and whether it is constant.

    `fresh` gives names for parts that become variables: Python refuses what is nested too deeply.
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
        """The lines that stand before what was written last."""
        lines, self.defined = self.defined, []
        return lines

    def write(
        self,
        expr: Expr,
        operands: Sequence[str],
        dtypes: Sequence[DType],
    ) -> str:
        """The expression over operands of these texts."""
        known = node_dtypes(expr, dtypes)
        wide = DType.float64 if DType.float64 in dtypes else DType.float32
        made: dict[Expr, Written] = {}
        varies = varying(expr)
        levels: dict[Expr, int] = {}
        nodes = list(postorder(expr))
        uses = Counter(a for node in nodes for a in node.args)
        for node in nodes:
            levels[node] = 1 + max((levels[a] for a in node.args), default=0)
            if known[node] is None and node not in varies:
                made[node] = self.number(node, wide, made)
                continue
            made[node] = self.node(node, made, known, operands)
            is_long = len(made[node][0]) > LENGTHY and uses[node] > 1
            if self.fresh is not None and (levels[node] > DEEP or is_long) and node is not expr:
                name = self.fresh()
                self.defined.append(f"{name} = {made[node][0]}")
                made[node], levels[node] = (name, ATOM), 0
        return made[expr][0]

    # ---------------------------------------------------------------------- numbers

    def number(self, expr: Expr, wide: DType, made: Mapping[Expr, Written]) -> Written:
        """Numbers and sizes of axes alone; `made` has the operands."""
        axes = axes_in(expr)
        dtype = result_dtype(expr, ())
        if all(isinstance(axis.extent, int) for axis in axes):
            value = evaluate(expr, [], lambda a: int(str(a.extent)), lambda x, _: x)
            if dtype is DType.bool_:
                return repr(bool(value)), ATOM
            value = float(value) if dtype.is_float else int(value)
            if dtype.is_float and value == 0 and math.copysign(1, value) < 0:
                return self.helper("negative_zero", [])
            return number_text(value, dtype), UNARY if value < 0 else ATOM
        return self.sized(expr, dtype, wide, made)

    def sized(self, expr: Expr, dtype: DType, wide: DType, made: Mapping[Expr, Written]) -> Written:
        if expr.op == "size":
            return self.size(expr.axis)[0], ATOM
        plain = expr.op in INFIX or expr.op in ("neg", "pow", "floordiv")
        constant = all(self.size(axis)[1] for axis in axes_in(expr))
        inner = [made[a] for a in expr.args]
        if plain and constant and expr.op in ("pow", "floordiv"):
            sign = "**" if expr.op == "pow" else "//"
            return f"{_held(inner[0], ATOM)} {sign} {_held(inner[1], ATOM)}", POWER - 3
        if dtype.is_float and not (plain and constant):
            # whole numbers at run time: Triton's functions want floats
            inner = [
                (f"tl.cast({text}, {tl_dtype(wide)})", ATOM) if axes_in(a) else (text, p)
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
        made: dict[Expr, Written],
        dtypes: dict[Expr, DType | None],
        operands: Sequence[str],
    ) -> Written:
        if node.op == "arg":
            return operands[node.index], ATOM
        inner = [made[a] for a in node.args]
        if node.op == "cast":
            return self.cast(inner[0], dtypes[node.args[0]], node.dtype)
        return self.function(node, inner, dtypes)

    def cast(self, inner: Written, old: DType | None, new: DType) -> Written:
        if old is new:
            return inner
        if new is DType.bool_:
            return f"{_held(inner, PLUS)} != 0", COMPARE
        if inner[0].isidentifier() and old is not None:
            return f"{inner[0]}.to({tl_dtype(new)})", ATOM
        return f"tl.cast({inner[0]}, {tl_dtype(new)})", ATOM

    def function(
        self, node: Expr, inner: list[Written], dtypes: dict[Expr, DType | None]
    ) -> Written:
        name, texts = node.op, [text for text, _ in inner]
        kinds = [dtypes[a] for a in node.args]
        if name in INFIX:
            return _infix(name, inner)
        if name in ("floor", "ceil") and kinds[0] is not None and not kinds[0].is_float:
            return inner[0]
        if FUNCTIONS[name].result == "float":
            texts = [_as_float(t, d) for t, d in zip(texts, kinds, strict=True)]
        if name in DIRECT:
            return f"{DIRECT[name]}({texts[0]})", ATOM
        if name in LIBDEVICE:
            self.libdevice = True
            return f"libdevice.{LIBDEVICE[name]}({', '.join(texts)})", ATOM
        whole = not any(d is not None and d.is_float for d in (*kinds, dtypes[node]))
        match name:
            case "neg" if whole:
                return f"-{_held(inner[0], UNARY)}", UNARY
            case "neg":  # Triton's own takes it from 0, and 0 - 0 has no sign
                return f"-1.0 * {_held(inner[0], TIMES + 1)}", TIMES
            case "pow":
                return self.power(node, inner)
            case "and_" | "or_":
                sign, p = ("&", AND) if name == "and_" else ("|", OR)
                sides = [_truth(w, d) for w, d in zip(inner, kinds, strict=True)]
                return f"{_held(sides[0], p)} {sign} {_held(sides[1], p + 1)}", p
            case "not_":
                return f"~{_held(_truth(inner[0], kinds[0]), UNARY)}", UNARY
            case "where":
                return f"tl.where({_truth(inner[0], kinds[0])[0]}, {texts[1]}, {texts[2]})", ATOM
            case "maximum" | "minimum" if all(kind is DType.bool_ for kind in kinds):
                sign, p = ("&", AND) if name == "minimum" else ("|", OR)
                return f"{_held(inner[0], p)} {sign} {_held(inner[1], p + 1)}", p
            case "maximum" | "minimum":
                plain = whole or any(_is_bound(a) for a in node.args)
                nan = "" if plain else ", propagate_nan=tl.PropagateNan.ALL"
                return f"tl.{name}({texts[0]}, {texts[1]}{nan})", ATOM
            case "isnan":
                return f"{_held(inner[0], PLUS)} != {_held(inner[0], PLUS)}", COMPARE
            case "isinf":
                return f'tl.abs({texts[0]}) == float("inf")', COMPARE
            case "floordiv":
                if whole:
                    return self.helper("floor_divide", texts)
                return f"tl.floor({_infix('div', inner)[0]})", ATOM
            case "mod":
                return self.helper("modulo" if whole else "float_modulo", texts)
            case "tanh" if dtypes[node] is DType.float64:
                self.libdevice = True
                return f"libdevice.tanh({texts[0]})", ATOM
            case "tanh":
                return self.helper("tanh", texts)
            case "sign":
                return self.helper("whole_sign" if whole else "sign", texts)
            case "round" | "trunc" if whole:
                return inner[0]
            case "round":
                return self.helper("round_half_to_even", texts)
            case "trunc":
                return self.helper("truncate", texts)
        what = f"Triton has no function {name}"
        raise NoKernel(what=what, remedy='run it with target="interpret"')

    def helper(self, name: str, texts: Sequence[str]) -> Written:
        self.helpers.add(name)
        return f"{name}({', '.join(texts)})", ATOM

    def power(self, node: Expr, inner: list[Written]) -> Written:
        exponent = node.args[1]
        text = inner[0][0]
        value = exponent.value if exponent.op == "const" else None
        if exponent.op == "neg" and exponent.args[0].op == "const":
            value = -exponent.args[0].value  # type: ignore[operator]
        if not isinstance(value, int | float):
            return f"tl.exp2({_held(inner[1], TIMES)} * tl.log2({text}))", ATOM
        if value == 0:
            return f"({text} * 0 + 1)", ATOM
        if value == 0.5:
            return f"tl.sqrt({text})", ATOM
        if value == -0.5:
            return f"tl.rsqrt({text})", ATOM
        if value == 1:
            return inner[0]
        if value == -1:
            return _infix("div", [("1", ATOM), inner[0]])
        if value == 2:
            if text.isidentifier():
                return f"{text} * {text}", TIMES
            return self.helper("square", [text])
        if value == int(value) and 2 < abs(value) <= 64:
            made = self.helper("whole_power", [text, str(int(abs(value)))])
            return made if value > 0 else _infix("div", [("1", ATOM), made])
        return f"tl.exp2({value!r} * tl.log2({text}))", ATOM


def _is_bound(expr: Expr) -> bool:
    """Whether it is a constant at the end of what a float can be: there for safety alone."""
    return expr.op == "const" and isinstance(expr.value, float) and abs(expr.value) > _LARGE


def _held(written: Written, needed: int) -> str:
    text, binds = written
    return text if binds >= needed else f"({text})"


def _infix(name: str, inner: Sequence[Written]) -> Written:
    sign, p = INFIX[name]
    left = p + 1 if p == COMPARE else p
    return f"{_held(inner[0], left)} {sign} {_held(inner[1], p + 1)}", p


def _as_float(text: str, dtype: DType | None) -> str:
    """An operand of a function that takes no whole numbers."""
    return text if dtype is None or dtype.is_float else f"tl.cast({text}, tl.float32)"


def _truth(written: Written, dtype: DType | None) -> Written:
    if dtype is DType.bool_ or dtype is None:
        return written
    return f"{_held(written, PLUS)} != 0", COMPARE
