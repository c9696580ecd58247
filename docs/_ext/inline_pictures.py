"""A Sphinx extension that puts pictures into the page, so that they follow its theme.

A picture that is loaded by `<img>` sees the system's preference for dark or light, and not the
choice on the page. Pictures of docs/pictures stand in the page itself, inside a `<figure>` that
scrolls where the screen is narrow.
"""

import re
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from blockbuster_fusion.pictures.svg import DARK, LIGHT, RULES, variables

FOLDER = "pictures/"
DARKENED = f".bb-picture{{{variables(DARK)}}}"
STYLE = f"""\
.bb-picture{{{variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{body:not([data-theme="light"]) {DARKENED}}}
body[data-theme="dark"] {DARKENED}
{RULES}
figure.picture{{margin:1rem 0;overflow-x:auto}}
figure.picture svg{{display:block;height:auto;max-width:100%}}
figure.picture svg{{min-width:min(560px,calc(var(--own)*.75))}}
"""


class InlinePictures(SphinxPostTransform):
    """Replaces images of block programs and charts by their text."""

    default_priority = 100
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for image in list(self.document.findall(nodes.image)):
            uri = image["uri"]
            if uri.startswith(FOLDER) and uri.endswith(".svg"):
                text = (Path(self.app.srcdir) / uri).read_text(encoding="utf-8")
                image.replace_self(
                    nodes.raw("", _figure(text, image.get("alt", "")), format="html")
                )


def _figure(text: str, told: str) -> str:
    """A picture without the style of its own: the page has it once."""
    start, end = text.index("<style>"), text.index("</style>") + len("</style>")
    inside = f"{text[:start]}{text[end:]}".replace(' role="img"', ' aria-hidden="true"', 1)
    width = re.search(r'width="([\d.]+)"', inside)
    assert width, "a picture has a width"
    inside = inside.replace("<svg", f'<svg style="--own:{width[1]}px"', 1)
    return f'<figure class="picture" role="img" aria-label="{escape(told)}">{inside}</figure>'


def _write_style(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "_static" / "pictures.css").write_text(STYLE, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.add_post_transform(InlinePictures)
    app.add_css_file("pictures.css")
    app.connect("build-finished", _write_style)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
