"""Steps as C: a few neighbours computed side by side, in loops over them with calls in between.

Compilers make vectors of such loops. Some functions are called for a whole batch of neighbours. The
values before and after such a call are in different loops, so they are arrays, with one element for
each neighbour; compilers keep them in registers.
"""

from collections.abc import Callable, Iterable

from blockbuster_fusion.ir.expr import Expr, postorder
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import Compute, Statement
from blockbuster_fusion.printers.c.expressions import bare, sigmoid_operand
from blockbuster_fusion.printers.c.kernel_text import CText
from blockbuster_fusion.printers.c.mathematics.batches import BATCH, BATCHES, WITH_BATCHES
from blockbuster_fusion.printers.operators import C_TYPES


def calls_batches(statements: Iterable[Statement]) -> bool:
    """True if functions of batches are part of some statements."""
    return any(has_batches(s.expr, s.tile.dtype) for s in statements if isinstance(s, Compute))


def has_batches(expr: Expr, dtype: DType) -> bool:
    """True if functions of batches are part of an expression; float64 has none."""
    return dtype is not DType.float64 and any(_name(node) in BATCHES for node in postorder(expr))


def _name(node: Expr) -> str:
    return "sigmoid" if sigmoid_operand(node) is not None else node.op


def in_forms(out: CText, batches: bool, write: Callable[[bool], None]) -> None:
    """Writes code with functions of batches, for AVX-512, and without, for other machines."""
    if batches:
        out.line(f"#if {WITH_BATCHES}")
        write(True)
        out.line("#else")
        write(False)
        out.line("#endif")
    else:
        write(False)


class Step:
    """Neighbours while they are computed; `w` is the number of one in generated code."""

    def __init__(
        self, out: CText, width: int, *, first: int = 0, left: str = "", batches: bool
    ) -> None:
        """With `left`, only so many neighbours are there, and nothing else is read or stored."""
        self.out, self.width, self.first, self.end_at = out, width, first, first + width
        self.left, self.batches = left, batches
        self.lines: list[str] = []
        """The statements of the loop that is not written yet."""
        self.calls = 0

    def value(self, c_type: str, name: str, text: str) -> str:
        """Notes a value of each neighbour; gives its text from here on."""
        made = bare(self.guarded(text, "0"))
        if not self.batches:
            self.lines.append(f"const {c_type} {name} = {made};")
            return name
        self.out.line(f"{c_type} {name}[{self.end_at}];")
        self.lines.append(f"{name}[w] = {made};")
        return f"{name}[w]"

    def guarded(self, text: str, other: str) -> str:
        """A value, or another one where no neighbour is left."""
        return f"(w < {self.left} ? {bare(text)} : {other})" if self.left else text

    def effect(self, line: str) -> None:
        """Notes a statement of each neighbour that is there."""
        self.lines.append(f"if (w < {self.left}) {line}" if self.left else line)

    def always(self, line: str) -> None:
        """Notes a statement of each neighbour, there or not."""
        self.lines.append(line)

    def call(self, function: str, dtype: DType, operand: str) -> str | None:
        """Writes the call of a function for all neighbours; None if it has no such form."""
        if not self.batches or function not in BATCHES or dtype is not DType.float32:
            return None
        self.calls += 1
        name = self.out.local(("call", function, self.calls), f"{function}_{self.calls}")
        made = self.value(C_TYPES[dtype], name, operand)
        self.end()
        self.out.needs.add((f"{function}_batch", dtype.value))
        for first in range(self.first, self.end_at, BATCH):
            at = f"{name} + {first}" if first else name
            self.out.line(f"{function}_batch_{dtype.value}({at});")
        return made

    def end(self) -> None:
        """Writes the loop of what was noted."""
        if not self.lines:
            return
        self.out.line("#pragma omp simd")
        with self.out.braces(f"for (int w = {self.first}; w < {self.end_at}; w++)"):
            for line in self.lines:
                self.out.line(line)
        self.lines = []
