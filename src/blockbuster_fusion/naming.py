"""Names and comments of generated code: the only way in which user text enters it.

Identifiers have ASCII letters, digits and underscores only, and begin with a letter. Comments have
one line of printable ASCII, which closes no comment and no string and continues no line.
"""

import ast
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from blockbuster_fusion.errors import NotExpressible

LONGEST = 40
"""The most characters that are kept of a name given by the user."""
_LONGEST_MADE = 160
_LONGEST_LINE = 4000
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")


def word(text: str, otherwise: str = "x") -> str:
    """A user text as an identifier; `otherwise` if nothing of it is left."""
    return _identifier(text, LONGEST, otherwise)


def _identifier(text: str, longest: int, otherwise: str = "x") -> str:
    spelled = _FOREIGN.sub(_spelled, text[:longest])[:longest].lstrip("_")
    if not spelled.strip("_"):
        return otherwise
    return spelled if spelled[0].isalpha() else f"{otherwise}{spelled}"


def _spelled(found: re.Match[str]) -> str:
    """A Greek letter by its name; an underscore for any other character."""
    name = unicodedata.name(found[0], "").split(" ")
    return name[3].lower() if name[0] == "GREEK" and len(name) == 4 else "_"


class Numbers:
    """Finds the first free number of a family; each search starts from the last result."""

    def __init__(self) -> None:
        self.next: dict[Hashable, int] = {}

    def __call__(self, family: Hashable, is_free: Callable[[int], bool]) -> int:
        number = self.next.get(family, 1)
        while not is_free(number):
            number += 1
        self.next[family] = number + 1
        return number


@dataclass(frozen=True)
class Reserved:
    """Names that a language, its library and generated code already use.

    `names` are reserved as they are. A name that `pattern` matches gets an underscore, after which
    it no longer matches, so that a search for a free name terminates.
    """

    names: frozenset[str]
    pattern: re.Pattern[str]

    def avoided(self, name: str) -> str:
        """The name, or one that the pattern does not match."""
        return f"{name}_" if self.pattern.fullmatch(name) else name

    def __contains__(self, name: str) -> bool:
        return name in self.names


NOTHING = Reserved(frozenset(), re.compile(r"(?!)"))
"""No reserved names: for identifiers with a unique prefix."""


class Scope:
    """Gives each object a unique identifier, the requested one if it is free."""

    def __init__(
        self, reserved: Reserved, taken: Collection[str] = (), *, underscore: bool = True
    ) -> None:
        self.reserved, self.underscore = reserved, underscore
        self.taken = set(taken)
        self.known: dict[Hashable, str] = {}
        self.numbers = Numbers()

    def __call__(self, thing: Hashable, wanted: str) -> str:
        if thing not in self.known:
            self.known[thing] = self.claim(wanted)
        return self.known[thing]

    def claim(self, wanted: str) -> str:
        """A unique identifier."""
        base = self.reserved.avoided(_identifier(wanted, _LONGEST_MADE))
        mark = "_" if self.underscore or base[-1].isdigit() else ""

        def variant(number: int) -> str:
            return base if number == 1 else f"{base}{mark}{number}"

        def is_free(number: int) -> bool:
            return variant(number) not in self.taken and variant(number) not in self.reserved

        name = variant(self.numbers(base, is_free))
        self.taken.add(name)
        return name


# ----------------------------------------------------------------------- comments

_CLOSING = (("*/", "* /"), ("/*", "/ *"), ('"""', "'''"), ("??", "? ?"))


def comment(text: str) -> str:
    """A text as one line of a comment or docstring, in C and in Python.

    Characters that are not printable ASCII, and backslashes, are written as <U+00E9>.
    """
    made = "".join(c if " " <= c <= "~" and c != "\\" else f"<U+{ord(c):04X}>" for c in text)
    for closing, harmless in _CLOSING:
        while closing in made:
            made = made.replace(closing, harmless)
    return made if len(made) <= _LONGEST_LINE else f"{made[:_LONGEST_LINE]} ..."


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Several lines of a comment."""
    return [comment(line) for line in lines]


# --------------------------------------------------------------------- arithmetic

_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant),
)
_CALLED = {
    "max": max,
    "min": min,
    "abs": abs,
    "int": int,
    "float": float,
    "round": round,
    "math": math,
}


def arithmetic(text: str, argument: str) -> Callable[[Any], Any]:
    """The function of `argument` that a text of Python describes: numbers and arithmetic only.

    The text may use items of the argument by name, functions of `math`, max, min, abs, int, float
    and round. NotExpressible is raised for anything else.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotExpressible(what=f"the size {text[:80]!r}") from None
    for node in ast.walk(tree):
        if not _is_arithmetic(node, argument):
            raise NotExpressible(what=f"the size {text[:80]!r}")
    names = {"__builtins__": {}, **_CALLED}
    made: Callable[[Any], Any] = eval(f"lambda {argument}: ({ast.unparse(tree)})", names)
    return made


def _is_arithmetic(node: ast.AST, argument: str) -> bool:
    match node:
        case ast.Name(id=name):
            return name == argument or name in _CALLED
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return not name.startswith("_")
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant()):
            return name == argument
        case ast.Call(func=ast.Name() | ast.Attribute(), keywords=[]):
            return True
        case ast.Attribute() | ast.Subscript() | ast.Call():
            return False
    return isinstance(node, _ARITHMETIC)
