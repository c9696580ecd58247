"""Shared libraries from memory: the bytes that were hashed are loaded, never a file."""

import ctypes
import itertools
import os
import struct
import sys
import tempfile
from pathlib import Path

from blockbuster_fusion.runtime.process_folder import process_folder

_count = itertools.count(1)


def load_library(content: bytes) -> ctypes.CDLL:
    """The library with this content, or OSError if it is none."""
    if sys.platform == "linux":
        if not is_whole(content):
            raise OSError("it is no whole library")
        try:
            return _from_memory(content)
        except OSError:
            pass  # no memory files, no /proc, or a policy against them
    return _from_copy(content)


def _from_memory(content: bytes) -> ctypes.CDLL:
    """The library from a file in memory, which needs no disk and no permission to execute."""
    file = os.memfd_create("blockbuster", os.MFD_CLOEXEC)
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        # The loader knows libraries by their paths, and descriptors are used again. So each path
        # is spelled in its own way: the bits of a counter as `./` and `/`.
        bits = "".join("./" if bit == "1" else "/" for bit in f"{next(_count):b}")
        return ctypes.CDLL(f"/proc/self/fd/{bits}{file}")


def _from_copy(content: bytes) -> ctypes.CDLL:
    """The library from a copy in the process's own folder."""
    folder = process_folder()
    if folder is None:
        raise OSError("there is no room for a copy of it in the folder for temporary files")
    handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
        return ctypes.CDLL(name)
    finally:
        Path(name).unlink(missing_ok=True)


def is_whole(content: bytes) -> bool:
    """True if an ELF library is complete: loading a truncated one kills the process."""
    if len(content) < 64 or content[:4] != b"\x7fELF" or content[4] not in (1, 2):
        return False
    wide, order = content[4] == 2, "<" if content[5] == 1 else ">"
    try:
        if wide:
            programs, sections = struct.unpack_from(f"{order}QQ", content, 32)
            sizes = struct.unpack_from(f"{order}4H", content, 54)
        else:
            programs, sections = struct.unpack_from(f"{order}II", content, 28)
            sizes = struct.unpack_from(f"{order}4H", content, 42)
        if max(programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]) > len(content):
            return False
        for at in range(programs, programs + sizes[0] * sizes[1], sizes[0] or 1):
            if wide:
                start, length = struct.unpack_from(f"{order}Q16xQ", content, at + 8)
            else:
                start, length = struct.unpack_from(f"{order}I8xI", content, at + 4)
            if start + length > len(content):
                return False
    except struct.error:
        return False
    return int(sizes[1]) > 0
