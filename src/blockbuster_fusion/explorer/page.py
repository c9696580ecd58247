"""One HTML file from the data of a page: nothing in it is fetched, and no text becomes markup."""

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

SCRIPTS = ("dom.js", "graph.js", "listing.js", "plot.js", "summary.js", "about.js", "page.js")
STYLES = ("page.css",)


def page(data: dict[str, Any]) -> str:
    """The page that shows some data: its styles, scripts and data are in it."""
    return as_json(data).join(around(str(data["title"])))


def around(title: str) -> tuple[str, str]:
    """The page of a program before its data, and after them."""
    style, script = style_of(STYLES), script_of(SCRIPTS)
    parts = {"policy": policy([script], [style]), "title": title, "style": style, "script": script}
    before, after = filled("page.html", parts, hole="data")
    return before, after


def style_of(names: Sequence[str]) -> str:
    """Some files of styles as one."""
    return "\n".join(map(_static, names))


def script_of(names: Sequence[str]) -> str:
    """Some files of scripts as one, with names of its own."""
    return '"use strict";\n(() => {\n' + "\n".join(map(_static, names)) + "})();\n"


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """The policy by which a browser runs these scripts and nothing else: it has their hashes."""
    rules = {
        "default-src": ["'none'"],
        "script-src": [f"'{_digest(text)}'" for text in scripts],
        "style-src": [f"'{_digest(text)}'" for text in styles],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    return "; ".join(" ".join([name, *values]) for name, values in rules.items())


def filled(body: str, parts: dict[str, str], *, hole: str) -> list[str]:
    """A page with its parts filled in, and cut where the part `hole` belongs.

    Its head is that of all pages, and `body` is the file of its body. The policy and the title are
    escaped; the other parts are elements' own text.
    """
    made = [""]
    for piece in (_static("head.html") + _static(body)).split("{{"):
        name, end, rest = piece.partition("}}")
        if not end:
            made[-1] += piece
        elif name == hole:
            made.append(rest)
        else:
            text = parts[name]
            made[-1] += (escape(text) if name in ("policy", "title") else text) + rest
    return made


def as_json(data: object) -> str:
    """Data as JSON that cannot end the element that it stands in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _static(name: str) -> str:
    folder = resources.files("blockbuster_fusion.explorer") / "static"
    return (folder / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
