"""Imports go one way: a module may import from its own layer and from earlier ones."""

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

PACKAGE = "blockbuster_fusion"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE
LAYERS = (
    *("version", "errors", "naming", "messages", "progress", "passes", "worker"),
    *("machine", "ir", "host", "array", "cost", "rules", "fusion", "pictures", "safety"),
    *("nest", "schedule", "printers", "runtime", "select"),
    *("choice", "source_digest", "improve", "compiler", "search_job"),
    *("plans", "report", "torch"),
    *("interp", "tools", "explorer", "cli", "api"),
    "__init__",  # the public face: may import all, and no layer may import from it
)
HOMES = {
    "ray": ("torch/rivals/cluster.py",),
    "torch": ("torch/", "runtime/tensors.py", "runtime/triton/"),
    "triton": ("runtime/triton/",),
}


def imports(path: PurePosixPath, source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the full dotted name of each import, wherever in the file it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = (PACKAGE, *path.parent.parts)
            base = here[: len(here) - node.level + 1] if node.level else ()
            prefix = (*base, node.module) if node.module else base
            yield from ((node.lineno, ".".join((*prefix, alias.name))) for alias in node.names)


def offences(path: PurePosixPath, source: str) -> Iterator[str]:
    """Yield a sentence for each import in the file that its layer does not allow."""
    own = path.parts[0].removesuffix(".py")
    if own not in LAYERS:
        yield f"{path} is in no layer: add {own} to LAYERS at its place in the order."
        return
    for line, name in imports(path, source):
        root, layer = [*name.split("."), "__init__"][:2]
        homes = HOMES.get(root, ("",))
        if not str(path).startswith(homes):
            where = " or ".join(homes)
            yield f"{path}:{line} imports {name}, but {root} belongs in {where} only."
        if root == PACKAGE:
            layer = layer if layer in LAYERS else "__init__"
            if LAYERS.index(layer) > LAYERS.index(own):
                yield f"{path}:{line} imports {name}, but layer {layer} comes after layer {own}."


def test_imports_go_one_way() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert files, f"no Python file under {SOURCE}"
    found = [
        sentence
        for file in files
        for sentence in offences(
            PurePosixPath(file.relative_to(SOURCE).as_posix()), file.read_text(encoding="utf-8")
        )
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "sentence"),
    [
        ("ir/graph.py", "from ..rules import Rule", "layer rules comes after layer ir"),
        ("ir/graph.py", "from .. import rules", "layer rules comes after layer ir"),
        ("ir/a/b.py", "from ...rules.fuse import Rule", "layer rules comes after layer ir"),
        (
            "ir/graph.py",
            "def f():\n    import blockbuster_fusion.cli",
            "cli comes after layer ir",
        ),
        ("cli.py", "from blockbuster_fusion import Graph", "__init__ comes after layer cli"),
        ("cli.py", "import blockbuster_fusion as bb", "__init__ comes after layer cli"),
        ("interp/run.py", "import torch.nn", "torch belongs in torch/ or runtime/tensors.py"),
        ("__init__.py", "from torch import nn", "torch belongs in"),
        ("printers/triton/kernel.py", "import triton", "triton belongs in runtime/triton/ only"),
        ("utils.py", "", "utils.py is in no layer"),
    ],
)
def test_an_offence_is_told(path: str, source: str, sentence: str) -> None:
    (told,) = offences(PurePosixPath(path), source)
    assert sentence in told


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("rules/fuse.py", "from ..ir import Graph\nfrom .base import Rule\nimport numpy"),
        ("cli.py", "from . import ir\nfrom .compiler import compile"),
        ("__init__.py", "from .ir import Graph\nfrom .cli import main"),
        ("torch/export.py", "import torch"),
        ("runtime/triton/launch.py", "from triton import language"),
        ("ir/graph.py", "import torchlike"),
    ],
)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    assert not list(offences(PurePosixPath(path), source))
