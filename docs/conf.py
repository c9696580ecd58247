"""Settings of the documentation site: `make docs`."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext")]

from blockbuster_fusion.version import __version__  # noqa: E402

project = "Blockbuster"
author = "the authors of Blockbuster"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "inline_pictures"]
exclude_patterns = ["_ext", "pictures"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nitpicky = False
default_role = "code"  # docstrings put code in single backticks, as Markdown does
smartquotes = False  # quotes in the text are those of the programs
highlight_language = "text"  # a block without a language is a listing or a program's output

autodoc_typehints = "none"  # the signature has the names; the docstring says what they are
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = "Blockbuster"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    # The fonts of the system: a page needs no network.
    "light_css_variables": {"font-stack": "system-ui, sans-serif"},
    "footer_icons": [],
}

OUTSIDE = re.compile(r"\]\(\.\./(CONTRIBUTING|CHANGELOG)\.md")
"""Links to pages at the root of the repository, which the site has among the others."""


def _within_the_site(app: object, name: str, source: list[str]) -> None:
    source[0] = OUTSIDE.sub(lambda found: f"]({found[1].lower()}.md", source[0])


def setup(app: object) -> None:
    app.connect("source-read", _within_the_site)  # type: ignore[attr-defined]
