"""The text of a C kernel while it is written: lines, braces and loops over elements."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

from blockbuster_fusion.naming import comment
from blockbuster_fusion.nest.nest import Index, Span
from blockbuster_fusion.printers.c.expressions import ExpressionWriter, Need
from blockbuster_fusion.printers.c.layout import Layout


class CText:
    """Lines of C; the parts of the prelude that they call are noted in `needs`."""

    def __init__(self, needs: set[Need]) -> None:
        self.needs = needs
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def comment(self, text: str) -> None:
        self.line(f"/* {comment(text)} */")

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def local(self, key: Hashable, wanted: str) -> str:
        """The name of a variable, by what it stands for."""
        return wanted


class KernelText(CText):
    """The lines of one kernel, and the layout that they are written with."""

    def __init__(
        self,
        layout: Layout,
        needs: set[Need],
        past: int | None = None,
        *,
        is_counted: bool = False,
    ) -> None:
        """`past` is the size from which results go past the caches: most of the last by default.

        A counted kernel counts the bytes that it loads and stores (printers/c/counters.py).
        """
        super().__init__(needs)
        self.layout, self.is_counted = layout, is_counted
        self.past = "LAST_CACHE / 4 * 3" if past is None else str(past)
        self.writer = ExpressionWriter(layout.extent, needs)

    def local(self, key: Hashable, wanted: str) -> str:
        return self.layout.id(key, wanted)

    @contextmanager
    def over(
        self, spans: Sequence[Span], *, simd: str = "simd", around: int = 0
    ) -> Iterator[dict[Span, str]]:
        """Loops over elements of spans, the innermost in vectors, within `around` other loops."""
        variables = {span: f"i{around + number + 1}" for number, span in enumerate(spans)}
        start = self.depth
        for span, i in variables.items():
            if span is spans[-1] and simd:
                self.line(f"#pragma omp {simd}")
            self.line(f"for (int64_t {i} = 0; {i} < {self.layout.length(span)}; {i}++)")
            self.depth += 1
        marker = len(self.lines)
        yield variables
        if spans and len(self.lines) > marker + 1:
            self.lines[marker - 1] += " {"
            self.depth -= 1
            self.line("}")
        self.depth = start

    def line_length(self, index: Index) -> None:
        """Writes the length of the block of an index; the last block may be shorter."""
        layout, dim = self.layout, index.dim
        if dim.packed:
            block = layout.block(dim)
            text = f"MIN({block}, {layout.extent(dim.axis)} - {layout.name(index)} * {block})"
            self.line(f"const int64_t {layout.length(Span(dim, index))} = {text};")
