"""Expression trees: the function of an elementwise operator for one element."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import numpy as np

from blockbuster_fusion.errors import IllTyped
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.interned import InternedValue
from blockbuster_fusion.ir.types import DType


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function: its NumPy equivalent and its notation."""

    name: str
    arity: int
    numpy: Callable[..., Any]
    infix: str | None = None
    precedence: int = 9
    result: str = "same"  # "same" as the operands, "float", or "bool"


_erf = np.frompyfunc(math.erf, 1, 1)


def _numpy_erf(x: Any) -> Any:
    x = np.asarray(x)
    return np.asarray(_erf(x), dtype=np.result_type(x.dtype, np.float16))


# fmt: off
_FLOAT_FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt",
    "sin", "cos", "tan", "arcsin", "arccos", "arctan",
    "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
)
# fmt: on

FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("add", 2, np.add, "+", 5),
        Function("sub", 2, np.subtract, "-", 5),
        Function("mul", 2, np.multiply, "*", 6),
        Function("div", 2, np.true_divide, "/", 6, "float"),
        Function("mod", 2, np.mod, "%", 6),
        Function("floordiv", 2, np.floor_divide, "//", 6),
        Function("neg", 1, np.negative, "-", 7),
        Function("pow", 2, np.power, "**", 8),
        Function("lt", 2, np.less, "<", 4, "bool"),
        Function("le", 2, np.less_equal, "<=", 4, "bool"),
        Function("gt", 2, np.greater, ">", 4, "bool"),
        Function("ge", 2, np.greater_equal, ">=", 4, "bool"),
        Function("eq", 2, np.equal, "==", 4, "bool"),
        Function("ne", 2, np.not_equal, "!=", 4, "bool"),
        Function("and_", 2, np.logical_and, " and ", 2, "bool"),
        Function("or_", 2, np.logical_or, " or ", 1, "bool"),
        Function("not_", 1, np.logical_not, "not ", 3, "bool"),
        Function("where", 3, np.where),
        Function("maximum", 2, np.maximum),
        Function("minimum", 2, np.minimum),
        Function("abs", 1, np.abs),
        Function("sign", 1, np.sign),
        Function("floor", 1, np.floor),
        Function("ceil", 1, np.ceil),
        Function("round", 1, np.round),
        Function("trunc", 1, np.trunc),
        Function("isnan", 1, np.isnan, result="bool"),
        Function("isinf", 1, np.isinf, result="bool"),
        *(Function(name, 1, getattr(np, name), result="float") for name in _FLOAT_FUNCTIONS),
        Function("arctan2", 2, np.arctan2, result="float"),
        Function("erf", 1, _numpy_erf, result="float"),
    )
}

Scalar = Union["Expr", int, float, bool]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Expr(InternedValue):
    """A node of an expression tree.

    `op` is a name in FUNCTIONS; or a leaf: `arg` (`value` is which argument), `const` (a number),
    `size` (the axis whose extent it stands for); or `cast` (`value` is a dtype).
    """

    op: str
    args: tuple["Expr", ...] = ()
    value: int | float | bool | Axis | DType | None = None

    @property
    def index(self) -> int:
        """The argument number of an `arg`."""
        return _checked(self, int)

    @property
    def number(self) -> int | float:
        """The number of a `const`."""
        return self.value if isinstance(self.value, int) else _checked(self, float)

    @property
    def axis(self) -> Axis:
        """The axis of a `size`."""
        return _checked(self, Axis)

    @property
    def dtype(self) -> DType:
        """The dtype of a `cast`."""
        return _checked(self, DType)

    def __add__(self, other: Scalar) -> "Expr":
        return _infix("add", self, other)

    def __radd__(self, other: Scalar) -> "Expr":
        return _infix("add", other, self)

    def __sub__(self, other: Scalar) -> "Expr":
        return _infix("sub", self, other)

    def __rsub__(self, other: Scalar) -> "Expr":
        return _infix("sub", other, self)

    def __mul__(self, other: Scalar) -> "Expr":
        return _infix("mul", self, other)

    def __rmul__(self, other: Scalar) -> "Expr":
        return _infix("mul", other, self)

    def __truediv__(self, other: Scalar) -> "Expr":
        return _infix("div", self, other)

    def __rtruediv__(self, other: Scalar) -> "Expr":
        return _infix("div", other, self)

    def __mod__(self, other: Scalar) -> "Expr":
        return _infix("mod", self, other)

    def __rmod__(self, other: Scalar) -> "Expr":
        return _infix("mod", other, self)

    def __floordiv__(self, other: Scalar) -> "Expr":
        return _infix("floordiv", self, other)

    def __rfloordiv__(self, other: Scalar) -> "Expr":
        return _infix("floordiv", other, self)

    def __pow__(self, other: Scalar) -> "Expr":
        return _infix("pow", self, other)

    def __rpow__(self, other: Scalar) -> "Expr":
        return _infix("pow", other, self)

    def __neg__(self) -> "Expr":
        return call("neg", self)

    def __lt__(self, other: Scalar) -> "Expr":
        return _infix("lt", self, other)

    def __le__(self, other: Scalar) -> "Expr":
        return _infix("le", self, other)

    def __gt__(self, other: Scalar) -> "Expr":
        return _infix("gt", self, other)

    def __ge__(self, other: Scalar) -> "Expr":
        return _infix("ge", self, other)

    def __and__(self, other: Scalar) -> "Expr":
        return _infix("and_", self, other)

    def __or__(self, other: Scalar) -> "Expr":
        return _infix("or_", self, other)

    def __invert__(self) -> "Expr":
        return call("not_", self)

    def __bool__(self) -> bool:
        problem = "has no truth value while it is traced: use where(condition, x, y)"
        raise IllTyped(op=f"the expression {self}", problem=problem)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> "Expr":
        """NumPy's functions of sizes: `np.sqrt(x.shape[1])`."""
        name = next((f.name for f in FUNCTIONS.values() if f.numpy is ufunc), None)
        if name is None or method != "__call__" or options or not all(map(is_scalar, inputs)):
            return NotImplemented  # type: ignore[no-any-return]
        return call(name, *inputs)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        # Written out, an expression that shares its parts may be exponentially long.
        if tree_size(self, limit=100) > 100:
            return f"an expression of {sum(1 for _ in postorder(self))} parts"
        return format_expr(self, {i: f"x{i}" for i in arguments(self)})


def _checked(node: Expr, kind: type[T]) -> T:
    if not isinstance(node.value, kind):
        raise TypeError(f"the value of {node.op!r} is {node.value!r}, not of {kind.__name__}")
    return node.value


def arg(index: int) -> Expr:
    """The operator's argument number `index`."""
    return Expr("arg", (), index)


def const(value: int | float | bool) -> Expr:
    """A number."""
    return Expr("const", (), value)


def size(axis: Axis) -> Expr:
    """The extent of an axis: a number when it is known, a symbol when it is not."""
    return Expr("size", (), axis)


def cast(x: Scalar, dtype: DType) -> Expr:
    """`x` converted to `dtype`."""
    return Expr("cast", (as_expr(x),), dtype)


def is_scalar(x: object) -> bool:
    """True if `x` is an expression or a real number."""
    return isinstance(x, Expr | bool | int | float | np.bool_ | np.integer | np.floating)


def as_expr(x: Scalar) -> Expr:
    """`x` itself, or the number `x` as a constant."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, bool | np.bool_):
        return const(bool(x))
    if isinstance(x, float | np.floating):
        return const(float(x))
    if not is_scalar(x):
        problem = f"{type(x).__name__} is neither an expression nor a real number"
        raise IllTyped(op="an expression", problem=problem)
    if not -(2**63) <= int(x) < 2**63:
        raise IllTyped(op="an expression", problem=f"{x} is no int64: write it as a float")
    return const(int(x))


def call(name: str, *args: Scalar) -> Expr:
    """The function called `name` applied to `args`."""
    return Expr(name, tuple(as_expr(a) for a in args))


def _infix(name: str, x: Scalar, y: Scalar) -> Expr:
    # Other operands, such as traced arrays, may define the operation themselves.
    return call(name, x, y) if is_scalar(x) and is_scalar(y) else NotImplemented


def postorder(*roots: Expr) -> Iterator[Expr]:
    """Every different node of the trees once, operands before operators."""
    seen: set[Expr] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready or not node.args:
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args))


def fold(expr: Expr, step: Callable[[Expr, list[T]], T]) -> T:
    """The result of `step` at the root; it gets a node and the results of the node's operands."""
    return fold_nodes(expr, step)[expr]


def fold_nodes(expr: Expr, step: Callable[[Expr, list[T]], T]) -> dict[Expr, T]:
    """The result of `step` for every node of the tree, in postorder."""
    made: dict[Expr, T] = {}
    for node in postorder(expr):
        made[node] = step(node, [made[a] for a in node.args])
    return made


def rewrite(expr: Expr, step: Callable[[Expr], Expr]) -> Expr:
    """`expr` with each node replaced by `step(node)`, after the node's operands were replaced."""
    return fold(expr, lambda node, operands: step(with_operands(node, operands)))


def with_operands(node: Expr, operands: Iterable[Expr]) -> Expr:
    """The same function of other operands."""
    args = tuple(operands)
    return node if args == node.args else Expr(node.op, args, node.value)


def contains(expr: Expr, *ops: str) -> bool:
    """True if a node of the tree is one of these operators."""
    return any(node.op in ops for node in postorder(expr))


def arguments(*exprs: Expr) -> set[int]:
    """The numbers of the arguments that are used."""
    return {node.index for node in postorder(*exprs) if node.op == "arg"}


def axes_in(*exprs: Expr) -> tuple[Axis, ...]:
    """The axes whose extents are used, in postorder."""
    return tuple(node.value for node in postorder(*exprs) if isinstance(node.value, Axis))


def varying(expr: Expr) -> set[Expr]:
    """The nodes that depend on an argument; the others are numbers and sizes alone."""
    varies = fold_nodes(expr, lambda node, operands: node.op == "arg" or any(operands))
    return {node for node, depends in varies.items() if depends}


def arity(*exprs: Expr) -> int:
    """One more than the highest argument number that is used."""
    return max(arguments(*exprs), default=-1) + 1


def tree_size(*exprs: Expr, limit: int) -> int:
    """The number of nodes of the trees when nothing is shared; `limit + 1` if there are more."""
    sizes: dict[Expr, int] = {}
    for node in postorder(*exprs):
        sizes[node] = min(1 + sum(sizes[a] for a in node.args), limit + 1)
    return min(sum(sizes[e] for e in exprs), limit + 1)


def substitute(expr: Expr, arguments: Sequence[Expr] | Mapping[int, Expr]) -> Expr:
    """`expr` with its argument i replaced by `arguments[i]`."""
    return rewrite(expr, lambda node: arguments[node.index] if node.op == "arg" else node)


def count_operations(expr: Expr) -> int:
    """The number of function applications per element; those of sizes alone are free."""
    return sum(1 for node in varying(expr) if node.op in FUNCTIONS)


def evaluate(
    expr: Expr,
    arguments: Sequence[Any],
    size_of: Callable[[Axis], int],
    cast_to: Callable[..., Any],
) -> Any:
    """The value of `expr` for NumPy `arguments`; `cast_to(x, dtype)` converts."""

    def step(node: Expr, operands: list[Any]) -> Any:
        match node.op:
            case "arg":
                return arguments[node.index]
            case "const":
                return node.value
            case "size":
                return float(size_of(node.axis))  # a power of a NumPy integer would fail
            case "cast":
                return cast_to(operands[0], node.value)
        function = FUNCTIONS[node.op]
        if function.result == "float":
            operands = [_widened(x) for x in operands]
        return function.numpy(*operands)

    return fold(expr, step)


def _widened(x: Any) -> Any:
    # NumPy's exp of a bool is a float16.
    is_bool = isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_
    return np.asarray(x, np.int64) if is_bool else x


def format_expr(expr: Expr, names: Sequence[str] | Mapping[int, str]) -> str:
    """`expr` as Python would write it, with `names` for its arguments."""
    return fold(expr, lambda node, operands: _format_node(node, operands, names))[0]


def _format_node(
    node: Expr, operands: list[tuple[str, int]], names: Sequence[str] | Mapping[int, str]
) -> tuple[str, int]:
    match node.op:
        case "arg":
            return names[node.index], 10
        case "const":
            return format_number(node.number), 7 if node.number < 0 else 10
        case "size":
            return str(node.axis.extent), 10
        case "cast":
            return f"{node.value}({operands[0][0]})", 10
    function = FUNCTIONS[node.op]
    if function.infix is None:
        return f"{node.op.rstrip('_')}({','.join(text for text, _ in operands)})", 10
    p = function.precedence
    if function.arity == 1:
        (text, inner) = operands[0]
        return f"{function.infix}{_wrap(text, inner < p)}", p
    (left, left_p), (right, right_p) = operands
    if node.op == "pow":
        # as the paper writes it: DD**-0.5, but (t3/KK-t7**2)**(-0.5)
        base = _wrap(left, left_p < 10)
        bare = right_p == 10 or (left_p == 10 and right_p == 7)
        exponent = _wrap(right, not bare)
        return f"{base}**{exponent}", p if right_p == 10 else 5
    return f"{_wrap(left, left_p < p)}{function.infix}{_wrap(right, right_p <= p)}", p


def _wrap(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def format_number(value: int | float | bool) -> str:
    """A number as short as it can be written and read back."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value)
