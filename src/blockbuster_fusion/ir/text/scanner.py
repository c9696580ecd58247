"""Tokens of the text form with their positions; errors give line and column."""

import re
from typing import NamedTuple

from blockbuster_fusion.errors import BadText

_TOKEN = re.compile(
    r"""
      (?P<blank>   [ \t\r]+ | \#[^\n]* )
    | (?P<newline> \n )
    | (?P<string>  "(?: [^"\\\n] | \\[^\n] )*" )
    | (?P<value>   %[0-9]+ (?: \.[0-9]+ )? )
    | (?P<number>  [0-9]+ (?: \.[0-9]+ )? (?: [eE][-+]?[0-9]+ )? )
    | (?P<name>    [^\W\d]\w* )
    | (?P<mark>    -> | \*\* | // | <= | >= | == | != | [-+*/%<>=(){}\[\],.:'] )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[^\W\d]\w*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_UNESCAPED = {escape[1]: plain for plain, escape in _ESCAPED.items()}

LONGEST_NAME = 1000
"""The most characters in the name of an axis or of a size."""

LONGEST_INDEX = 18
"""The most digits of an id, a port or an extent: enough for 64 bits."""


class Token(NamedTuple):
    kind: str  # "name", "number", "string", "value", "mark", "newline" or "end"
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        match self.kind:
            case "newline":
                return "the end of the line"
            case "end":
                return "the end of the text"
        shown = self.text if len(self.text) <= 40 else f"{self.text[:40]}…"
        return shown if self.kind == "string" else f"`{shown}`"


def quote(text: str) -> str:
    """`text` as a string on one line."""
    return '"' + "".join(_quoted(c) for c in text) + '"'


def _quoted(c: str) -> str:
    if c in _ESCAPED:
        return _ESCAPED[c]
    if c.isprintable():
        return c
    return f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


def name_or_string(name: str) -> str:
    """A name, in quotes if it is not a plain word."""
    return name if _NAME.fullmatch(name) else quote(name)


class Scanner:
    """A cursor over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokenize(text)
        self._at = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._at]

    @property
    def following(self) -> Token:
        """The token after the next."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        """Consumes and returns the next token."""
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def skip_lines(self) -> None:
        """Skips empty lines."""
        while self.token.kind == "newline":
            self._at += 1

    def error(self, problem: str, token: Token | None = None) -> BadText:
        """The error of a problem at `token`, or at the next one."""
        place = token or self.token
        return BadText(line=place.line, column=place.column, problem=problem)

    def expected(self, what: str) -> BadText:
        """The error that the next token is not `what`."""
        return self.error(f"expected {what}, found {self.token}")

    def accept(self, text: str) -> bool:
        """Consumes a word or mark if it comes next; returns True if it did."""
        if self.token.text != text:
            return False
        self.take()
        return True

    def expect(self, text: str, where: str) -> None:
        """Consumes a word or mark, which must come next."""
        if not self.accept(text):
            raise self.expected(f"`{text}` {where}")

    def end_line(self) -> None:
        """Consumes the end of a line, which must come next."""
        if self.token.kind not in ("newline", "end"):
            raise self.expected("the end of the line")
        self.take()

    def name(self, what: str) -> str:
        """A name, plain or in quotes."""
        if self.token.kind == "name":
            return self.take().text
        return self.string(what)

    def visible_name(self, what: str) -> str:
        """The name of an axis or a size: short and printable."""
        token = self.token
        name = self.name(what)
        if not name or not name.isprintable() or len(name) > LONGEST_NAME:
            fit = f"those have 1 to {LONGEST_NAME} printable characters"
            raise self.error(f"{token} is no name for an axis or a size: {fit}", token)
        return name

    def string(self, what: str) -> str:
        """The text of a string."""
        if self.token.kind != "string":
            raise self.expected(what)
        token = self.take()
        return _ESCAPE.sub(lambda found: self._unescape(found[1], token), token.text[1:-1])

    def _unescape(self, escape: str, token: Token) -> str:
        if escape in _UNESCAPED:
            return _UNESCAPED[escape]
        code = int(escape[1:], 16) if len(escape) > 1 else -1
        if not 0 <= code <= 0x10FFFF:
            known = '\\n, \\t, \\r, \\", \\\\, \\uXXXX or \\UXXXXXXXX'
            raise self.error(f"unknown escape \\{escape} in the string: expected {known}", token)
        return chr(code)

    def integer(self, what: str) -> int:
        """A whole number that is not negative."""
        if self.token.kind != "number" or not self.token.text.isdecimal():
            raise self.expected(what)
        return self._integer(self.token.text, self.take())

    def value(self) -> tuple[int, int | None, Token]:
        """A value: the node's id, the port if it is written, and the token."""
        if self.token.kind != "value":
            raise self.expected("a value such as %3")
        token = self.take()
        node, _, port = token.text[1:].partition(".")
        return self._integer(node, token), self._integer(port, token) if port else None, token

    def number(self) -> int | float:
        """An integer or a fraction, with its sign."""
        minus = self.accept("-")
        if self.accept("inf"):
            return -float("inf") if minus else float("inf")
        if self.accept("nan"):
            return float("nan")
        if self.token.kind != "number":
            raise self.expected("a number")
        token = self.take()
        if token.text.isdecimal():
            made: int | float = self._integer(token.text, token, longest=4000)
        else:
            made = float(token.text)
            if made == float("inf"):
                raise self.error(f"{token} is too large for a number: write inf", token)
        return -made if minus else made

    def _integer(self, digits: str, token: Token, longest: int = LONGEST_INDEX) -> int:
        if len(digits) > longest:
            raise self.error(f"{token} is too large a number", token)
        return int(digits)


def _tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    line, start = 1, 0
    for found in _TOKEN.finditer(text):
        kind, column = found.lastgroup or "other", found.start() - start + 1
        if kind == "blank":
            continue
        if kind == "other":
            raise BadText(line=line, column=column, problem=_misfit(found[0]))
        tokens.append(Token(kind, found[0], line, column))
        if kind == "newline":
            line, start = line + 1, found.end()
    tokens.append(Token("end", "", line, len(text) - start + 1))
    return tokens


def _misfit(c: str) -> str:
    if c == '"':
        return 'the string is not closed: expected another " before the end of the line'
    return f"the character {c!r} means nothing here: names that are not plain words stand in quotes"
