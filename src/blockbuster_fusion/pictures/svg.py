"""SVG text: escaped, and with colours that light, dark and colour-blind readers can tell apart.

The colours are those of Okabe and Ito, as CSS variables. A picture that stands alone follows the
system's preference. In a page, the variables of the page win.
"""

from collections.abc import Mapping
from html import escape

LIGHT: Mapping[str, str] = {
    "ink": "#1f2328",
    "faint": "#8c959f",
    "surface": "#ffffff",
    "row": "#f2f4f6",
    "memory": "#d55e00",
    "input": "#0072b2",
    "output": "#00795a",
    "changed": "#cc79a7",
    "other": "#999999",
}
DARK: Mapping[str, str] = {
    "ink": "#e6edf3",
    "faint": "#848d97",
    "surface": "#131416",
    "row": "#24282e",
    "memory": "#e69f00",
    "input": "#56b4e9",
    "output": "#2fc39a",
    "changed": "#e19cc3",
    "other": "#777777",
}
FONT = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"

RULES = f"""\
.bb-picture text{{{FONT};font-size:12px;fill:var(--bb-ink)}}
.bb-picture .title{{font-size:13px;font-weight:600}}
.bb-picture .small{{font-size:11px}}
.bb-picture .quiet{{fill:var(--bb-faint)}}
.bb-picture .row{{fill:var(--bb-row)}}
.bb-picture .box{{fill:none;stroke:var(--bb-faint);stroke-width:1}}
.bb-picture .changed{{stroke:var(--bb-changed);stroke-width:3}}
.bb-picture .local{{fill:none;stroke:var(--bb-faint);stroke-width:1.2}}
.bb-picture .memory{{fill:none;stroke:var(--bb-memory);stroke-width:3}}
.bb-picture .chosen{{fill:none;stroke:var(--bb-changed);stroke-width:3}}
.bb-picture .ground{{fill:var(--bb-surface)}}
.bb-picture .fill-memory{{fill:var(--bb-memory)}}
.bb-picture .fill-input{{fill:var(--bb-input)}}
.bb-picture .fill-output{{fill:var(--bb-output)}}
.bb-picture .fill-other{{fill:var(--bb-other)}}
.bb-picture .fill-local{{fill:var(--bb-faint)}}
.bb-picture .on{{fill:var(--bb-surface);font-weight:600}}
.bb-picture .axis{{stroke:var(--bb-faint);stroke-width:1;fill:none}}"""


def variables(colours: Mapping[str, str]) -> str:
    return ";".join(f"--bb-{name}:{colour}" for name, colour in colours.items())


def style() -> str:
    """The style of a picture that stands alone."""
    dark = f"@media (prefers-color-scheme:dark){{:where(.bb-picture){{{variables(DARK)}}}}}"
    return f"<style>:where(.bb-picture){{{variables(LIGHT)}}}\n{dark}\n{RULES}</style>"


def svg(width: float, height: float, title: str, parts: list[str]) -> str:
    """A picture with a title, which screen readers read."""
    size = f'width="{number(width)}" height="{number(height)}"'
    view = f'viewBox="0 0 {number(width)} {number(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="bb-picture" role="img" {size} {view}>'
    return "\n".join([head, f"<title>{escape(title)}</title>", style(), *parts, "</svg>", ""])


def number(x: float) -> str:
    """A number with at most one digit after the point."""
    return f"{x:.1f}".removesuffix(".0")


def rect(x: float, y: float, width: float, height: float, kind: str, radius: float = 4) -> str:
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect class="{kind}" {place} rx="{number(radius)}"/>'


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    at = f'x="{number(x)}" y="{number(y)}"'
    end = "" if anchor == "start" else f' text-anchor="{anchor}"'
    own = f' class="{kind}"' if kind else ""
    return f"<text{own} {at}{end}>{escape(content)}</text>"


def path(points: str, kind: str) -> str:
    return f'<path class="{kind}" d="{points}"/>'


def group(parts: list[str], *, x: float = 0, y: float = 0, title: str = "") -> str:
    """Parts moved to a place; the title is shown where a pointer rests."""
    moved = f' transform="translate({number(x)} {number(y)})"' if x or y else ""
    told = [f"<title>{escape(title)}</title>"] if title else []
    return "\n".join([f"<g{moved}>", *told, *parts, "</g>"])
