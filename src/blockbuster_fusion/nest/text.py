"""The text form of loop nests: `nest_from_text` reads back what `nest_to_text` writes.

The text has the syntax of Python, but nothing of it is evaluated. A definition is a line; the last
line is the nest. A call is a dataclass of nest.py with its fields, so a new statement needs no new
code here:

    M = Axis(Symbol("MM"))                      # a definition that leaves out its name has this one
    M0 = Dim(M)
    m = Index(M0)
    X = Buffer([BufferAxis(M0)], float32)
    t1 = Tile([M0[m]], float32)                 # M0[m] is Span(M0, m), M0[m, 8] is Span(M0, m, 8)
    Nest("scale", [
        Kernel("scale", [m], [
            Load(t1, X[M0[m]]),                 # X[M0[m]] is Access(X, [M0[m]])
            Compute(t1, exp(x0) * 2.0, [t1]),   # x0 is the first operand
            Store(X[M0[m]], t1),
        ]),
    ], [X], [View(X, [M])])

Reading checks the fields of every dataclass. The rules of nests are for `verify_nest`.
"""

import ast
import json
import keyword
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ForwardRef, Union, get_args, get_origin, get_type_hints

from blockbuster_fusion.errors import BadText
from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import SIMPLE, Combiner
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, arg, cast, const, postorder, size
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Access, Buffer, Index, Nest, Span, Tile

MAX_NESTING = 200
"""Levels of nesting that a text may have."""
LINE_WIDTH = 100
LONGEST_PART = 24
"""Parts of an expression with more nodes than this are definitions of their own."""

_DTYPES = {dtype.name: dtype for dtype in DType}
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}
_ARGUMENT = re.compile(r"x(\d{1,6})")
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Mod: "mod",
    ast.FloorDiv: "floordiv",
    ast.Pow: "pow",
    ast.USub: "neg",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.And: "and_",
    ast.Or: "or_",
    ast.Not: "not_",
}


def nest_to_text(nest: Nest) -> str:
    """The nest as text."""
    writer = _Writer()
    whole = writer.text(nest)
    return "\n".join([*writer.lines, whole, ""])


def nest_from_text(text: str) -> Nest:
    """The nest that a text describes, or BadText with the place and the reason."""
    reader = _Reader()
    made: object = None
    for statement in _parsed(text):
        made = reader.statement(statement)
    if not isinstance(made, Nest):
        raise BadText(line=max(text.count("\n"), 1), column=1, problem="the last line is no Nest")
    return made


# -------------------------------------------------------------------- the grammar


@cache
def _grammar() -> tuple[dict[str, type], dict[str, type[Enum]]]:
    """The dataclasses and the enumerations that a nest consists of, by name."""
    classes: dict[str, type] = {}
    enums: dict[str, type[Enum]] = {}
    known: set[type] = {Expr}
    pending: list[Any] = [Nest]
    while pending:
        hint = pending.pop()
        if isinstance(hint, type) and issubclass(hint, Enum):
            enums[hint.__name__] = hint
        elif isinstance(hint, type) and is_dataclass(hint) and hint not in known:
            known.add(hint)
            classes[hint.__name__] = hint
            pending += _hints(hint).values()
        pending += get_args(hint)
    return classes, enums


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return get_type_hints(kind)


# ------------------------------------------------------------------------ writing


class _Writer:
    """Writes values, and collects the definitions that they need."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[object, str] = {}
        classes, enums = _grammar()
        self.taken = {*classes, *enums, *FUNCTIONS, *SIMPLE, *_DTYPES, *_NUMBERS, "size"}

    def text(self, value: object, indent: int = 0) -> str:
        """A value with its longer lists, and all lists of statements, broken into lines."""
        flat = self.flat(value)
        if _is_call(value, flat):
            return self.call(value, indent)
        if not isinstance(value, tuple):
            return flat
        deeper = indent + 4
        items = [self.text(item, deeper) for item in value]
        is_body = len(value) > 1 and _is_call(value[0], items[0])
        is_broken = is_body or any("\n" in item for item in items)
        if indent + len(flat) <= LINE_WIDTH and not is_broken:
            return flat
        lines = [f"{' ' * deeper}{item}," for item in items]
        return "\n".join(["[", *lines, f"{' ' * indent}]"])

    def flat(self, value: object) -> str:
        match value:
            case Combiner() if SIMPLE.get(value.name) is value:
                return value.name
            case Axis() | Dim() | Index() | Buffer() | Tile() | Combiner():
                return self.names.get(value) or self.define(value)
            case Span():
                each = "" if value.each == 1 else f", {value.each}"
                return f"{self.flat(value.dim)}[{self.flat(value.at)}{each}]"
            case Access():
                inside = ", ".join(map(self.flat, value.spans)) or "()"
                return f"{self.flat(value.buffer)}[{inside}]"
            case Expr():
                return self.expr(value)
            case tuple():
                return f"[{', '.join(map(self.flat, value))}]"
            case DType():
                return value.name
            case Enum():
                return f"{type(value).__name__}.{value.name}"
            case str():
                return json.dumps(value, ensure_ascii=False)
            case int() | float() | None:
                return repr(value)
        return self.call(value)

    def call(self, value: object, indent: int | None = None, *, name: str | None = None) -> str:
        """A dataclass as a call; defaults are left out, and so is a name that is given."""
        parts: list[str] = []
        for field in fields(value):  # type: ignore[arg-type]
            own = getattr(value, field.name)
            if own == field.default or (field.name == "name" and own == name):
                continue
            text = self.flat(own) if indent is None else self.text(own, indent)
            parts.append(text if field.default is MISSING else f"{field.name}={text}")
        return f"{type(value).__name__}({', '.join(parts)})"

    def define(self, value: object) -> str:
        """A name for a value, after the line that defines it."""
        name = self.claim(_wanted_name(value))
        self.lines.append(f"{name} = {self.call(value, name=name)}")
        self.names[value] = name
        return name

    def claim(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII) or "_"
        if base[0].isdigit() or keyword.iskeyword(base) or _ARGUMENT.fullmatch(base):
            base = f"_{base}"
        names = (base, *(f"{base}_{n}" for n in range(2, len(self.taken) + 3)))
        name = next(n for n in names if n not in self.taken)
        self.taken.add(name)
        return name

    def expr(self, whole: Expr) -> str:
        """An expression with infix operators; long parts, and parts used twice, are definitions."""
        nodes = list(postorder(whole))
        uses = Counter(inner for node in nodes for inner in node.args)
        lengths: dict[Expr, int] = {}
        made: dict[Expr, str] = {}
        for node in nodes:
            lengths[node] = 1 + sum(lengths[a] for a in node.args)
            made[node] = self.names.get(node) or self.node(node, [made[a] for a in node.args])
            is_shared = uses[node] > 1 and lengths[node] > LONGEST_PART // 4
            if node.args and node is not whole and (is_shared or lengths[node] > LONGEST_PART):
                if node not in self.names:
                    self.names[node] = self.claim("e")
                    self.lines.append(f"{self.names[node]} = {_bare(made[node])}")
                made[node], lengths[node] = self.names[node], 1
        return _bare(made[whole])

    def node(self, node: Expr, operands: list[str]) -> str:
        match node.op, node.value:
            case "arg", value:
                return f"x{value}"
            case "const", value:
                text = repr(value)
                return f"({text})" if text.startswith("-") else text
            case "size", Axis() as axis:
                return f"size({self.flat(axis)})"
            case "cast", DType() as dtype:
                return f"{dtype.name}({_bare(operands[0])})"
        infix = FUNCTIONS[node.op].infix
        is_number = node.op == "neg" and node.args[0].op == "const"
        if infix is None or is_number:
            return f"{node.op}({', '.join(map(_bare, operands))})"
        if len(operands) == 1:
            return f"({infix}{operands[0]})"
        return f"({operands[0]} {infix.strip()} {operands[1]})"


def _is_call(value: object, text: str) -> bool:
    """True if the text of a value is a call, not a name or a subscript."""
    return text.startswith(f"{type(value).__name__}(")


def _bare(text: str) -> str:
    """The text of an expression without parentheses around all of it."""
    return text[1:-1] if text.startswith("(") else text


def _wanted_name(value: object) -> str:
    if isinstance(value, Dim):
        return f"{value.name}{'_all' if value.unit else '_free' if value.is_free else value.index}"
    return str(getattr(value, "name", ""))


# ------------------------------------------------------------------------ reading


def _parsed(text: str) -> list[ast.stmt]:
    """The statements of a text, none of them nested too deeply."""
    try:
        found = ast.parse(text).body
    except SyntaxError as error:
        place = {"line": error.lineno or 1, "column": error.offset or 1}
        raise BadText(**place, problem=error.msg) from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise BadText(line=1, column=1, problem="the text cannot be parsed") from error
    pending: list[tuple[ast.AST, int]] = [(node, 0) for node in found]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_NESTING:
            raise _bad(node, f"more than {MAX_NESTING} levels of nesting")
        pending += [(inner, depth + 1) for inner in ast.iter_child_nodes(node)]
    return found


def _bad(node: ast.AST, problem: str) -> BadText:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    return BadText(line=line, column=column, problem=problem)


class _Misfit(Exception):
    """A value is not of the type that a field has."""


class _Reader:
    """Values of a text, by the syntax tree; nothing is evaluated."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {**_DTYPES, **_NUMBERS, **SIMPLE}

    def statement(self, node: ast.stmt) -> object:
        match node:
            case ast.Expr():
                return self.value(node.value)
            case ast.Assign(targets=[ast.Name(id=name)]):
                if name in self.names or _ARGUMENT.fullmatch(name):
                    raise _bad(node, f"{name} is defined already")
                self.names[name] = self.value(node.value, name)
                return None
        raise _bad(node, "expected a definition `name = …`, or a value")

    def value(self, node: ast.expr, name: str | None = None) -> object:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.List() | ast.Tuple():
                return tuple(self.value(item) for item in node.elts)
            case ast.Name():
                return self.named(node)
            case ast.Attribute(value=ast.Name(id=owner), attr=member):
                return self.member(node, owner, member)
            case ast.Subscript():
                return self.subscript(node)
            case ast.Call(func=ast.Name(id=called)):
                return self.call(node, called, name)
            case ast.UnaryOp(op=ast.USub()):
                return self.negative(node)
            case ast.UnaryOp():
                return self.applied(node, node.op, [node.operand])
            case ast.BinOp():
                return self.applied(node, node.op, [node.left, node.right])
            case ast.BoolOp():
                return self.applied(node, node.op, node.values)
            case ast.Compare(ops=[op]):
                return self.applied(node, op, [node.left, *node.comparators])
        raise _bad(node, f"{ast.unparse(node)[:40]} has no meaning in a nest")

    def named(self, node: ast.Name) -> object:
        if node.id in self.names:
            return self.names[node.id]
        found = _ARGUMENT.fullmatch(node.id)
        if found is None:
            raise _bad(node, f"{node.id} is not defined")
        return arg(int(found[1]))

    def member(self, node: ast.expr, owner: str, member: str) -> object:
        kind = _grammar()[1].get(owner)
        if kind is None or member not in kind.__members__:
            raise _bad(node, f"unknown value {owner}.{member}")
        return kind[member]

    def subscript(self, node: ast.Subscript) -> object:
        owner, inside = self.value(node.value), self.value(node.slice)
        if isinstance(owner, Dim):
            names = ("at", "each") if isinstance(inside, tuple) else ("at",)
            given = inside if isinstance(inside, tuple) else (inside,)
            if len(given) > len(names):
                raise _bad(node, "a span has the number of a block, and the length of groups")
            return self.made(node, Span, {"dim": owner, **dict(zip(names, given, strict=False))})
        if isinstance(owner, Buffer):
            spans = inside if isinstance(inside, tuple) else (inside,)
            return self.made(node, Access, {"buffer": owner, "spans": spans})
        raise _bad(node, "only a Dim (a span) and a Buffer (an access) have [ ]")

    def call(self, node: ast.Call, called: str, name: str | None) -> object:
        kind = _grammar()[0].get(called)
        if kind is None:
            return self.function(node, called)
        wanted = [field.name for field in fields(kind)]
        given = {key.arg: self.value(key.value) for key in node.keywords if key.arg is not None}
        if name is not None and "name" in wanted and len(node.args) < _required(kind):
            given.setdefault("name", name)
        free = [field for field in wanted if field != "name" or "name" not in given]
        if len(node.args) > len(free):
            raise _bad(node, f"{called} has the fields {', '.join(wanted)}")
        for field, value in zip(free, node.args, strict=False):
            if field in given:
                raise _bad(node, f"{called} has two values for {field}")
            given[field] = self.value(value)
        return self.made(node, kind, given)

    def made(self, node: ast.expr, kind: type, given: dict[str, object]) -> object:
        """A dataclass of these fields, each of the type that it must have."""
        hints = _hints(kind)
        for field, value in given.items():
            if field not in hints:
                raise _bad(node, f"{kind.__name__} has no field {field}")
            try:
                given[field] = _fitted(value, hints[field])
            except _Misfit:
                problem = f"the field {field} of {kind.__name__} cannot be {_short(value)}"
                raise _bad(node, problem) from None
        for own in fields(kind):
            if own.name not in given and own.default is MISSING:
                raise _bad(node, f"{kind.__name__} needs the field {own.name}")
        return kind(**given)

    def function(self, node: ast.Call, called: str) -> Expr:
        operands = [self.value(operand) for operand in node.args]
        if called == "size" and len(operands) == 1 and isinstance(operands[0], Axis):
            return size(operands[0])
        if called in _DTYPES and len(operands) == 1:
            return cast(self.as_expr(node, operands[0]), _DTYPES[called])
        if called not in FUNCTIONS:
            raise _bad(node, f"unknown class or function {called}")
        return self.apply(node, called, operands)

    def negative(self, node: ast.UnaryOp) -> object:
        operand = self.value(node.operand)
        if isinstance(operand, int | float) and not isinstance(operand, bool):
            return -operand
        return self.apply(node, "neg", [operand])

    def applied(self, node: ast.expr, operator: ast.AST, operands: list[ast.expr]) -> Expr:
        name = _OPERATORS.get(type(operator))
        if name is None:
            raise _bad(node, f"unknown operator in {ast.unparse(node)[:40]}")
        return self.apply(node, name, [self.value(operand) for operand in operands])

    def apply(self, node: ast.expr, name: str, operands: list[object]) -> Expr:
        if len(operands) != FUNCTIONS[name].arity:
            raise _bad(node, f"{name} takes {FUNCTIONS[name].arity} operands")
        return Expr(name, tuple(self.as_expr(node, operand) for operand in operands))

    def as_expr(self, node: ast.expr, operand: object) -> Expr:
        if isinstance(operand, Expr):
            return operand
        if isinstance(operand, bool | int | float):
            return const(operand)
        raise _bad(node, f"{_short(operand)} is no part of an expression")


def _required(kind: type) -> int:
    """The number of fields that have no default."""
    return sum(field.default is MISSING for field in fields(kind))


def _short(value: object) -> str:
    return f"a {type(value).__name__}" if is_dataclass(value) else repr(value)[:40]


def _fitted(value: object, hint: Any) -> object:
    """A value as a field of some type holds it, or _Misfit; a number may be an expression."""
    if isinstance(hint, ForwardRef):  # plain data within plain data
        return value
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _first_fitted(value, get_args(hint))
    if origin is tuple:
        if not isinstance(value, tuple):
            raise _Misfit
        return tuple(_items(value, get_args(hint)))
    if hint is Expr and isinstance(value, bool | int | float):
        return const(value)
    kind = NoneType if hint is None else (int, float) if hint is float else hint
    if not isinstance(value, kind) or (hint is int and isinstance(value, bool)):
        raise _Misfit
    return value


def _first_fitted(value: object, hints: tuple[Any, ...]) -> object:
    for hint in hints:
        try:
            return _fitted(value, hint)
        except _Misfit:
            continue
    raise _Misfit


def _items(value: tuple[object, ...], hints: tuple[Any, ...]) -> Iterator[object]:
    """The items of a tuple of the type tuple[hints]."""
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        raise _Misfit
    return (_fitted(item, hint) for item, hint in zip(value, hints, strict=True))
