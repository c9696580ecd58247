"""The rows that a stream stores: in place, in a copy of their block, or past the caches.

A result that is larger than the caches would push out what they hold. Each line of it would be read
before it is written. So it goes past them: a run of elements waits in a line of its own until it is
written at once. Short rows that follow each other in memory wait together.
"""

from collections.abc import Mapping

from blockbuster_fusion.naming import word
from blockbuster_fusion.nest.nest import Span, Store
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.layout import LINE, Layout
from blockbuster_fusion.printers.c.moves import copied
from blockbuster_fusion.printers.c.streams import Stream
from blockbuster_fusion.printers.operators import C_STORED


def room_of_line(layout: Layout, stream: Stream) -> int:
    """The elements that wait at most to be written past the caches."""
    return LINE if stream.together == 1 else stream.together * int(layout.longest(stream.last))


def write_target(out: KernelText, store: Store, stream: Stream) -> None:
    """Writes where the rows of a block are stored, and how many of them wait together."""
    layout, target = out.layout, store.target
    stored, to = C_STORED[target.buffer.dtype], _target(out, store)
    out.line(f"{stored} *{to} = {layout.address(target)};")
    steps = {span: _step(out, store, span) for span in layout.order(store.tile)[:-1]}
    for span, step in steps.items():
        out.line(f"int64_t {step} = {layout.buffer_step(target, span)};")
    row = layout.row_step(target, store.tile)
    size = f"(int64_t)sizeof({stored}) * {layout.buffer_room(target.buffer)}"
    out.needs.add(("push",))
    past, near = layout.past_name(store), "" if row == "1" else f"{row} == 1 && "
    out.line(f"const int {past} = CAN_PUSH && {near}{size} > {out.past};")
    if stream.outer:
        length = layout.length(stream.last)
        together = f"MAX(1, {LINE} / {length})" if stream.together == 1 else str(stream.together)
        follow = f"{steps[stream.outer[-1]]} == {length}"
        out.line(f"const int64_t {_rows(out, store)} = {follow} ? {together} : 1;")
    if row == "1":
        return
    with out.braces(f"if ({row} != 1)"):
        out.line(f"{to} = {layout.copy_name(store)};")
        for at, step in enumerate(steps.values(), 1):
            out.line(f"{step} = {layout.room(store.tile, at, stored)};")


def write_copied(out: KernelText, store: Store) -> None:
    """Writes the store of a block of which a copy was made, as its rows are not contiguous."""
    layout, target = out.layout, store.target
    stored, row = C_STORED[target.buffer.dtype], layout.row_step(target, store.tile)
    if row == "1":
        return
    out.needs.add(("store", stored, stored))
    copy = layout.copy_name(store)
    with (
        out.braces(f"if ({row} != 1)"),
        copied(out, store.tile, target, copy) as (there, here, sizes, (rows, columns)),
    ):
        to = f"{there}, {rows[1]}, {columns}, {here}, {rows[0]}"
        out.line(f"store_{stored}_{stored}({to}, {sizes});")


class StoredRow:
    """A row that is stored, at the place that the variables of its loops give."""

    def __init__(
        self, out: KernelText, store: Store, variables: Mapping[Span, str], along: str
    ) -> None:
        self.out, self.store, self.variables, self.along = out, store, variables, along
        self.stored = C_STORED[store.target.buffer.dtype]
        self.past, self.line = out.layout.past_name(store), out.layout.line_name(store)
        self.length = out.layout.length(out.layout.order(store.tile)[-1])

    def write_place(self, first: str) -> str:
        """Writes where a run of elements goes; gives the element that the loop stores."""
        out, layout = self.out, self.out.layout
        made = layout.id(("place", self.store), f"{layout.name(self.store.target.buffer)}_at")
        waits = " + ".join([self.line, *(f"{w} * {self.length}" for w in self.waiting)])
        out.line(f"{self.stored} *const {made} = {self.past} ? {waits} : {self.at(first)};")
        return f"{made}[{self.along}]" if first == "0" else f"{made}[{self.along} - {first}]"

    def write_push(self, first: str, end: str) -> None:
        """Writes the push of a run, or of all rows that wait, once the last one is there."""
        out = self.out
        is_last, behind, more = "", "", end if first == "0" else f"{end} - {first}"
        for waiting, (span, i) in zip(self.waiting, [*self.variables.items()][-1:], strict=True):
            ends = f"{waiting} + 1 == {_rows(out, self.store)}"
            is_last = f" && ({ends} || {i} + 1 == {out.layout.length(span)})"
            behind = f" - {waiting} * {self.length}"
            more = f"{waiting} * {self.length} + {more}"
        size = f"({more}) * (int64_t)sizeof({self.stored})"
        with out.braces(f"if ({self.past}{is_last})"):
            out.line(f"push({self.at(first)}{behind}, {self.line}, {size});")

    @property
    def waiting(self) -> list[str]:
        """The number of rows that wait before this one; nothing if there is one row."""
        return [f"{i} % {_rows(self.out, self.store)}" for i in [*self.variables.values()][-1:]]

    def at(self, first: str) -> str:
        """The address of a run of elements of the row."""
        steps = [f"{i} * {_step(self.out, self.store, s)}" for s, i in self.variables.items()]
        return " + ".join([_target(self.out, self.store), *steps, *([first] * (first != "0"))])


def _target(out: KernelText, store: Store) -> str:
    """The variable with the place of the rows that are stored."""
    return out.layout.id(("target", store), f"{out.layout.name(store.target.buffer)}_to")


def _rows(out: KernelText, store: Store) -> str:
    """The variable with the number of rows that are written past the caches at once."""
    return out.layout.id(("rows", store), f"{out.layout.name(store.target.buffer)}_rows")


def _step(out: KernelText, store: Store, span: Span) -> str:
    """The variable of a stride of the rows that are stored."""
    wanted = f"{out.layout.name(store.target.buffer)}_to_{word(span.dim.name)}"
    return out.layout.id(("target step", store, span), wanted)
