"""Split scans: the blocks of a loop that scans, shared among more programs.

One kernel combines the elements of each share. A second kernel scans each share; it begins with
what the shares before it give together, and so reads their totals. Long rows of a small number are
read twice and written once, by as many programs as fill a machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from blockbuster_fusion.errors import NoKernel
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.combiner import Combiner
from blockbuster_fusion.ir.expr import arg, call, const
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.nest.nest import (
    Access,
    Along,
    Body,
    Buffer,
    BufferAxis,
    Compute,
    Fold,
    For,
    Index,
    Kernel,
    Last,
    Load,
    Nest,
    NestStep,
    Positions,
    RunningFold,
    Share,
    Span,
    Statement,
    Store,
    Tile,
    read,
    walk,
    written,
)
from blockbuster_fusion.nest.passes.remove_dead_code import remove_dead_code
from blockbuster_fusion.nest.passes.split_reduction import buffers_between
from blockbuster_fusion.nest.rewrite import FreshNames
from blockbuster_fusion.nest.shares import access_of_share, axis_of_parts


def split_scan(nest: Nest, axis: str, parts: int) -> Nest:
    """Shares each scan along an axis among `parts` programs."""
    steps: list[NestStep] = []
    for step in nest.steps:
        found = scan_loop(step, axis) if isinstance(step, Kernel) else None
        if isinstance(step, Kernel) and found is not None:
            steps += _Split(step, *found, parts).steps()
        else:
            steps.append(step)
    if len(steps) == len(nest.steps):
        what = f"no kernel scans along {axis} in a loop that stands right in its grid"
        raise NoKernel(what=what, remedy="split another axis")
    return buffers_between(replace(nest, steps=tuple(steps)))


@dataclass(frozen=True)
class _Carry:
    """A carry of a loop, and the statements of its scan."""

    combiner: Combiner
    tile: Tile
    scan: RunningFold
    made: Compute
    last: Last


def scan_loop(kernel: Kernel, axis: str) -> tuple[int, For, tuple[_Carry, ...]] | None:
    """The one loop of a kernel that scans along an axis and stores, if its blocks can be shared."""
    at = next((i for i, s in enumerate(kernel.body) if _scans(s, axis)), None)
    if at is None:
        return None
    loop = kernel.body[at]
    assert isinstance(loop, For)
    others = walk((*kernel.body[:at], *kernel.body[at + 1 :]))
    if loop.gathered or loop.first or loop.share or any(isinstance(s, Store) for s in others):
        return None
    carries = tuple(_carry(loop, combiner, tile) for combiner, tile in loop.carried)
    if any(_is_limit(carry) for carry in carries) or _depend_on_one_another(loop, carries):
        return None
    return at, loop, carries


def _scans(statement: Statement, axis: str) -> bool:
    is_loop = isinstance(statement, For) and statement.index.dim.name == axis
    return is_loop and bool(statement.carried)  # type: ignore[union-attr]


def _carry(loop: For, combiner: Combiner, tile: Tile) -> _Carry:
    makers = {written(s): s for s in loop.body}
    last = makers[tile]
    assert isinstance(last, Last)
    made = makers[last.operand]
    assert isinstance(made, Compute)
    scan = makers[made.operands[1]]
    assert isinstance(scan, RunningFold)
    return _Carry(combiner, tile, scan, made, last)


def _is_limit(carry: _Carry) -> bool:
    """True if whole numbers begin with the least or the largest one, which no expression has."""
    return not carry.tile.dtype.is_float and carry.combiner.identity[0] not in (0.0, 1.0)


def _depend_on_one_another(loop: For, carries: Iterable[_Carry]) -> bool:
    """True if what is scanned depends on another scan of the loop."""
    scanned = {carry.scan.operand for carry in carries}
    found = {tile for carry in carries for tile in (carry.tile, carry.made.tile, carry.scan.tile)}
    for statement in walk(loop.body):
        tile = written(statement)
        if tile is not None and tile not in found and not found.isdisjoint(read(statement)):
            found.add(tile)
    return not found.isdisjoint(scanned)


class _Split:
    """The split of one kernel into two."""

    def __init__(
        self, kernel: Kernel, at: int, loop: For, carries: tuple[_Carry, ...], parts: int
    ) -> None:
        self.kernel, self.at, self.loop, self.carries = kernel, at, loop, carries
        self.names = FreshNames(kernel)
        axis = axis_of_parts(loop.index.dim.name, parts)
        taken = {dim.index for dim in kernel.dims if dim.axis is axis}
        one, other = (n for n in range(len(taken) + 2) if n not in taken)
        index = Index(f"{loop.index.name}_share", Dim(axis, one, packed=False))
        self.share = Share(index, parts, in_order=True)
        self.all = Index(f"{loop.index.name}_shares", Dim(axis, other))
        self.buffers = {carry.tile: self.buffer(carry.tile) for carry in carries}

    def buffer(self, tile: Tile) -> Buffer:
        """The buffer for the totals of all shares."""
        kept = {span.dim for span in tile.spans}
        own = [BufferAxis(i.dim, Along.BLOCKS) for i in self.kernel.grid if i.dim not in kept]
        own += [BufferAxis(span.dim, Along.AXIS) for span in tile.spans]
        own += [BufferAxis(self.all.dim, Along.AXIS)]
        return Buffer(f"{self.kernel.name}_{tile.name}", tuple(own), tile.dtype)

    def access(self, tile: Tile, part: Index) -> Access:
        """The places of the total of one share, or of a block of shares."""
        return access_of_share(self.kernel, self.buffers[tile], tile, self.all, part)

    def steps(self) -> list[NestStep]:
        kernel, grid = self.kernel, (*self.kernel.grid, self.share.index)
        before, after = kernel.body[: self.at], kernel.body[self.at + 1 :]
        totals = [Store(self.access(c.tile, self.share.index), c.tile) for c in self.carries]
        first = Kernel(f"{kernel.name}_totals", grid, (*before, self.totalled(), *totals))
        scan = replace(self.loop, share=self.share)
        second = replace(kernel, grid=grid, body=(*before, self.carried_in(), scan, *after))
        return [remove_dead_code(first), remove_dead_code(second)]

    def totalled(self) -> For:
        """The loop that combines the elements of a share, and scans and stores nothing.

        The total of the last share is not read, so that nothing is masked.
        """
        body: list[Statement] = []
        scans = {carry.scan: carry for carry in self.carries}
        gone = {carry.made for carry in self.carries}
        for statement in self.loop.body:
            if isinstance(statement, RunningFold) and statement in scans:
                carry, operand = scans[statement], statement.operand
                total = self.names.like(carry.tile)
                body.append(Fold(total, operand, statement.span, carry.combiner, tail_masked=False))
                body.append(Compute(carry.tile, carry.combiner.combine[0], (carry.tile, total)))
            elif not isinstance(statement, Store | Last) and statement not in gone:
                body.append(statement)
        gathered = tuple((carry.combiner, (carry.tile,)) for carry in self.carries)
        return replace(
            self.loop,
            body=_without_unknown(body, self.carries),
            share=self.share,
            gathered=gathered,
            carried=(),
        )

    def carried_in(self) -> For:
        """The loop that combines the totals of the shares before that of a program."""
        span, names = Span(self.all.dim, self.all), self.names
        at, own = (Tile(names.numbered("t"), spans, DType.int64) for spans in ((span,), ()))
        body: list[Statement] = [
            Positions(at, span),
            Positions(own, Span(self.share.index.dim, self.share.index)),
        ]
        for carry in self.carries:
            tile, combiner = carry.tile, carry.combiner
            start = combiner.identity[0] if tile.dtype.is_float else int(combiner.identity[0])
            block, before = (
                Tile(names.numbered("t"), (*tile.spans, span), tile.dtype) for _ in range(2)
            )
            total = names.like(tile)
            chosen = call("where", arg(0) < arg(1), arg(2), const(start))
            body += [
                Load(block, self.access(tile, self.all)),
                Compute(before, chosen, (at, own, block)),
                Fold(total, before, span, combiner, tail_masked=False),
                Compute(tile, combiner.combine[0], (tile, total)),
            ]
        gathered = tuple((carry.combiner, (carry.tile,)) for carry in self.carries)
        return For(self.all, tuple(body), gathered=gathered)


def _without_unknown(body: list[Statement], carries: Iterable[_Carry]) -> Body:
    """The statements of a loop that do not depend on scans, which are gone."""
    gone = {tile for carry in carries for tile in (carry.scan.tile, carry.made.tile)}
    made: list[Statement] = []
    for statement in body:
        tile = written(statement)
        if not gone.isdisjoint(read(statement)):
            if tile is not None:
                gone.add(tile)
            continue
        made.append(statement)
    return tuple(made)
