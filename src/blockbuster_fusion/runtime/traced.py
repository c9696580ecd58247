"""Arithmetic on integers that is noted, so that C can repeat it for other integers.

A launch is computed from sizes and strides in Python. Given `Number`s instead of integers, the same
code notes each operation in a trace. Where it asks a question (`if size > 16`), the answer for
the traced integers is noted as a guard. The trace holds for all integers that pass its guards.
"""

from dataclasses import dataclass, field
from typing import Any

OPERATIONS = ("given", "constant", "add", "multiply", "divide", "remainder", "shift", "bits")
"""Of a register's two operands; "divide" and "remainder" round down, as in Python."""
GUARDS = ("equal", "different", "less", "not_less")
CODES = {name: code for code, name in enumerate((*OPERATIONS, *GUARDS))}


@dataclass(slots=True)
class Trace:
    """Instructions (code, operand, operand), each with a register; guards are among them."""

    code: list[tuple[int, int, int]] = field(default_factory=list)
    known: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def given(self, at: int, value: int) -> "Number":
        """The integer at a place among the given ones."""
        return Number(self, self.note("given", at, 0), value)

    def note(self, name: str, left: int, right: int) -> int:
        """The register of an instruction; each is noted once."""
        key = (name, left, right)
        if key not in self.known:
            self.known[key] = len(self.code)
            self.code.append((CODES[name], left, right))
        return self.known[key]

    def register(self, x: Any) -> int:
        """The register of a number or of an integer."""
        return x.register if isinstance(x, Number) else self.note("constant", int(x), 0)


class Number:
    """An integer of a trace: its register, and its value in the traced computation."""

    __slots__ = ("register", "trace", "value")

    def __init__(self, trace: Trace, register: int, value: int) -> None:
        self.trace, self.register, self.value = trace, register, value

    def made(self, name: str, left: Any, right: Any, value: int) -> "Number":
        trace = self.trace
        return Number(trace, trace.note(name, trace.register(left), trace.register(right)), value)

    def guarded(self, name: str, other: Any, holds: bool) -> bool:
        """The answer to a question, which is noted."""
        kinds = {"equal": ("different", "equal"), "less": ("not_less", "less")}
        trace = self.trace
        trace.note(kinds[name][holds], self.register, trace.register(other))
        return holds

    # ---------------------------------------------------------------- arithmetic

    def __add__(self, other: Any) -> "Number":
        return self.made("add", self, other, self.value + int_of(other))

    __radd__ = __add__

    def __mul__(self, other: Any) -> "Number":
        return self.made("multiply", self, other, self.value * int_of(other))

    __rmul__ = __mul__

    def __neg__(self) -> "Number":
        return self * -1

    def __sub__(self, other: Any) -> "Number":
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> "Number":
        return (-self).__add__(other)

    def __floordiv__(self, other: Any) -> "Number":
        return self.made("divide", self, other, self.value // int_of(other))

    def __mod__(self, other: Any) -> "Number":
        return self.made("remainder", self, other, self.value % int_of(other))

    def __rlshift__(self, other: Any) -> "Number":
        return self.made("shift", other, self, int_of(other) << self.value)

    def bit_length(self) -> "Number":
        return self.made("bits", self, 0, self.value.bit_length())

    # ---------------------------------------------------------------- questions

    def __eq__(self, other: object) -> bool:
        return self.guarded("equal", other, self.value == int_of(other))

    def __lt__(self, other: Any) -> bool:
        return self.guarded("less", other, self.value < int_of(other))

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __gt__(self, other: Any) -> bool:
        return not self < other + 1

    def __le__(self, other: Any) -> bool:
        return self.__lt__(other + 1)

    def __bool__(self) -> bool:
        return not self.guarded("equal", 0, self.value == 0)

    def __index__(self) -> int:
        """The value, which is then the same wherever the trace holds."""
        self.guarded("equal", self.value, True)
        return self.value

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(self.__index__())


SOURCE = f"""\
#include <stdint.h>

enum {{ {", ".join(name.upper() for name in CODES)} }};

static int64_t divided(int64_t a, int64_t b) {{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}}

/* Repeats a trace: 1 if all its guards hold. */
int traced(const int64_t *code, int64_t count, const int64_t *given, int64_t *made) {{
    for (int64_t i = 0; i < count; i++) {{
        const int64_t *at = code + 3 * i, a = at[1], b = at[2];
        switch (at[0]) {{
        case GIVEN: made[i] = given[a]; break;
        case CONSTANT: made[i] = a; break;
        case ADD: made[i] = made[a] + made[b]; break;
        case MULTIPLY: made[i] = made[a] * made[b]; break;
        case DIVIDE: made[i] = divided(made[a], made[b]); break;
        case REMAINDER: made[i] = made[a] - made[b] * divided(made[a], made[b]); break;
        case SHIFT: made[i] = made[a] << made[b]; break;
        case BITS: made[i] = made[a] ? 64 - __builtin_clzll(made[a] < 0 ? -made[a] : made[a]) : 0;
            break;
        case EQUAL: if (made[a] != made[b]) return 0; break;
        case DIFFERENT: if (made[a] == made[b]) return 0; break;
        case LESS: if (made[a] >= made[b]) return 0; break;
        case NOT_LESS: if (made[a] < made[b]) return 0; break;
        }}
    }}
    return 1;
}}
"""
"""A function in C that repeats a trace."""

Value = int | Number
"""An integer, known or of a trace."""


def int_of(x: Any) -> int:
    """The value in the traced computation, without a guard."""
    return x.value if isinstance(x, Number) else int(x)
