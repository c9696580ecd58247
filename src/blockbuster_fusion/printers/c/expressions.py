"""Expressions as C: typed; parts that depend on sizes alone are computed once."""

from collections.abc import Callable, Sequence

import numpy as np

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, varying
from blockbuster_fusion.ir.expr_dtypes import node_dtypes, number_dtype
from blockbuster_fusion.ir.types import DType, promote
from blockbuster_fusion.printers.operators import ATOM, C_TYPES, OPERATORS, TIMES, TextForm

Need = tuple[str, ...]
"""A part of the prelude that a kernel needs: its name and types."""
BatchCall = Callable[[str, DType, str], str | None]
"""Writes the call of a function for neighbours; gives the text of its value, or None."""


def never_batched(function: str, dtype: DType, operand: str) -> str | None:
    """No call: functions are called for one element."""
    return None


_SQUARE = TextForm("{0} * {0}", TIMES)
_SQUARED = TextForm("squared_{dtype}({0})", part="squared")
_CUBED = TextForm("cubed_{dtype}({0})", part="cubed")
_RECIPROCAL = TextForm("1.0{f} / {0}", TIMES)
_ROOT = TextForm("sqrt{f}({0})")
_RECIPROCAL_ROOT = TextForm("1.0{f} / sqrt{f}({0})", TIMES)
_SIGMOID = TextForm("sigmoid_{dtype}({0})", part="sigmoid")


class ExpressionWriter:
    """Writes expressions; `size` gives the text of an axis's extent.

    The parts of the prelude that they call are noted in `needs`.
    """

    def __init__(self, size: Callable[[Axis], str], needs: set[Need]) -> None:
        self.size, self.needs = size, needs

    def write(
        self, expr: Expr, texts: Sequence[str], dtypes: Sequence[DType], wanted: DType
    ) -> tuple[str, list[str]]:
        """The expression over operands with these texts, and the definitions before its loop."""
        made = _Written(self, texts, node_dtypes(expr, dtypes), varying(expr))
        return made.text(expr, _held(wanted)), made.definitions

    def at_once(
        self,
        expr: Expr,
        texts: Sequence[str],
        dtypes: Sequence[DType],
        wanted: DType,
        batched: BatchCall = never_batched,
    ) -> str:
        """The expression over operands with these texts, without definitions."""
        made = _Written(self, texts, node_dtypes(expr, dtypes), varying(expr), named=False)
        made.batched = batched
        return made.text(expr, _held(wanted))

    def inline(self, expr: Expr, wanted: DType) -> str:
        """An expression of sizes and numbers, without definitions."""
        return _Written(self, [], node_dtypes(expr, []), set(), named=False).text(expr, wanted)

    def combined(self, expr: Expr, texts: Sequence[str], dtype: DType) -> str:
        """The expression of a combiner."""
        return self.write(expr, texts, [dtype] * len(texts), dtype)[0]


def _held(dtype: DType) -> DType:
    return DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype


class _Written:
    """One expression while it is written."""

    def __init__(
        self,
        writer: ExpressionWriter,
        texts: Sequence[str],
        dtypes: dict[Expr, DType | None],
        varies: set[Expr],
        *,
        named: bool = True,
    ) -> None:
        self.writer, self.texts, self.dtypes, self.varying = writer, texts, dtypes, varies
        self.named = named
        self.batched: BatchCall = never_batched
        self.definitions: list[str] = []
        self.made: dict[tuple[Expr, DType], str] = {}

    def text(self, root: Expr, wanted: DType) -> str:
        """The root as an operand of the type `wanted`, in parentheses where it needs them."""
        stack = [(root, wanted)]
        while stack:
            node, dtype = stack[-1]
            missing = [key for key in self.operands(node, dtype) if key not in self.made]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if (node, dtype) not in self.made:
                self.made[node, dtype] = self.operand(node, dtype)
        return self.made[root, wanted]

    def operands(self, node: Expr, wanted: DType) -> list[tuple[Expr, DType]]:
        """The operands of a node, each with the type in which the node takes it."""
        own = self.dtypes[node]
        inner = self.inner(node, _held(own) if own is not None else wanted)
        if (operand := sigmoid_operand(node)) is not None:
            return [(operand, inner)]
        if node.op == "where":
            return [(node.args[0], DType.bool_), *((a, inner) for a in node.args[1:])]
        return [(a, inner) for a in node.args]

    def inner(self, node: Expr, own: DType) -> DType:
        """The type in which a node takes its operands."""
        if node.op == "cast":
            return self.dtypes[node.args[0]] or _held(node.dtype)
        if node.op in FUNCTIONS and FUNCTIONS[node.op].result == "bool":
            return self.compared(node)
        return own

    def operand(self, node: Expr, wanted: DType) -> str:
        """The text of a node; those of its operands are known."""
        own = self.dtypes[node]
        if node.op == "arg":
            return self.texts[node.index]
        if node.op == "const":
            return number(node.number, wanted)
        if node.op == "size":
            text = self.writer.size(node.axis)
            return text if not wanted.is_float else f"({C_TYPES[wanted]}){text}"
        texts = [self.made[key] for key in self.operands(node, wanted)]
        made = self.call(node, _held(own) if own is not None else wanted, texts)
        if own is None and self.named and node not in self.varying:
            return self.constant(made, wanted)
        return made

    def constant(self, text: str, wanted: DType) -> str:
        """A variable for a part that is the same for every element."""
        name = f"c{len(self.definitions) + 1}"
        self.definitions.append(f"const {C_TYPES[wanted]} {name} = {bare(text)};")
        return name

    def call(self, node: Expr, own: DType, texts: list[str]) -> str:
        if node.op == "cast":
            return self.cast(node, texts[0])
        dtype = self.inner(node, own)
        form = self.special(node, dtype) or OPERATORS[node.op].c.of(dtype)
        if form.truths:
            texts = [self.truth(a, t) for a, t in zip(node.args, texts, strict=True)]
        elif node.op == "div" and form is not _SIGMOID:
            texts = [self.as_float(a, t, dtype) for a, t in zip(node.args, texts, strict=True)]
        if form.part is not None:
            if (value := self.batched(form.part, dtype, texts[0])) is not None:
                return value
            self.writer.needs.add((form.part, dtype.value))
        suffix = "" if dtype is DType.float64 else "f"
        made = form.pattern.format(*texts, f=suffix, dtype=dtype.value, type=C_TYPES[dtype])
        return made if form.binds == ATOM else f"({made})"

    def special(self, node: Expr, dtype: DType) -> TextForm | None:
        """The form of a sigmoid, and of a power with a simple exponent."""
        if sigmoid_operand(node) is not None:
            return _SIGMOID
        if node.op != "pow" or node.args[1].op != "const":
            return None
        match node.args[1].value:
            case 2:
                return _SQUARE if node.args[0].op == "arg" else _SQUARED
            case 3:
                return _CUBED
            case -1 if dtype.is_float:
                return _RECIPROCAL
            case 0.5 if dtype.is_float:
                return _ROOT
            case -0.5 if dtype.is_float:
                return _RECIPROCAL_ROOT
        return None

    def compared(self, node: Expr) -> DType:
        """The type in which operands are compared: double for integers with floats."""
        kinds = [self.dtypes[a] or number_dtype(a) for a in node.args]
        if any(k.is_float for k in kinds) and not all(k.is_float for k in kinds):
            return DType.float64
        return _held(promote(*kinds))

    def truth(self, node: Expr, text: str) -> str:
        own = self.dtypes[node] or DType.bool_
        return text if own is DType.bool_ else f"({text} != 0)"

    def as_float(self, node: Expr, text: str, dtype: DType) -> str:
        """An operand of a quotient, as a float: C would divide integers as integers."""
        own = self.dtypes[node]
        return text if own is None or own.is_float else f"({C_TYPES[dtype]}){text}"

    def cast(self, node: Expr, text: str) -> str:
        own, wanted = self.dtypes[node.args[0]], node.dtype
        match wanted:
            case DType.bfloat16:
                self.writer.needs.add(("bfloat16",))
                return f"widened_bfloat16(narrowed_bfloat16({text}))"
            case DType.float16:
                return f"((float)(_Float16){text})"
            case DType.bool_:
                return f"({text} != 0)"
            case DType.int32 | DType.int64 if own is not None and own.is_float:
                source = _held(own).value
                self.writer.needs.add(("whole", source, wanted.value))
                return f"whole_{source}_{wanted.value}({bare(text)})"
        return text if own is wanted else f"(({C_TYPES[wanted]}){text})"


def sigmoid_operand(node: Expr) -> Expr | None:
    """The operand x of a sigmoid, 1 / (1 + exp(-x)); None for other nodes."""
    match node:
        case Expr("div", (one, Expr("add", (first, Expr("exp", (Expr("neg", (x,)),)))))):
            return x if _is_one(one) and _is_one(first) else None
    return None


def _is_one(node: Expr) -> bool:
    """True for the constant 1; the value of an argument is its number."""
    return node.op == "const" and node.value == 1


def bare(text: str) -> str:
    """A text without its outer parentheses."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


def number(value: int | float, dtype: DType) -> str:
    """A number as a C literal of a type."""
    if dtype is DType.bool_:
        return str(int(value > 0))
    if not dtype.is_float:
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            limit = "INT32" if dtype is DType.int32 else "INT64"
            return f"{limit}_{'MAX' if value > 0 else 'MIN'}"
        text = str(int(value))
        return f"({text})" if value < 0 else text
    x = float(value)
    if x != x:
        return "NAN"
    if x in (float("inf"), float("-inf")):
        return "INFINITY" if x > 0 else "(-INFINITY)"
    text = repr(x) if dtype is DType.float64 else _shortest(x)
    return f"({text})" if x < 0 else text


def _shortest(x: float) -> str:
    """The shortest decimal that gives this float."""
    text = repr(float(str(np.float32(x)))) if abs(x) < 3.4e38 else repr(x)
    return f"{text}f"
