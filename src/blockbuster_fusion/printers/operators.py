"""The table of operators: the text of every scalar function in C and in Triton.

A new function gets a row in `OPERATORS`. Only powers with a constant exponent are treated by each
printer on its own.
"""

from dataclasses import dataclass

from blockbuster_fusion.ir.combiner import ADD, LOGADDEXP, MAX, MIN, MUL, Combiner
from blockbuster_fusion.ir.expr import FUNCTIONS
from blockbuster_fusion.ir.types import DType

# ------------------------------------------------------------------------- types

C_TYPES: dict[DType, str] = {
    DType.float64: "double",
    DType.float32: "float",
    DType.float16: "float",
    DType.bfloat16: "float",
    DType.int64: "int64_t",
    DType.int32: "int32_t",
    DType.bool_: "uint8_t",
}
"""The C type of a tile's elements: 16-bit floats are computed with as float."""

C_STORED = C_TYPES | {DType.float16: "_Float16", DType.bfloat16: "bfloat16"}
"""The C type of a buffer's elements."""

TRITON_TYPES = {d: "tl.int1" if d is DType.bool_ else f"tl.{d.value}" for d in DType}
"""The name of a dtype in Triton."""

# ------------------------------------------------------------------------- forms

ATOM, POWER, UNARY, TIMES, PLUS, AND, OR, COMPARE, CHOICE = 10, 8, 7, 6, 5, 4, 3, 2, 1
"""Binding strengths of texts, in the order that C and Python share."""


@dataclass(frozen=True, slots=True)
class TextForm:
    """The text of a function: a pattern in which `{0}` is the first operand.

    C has more placeholders: `{f}` is the suffix of float32 functions, `{dtype}` the dtype of the
    operands, and `{type}` their C type.
    """

    pattern: str
    binds: int = ATOM
    needs: tuple[int, ...] = ()
    """The binding strength that each operand needs to stand without parentheses; 0 by default."""
    part: str | None = None
    """The function of the C prelude or Triton helper that the text calls."""
    libdevice: bool = False
    truths: bool = False
    """True if operands are booleans; others are compared with 0 first."""

    def need(self, operand: int) -> int:
        """The binding strength that an operand needs."""
        return self.needs[operand] if operand < len(self.needs) else 0


SAME = TextForm("{0}")
"""The operand itself."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """The forms of a function in one language, by the dtype of its operands."""

    floats: TextForm
    whole: TextForm | None = None
    """For integers and booleans, if they differ from floats."""
    truths: TextForm | None = None
    """For booleans, if they differ from integers."""
    double: TextForm | None = None
    """For float64, if it differs from other floats."""

    def of(self, dtype: DType) -> TextForm:
        """The form for operands of a dtype."""
        if dtype.is_float:
            return (self.double if dtype is DType.float64 else None) or self.floats
        return (self.truths if dtype is DType.bool_ else None) or self.whole or self.floats


@dataclass(frozen=True, slots=True)
class OperatorTexts:
    """A scalar function in each language."""

    c: Spelling
    triton: Spelling


def _infix(sign: str, binds: int, *, truths: bool = False) -> TextForm:
    left = binds + 1 if binds == COMPARE else binds  # a < b < c means something else in Python
    return TextForm(f"{{0}} {sign} {{1}}", binds, (left, binds + 1), truths=truths)


def _call(
    function: str, arity: int = 1, *, part: str | None = None, libdevice: bool = False
) -> TextForm:
    operands = ", ".join(f"{{{number}}}" for number in range(arity))
    return TextForm(f"{function}({operands})", part=part, libdevice=libdevice)


def _prelude(name: str) -> TextForm:
    """A function of the C prelude, which has one for each dtype."""
    return _call(f"{name}_{{dtype}}", FUNCTIONS[name].arity, part=name)


def _helper(name: str, arity: int = 1) -> TextForm:
    """A helper of Triton modules."""
    return _call(name, arity, part=name)


def _both(form: TextForm) -> OperatorTexts:
    return OperatorTexts(Spelling(form), Spelling(form))


def _libm(name: str, triton: TextForm, *, c: str | None = None) -> OperatorTexts:
    """A function of the C library; integers are left as they are."""
    function = _call(f"{c or name}{{f}}", FUNCTIONS[name].arity)
    whole = None if FUNCTIONS[name].result == "float" else SAME
    return OperatorTexts(Spelling(function, whole=SAME), Spelling(triton, whole=whole))


def _in_triton(name: str) -> OperatorTexts:
    return _libm(name, _call(f"tl.{name}"))


def _in_libdevice(name: str, c: str | None = None) -> OperatorTexts:
    """A function with the same name in C and in CUDA's libdevice."""
    called = _call(f"libdevice.{c or name}", FUNCTIONS[name].arity, libdevice=True)
    return _libm(name, called, c=c)


def _extremum(name: str, sign: str, binds: int) -> OperatorTexts:
    """A maximum or minimum; NaN if an operand is NaN."""
    floats = TextForm(f"tl.{name}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.ALL)")
    whole, truths = _call(f"tl.{name}", 2), _infix(sign, binds)
    return OperatorTexts(Spelling(_prelude(name)), Spelling(floats, whole, truths))


def _mathematics(name: str, triton: Spelling) -> OperatorTexts:
    """A function of the vector mathematics of C; of integers the C library has it."""
    arity = FUNCTIONS[name].arity
    operands = ", ".join(f"(double){{{number}}}" for number in range(arity))
    whole = TextForm(f"({{type}}){name}({operands})", UNARY)
    return OperatorTexts(Spelling(_prelude(name), whole), triton)


def _vectors(name: str) -> OperatorTexts:
    """Such a function that Triton has as well."""
    return _mathematics(name, Spelling(_call(f"tl.{name}")))


def _vectors_libdevice(name: str) -> OperatorTexts:
    """Such a function that CUDA's libdevice has."""
    return _mathematics(name, Spelling(_call(f"libdevice.{name}", libdevice=True)))


# ------------------------------------------------------------------------- table

OPERATORS: dict[str, OperatorTexts] = {
    "add": _both(_infix("+", PLUS)),
    "sub": _both(_infix("-", PLUS)),
    "mul": _both(_infix("*", TIMES)),
    "div": _both(_infix("/", TIMES)),
    "mod": OperatorTexts(
        Spelling(_prelude("mod")), Spelling(_helper("float_modulo", 2), _helper("modulo", 2))
    ),
    "floordiv": OperatorTexts(
        Spelling(_prelude("floordiv")),
        Spelling(
            TextForm("tl.floor({0} / {1})", needs=(TIMES, TIMES + 1)), _helper("floor_divide", 2)
        ),
    ),
    "neg": OperatorTexts(
        Spelling(TextForm("-{0}", UNARY)),
        # Triton's own minus takes a number from 0, and 0 - 0 has no sign.
        Spelling(TextForm("-1.0 * {0}", TIMES, (TIMES + 1,)), TextForm("-{0}", UNARY, (UNARY,))),
    ),
    "pow": _mathematics("pow", Spelling(TextForm("tl.exp2({1} * tl.log2({0}))", needs=(0, TIMES)))),
    "lt": _both(_infix("<", COMPARE)),
    "le": _both(_infix("<=", COMPARE)),
    "gt": _both(_infix(">", COMPARE)),
    "ge": _both(_infix(">=", COMPARE)),
    "eq": _both(_infix("==", COMPARE)),
    "ne": _both(_infix("!=", COMPARE)),
    "and_": _both(_infix("&", AND, truths=True)),
    "or_": _both(_infix("|", OR, truths=True)),
    "not_": OperatorTexts(
        Spelling(TextForm("!{0}", UNARY)), Spelling(TextForm("~{0}", UNARY, (UNARY,), truths=True))
    ),
    "where": OperatorTexts(
        Spelling(TextForm("{0} ? {1} : {2}", CHOICE)), Spelling(_call("tl.where", 3))
    ),
    "maximum": _extremum("maximum", "|", OR),
    "minimum": _extremum("minimum", "&", AND),
    "abs": OperatorTexts(
        Spelling(_call("fabs{f}"), TextForm("{0} < 0 ? -{0} : {0}", CHOICE)),
        Spelling(_call("tl.abs")),
    ),
    "sign": OperatorTexts(
        Spelling(_prelude("sign")), Spelling(_helper("sign"), whole=_helper("whole_sign"))
    ),
    "floor": _in_triton("floor"),
    "ceil": _in_triton("ceil"),
    "round": _libm("round", _helper("round_half_to_even"), c="rint"),
    "trunc": _libm("trunc", _helper("truncate")),
    "isnan": _both(TextForm("{0} != {0}", COMPARE, (PLUS,))),
    "isinf": OperatorTexts(
        Spelling(TextForm("fabs{f}({0}) == INFINITY", COMPARE)),
        Spelling(TextForm('tl.abs({0}) == float("inf")', COMPARE)),
    ),
    "exp": _vectors("exp"),
    "exp2": _vectors("exp2"),
    "expm1": _vectors_libdevice("expm1"),
    "log": _vectors("log"),
    "log2": _vectors("log2"),
    "log10": _vectors_libdevice("log10"),
    "log1p": _vectors_libdevice("log1p"),
    "sqrt": _in_triton("sqrt"),
    "cbrt": _in_libdevice("cbrt"),
    "sin": _vectors("sin"),
    "cos": _vectors("cos"),
    "tan": _in_libdevice("tan"),
    "arcsin": _in_libdevice("arcsin", "asin"),
    "arccos": _in_libdevice("arccos", "acos"),
    "arctan": _in_libdevice("arctan", "atan"),
    "sinh": _in_libdevice("sinh"),
    "cosh": _in_libdevice("cosh"),
    "tanh": _mathematics(
        "tanh", Spelling(_helper("tanh"), double=_call("libdevice.tanh", libdevice=True))
    ),
    "arcsinh": _in_libdevice("arcsinh", "asinh"),
    "arccosh": _in_libdevice("arccosh", "acosh"),
    "arctanh": _in_libdevice("arctanh", "atanh"),
    "arctan2": _in_libdevice("arctan2", "atan2"),
    "erf": _vectors("erf"),
}
"""Every function of `ir.expr.FUNCTIONS`."""

TRITON_REDUCTIONS: dict[Combiner, TextForm] = {
    ADD: TextForm("tl.sum({0}, {axis})"),
    MAX: TextForm("tl.max({0}, {axis})"),
    MIN: TextForm("tl.min({0}, {axis})"),
    MUL: TextForm("tl.reduce({0}, {axis}, product)", part="product"),
    LOGADDEXP: TextForm("tl.reduce({0}, {axis}, log_add_exp)", part="log_add_exp"),
}
"""Reductions of a block along an axis in Triton; C loops over the expression of the combiner."""

TRITON_SCANS: dict[Combiner, TextForm] = {
    ADD: TextForm("tl.cumsum({0}, {axis})"),
    MUL: TextForm("tl.cumprod({0}, {axis})"),
    MAX: TextForm("tl.associative_scan({0}, {axis}, larger)", part="larger"),
    MIN: TextForm("tl.associative_scan({0}, {axis}, smaller)", part="smaller"),
    LOGADDEXP: TextForm("tl.associative_scan({0}, {axis}, log_add_exp)", part="log_add_exp"),
}
"""Scans of a block along an axis in Triton."""
