"""A report as one page of HTML that needs no network and runs no script; all text is escaped."""

from collections.abc import Iterable, Iterator
from html import escape

from blockbuster_fusion.plans.amounts import amount, duration
from blockbuster_fusion.report.report import (
    Costly,
    Layers,
    Note,
    Report,
    Row,
    Section,
    Time,
)
from blockbuster_fusion.report.style import STYLE
from blockbuster_fusion.report.text import (
    CAPTURED,
    WHY,
    about,
    by_file,
    headline,
    percent,
    sentences,
    totals,
)

HEADS = ("", "step", "by", "time", "share", "reads", "writes", "otherwise", "lines")
FIGURES = ("time", "share", "reads", "writes")
WIDE = ("step", "otherwise", "lines")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may load nothing and run no script, whatever a name of the model holds."""
BODY = "body { margin: 0; background: #ffffff; } "
DARK = "@media (prefers-color-scheme: dark) { body { background: #14171b; } }\n"


def page(report: Report) -> str:
    """A report as a page."""
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<title>{escape(_title(report))}</title>
<style>{BODY}{DARK}</style>
</head>
<body>
{fragment(report)}
</body>
</html>
"""


def fragment(report: Report) -> str:
    """A report as a part of a page, with its style."""
    inner = "\n".join(_body(report))
    return f'<style>{STYLE}</style>\n<article class="bb-report">\n{inner}\n</article>'


def _title(report: Report) -> str:
    return f"{report.name or 'Explanation'} for {report.target} ({report.machine})"


def _body(report: Report) -> Iterator[str]:
    yield f"<h1>{escape(_title(report))}</h1>"
    yield from (f"<p>{escape(sentence)}</p>" for sentence in report.summary)
    yield from (f"<p>graph break: {escape(reason)}</p>" for reason in report.graph_breaks)
    yield from _tiles(report)
    for section in report.sections:
        yield from _section(section)
    costliest = report.costliest()
    if costliest:
        yield f"<h2>{escape(WHY.capitalize())}</h2>"
        yield "<ol>"
        yield from map(_costly, costliest)
        yield "</ol>"
    yield from map(_note, report.notes)


def _tiles(report: Report) -> Iterator[str]:
    """The totals."""
    found = report.totals
    figures = {
        "in all": duration(found.seconds) if found.seconds else "",
        "measured": duration(found.measured) if found.measured else "",
        "predicted": duration(found.predicted) if found.predicted else "",
        "steps": str(found.steps),
        "steps without a time": str(found.untimed or ""),
        "kernels": str(found.kernels),
        "read": amount(found.bytes_read),
        "written": amount(found.bytes_written),
        "operations": amount(found.flops, "flop"),
    }
    shown = ((name, figure) for name, figure in figures.items() if figure)
    tiles = (f"<div><dt>{name}</dt><dd>{escape(figure)}</dd></div>" for name, figure in shown)
    yield f"<dl>{''.join(tiles)}</dl>"


def _section(section: Section) -> Iterator[str]:
    yield "<section>"
    if section.title:
        yield f"<h2>{escape(section.title)}</h2>"
        yield f"<p>{escape(totals(section.totals))}</p>"
    yield f"<p>{escape(section.proof)}</p>"
    if section.as_captured:
        yield f"<p>{escape(CAPTURED)}</p>"
    if section.layers:
        yield '<div class="scroll"><table>'
        heads = (f"<th{_class(x)} scope='col'>{x}</th>" for x in HEADS)
        yield f"<thead><tr>{''.join(heads)}</tr></thead>"
        for layers in section.layers:
            yield from _layers(layers)
        yield "</table></div>"
    if section.otherwise is not None:
        other = section.otherwise
        yield f"<p>otherwise: {escape(f'{other.words}: {other.reason}')}{_code(other.config)}</p>"
    yield "</section>"


def _layers(layers: Layers) -> Iterator[str]:
    small = f"<small>{escape(about(layers))}</small>"
    yield "<tbody>"
    span = len(HEADS)
    title = escape(layers.title)
    yield f'<tr><th class="layers" colspan="{span}" scope="rowgroup">{title}{small}</th></tr>'
    yield from map(_row, layers.rows)
    yield "</tbody>"


def _row(row: Row) -> str:
    cells = (
        str(row.steps[0]),
        _name(row),
        f'<span class="by">{escape(row.by)}</span>',
        _time(row),
        _share(row),
        amount(row.bytes_read),
        amount(row.bytes_written),
        _otherwise(row),
        _code(*by_file(row.lines)),
    )
    made = (_cell(head, cell) for head, cell in zip(HEADS, cells, strict=True))
    return f'<tr class="{row.kind}">{"".join(made)}</tr>'


def _cell(head: str, inner: str) -> str:
    return f'<td{_class(head)} data-label="{head}">{inner}</td>'


def _class(head: str) -> str:
    if head in FIGURES:
        return ' class="figure share"' if head == "share" else ' class="figure"'
    return ' class="wide"' if head in WIDE else ""


def _name(row: Row) -> str:
    """The name of a row, and its operators on a click."""
    inner = [f"{name}: {operator}" for name, operator in row.operators.items()]
    inner += [f"kernel {name}" for name in row.kernels if name != row.name]
    if not inner:
        return f"<span>{_breakable(row.name)}</span>"
    return f"<details><summary>{_breakable(row.name)}</summary>{_code(*inner)}</details>"


def _time(row: Row) -> str:
    if row.time is None:
        return ""
    times = f" × {len(row.steps)}" if len(row.steps) > 1 else ""
    basis = f'<span class="basis">{escape(row.time.basis)}</span>'
    return f"<span>{escape(duration(row.time.seconds))}{times}{basis}</span>"


def _share(row: Row) -> str:
    if row.share is None:
        return ""
    width = min(100.0, max(0.0, 100 * row.share))
    return f'<span>{percent(row.share)}<span class="bar" style="width:{width:.1f}%"></span></span>'


def _otherwise(row: Row) -> str:
    """The runner-up with the times of both, and the reason why it lost."""
    if row.rival is None:
        return f"<span>{escape(row.reason)}</span>" if row.reason else ""
    rival = row.rival
    both = [_figures("kernels", rival.kernels), _figures("PyTorch", rival.library)]
    figures = "; ".join(x for x in both if x)
    parts = [escape(figures or rival.words), f"<small>{escape(rival.reason)}</small>"]
    return f"<span>{'<br>'.join(parts)}{_code(rival.config)}</span>"


def _figures(who: str, time: Time | None) -> str:
    if time is None:
        return ""
    if time.basis == "at least":
        return f"{who} at least {duration(time.seconds)}"
    return f"{who} {duration(time.seconds)} {time.basis}".rstrip()


def _costly(costly: Costly) -> str:
    reasons = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(costly.row))
    return f"<li>{escape(headline(costly))}<ul>{reasons}</ul></li>"


def _note(note: Note) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in note.lines)
    return f"<h2>{escape(note.title)}</h2>\n<ul>{lines}</ul>"


def _code(*lines: str) -> str:
    """Some lines of code, those that are empty left out."""
    shown: Iterable[str] = (f"<code>{_breakable(line)}</code>" for line in lines if line)
    inner = "<br>".join(shown)
    return f"<div>{inner}</div>" if inner else ""


def _breakable(name: str) -> str:
    """A name, escaped, that a narrow column may break between its words."""
    return escape(name).replace("/", "/<wbr>").replace("_", "_<wbr>")
