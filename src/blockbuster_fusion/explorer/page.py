"""One HTML file from the data of a page: nothing in it is fetched, and no text becomes markup."""

import base64
import hashlib
import json
from html import escape
from importlib import resources
from typing import Any

SCRIPTS = ("dom.js", "graph.js", "listing.js", "plot.js", "about.js", "page.js")


def page(data: dict[str, Any]) -> str:
    """The page that shows some data: its styles, scripts and data are in it.

    The browser runs the page's own script and nothing else: the policy names its hash.
    """
    style = _static("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_static, SCRIPTS)) + "})();\n"
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "policy": escape(policy),
        "title": escape(str(data["title"])),
        "style": style,
        "data": as_json(data),
        "script": script,
    }
    template = _static("page.html")
    made = []
    for piece in template.split("{{"):
        name, end, rest = piece.partition("}}")
        made.append(parts[name] + rest if end else piece)
    return "".join(made)


def as_json(data: object) -> str:
    """Data as JSON that cannot end the element that it stands in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _static(name: str) -> str:
    folder = resources.files("blockbuster_fusion.explorer") / "static"
    return (folder / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
