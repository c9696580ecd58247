"""The page of a model as one HTML file; the page of a kernel is opened in a frame of it."""

from typing import Any

from blockbuster_fusion.explorer.page import (
    SCRIPTS,
    STYLES,
    around,
    as_json,
    filled,
    policy,
    script_of,
    style_of,
)

MODEL_SCRIPTS = ("dom.js", "model_rows.js", "model_flow.js", "model_about.js", "model.js")
MODEL_STYLES = (*STYLES, "model.css")


def model_page(data: dict[str, Any]) -> str:
    """The page of a model: each kind of kernel is in it once, and read when it is opened."""
    style, script = style_of(MODEL_STYLES), script_of(MODEL_SCRIPTS)
    rules = policy([script, script_of(SCRIPTS)], [style, style_of(STYLES)])
    about = {"policy": rules, "title": str(data["title"]), "style": style, "script": script}
    before, after = filled("model.html", about, hole="data")
    own = {name: value for name, value in data.items() if name != "programs"}
    kept = [_data("data", own), _data("frame", around("Kernel"))]
    kept += [_data(f"program-{at}", program) for at, program in enumerate(data["programs"])]
    return before + "\n".join(kept) + after


def _data(name: str, data: object) -> str:
    """Data in an element of their own."""
    return f'<script type="application/json" id="{name}">{as_json(data)}</script>'
