"""Lines of a model's source that operators come from."""

import re
from collections.abc import Iterable
from pathlib import Path

from torch.fx import Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in')
_PYTORCH = re.compile(r"[\\/]torch[\\/]")


def source_lines(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The lines of a model that nodes come from, in order: `model.py:12`."""
    found: dict[str, None] = {}
    for node in nodes:
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        own = [frame for frame in frames if not _PYTORCH.search(frame[0])]
        if own:
            file, line = own[-1]
            found[f"{Path(file).name}:{line}"] = None
    return tuple(found)
