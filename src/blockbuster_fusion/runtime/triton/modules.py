"""Modules of printed Triton kernels."""

import linecache
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import triton

from blockbuster_fusion.messages import log
from blockbuster_fusion.runtime.disk_cache import cached, digest, usable_folder
from blockbuster_fusion.runtime.process_folder import process_folder
from blockbuster_fusion.runtime.trust import distrust


def load(source: str) -> ModuleType:
    """The module of a printed text; the text itself is executed, never a file.

    Triton reads the source of its functions from `linecache`, where this text stays. The cache has
    a copy for readers, under the same name.
    """
    _protect_triton_cache()
    key = digest("triton", source)
    entry = cached(key, ".py", lambda file: _write(file, source))
    path = str(entry.file or f"<blockbuster {key[:16]}>")
    module = ModuleType(f"blockbuster_triton_{key[:16]}")
    module.__file__ = path
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), module.__dict__)
    if triton.knobs.runtime.interpret:  # it runs one kernel after the other, and knows no waiting
        module.__dict__.update(dict.fromkeys(("gdc_wait", "gdc_launch_dependents"), lambda: None))
    return module


@cache
def _protect_triton_cache() -> None:
    """Keeps Triton from executing files that others can write: its cache is checked like ours."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or triton.knobs.cache.dir)
    parents = [folder.absolute(), *folder.absolute().parents]
    there = next(path for path in parents if os.path.lexists(path))
    reason = distrust(there)
    own = usable_folder() or process_folder()
    if reason is None or own is None:
        return
    triton.knobs.cache.dir = str(own / "triton")
    log.warning("blockbuster: Triton's cache is not used: %s; kernels are kept in %s", reason, own)


def _write(file: Path, source: str) -> None:
    file.write_text(source, encoding="utf-8")
