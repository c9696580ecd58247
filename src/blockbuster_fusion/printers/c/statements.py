"""The statements of a loop nest as C."""

from contextlib import nullcontext

from blockbuster_fusion.nest.listing import statement_text
from blockbuster_fusion.nest.nest import (
    Body,
    Cascade,
    Compute,
    Contract,
    Fill,
    Fold,
    For,
    Last,
    Load,
    Lookup,
    Positions,
    RunningFold,
    Statement,
    Store,
)
from blockbuster_fusion.printers.c.contractions import write_contract
from blockbuster_fusion.printers.c.counters import write_counts
from blockbuster_fusion.printers.c.dot_text import write_copies
from blockbuster_fusion.printers.c.expressions import bare, number
from blockbuster_fusion.printers.c.kernel_text import KernelText
from blockbuster_fusion.printers.c.loops import looping
from blockbuster_fusion.printers.c.moves import write_load, write_lookup, write_store
from blockbuster_fusion.printers.c.panel_text import write_panel
from blockbuster_fusion.printers.c.reductions import write_compute, write_fold
from blockbuster_fusion.printers.c.scans import write_last, write_running_fold
from blockbuster_fusion.printers.c.stream_text import write_stream


def write_body(out: KernelText, body: Body) -> None:
    """Writes the statements in order; some are merged with the next one."""
    pending = list(body)
    while pending:
        statement, rest = pending[0], pending[1:]
        stream = out.layout.plan.streams.get(statement)
        if out.is_counted:
            write_counts(out, [statement] if stream is None else stream.statements)
        if stream is not None:
            write_stream(out, stream)
            pending = pending[len(stream.statements) :]
            continue
        panel = out.layout.panels.panels.get(statement)
        if panel is not None:
            with out.braces(""):
                write_panel(out, panel)
            pending = pending[len(panel.statements) :]
            continue
        following = rest[0] if rest else None
        match statement, following:
            case Fill(), Contract() if _starts_sum(out, statement, following):
                out.comment(f"{statement_text(following, tail_masks=False)}, from 0")
                write_contract(out, following, fresh=True)
                pending = rest[1:]
            case Compute(), Fold() if _folds_along(out, statement, following):
                out.comment(statement_text(statement, tail_masks=False))
                out.comment(statement_text(following, tail_masks=False))
                write_compute(out, statement, following)
                pending = rest[1:]
            case _:
                _write_statement(out, statement)
                pending = rest


def _starts_sum(out: KernelText, fill: Fill, contract: Contract) -> bool:
    """True if a contraction writes a tile that was just cleared, so that no clearing is needed."""
    layout = out.layout
    return fill.tile is contract.tile and fill.value == 0 and layout.is_one_call(contract)


def _folds_along(out: KernelText, compute: Compute, fold: Fold) -> bool:
    """True if a reduction, not along the vectors, can run while its operand is computed."""
    layout = out.layout
    return fold.operand is compute.tile and layout.is_across(fold)


def _write_statement(out: KernelText, statement: Statement) -> None:
    layout = out.layout
    if isinstance(statement, For):
        write_copies(out, statement)
        is_plain = statement.share is None and statement.window is None
        with nullcontext() if is_plain else out.braces(""), looping(out, statement):
            write_body(out, statement.body)
        return
    if isinstance(statement, Cascade):
        _write_cascade(out, statement)
        return
    out.comment(statement_text(statement, tail_masks=False))
    match statement:
        case Load():
            write_load(out, statement.tile, statement.source)
        case Lookup():
            write_lookup(out, statement)
        case Store():
            write_store(out, statement)
        case Compute():
            write_compute(out, statement)
        case Positions():
            with out.over([statement.span] if statement.tile.spans else []) as variables:
                own = variables.get(statement.span, "0")
                place = f"{layout.start(statement.span)} + {own}"
                out.line(f"{layout.at(statement.tile, variables)} = (int32_t)({place});")
        case Fill():
            with out.over(layout.order(statement.tile)) as variables:
                value = number(statement.value, statement.tile.dtype)
                out.line(f"{layout.at(statement.tile, variables)} = {bare(value)};")
        case Fold():
            write_fold(out, statement)
        case RunningFold():
            write_running_fold(out, statement)
        case Last():
            write_last(out, statement)
        case Contract():
            write_contract(out, statement)


def _write_cascade(out: KernelText, statement: Cascade) -> None:
    """Writes the statements that move a partial sum into the total of a long loop."""
    layout = out.layout
    out.needs.add(("runs",))
    run, at = layout.run(statement.index.dim), layout.name(statement.index)
    with out.braces(
        f"if ({run} && {at} % {run} == {run} - 1)" if statement.inside else f"if ({run})"
    ):
        write_body(out, statement.body)
