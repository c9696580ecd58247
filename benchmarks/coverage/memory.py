"""The memory that a call of a model takes, compiled or not."""

import gc
from collections.abc import Callable
from pathlib import Path

from coverage.compiled import compile_for

WARM, LONG = 24, 1000
"""Words in the calls before the memory of a call is measured, and in that call."""
FEW, MANY = 2, 512
"""Images, where there are no words."""


def peak_memory(name: str, dtype_name: str, attention: str, contender: str) -> int | None:
    """Bytes by which the process grows in the first long call, compiled for any length."""
    import torch

    from helpers.zoo import ZOO

    dtype = getattr(torch, dtype_name)

    def inputs(large: bool) -> dict[str, torch.Tensor]:
        if ZOO[name].has_length:
            return ZOO[name].inputs(LONG if large else WARM, dtype=dtype)
        return ZOO[name].inputs(batch=MANY if large else FEW, dtype=dtype)

    run = compile_for(contender, name, dtype_name, attention, dynamic=True)
    with torch.no_grad():
        for _ in range(2):
            run(**inputs(large=False))
        given = inputs(large=True)
        return growth(lambda: run(**given))


def growth(call: Callable[[], object]) -> int | None:
    """How far the memory of this process rises while it runs, where the system tells."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest count so far
    except OSError:
        return None
    before = _memory("VmRSS")
    made = call()
    after = _memory("VmHWM")
    del made
    return max(0, after - before)


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == field:
            return 1024 * int(value.removesuffix("kB"))
    raise KeyError(field)
