"""Expressions as text: infix, with named parts in large ones, so that any size can be read."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.expr import (
    FUNCTIONS,
    Expr,
    Function,
    arg,
    cast,
    const,
    format_number,
    postorder,
    size,
    tree_size,
)
from blockbuster_fusion.ir.text.scanner import Scanner, Token
from blockbuster_fusion.ir.types import DType

_LARGEST = 32
"""The most nodes of an expression that is written without named parts."""

_ATOM = 10
_NEGATIVE = FUNCTIONS["neg"].precedence
_COMPARISON = FUNCTIONS["lt"].precedence
_POWER = FUNCTIONS["pow"].precedence

_BINARY = {f.infix.strip(): f for f in FUNCTIONS.values() if f.infix and f.arity == 2}
_PREFIX = {f.infix.strip(): f for f in FUNCTIONS.values() if f.infix and f.arity == 1}
_DTYPES = {dtype.value: dtype for dtype in DType}
_NUMBERS = {"True": True, "False": False, "nan": float("nan"), "inf": float("inf")}


# -------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class WrittenExprs:
    """Expressions as text; `parts` are the named parts that they use, with their texts."""

    parts: tuple[tuple[str, str], ...]
    results: tuple[str, ...]


def write_exprs(exprs: tuple[Expr, ...], axis_name: Callable[[Axis], str]) -> WrittenExprs:
    """The expressions as text, which `ExprReader` reads back to the same ones."""
    small = tree_size(*exprs, limit=_LARGEST) <= _LARGEST
    uses = Counter(exprs)
    for node in postorder(*exprs):
        uses.update(node.args)
    made: dict[Expr, tuple[str, int]] = {}
    lengths: dict[Expr, int] = {}
    parts: list[tuple[str, str]] = []
    for node in postorder(*exprs):
        lengths[node] = 1 + sum(lengths[a] for a in node.args)
        text, precedence = _write_node(node, [made[a] for a in node.args], axis_name)
        if not small and node.args and (uses[node] > 1 or lengths[node] > _LARGEST):
            parts.append((f"t{len(parts) + 1}", text))
            text, precedence, lengths[node] = parts[-1][0], _ATOM, 1
        made[node] = text, precedence
    return WrittenExprs(tuple(parts), tuple(made[e][0] for e in exprs))


def _write_node(
    node: Expr, operands: list[tuple[str, int]], axis_name: Callable[[Axis], str]
) -> tuple[str, int]:
    match node.op, node.value:
        case "arg", int(index):
            return f"x{index}", _ATOM
        case "const", int() | float() as number:
            text = format_number(number)
            return text, _NEGATIVE if text.startswith("-") else _ATOM
        case "size", Axis() as axis:
            return f"size({axis_name(axis)})", _ATOM
        case "cast", DType() as dtype if operands:
            return f"{dtype}({operands[0][0]})", _ATOM
    function = FUNCTIONS.get(node.op)
    if function is None or function.infix is None or function.arity != len(operands):
        return f"{node.op}({', '.join(text for text, _ in operands)})", _ATOM
    return _write_infix(function, operands), function.precedence


def _write_infix(function: Function, operands: list[tuple[str, int]]) -> str:
    assert function.infix is not None
    p = function.precedence
    if function.arity == 1:
        ((text, inner),) = operands
        # -2.0 is a number, so the negation of one is written -(2.0)
        return f"{function.infix}{_wrap(text, inner <= p or _is_number(text))}"
    (left, left_p), (right, right_p) = operands
    if p == _POWER:
        plain = right_p == _ATOM or (right_p == _NEGATIVE and right[1:2].isdigit())
        return f"{_wrap(left, left_p < _ATOM)}**{_wrap(right, not plain)}"
    left = _wrap(left, left_p < p or left_p == p == _COMPARISON)
    return f"{left} {function.infix.strip()} {_wrap(right, right_p <= p)}"


def _is_number(text: str) -> bool:
    return text[0].isdigit() or text.startswith("inf")


def _wrap(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


# -------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Pending:
    """An operator whose operands are still to be read, or an open parenthesis."""

    name: str  # a function, "cast", or "(" for a parenthesis
    token: Token
    precedence: int = 0  # 0: a parenthesis, or a call
    count: int = 1  # operands so far
    dtype: DType | None = None


class ExprReader:
    """Reads one expression by operator precedence, with an explicit stack instead of recursion."""

    def __init__(
        self, scanner: Scanner, axis: Callable[[], Axis], parts: Mapping[str, Expr]
    ) -> None:
        self._scanner = scanner
        self._axis = axis
        self._parts = parts
        self._made: list[Expr] = []
        self._pending: list[_Pending] = []

    def read(self) -> Expr:
        """The expression that comes next."""
        while True:
            while not self._operand():
                pass
            while self._close():
                pass
            if not self._operator():
                break
        self._reduce(0)
        if self._pending:
            opened = self._pending[-1].token
            raise self._scanner.expected(f"`)` for the `(` of column {opened.column}")
        (made,) = self._made
        return made

    def _operand(self) -> bool:
        """Consumes a leaf (True), or a prefix of an operand (False)."""
        scanner, token = self._scanner, self._scanner.token
        if token.text == "-" and (
            scanner.following.kind == "number" or scanner.following.text == "inf"
        ):
            self._made.append(const(scanner.number()))
            if scanner.token.text == "**":
                raise scanner.error("a power of a negative number: put the base in parentheses")
            return True
        if token.text in _PREFIX:
            function = _PREFIX[scanner.take().text]
            self._pending.append(_Pending(function.name, token, function.precedence))
            return False
        if token.text == "(":
            self._pending.append(_Pending("(", scanner.take()))
            return False
        if token.kind == "number":
            self._made.append(const(scanner.number()))
            return True
        if token.kind != "name":
            raise scanner.expected("an expression")
        return self._word(token)

    def _word(self, token: Token) -> bool:
        scanner, word = self._scanner, token.text
        if word in FUNCTIONS or word in _DTYPES:
            scanner.take()
            opened = scanner.token
            scanner.expect("(", f"after {word}")
            name = word if word in FUNCTIONS else "cast"
            self._pending.append(_Pending(name, opened, dtype=_DTYPES.get(word)))
            return False
        if word in _NUMBERS:
            made = const(_NUMBERS[word])
        elif word in self._parts:
            made = self._parts[word]
        elif word[0] == "x" and word[1:].isascii() and word[1:].isdecimal() and len(word) < 10:
            made = arg(int(word[1:]))
        elif word == "size":
            scanner.take()
            scanner.expect("(", "after size")
            made = size(self._axis())
            if scanner.token.text != ")":
                raise scanner.expected("`)` after the axis")
        else:
            raise scanner.error(f"unknown function or name {token}")
        scanner.take()
        self._made.append(made)
        return True

    def _close(self) -> bool:
        """Consumes a closing parenthesis of this expression, if one comes next."""
        scanner = self._scanner
        if scanner.token.text != ")" or not any(p.precedence == 0 for p in self._pending):
            return False
        self._reduce(0)
        closed = self._pending.pop()
        if closed.name != "(":
            self._call(closed)
        scanner.take()
        return True

    def _operator(self) -> bool:
        """Consumes a comma or an infix operator, if one comes next."""
        scanner, token = self._scanner, self._scanner.token
        if token.text == "," and any(p.precedence == 0 for p in self._pending):
            self._reduce(0)
            if self._pending[-1].name == "(":
                raise scanner.expected("`)`")
            self._pending[-1].count += 1
            scanner.take()
            return True
        function = _BINARY.get(token.text)
        if function is None:
            return False
        p = function.precedence
        self._reduce(p + 1 if p == _POWER else p)
        scanner.take()
        self._pending.append(_Pending(function.name, token, p))
        return True

    def _reduce(self, precedence: int) -> None:
        """Applies pending operators of at least this precedence, back to the last parenthesis."""
        while self._pending and self._pending[-1].precedence >= max(precedence, 1):
            operator = self._pending.pop()
            if operator.precedence == precedence == _COMPARISON:
                problem = f"{operator.token} and {self._scanner.token} do not chain"
                raise self._scanner.error(f"{problem}: put one comparison in parentheses")
            arity = FUNCTIONS[operator.name].arity
            operands = self._made[-arity:]
            del self._made[-arity:]
            self._made.append(Expr(operator.name, tuple(operands)))

    def _call(self, call: _Pending) -> None:
        arity = 1 if call.dtype else FUNCTIONS[call.name].arity
        if call.count != arity:
            name = call.dtype or call.name
            problem = f"{name} takes {arity} operands and has {call.count}"
            raise self._scanner.error(problem, call.token)
        operands = self._made[-arity:]
        del self._made[-arity:]
        made = cast(operands[0], call.dtype) if call.dtype else Expr(call.name, tuple(operands))
        self._made.append(made)
