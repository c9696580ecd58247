"""Compares listings by their meaning, not by their spelling.

`canonical` ignores the order of independent statements and the names of temporaries and interior
buffers. It also ignores inlining: a temporary may be written out in its uses.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Canonical = tuple["str | tuple[str, Canonical]", ...]
"""The sorted statements of a block; a loop is a pair of its head and its block."""

LONGEST = 300
HEAD = re.compile(r"(forall|for) (\w+) in range\((.*)\):|with lock:")
ARROW = re.compile(r"([\w,]+)->([\w,]+)")
BUFFER = re.compile(r"I\d*")
OPERATORS = {
    getattr(ast, name): sign
    for name, sign in (
        *(("Add", "+"), ("Sub", "-"), ("Mult", "*"), ("Div", "/"), ("Mod", "%"), ("Pow", "**")),
        *(("FloorDiv", "//"), ("USub", "-"), ("Not", "not "), ("And", " and "), ("Or", " or ")),
        *(("Lt", "<"), ("LtE", "<="), ("Gt", ">"), ("GtE", ">="), ("Eq", "=="), ("NotEq", "!=")),
    )
}


def canonical(listing: str) -> Canonical:
    """The loads, stores and sums of each loop of a listing, with temporaries written out."""
    lines = [
        (len(line) - len(line.lstrip()), line.strip())
        for line in listing.expandtabs(4).splitlines()
        if line.strip()
    ]
    return _Reader([_Line(indent, text) for indent, text in lines]).read()


class _Line:
    """A line, parsed: a head, or a statement of Python."""

    def __init__(self, indent: int, text: str) -> None:
        self.indent = indent
        self.head = HEAD.fullmatch(text)
        self.statement: ast.stmt | None = None
        if self.head is None:
            (self.statement,) = ast.parse(ARROW.sub(r'"\1->\2"', text)).body


@dataclass
class _Block:
    """A block while it is read: its statements and sums so far."""

    head: str
    indent: int
    statements: list["str | tuple[str, Canonical]"] = field(default_factory=list)
    sums: dict[str, str] = field(default_factory=dict)

    def close(self) -> Canonical:
        return tuple(sorted(self.statements, key=repr))


class _Reader:
    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.known: dict[str, str] = {}  # the expression of each temporary
        self.stored: dict[str, list[str]] = {}  # the values stored in each interior buffer
        self.blocks: list[_Block] = [_Block("", -1)]
        self.components: dict[str, int] = {}  # the place of each accumulator in its tuple
        self.used: set[str] = set()
        for statement in self.statements():
            targets = _targets(statement)
            self.components |= {name: at for at, name in enumerate(targets)}
            self.used |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            }

    def statements(self) -> Iterator[ast.stmt]:
        return (line.statement for line in self.lines if line.statement is not None)

    def read(self) -> Canonical:
        for line in self.lines:
            while line.indent <= self.blocks[-1].indent:
                self.close()
            if line.head is not None:
                head = "lock"
                if line.head[1] is not None:
                    head = f"{line.head[1]} {line.head[2]} in range({line.head[3]})"
                self.blocks.append(_Block(head.replace(", ", ","), line.indent))
            elif line.statement is not None:
                self.statement(line.statement)
        while len(self.blocks) > 1:
            self.close()
        return self.blocks[0].close()

    def close(self) -> None:
        block = self.blocks.pop()
        self.blocks[-1].statements.append((block.head, block.close()))
        if block.head == "lock":
            self.blocks[-1].sums |= block.sums
        else:
            # only now: statements inside its loop see a partial sum
            self.known |= {n: _short(f"{block.head}:{text}") for n, text in block.sums.items()}

    def say(self, statement: str) -> None:
        self.blocks[-1].statements.append(_short(statement))

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(ast.Call(ast.Name("store"), [value, target])):
                self.store(self.text(value), target)
            case ast.Expr(value):
                self.say(self.text(value))
            case ast.AugAssign(ast.Name(name), operator, value):
                self.accumulate([name], f"(@0{OPERATORS[type(operator)]}{self.text(value)})")
            case ast.Assign([ast.Name(name)], value) if name in _names(value):
                self.accumulate([name], self.text(value, {name: "@0"}))
            case ast.Assign([ast.Name(name)], value):
                text = self.text(value)
                if name not in self.used or BUFFER.fullmatch(name):
                    self.say(f"{'I' if BUFFER.fullmatch(name) else name} = {text}")
                self.known[name] = text
            case ast.Assign([ast.Tuple() as target], value):
                names = _targets(statement)
                text = self.text(value, {name: f"@{at}" for at, name in enumerate(names)})
                if "@" in text:
                    self.accumulate(names, text)
                else:
                    self.known |= {name: f"{text}.{at}" for at, name in enumerate(names)}
                    self.say(f"{len(target.elts)} = {text}")
            case ast.Assign([ast.Subscript() as target], value):
                self.store(f"= {self.text(value)}", target)
            case _:
                raise ValueError(f"not a statement of a listing: {ast.unparse(statement)}")

    def store(self, text: str, target: ast.expr) -> None:
        name, index = ast.unparse(target), ""
        if isinstance(target, ast.Subscript):
            name, index = ast.unparse(target.value), f"[{self.text(target.slice)}]"
        if BUFFER.fullmatch(name):
            self.stored.setdefault(name, []).append(f"{index}{text}")
            name = "I"
        self.say(f"store({text},{name}{index})")

    def accumulate(self, names: list[str], text: str) -> None:
        starts = [self.known.get(name, "0") for name in names]
        if set(starts) != {"0"}:
            text = f"{text} from {','.join(starts)}"
        self.say(f"accumulate {text}")
        sums = self.blocks[-1].sums
        for at, name in enumerate(names):
            before = f"{sums[name]};" if name in sums else ""
            sums[name] = f"{before}{at}{text}"

    def text(self, node: ast.expr, inner: dict[str, str] | None = None) -> str:
        """An expression with its temporaries written out; its loads become statements."""
        return _short(self.written(node, inner or {}))

    def written(self, node: ast.expr, inner: dict[str, str]) -> str:
        def text(part: ast.expr) -> str:
            return self.text(part, inner)

        match node:
            case ast.Name(name):
                return inner.get(name) or self.name(name)
            case ast.Constant(value):
                if isinstance(value, float) and value.is_integer():
                    return f"{value:.0f}"
                return repr(value)
            case ast.Call(function, arguments, keywords):
                parts = [text(a) for a in arguments] + [
                    f"{k.arg}={text(k.value)}" for k in keywords
                ]
                made = f"{ast.unparse(function)}({','.join(parts)})"
                if made.startswith("load("):
                    self.say(made)
                return made
            case ast.BinOp(left, ast.MatMult(), right):
                return f"dot({text(left)},{_transposed(text(right))})"
            case ast.BinOp(left, operator, right):
                return f"({text(left)}{OPERATORS[type(operator)]}{text(right)})"
            case ast.UnaryOp(operator, operand):
                return f"({OPERATORS[type(operator)]}{text(operand)})"
            case ast.BoolOp(operator, operands):
                return f"({OPERATORS[type(operator)].join(text(o) for o in operands)})"
            case ast.Compare(left, [operator], [right]):
                return f"({text(left)}{OPERATORS[type(operator)]}{text(right)})"
            case ast.Attribute(value, "T"):
                return _transposed(text(value))
            case ast.Subscript(value, index):
                return f"{text(value)}[{text(index)}]"
            case ast.Tuple(elements):
                return ",".join(text(e) for e in elements)
            case ast.Slice(None, None, None):
                return ":"
            case _:
                raise ValueError(f"not an expression of a listing: {ast.unparse(node)}")

    def name(self, name: str) -> str:
        if name in self.known:
            return self.known[name]
        if name in self.stored:
            return _short(f"I<{';'.join(sorted(self.stored[name]))}>")
        if name in self.components:
            return f"@{self.components[name]}"  # an accumulator inside its loop
        return name


def _targets(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns."""
    match statement:
        case ast.Assign([ast.Tuple(elements)]):
            return [e.id if isinstance(e, ast.Name) else ast.unparse(e) for e in elements]
        case ast.Assign([ast.Name(name)]) | ast.AugAssign(ast.Name(name)):
            return [name]
        case _:
            return []


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _transposed(text: str) -> str:
    return text.removesuffix(".T") if text.endswith(".T") else f"{text}.T"


def _short(text: str) -> str:
    """A long text by its beginning and a hash, so that written-out temporaries stay small."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:60]}…{hashlib.sha256(text.encode()).hexdigest()[:16]}"
