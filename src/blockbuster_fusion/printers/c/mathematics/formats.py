"""The two formats of floats in generated C: their types, widths, literals and polynomials."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp

from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.c.expressions import number
from blockbuster_fusion.printers.c.mathematics.polynomials import POLYNOMIALS


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A dtype with its C types, and the widths of its fields."""

    dtype: str
    c_type: str
    whole: str
    """The integer type of the same width."""
    fraction: int
    """Bits of the fraction that are stored."""
    exponent: int
    """Bits of the exponent."""
    suffix: str
    """The end of names in the C library."""

    def __call__(self, value: float) -> str:
        """A number as a literal of this format."""
        return number(value, DType(self.dtype))

    def magic(self, more: int = 0) -> str:
        """A number that rounds what is added to it to a whole number.

        The lowest bits of the sum are that whole number and `more`.
        """
        return self(1.5 * 2.0**self.fraction + more)

    @property
    def bias(self) -> int:
        """What is added to an exponent."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign_bit(self) -> int:
        return self.fraction + self.exponent

    @property
    def least(self) -> str:
        """The least normal number."""
        return self(2.0 ** (1 - self.bias))

    def bits_of(self, exponent: int, fraction: int = 0) -> str:
        """The bits of a positive float, as an unsigned literal."""
        return f"0x{exponent << self.fraction | fraction:x}u{'' if self is FLOAT32 else 'll'}"

    def split(self, value: float, rest: float, *, spare: bool = True) -> tuple[str, str]:
        """A constant in two parts; `rest` is what is missing in its float64.

        With bits to spare, products of the first part and an exponent are exact.
        """
        mantissa, exponent = frexp(value)
        kept = self.fraction - self.exponent if spare else self.fraction + 1
        high = round(mantissa * 2.0**kept) * 2.0 ** (exponent - kept)
        return self(high), self((value - high) + rest)

    def polynomial(self, name: str, variable: str, square: str, result: str = "p") -> str:
        """Statements that evaluate a polynomial of the table."""
        return polynomial(self, POLYNOMIALS[name, self.dtype], variable, square, result)


def polynomial(
    form: FloatFormat, coefficients: Sequence[float], variable: str, square: str, result: str
) -> str:
    """Statements that declare `result`, the polynomial with these coefficients of a variable.

    Even and odd powers are summed apart, by the square of the variable: half as many steps wait
    for one another. Short ones are not worth it.
    """
    if len(coefficients) < 5:
        return "\n    ".join(_horner(form, coefficients, variable, result))
    odd = f"{result}_odd"
    lines = [
        *_horner(form, coefficients[::2], square, result),
        *_horner(form, coefficients[1::2], square, odd),
        f"{result} = {odd} * {variable} + {result};",
    ]
    return "\n    ".join(lines)


def _horner(
    form: FloatFormat, coefficients: Sequence[float], variable: str, result: str
) -> list[str]:
    last, first, *others = (form(value) for value in reversed(coefficients))
    steps = [f"{result} = {result} * {variable} + {value};" for value in others]
    return [f"{form.c_type} {result} = {last} * {variable} + {first};", *steps]


FLOAT32 = FloatFormat("float32", "float", "uint32_t", 23, 8, "f")
FLOAT64 = FloatFormat("float64", "double", "uint64_t", 52, 11, "")
FORMATS = {form.dtype: form for form in (FLOAT32, FLOAT64)}
