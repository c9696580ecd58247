"""Compilations of tests: the C sources that they compile, and what they know of earlier ones."""

from typing import Any

import pytest

from blockbuster_fusion.runtime.c import kernels
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch import compile_parts, part_choices
from helpers.machines import FOUR_CORES


def counted_compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources, which grow with each compilation; nothing was compiled before, on four cores."""
    sources: list[str] = []
    compile_c = kernels.compile_c

    def counting(source: str, **options: Any) -> Any:
        sources.append(source)
        return compile_c(source, **options)

    monkeypatch.setattr(kernels, "compile_c", counting)
    monkeypatch.setattr(part_choices, "machine_for", lambda *_: FOUR_CORES)
    forget_parts(monkeypatch)
    return sources


def forget_parts(patch: pytest.MonkeyPatch, most: int = 8) -> None:
    """Forgets what parts other tests have compiled, and keeps new ones up to a number."""
    patch.setattr(compile_parts, "_COMPILED", RecentlyUsed(most))
    patch.setattr(part_choices, "_CHOSEN", RecentlyUsed(most))
