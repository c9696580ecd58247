"""Expressions as C: typed, with what depends on sizes alone computed once."""

from collections.abc import Callable, Sequence

import numpy as np

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, node_dtypes, number_dtype, varying
from blockbuster_fusion.ir.types import DType, promote

HELD: dict[DType, str] = {
    DType.float64: "double",
    DType.float32: "float",
    DType.float16: "float",
    DType.bfloat16: "float",
    DType.int64: "int64_t",
    DType.int32: "int32_t",
    DType.bool_: "uint8_t",
}
"""The C type of a tile's elements: 16-bit floats are computed with as float."""

STORED = HELD | {DType.float16: "_Float16", DType.bfloat16: "bfloat16"}
"""The C type of a buffer's elements."""

Need = tuple[str, ...]
"""A part of the prelude: its name and the types it is for."""

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and_": "&", "or_": "|",
}  # fmt: skip

_LIBM = {
    "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10",
    "log1p": "log1p", "sqrt": "sqrt", "cbrt": "cbrt", "sin": "sin", "cos": "cos", "tan": "tan",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "arctan2": "atan2", "erf": "erf", "floor": "floor", "ceil": "ceil", "round": "rint",
    "trunc": "trunc",
}  # fmt: skip


class Writer:
    """Writes expressions; `size` gives the text of an axis's extent.

    What it needs of the prelude is noted in `needs`.
    """

    def __init__(self, size: Callable[[Axis], str], needs: set[Need]) -> None:
        self.size, self.needs = size, needs

    def write(
        self, expr: Expr, texts: Sequence[str], dtypes: Sequence[DType], wanted: DType
    ) -> tuple[str, list[str]]:
        """The expression over operands with these texts, and what is defined before its loop."""
        made = _Written(self, texts, node_dtypes(expr, dtypes), varying(expr))
        return made.text(expr, _held(wanted)), made.definitions

    def inline(self, expr: Expr, wanted: DType) -> str:
        """An expression of sizes and numbers, in one piece."""
        return _Written(self, [], node_dtypes(expr, []), set(), named=False).text(expr, wanted)

    def combined(self, expr: Expr, texts: Sequence[str], dtype: DType) -> str:
        """A combiner's expression."""
        return self.write(expr, texts, [dtype] * len(texts), dtype)[0]


def _held(dtype: DType) -> DType:
    return DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype


class _Written:
    """One expression while it is written."""

    def __init__(
        self,
        writer: Writer,
        texts: Sequence[str],
        dtypes: dict[Expr, DType | None],
        varies: set[Expr],
        *,
        named: bool = True,
    ) -> None:
        self.writer, self.texts, self.dtypes, self.varying = writer, texts, dtypes, varies
        self.named = named
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
        """The text of a node whose own operands have theirs."""
        own = self.dtypes[node]
        if node.op == "arg":
            return self.texts[node.index]
        if node.op == "const":
            return number(node.number, wanted)
        if node.op == "size":
            text = self.writer.size(node.axis)
            return text if not wanted.is_float else f"({HELD[wanted]}){text}"
        texts = [self.made[key] for key in self.operands(node, wanted)]
        made = self.call(node, _held(own) if own is not None else wanted, texts)
        if own is None and self.named and node not in self.varying:
            return self.constant(made, wanted)
        return made

    def constant(self, text: str, wanted: DType) -> str:
        """A name for a part that is the same for every element."""
        name = f"c{len(self.definitions) + 1}"
        self.definitions.append(f"const {HELD[wanted]} {name} = {bare(text)};")
        return name

    def call(self, node: Expr, own: DType, texts: list[str]) -> str:
        if node.op == "cast":
            return self.cast(node, texts[0])
        inner = self.inner(node, own)
        match node.op:
            case "neg":
                return f"(-{texts[0]})"
            case "not_":
                return f"(!{texts[0]})"
            case "where":
                return f"({texts[0]} ? {texts[1]} : {texts[2]})"
            case "and_" | "or_":
                truths = [self.truth(a, t) for a, t in zip(node.args, texts, strict=True)]
                return f"({truths[0]} {_INFIX[node.op]} {truths[1]})"
            case "div":
                sides = zip(node.args, texts, strict=True)
                return f"({' / '.join(self.as_float(a, t, inner) for a, t in sides)})"
            case "pow":
                return self.power(node, texts, inner)
            case "maximum" | "minimum" | "sign" | "mod" | "floordiv":
                return self.helper(node.op, texts, inner)
            case "abs":
                if not inner.is_float:
                    return f"({texts[0]} < 0 ? -{texts[0]} : {texts[0]})"
                return f"fabs{_suffix(inner)}({texts[0]})"
            case "isnan":
                return f"({texts[0]} != {texts[0]})"
            case "isinf":
                return f"(fabs{_suffix(inner)}({texts[0]}) == INFINITY)"
            case "exp" | "exp2" if inner is not DType.float64:
                return self.helper(node.op, texts, DType.float32)
            case "exp":
                return f"exp({texts[0]})"
        if node.op in _INFIX:
            return f"({texts[0]} {_INFIX[node.op]} {texts[1]})"
        if node.op in _LIBM:
            if not inner.is_float:
                return texts[0]
            return f"{_LIBM[node.op]}{_suffix(inner)}({', '.join(texts)})"
        raise NoKernel(what=f"{node.op} has no C", remedy='run it with target="interpret"')

    def compared(self, node: Expr) -> DType:
        """In which type the operands of a comparison meet: whole numbers and others, in double."""
        kinds = [self.dtypes[a] or number_dtype(a) for a in node.args]
        if any(k.is_float for k in kinds) and not all(k.is_float for k in kinds):
            return DType.float64
        return _held(promote(*kinds))

    def truth(self, node: Expr, text: str) -> str:
        own = self.dtypes[node] or DType.bool_
        return text if own is DType.bool_ else f"({text} != 0)"

    def as_float(self, node: Expr, text: str, dtype: DType) -> str:
        """An operand of a quotient, which is none of whole numbers."""
        own = self.dtypes[node]
        return text if own is None or own.is_float else f"({HELD[dtype]}){text}"

    def helper(self, name: str, texts: Sequence[str], dtype: DType) -> str:
        """A call of a function of the prelude."""
        self.writer.needs.add((name, dtype.value))
        return f"{name}_{dtype.value}({', '.join(texts)})"

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
        return text if own is wanted else f"(({HELD[wanted]}){text})"

    def power(self, node: Expr, texts: Sequence[str], dtype: DType) -> str:
        exponent, suffix = node.args[1].value, _suffix(dtype)
        is_number = node.args[1].op == "const" and isinstance(exponent, int | float)
        base = texts[0]
        if is_number and exponent == 2 and node.args[0].op == "arg":
            return f"({base} * {base})"
        if is_number and dtype.is_float and exponent in (0.5, -0.5):
            root = f"sqrt{suffix}({base})"
            return root if exponent > 0 else f"({number(1, dtype)} / {root})"
        if not dtype.is_float:
            return f"(({HELD[dtype]})pow((double){base}, (double){texts[1]}))"
        return f"pow{suffix}({base}, {texts[1]})"


def bare(text: str) -> str:
    """A text without parentheses around the whole of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


def _suffix(dtype: DType) -> str:
    return "" if dtype is DType.float64 else "f"


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
    """The shortest decimal that is this number as a float."""
    text = repr(float(str(np.float32(x)))) if abs(x) < 3.4e38 else repr(x)
    return f"{text}f"
