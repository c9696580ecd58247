"""Listings of loop nests, for people to read."""

from dataclasses import replace

from blockbuster_fusion.ir.expr import Expr, format_expr, format_number
from blockbuster_fusion.nest.nest import (
    UNSEEN,
    Access,
    Along,
    Body,
    Buffer,
    Call,
    Cascade,
    Clear,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Grids,
    Kernel,
    Last,
    Launchable,
    Load,
    Lookup,
    Nest,
    NestStep,
    Positions,
    RunningFold,
    Span,
    Statement,
    Store,
    Tile,
    Window,
    tiles,
    written,
)


def show_nest(nest: Nest | Launchable) -> str:
    """The listing of a nest, or of one launch."""
    if not isinstance(nest, Nest):
        return "\n".join(_step(nest)) + "\n"
    blocks = ["\n".join(_step(step)) for step in nest.steps]
    return "\n\n".join(blocks) + "\n"


def _step(step: NestStep) -> list[str]:
    match step:
        case Kernel():
            return _kernel(step)
        case Grids():
            inner = [line for kernel in step.kernels for line in _kernel(kernel)]
            return [f"grids {step.name}:", *(f"    {line}" for line in inner)]
        case Clear():
            return [f"clear {step.buffer}"]
        case Call():
            results = ", ".join(view.buffer.name for view in step.results)
            operands = ", ".join(view.buffer.name for view in step.operands)
            return [f"{results} = {step.op.namespace}.{step.op.name}({operands})"]


def _kernel(kernel: Kernel) -> list[str]:
    lines = [f"kernel {kernel.name}:"]
    lines += [f"    {buffer_text(buffer)}" for buffer in kernel.buffers]
    grid = [f"{i.name} in {i.dim.label}" for i in kernel.grid]
    lines.append(f"    grid {', '.join(grid) or 'of one'}:")
    _body(kernel.body, 2, lines, set())
    return lines


def buffer_text(buffer: Buffer) -> str:
    """A buffer's name, axes, dtype and space: `Q[M,D] float32 global`."""
    axes = ",".join(
        str(a.dim) if a.along is Along.AXIS else f"{a.along.value} of {a.dim}" for a in buffer.axes
    )
    return f"{buffer}[{axes}] {buffer.dtype} {buffer.space.value}"


def _body(body: Body, depth: int, lines: list[str], known: set[Tile]) -> None:
    for statement in body:
        lines.append("    " * depth + _statement(statement, known))
        tile = written(statement)
        if tile is not None:
            known.add(tile)
        if isinstance(statement, For | Cascade):
            _body(statement.body, depth + 1, lines, known)


def statement_text(statement: Statement, *, tail_masks: bool = True) -> str:
    """The listing of one statement, without the types of its tiles."""
    if not tail_masks and isinstance(statement, Fold):
        statement = replace(statement, tail_masked=False)
    if not tail_masks and isinstance(statement, Contract):
        statement = replace(statement, tail_masked=(False, False))
    return _statement(statement, set(tiles(statement)))


def _statement(statement: Statement, known: set[Tile]) -> str:
    match statement:
        case Load():
            beyond = f", beyond={statement.beyond}" if statement.beyond else ""
            return f"{_typed(statement.tile, known)} = load({_access(statement.source)}{beyond})"
        case Lookup():
            table = _access(statement.source)
            return f"{_typed(statement.tile, known)} = take({table}, {statement.places})"
        case Store():
            word = "add" if statement.atomic else "store"
            at = "" if statement.places is None else f" at {statement.places}"
            return f"{word}({statement.tile}, {_access(statement.target)}{at})"
        case Compute():
            text = format_expr(statement.expr, [t.name for t in statement.operands])
            return f"{_typed(statement.tile, known)} = {text}"
        case Positions():
            return f"{_typed(statement.tile, known)} = index({statement.span.at})"
        case Fold():
            mask = ", masked" if statement.tail_masked else ""
            over = f"over {statement.span.dim}{mask}"
            word = f"{statement.combiner.name}({statement.operand}, {over})"
            return f"{_typed(statement.tile, known)} = {word}"
        case RunningFold():
            word = f"scan_{statement.combiner.name}"
            scanned = f"{word}({statement.operand}, over {statement.span.dim})"
            return f"{_typed(statement.tile, known)} = {scanned}"
        case Last():
            last = f"last({statement.operand}, over {statement.span.dim})"
            return f"{_typed(statement.tile, known)} = {last}"
        case Contract():
            sides = (statement.left, statement.right)
            named = zip(sides, statement.tail_masked, strict=True)
            texts = [f"masked {side}" if mask else str(side) for side, mask in named]
            kind = "" if statement.rounds_to is None else f", in {statement.rounds_to}"
            over = f"over {', '.join(str(s.dim) for s in statement.summed)}{kind}"
            return f"{statement.tile} += dot({', '.join(texts)}, {over})"
        case Fill():
            return f"{_typed(statement.tile, known)} = {format_number(statement.value)}"
        case For():
            return _for(statement)
        case Cascade():
            words = "after each run of" if statement.inside else "if there are runs of"
            return f"{words} {statement.index.name}:"


def _for(loop: For) -> str:
    words = [f"for {loop.index.name} in {loop.index.dim.label}"]
    if loop.first:
        words.append(f"from {loop.first}")
    if loop.share is not None:
        words.append(f"part {loop.share.index.name} of {loop.share.parts}")
    if loop.window is not None:
        words += _within(loop.window)
    return " ".join(words) + ":"


def _within(window: Window) -> list[str]:
    low, high = (
        format_expr(edge, []) if isinstance(edge, Expr) else edge.name if edge else ""
        for edge in (window.low, window.high)
    )
    words = [f"within [{low}..{high}]"]
    if window.rows is not None:
        words.append(f"of {window.rows.at}")
    if window.clear is not None:
        words.append("where it is whole" if window.clear else "where it is not")
    if window.seen:
        words.append(f"and beyond unless {', '.join(t.name for t in window.seen)} > {UNSEEN:g}")
    return words


def _typed(tile: Tile, known: set[Tile]) -> str:
    """The name of a tile, with its axes and dtype where it is first written."""
    if tile in known:
        return tile.name
    axes = ",".join(map(_axis, tile.spans))
    return f"{tile.name}({axes}):{tile.dtype}"


def _axis(span: Span) -> str:
    return str(span.dim) if span.each == 1 else f"{span.dim}/{span.each}"


def _access(access: Access) -> str:
    return f"{access.buffer}[{','.join(str(span) for span in access.spans)}]"
