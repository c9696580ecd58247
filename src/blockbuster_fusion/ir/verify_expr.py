"""Verification of expressions: known functions, plain numbers, and dtypes that can be computed."""

from weakref import WeakKeyDictionary

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, arity, axes_in, postorder
from blockbuster_fusion.ir.expr_dtypes import node_dtypes
from blockbuster_fusion.ir.types import DType

_NOT_ON_BOOL = {"sub", "neg", "sign"}
"""The functions that NumPy refuses for bools."""

_sound: WeakKeyDictionary[Expr, tuple[Axis, ...]] = WeakKeyDictionary()
_dtypes_seen: WeakKeyDictionary[Expr, dict[tuple[DType, ...], str | None]] = WeakKeyDictionary()


def axes_of(expr: Expr) -> tuple[Axis, ...] | str:
    """The axes whose sizes a sound expression uses, or the problem of an unsound one."""
    if expr in _sound:
        return _sound[expr]
    for node in postorder(expr):
        if problem := _problem(node):
            return problem
    _sound[expr] = axes_in(expr)
    return _sound[expr]


def _problem(node: Expr) -> str | None:
    match node.op:
        case "arg":
            if type(node.value) is not int or node.value < 0:
                return f"the argument {node.value!r} is not a number from 0 upwards"
        case "const":
            if type(node.value) not in (int, float, bool):
                return f"the constant {node.value!r} is not a plain int, float or bool"
        case "size":
            if not isinstance(node.value, Axis):
                return f"the size of {node.value!r} is meant, which is not an axis"
        case "cast":
            if not isinstance(node.value, DType):
                return f"a cast to {node.value!r}, which is not a DType"
        case name if name not in FUNCTIONS:
            return f"no function is called {name!r}"
    function = FUNCTIONS.get(node.op)
    wanted = function.arity if function else int(node.op == "cast")
    if len(node.args) != wanted:
        return f"{node.op} takes {wanted} operands and has {len(node.args)}"
    return None


def combiner_problem(combiner: Combiner) -> str | None:
    """The problem of a combiner whose expressions are sound, or None."""
    if not combiner.combine:
        return "it has no components"
    if len(combiner.identity) != combiner.arity:
        counts = f"{combiner.arity} components and {len(combiner.identity)} identities"
        return f"it has {counts}: give one for each"
    for number in combiner.identity:
        if type(number) not in (int, float, bool):
            return f"the identity {number!r} is not a plain int, float or bool"
    if (used := arity(*combiner.combine)) > 2 * combiner.arity:
        known = f"with {combiner.arity} components there are x0 to x{2 * combiner.arity - 1}"
        return f"it uses the argument x{used - 1}, but {known}"
    return None


def dtype_problem(expr: Expr, dtypes: tuple[DType, ...]) -> str | None:
    """The operation that is not defined for arguments of these dtypes, or None."""
    known = _dtypes_seen.setdefault(expr, {})
    if dtypes not in known:
        known[dtypes] = _find_dtype_problem(expr, dtypes)
    return known[dtypes]


def _find_dtype_problem(expr: Expr, dtypes: tuple[DType, ...]) -> str | None:
    of = node_dtypes(expr, dtypes)
    for node in of:
        found = [DType.bool_ if isinstance(a.value, bool) else of[a] for a in node.args]
        if node.op in _NOT_ON_BOOL and all(d is DType.bool_ for d in found):
            return f"{node.op} of bools is not defined: cast them to a number first"
        if node.op == "pow" and _is_negative(node.args[1]) and (d := of[node]) and not d.is_float:
            return f"a negative power of {d} is not defined: use a float exponent"
        if node.op == "where" and found[0] not in (DType.bool_, None):
            return f"the condition of where is {found[0]}, not bool: compare it with 0 first"
    return None


def _is_negative(exponent: Expr) -> bool:
    return exponent.op == "const" and isinstance(exponent.value, int) and exponent.value < 0
