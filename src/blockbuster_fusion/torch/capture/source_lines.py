"""Lines of a model's source that operators come from."""

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from torch.fx import Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n[ \t]*([^\n]*))?')
_PYTORCH = re.compile(r"[\\/]torch[\\/]")


def source_lines(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The lines of a model that nodes come from, in order: `models/llama.py:12`."""
    return tuple(line_texts(nodes))


def line_texts(nodes: Iterable[Node]) -> dict[str, str]:
    """The texts of these lines, as the files had them when the model was captured."""
    found: dict[str, str] = {}
    for node in nodes:
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        own = [frame for frame in frames if not _PYTORCH.search(frame[0])]
        if own:
            file, line, text = own[-1]
            found[f"{relative(file)}:{line}"] = text.strip()
    return found


def relative(file: str) -> str:
    """The path of a file from where it is imported, or from here; its name if it is elsewhere."""
    return _relative(file, (*sys.path, str(Path.cwd())))


@lru_cache(maxsize=1024)
def _relative(file: str, folders: tuple[str, ...]) -> str:
    path = Path(file)
    roots = [root for root in map(Path, folders) if root.is_absolute() and root in path.parents]
    if not roots:
        return path.name
    return path.relative_to(max(roots, key=lambda x: len(x.parts))).as_posix()
