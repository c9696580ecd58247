"""Reading the parts of statements: axes, dims, types, combiners, expressions and attributes."""

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.combiner import SIMPLE, Combiner, Mode, Reduced
from blockbuster_fusion.ir.expr import Expr
from blockbuster_fusion.ir.ops import Plain
from blockbuster_fusion.ir.text.expressions import ExprReader
from blockbuster_fusion.ir.text.scanner import Scanner, name_or_string
from blockbuster_fusion.ir.types import DType, Type

_DTYPES = {dtype.value: dtype for dtype in DType}
_WORDS: dict[str, Plain] = {"True": True, "False": False, "None": None}


class PartsReader:
    """Reads parts of statements; knows the declared axes and combiners."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.axes: dict[str, Axis] = {}
        self.combiners: dict[tuple[str, int], Combiner] = {(n, 1): c for n, c in SIMPLE.items()}

    def over(self) -> Dim:
        self.scanner.expect("over", "before a dim")
        return self.dim()

    def by(self) -> Combiner:
        self.scanner.expect("by", "before a combiner")
        return self.combiner()

    def mode(self) -> Mode:
        if self.scanner.token.text == "stack" and self.scanner.following.text != "'":
            self.scanner.take()
            return None
        combiner = self.combiner()
        component = 0
        if self.scanner.accept(":"):
            component = self.scanner.integer("the number of a component")
        return Reduced(combiner, component)

    def combiner(self) -> Combiner:
        token = self.scanner.token
        key = self.combiner_name()
        if key not in self.combiners:
            known = ", ".join(map(combiner_label, self.combiners))
            problem = f"unknown combiner {combiner_label(key)}: known are {known}"
            raise self.scanner.error(problem, token)
        return self.combiners[key]

    def combiner_name(self) -> tuple[str, int]:
        name = self.scanner.name("the name of a combiner")
        number = self.scanner.integer("a number") if self.scanner.accept("'") else 1
        return name, number

    def layout(self) -> tuple[Axis, ...]:
        axes: list[Axis] = []
        if self.scanner.accept("["):
            while not self.scanner.accept("]"):
                axes.append(self.axis())
        return tuple(axes)

    def type(self) -> Type:
        scanner = self.scanner
        virtual = scanner.accept("virtual")
        scanner.expect("[", "before the list dims of a type")
        lists: list[Dim] = []
        while not scanner.accept("]"):
            lists.append(self.dim())
        scanner.expect("(", "before the item dims of a type")
        items: list[Dim] = []
        while not scanner.accept(")"):
            items.append(self.dim())
        return Type(tuple(lists), tuple(items), self.dtype(), virtual)

    def dtype(self) -> DType:
        if self.scanner.token.text not in _DTYPES:
            raise self.scanner.expected(f"a dtype ({', '.join(_DTYPES)})")
        return _DTYPES[self.scanner.take().text]

    def dim(self) -> Dim:
        scanner = self.scanner
        axis = self.axis()
        scanner.expect(".", "and a number, or `.*`, after the axis of a dim")
        index = None if scanner.accept("*") else scanner.integer("the dim's number, or `*`")
        if not scanner.accept("/"):
            return Dim(axis, index)
        if scanner.accept("all"):
            return Dim(axis, index, unit=True)
        scanner.expect("1", "or `all` after `/`: the size of the dim's blocks")
        return Dim(axis, index, packed=False)

    def axis(self) -> Axis:
        token = self.scanner.token
        name = self.scanner.name("an axis")
        if name not in self.axes:
            problem = f"unknown axis {name_or_string(name)}: declare it at the head of the program"
            raise self.scanner.error(problem, token)
        return self.axes[name]

    def expr(self, parts: dict[str, Expr]) -> Expr:
        return ExprReader(self.scanner, self.axis, parts).read()

    def expr_block(self) -> tuple[Expr, ...]:
        """The expressions that a block in braces returns."""
        scanner, parts = self.scanner, dict[str, Expr]()
        opened = scanner.token
        scanner.expect("{", "before the expressions")
        scanner.end_line()
        scanner.skip_lines()
        while not scanner.accept("return"):
            token = scanner.token
            if token.kind != "name" or not (token.text[0] == "t" and token.text[1:].isdecimal()):
                what = "a part such as `t1 = …`, or return"
                raise scanner.expected(f"{what}, in the block of line {opened.line}")
            if token.text in parts:
                raise scanner.error(f"{token} is defined already")
            scanner.take()
            scanner.expect("=", f"after {token}")
            parts[token.text] = self.expr(parts)
            scanner.end_line()
            scanner.skip_lines()
        results: list[Expr] = []
        while not results or scanner.accept(","):
            results.append(self.expr(parts))
        scanner.end_line()
        scanner.skip_lines()
        scanner.expect("}", f"for the `{{` of line {opened.line}")
        return tuple(results)

    def plain(self) -> Plain:
        """An attribute's value; tuples of any depth are read without recursion."""
        scanner = self.scanner
        tuples: list[list[Plain]] = []
        while True:
            if scanner.accept("("):
                tuples.append([])
                if scanner.token.text != ")":
                    continue
            else:
                leaf = self.plain_leaf()
                if not tuples:
                    return leaf
                tuples[-1].append(leaf)
            while scanner.accept(")"):
                closed = tuple(tuples.pop())
                if not tuples:
                    return closed
                tuples[-1].append(closed)
            scanner.expect(",", "or `)` in a tuple")

    def plain_leaf(self) -> Plain:
        scanner, token = self.scanner, self.scanner.token
        if token.kind == "string":
            return scanner.string("a string")
        if token.text in _WORDS:
            return _WORDS[scanner.take().text]
        if token.text in ("-", "inf", "nan") or token.kind == "number":
            return scanner.number()
        raise scanner.expected("a number, a string, True, False, None or a tuple of such")

    def plain_number(self) -> float:
        if self.scanner.token.text in ("True", "False"):
            return self.scanner.take().text == "True"
        return self.scanner.number()


def combiner_label(key: tuple[str, int]) -> str:
    name, number = key
    return name_or_string(name) if number == 1 else f"{name_or_string(name)}'{number}"
