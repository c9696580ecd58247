"""Panels as C: loops over a few vectors of the lanes, and over the other axis of the tiles."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.nest.listing import statement_text
from blockbuster_fusion.nest.nest import Compute, Fold, Span, Tile
from blockbuster_fusion.printers.c.expressions import BatchCall, bare, never_batched, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.layout import PART
from blockbuster_fusion.printers.c.mathematics.batches import BATCH
from blockbuster_fusion.printers.c.panels import Panel
from blockbuster_fusion.printers.c.steps import Step, calls_batches, in_forms
from blockbuster_fusion.printers.c.streams import Segment

WIDTH = 32
"""The lanes of a panel: a few vectors."""


def write_panel(out: KernelText, panel: Panel) -> None:
    """Writes a panel: once for whole panels of lanes, and once for those that are left."""
    for statement in panel.statements:
        out.comment(statement_text(statement, tail_masks=False))
    length = out.layout.length(panel.lanes)
    out.line("int64_t at = 0;")
    with out.braces(f"for (; at + {WIDTH} <= {length}; at += {WIDTH})"):
        _Panel(out, panel, str(WIDTH)).write()
    with out.braces(f"if (at < {length})"):
        _Panel(out, panel, f"{length} - at").write()


class _Panel:
    """One panel while it is written, for a number of lanes."""

    def __init__(self, out: KernelText, panel: Panel, count: str) -> None:
        self.out, self.panel, self.count = out, panel, count
        self.values: dict[Tile, str] = {}
        """The values of tiles that are in registers, for one element."""

    def write(self) -> None:
        for item in self.panel.items:
            if isinstance(item, Segment):
                self.segment(item)
            else:
                assert isinstance(item, Compute)
                self.numbers(item)

    def numbers(self, statement: Compute) -> None:
        """Writes a computation of one number for each lane."""
        name = self.array(statement.tile)
        with self.each_lane() as variables:
            self.out.line(f"{name}[w] = {bare(self.made(statement, variables))};")
        self.values[statement.tile] = f"{name}[w]"
        self.keep(statement.tile)

    def segment(self, item: Segment) -> None:
        """Writes a loop along the axis; its reductions are kept in registers."""
        out = self.out
        names = {fold: self.array(fold.tile) for fold in item.folds}
        for fold, name in names.items():
            self.start(fold, name)
        length = out.layout.length(self.panel.along)
        parts = {f: self.part(f, name) for f, name in names.items() if self.is_in_parts(f)}
        if parts:
            with out.braces(f"for (int64_t part = 0; part < {length}; part += {PART})"):
                for fold, name in parts.items():
                    self.start(fold, name)
                self.loop(item, names | parts, "part", f"MIN({length}, part + {PART})")
                for fold, name in parts.items():
                    with self.each_lane():
                        out.line(f"{names[fold]}[w] += {name}[w];")
        else:
            self.loop(item, names, "0", length)
        for fold, name in names.items():
            self.values[fold.tile] = f"{name}[w]"
            self.keep(fold.tile)

    def loop(self, item: Segment, names: Mapping[Fold, str], start: str, end: str) -> None:
        """Writes the loop along the axis; beside functions of batches, one for each batch."""
        in_forms(
            self.out, calls_batches(item.statements), partial(self.lanes, item, names, (start, end))
        )

    def lanes(
        self, item: Segment, names: Mapping[Fold, str], ends: tuple[str, str], batches: bool
    ) -> None:
        width = BATCH if batches else WIDTH
        left = "" if self.count == str(WIDTH) else self.count
        for first in range(0, WIDTH, width):
            with self.out.braces(f"for (int64_t i1 = {ends[0]}; i1 < {ends[1]}; i1++)"):
                step = Step(self.out, width, first=first, left=left, batches=batches)
                self.step(item, names, step)

    def step(self, item: Segment, names: Mapping[Fold, str], step: Step) -> None:
        """Writes the statements of a segment for some lanes."""
        known = dict(self.values)
        for statement in item.statements:
            if isinstance(statement, Compute):
                self.element(statement, step)
            else:
                assert isinstance(statement, Fold)
                total = f"{names[statement]}[w]"
                value = step.guarded(self.value(statement.operand, self.lane), "0")
                expr, dtype = statement.combiner.combine[0], statement.tile.dtype
                made = self.out.writer.combined(expr, [total, value], dtype)
                step.always(f"{total} = {bare(made)};")
        step.end()
        self.values = known

    def element(self, statement: Compute, step: Step) -> None:
        """Writes one element; it goes to memory too if others read it."""
        layout, tile = self.out.layout, statement.tile
        name = layout.id(("value", tile), f"{layout.name(tile)}_now")
        made = self.made(statement, self.lane, step.call)
        self.values[tile] = step.value(layout.held(tile), name, made)
        if tile not in layout.panels.fleeting:
            step.effect(f"{layout.at(tile, self.lane)} = {self.values[tile]};")

    # ---------------------------------------------------------------- lanes

    @contextmanager
    def each_lane(self) -> Iterator[dict[Span, str]]:
        out = self.out
        out.line("#pragma omp simd")
        with out.braces(f"for (int64_t w = 0; w < {self.count}; w++)"):
            yield self.lane

    @property
    def lane(self) -> dict[Span, str]:
        """The place of an element."""
        return {self.panel.along: "i1", self.panel.lanes: "(at + w)"}

    def array(self, tile: Tile) -> str:
        """Writes the array of the numbers of the lanes, and returns its name."""
        layout = self.out.layout
        name = layout.id(("lanes", tile), f"{layout.name(tile)}_lanes")
        self.out.line(f"{layout.held(tile)} {name}[{WIDTH}];")
        return name

    def part(self, fold: Fold, name: str) -> str:
        """Writes the array of the partial sums of the lanes, and returns its name."""
        layout = self.out.layout
        part = layout.id(("lanes of a part", fold.tile), f"{name}_part")
        self.out.line(f"{layout.held(fold.tile)} {part}[{WIDTH}];")
        return part

    def start(self, fold: Fold, name: str) -> None:
        identity = bare(number(fold.combiner.identity[0], fold.tile.dtype))
        self.out.line(f"for (int w = 0; w < {WIDTH}; w++) {name}[w] = {identity};")

    def is_in_parts(self, fold: Fold) -> bool:
        """True for a long sum, which is made of partial sums so that it stays exact."""
        is_float = self.out.layout.held(fold.tile) in ("float", "double")
        return fold.combiner is ADD and is_float and self.out.layout.is_long(fold.span.dim)

    def keep(self, tile: Tile) -> None:
        """Writes the numbers of the lanes into the memory of their tile, if it has any."""
        out = self.out
        if tile in out.layout.panels.fleeting:
            return
        with self.each_lane() as variables:
            out.line(f"{out.layout.at(tile, variables)} = {self.values[tile]};")

    def made(
        self, statement: Compute, variables: Mapping[Span, str], batched: BatchCall = never_batched
    ) -> str:
        layout = self.out.layout
        texts = [self.value(t, variables) for t in statement.operands]
        given = statement.expr, texts, layout.operand_dtypes(statement), statement.tile.dtype
        return self.out.writer.at_once(*given, batched)

    def value(self, tile: Tile, variables: Mapping[Span, str]) -> str:
        return self.values.get(tile) or self.out.layout.at(tile, variables)
