"""Signs of expressions, which hold for all floats of their operands. NaN has every sign.

The lattice: an element says what an expression never is. ANY is the top: it may be anything. Whole
numbers may overflow, and are not meant.
"""

from dataclasses import dataclass

from blockbuster_fusion.ir.expr import Expr, fold


@dataclass(frozen=True, slots=True)
class Sign:
    """The signs that the numbers of an expression never have."""

    never_negative: bool = False
    never_positive: bool = False

    @property
    def opposite(self) -> "Sign":
        """The sign of a negation."""
        return Sign(self.never_positive, self.never_negative)

    def either(self, other: "Sign") -> "Sign":
        """The sign of what has one sign or the other."""
        return Sign(
            self.never_negative and other.never_negative,
            self.never_positive and other.never_positive,
        )

    def times(self, other: "Sign") -> "Sign":
        """The sign of a product."""
        above = self.never_negative and other.never_negative
        below = self.never_positive and other.never_positive
        across = self.never_negative and other.never_positive
        return Sign(above or below, across or (self.never_positive and other.never_negative))


ANY, AT_LEAST_0 = Sign(), Sign(never_negative=True)


def sign_of(expr: Expr) -> Sign:
    """The sign of an expression, as far as its functions tell."""
    return fold(expr, _sign)


def is_share(expr: Expr) -> bool:
    """True for an exponential of floats that is from 0 to 1, or NaN."""
    return expr.op in ("exp", "exp2") and sign_of(expr.args[0]).never_positive


def _sign(node: Expr, inner: list[Sign]) -> Sign:
    match node.op:
        case "const":
            number = float(node.number)
            return Sign(number >= 0, number <= 0)
        case "size" | "abs" | "exp" | "exp2" | "sqrt":
            return AT_LEAST_0
        case "neg":
            return inner[0].opposite
        case "add":
            return inner[0].either(inner[1])
        case "mul" if node.args[0] is node.args[1]:
            return AT_LEAST_0
        case "mul":
            return inner[0].times(inner[1])
        case "pow" if node.args[1].op == "const" and _is_even_or_root(node.args[1]):
            return AT_LEAST_0
        case "maximum":
            a, b = inner
            either = a.never_negative or b.never_negative
            return Sign(either, a.never_positive and b.never_positive)
        case "minimum":
            a, b = inner
            either = a.never_positive or b.never_positive
            return Sign(a.never_negative and b.never_negative, either)
        case "where":
            return inner[1].either(inner[2])
    return ANY


def _is_even_or_root(exponent: Expr) -> bool:
    """True if powers with an exponent are at least 0, or NaN."""
    number = float(exponent.number)
    return number % 2 == 0 or not number.is_integer()
