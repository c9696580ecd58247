"""C sources that are compiled while a test runs."""

from typing import Any

import pytest

from blockbuster_fusion.runtime.c import kernels
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch import compile_parts
from helpers.machines import FOUR_CORES


def counted_compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources, which grow with each compilation; nothing was compiled before, on four cores."""
    sources: list[str] = []
    compile_c = kernels.compile_c

    def counting(source: str, **options: Any) -> Any:
        sources.append(source)
        return compile_c(source, **options)

    monkeypatch.setattr(kernels, "compile_c", counting)
    monkeypatch.setattr(compile_parts, "machine_for", lambda *_: FOUR_CORES)
    monkeypatch.setattr(compile_parts, "_COMPILED", RecentlyUsed(8))
    monkeypatch.setattr(compile_parts, "_CHOSEN", RecentlyUsed(8))
    return sources
