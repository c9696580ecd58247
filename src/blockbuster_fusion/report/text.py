"""A report as text: a table of its rows, and for the costliest why they are not fused further."""

from collections.abc import Iterator, Sequence

from blockbuster_fusion.plans.amounts import amount, counted, duration, durations, timed
from blockbuster_fusion.plans.words import Cells, aligned, shortened
from blockbuster_fusion.report.report import Costly, Kept, Layers, Report, Row, Section, Totals

HEADS = ("", "step", "by", "time", "share", "reads", "writes", "otherwise", "lines")
LEFT = (1, 2, 7, 8)
"""The columns that are flush left."""
MOST_LINES = 3
CAPTURED = "it runs as it was captured, as nothing is faster"
WHY = "the costliest steps, and why they are not fused further:"
ALONE = "it reads inputs of the model alone, and no other step reads its results"


def text(report: Report) -> Iterator[str]:
    """The lines of a report."""
    yield from report.summary
    yield f"{report.target} ({report.machine}): {totals(report.totals)}"
    yield from (f"graph break: {reason}" for reason in report.graph_breaks)
    if len(report.sections) == 1:
        yield report.sections[0].proof
    reasons = dict[str, str]()
    for section in report.sections:
        yield ""
        yield from _section(section, reasons)
    yield from (f"[{mark}] {reason}" for reason, mark in reasons.items())
    costliest = report.costliest()
    if costliest:
        yield from ("", WHY)
    for number, costly in enumerate(costliest, start=1):
        yield f"{number}. {headline(costly)}"
        yield from (f"   {sentence}" for sentence in sentences(costly.row))
    for note in report.notes:
        yield from ("", f"{note.title}:")
        yield from (f"  {line}" for line in note.lines)


def totals(found: Totals) -> str:
    """Sums in words."""
    words = [f"{counted(found.steps, 'step')}, {counted(found.kernels, 'kernel')}"]
    bases = {"measured": found.measured, "predicted": found.predicted}
    spent = {basis: seconds for basis, seconds in bases.items() if seconds}
    whole, *each = durations(found.seconds, *spent.values())
    known = [f"{own} {basis}" for basis, own in zip(spent, each, strict=True)]
    if len(known) > 1:
        words.append(f"{whole} in all, {' and '.join(known)}")
    elif known:
        words.append(f"{known[0]} in all")
    if found.untimed:
        words.append(f"the time of {counted(found.untimed, 'step')} is not known")
    moved = f"{amount(found.bytes_read)} read, {amount(found.bytes_written)} written"
    return "; ".join([*words, f"{moved}, {amount(found.flops, 'flop')}"])


def percent(share: float | None) -> str:
    """A share in words."""
    return "" if share is None else f"{share:.1%}"


def headline(costly: Costly) -> str:
    """A costly step in one line: its layers, times and lines."""
    row = costly.row
    assert row.time is not None
    spent = timed(row.time.seconds, row.time.basis)
    if costly.count > 1:
        spent = f"{costly.count} × {spent}, {duration(costly.seconds)} in all"
    where = f" ({costly.title})" if costly.title else ""
    lines = f"; {listed(row.lines)}" if row.lines else ""
    return f"{row.name}{where} by {row.by}: {spent}, {percent(costly.share)} of the whole{lines}"


def sentences(row: Row) -> list[str]:
    """The reasons why a row is not fused with others, equal ones once."""
    found = [*dict.fromkeys(map(_sentence, row.kept))]
    return found or [ALONE]


def _sentence(kept: Kept) -> str:
    """The reason for an array, from the side of its row."""
    what = amount(kept.bytes)
    match kept.side:
        case "reads":
            about = f"reads {what} that {kept.other} stores"
        case "writes":
            about = f"stores {what} for {kept.other}" if kept.other else f"stores {what}"
        case "within":
            about = f"{kept.other} stores {what} between its kernels"
    costs = "" if kept.fused is None else f"; fused {timed(kept.fused.seconds, kept.fused.basis)}"
    costs += f", now {duration(kept.now)}" if costs and kept.now is not None else ""
    return f"{about}: {kept.reason}{costs}"


def _section(section: Section, reasons: dict[str, str]) -> Iterator[str]:
    """The table of a section; a new reason gets the next letter."""
    if section.title:
        yield f"{section.title}: {totals(section.totals)}; {section.proof}"
    if section.as_captured:
        yield CAPTURED
    table = list[Cells | str]([HEADS])
    for layers in section.layers:
        if len(section.layers) > 1 or layers.regions != ("",):
            table.append(f"{layers.title}: {about(layers)}".rstrip())
        table += [_cells(row, reasons) for row in layers.rows]
    if len(table) > 1:
        yield from aligned(table, LEFT)
    if section.otherwise is not None:
        config = f" ({section.otherwise.config})" if section.otherwise.config else ""
        yield f"otherwise: {section.otherwise.words}{config}: {section.otherwise.reason}"


def about(layers: Layers) -> str:
    """The number of equal layers, their share of the whole, and how they differ from others."""
    words = [] if len(layers.regions) == 1 else [f"{len(layers.regions)} alike"]
    if layers.seconds:
        words.append(f"{duration(layers.seconds)}, {percent(layers.share)}")
    words += [layers.differs] if layers.differs else []
    return "; ".join(words)


def _cells(row: Row, reasons: dict[str, str]) -> Cells:
    reason = row.reason if row.rival is None else row.rival.reason
    mark = f"[{reasons.setdefault(reason, _letters(len(reasons)))}]" if reason else ""
    words = "" if row.rival is None else row.rival.words
    return (
        str(row.steps[0]),
        shortened(row.name),
        row.by,
        "" if row.time is None else timed(row.time.seconds, row.time.basis),
        percent(row.share),
        amount(row.bytes_read),
        amount(row.bytes_written),
        f"{words} {mark}".strip(),
        listed(row.lines),
    )


def listed(lines: Sequence[str]) -> str:
    """The first lines of some, and the number of the others."""
    rest = len(lines) - MOST_LINES
    return ", ".join(by_file(lines[:MOST_LINES])) + (f" and {rest} more" if rest > 0 else "")


def by_file(lines: Sequence[str]) -> list[str]:
    """Lines of one file together: `model.py:12, 15`."""
    found: dict[str, list[str]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        found.setdefault(file, []).append(number)
    return [f"{file}:{', '.join(numbers)}" for file, numbers in found.items()]


def _letters(number: int) -> str:
    """A mark: a, b, …, z, aa, ab, …"""
    mark = chr(ord("a") + number % 26)
    return mark if number < 26 else _letters(number // 26 - 1) + mark
