"""Triton kernels that measure a GPU: one program reads, multiplies in registers, or waits."""

import torch
import triton
import triton.language as tl

BLOCK = 8192
"""The elements of a block, of which each thread has several: none waits for another."""
WARPS = 8
PLACES = 1 << 26
"""The places of a chain of loads: 256 MiB, more than a cache holds."""
STRIDE = 257
"""Odd, so that the chain visits all places; large, so that two in turn share no line."""


@triton.jit  # type: ignore[untyped-decorator]
def _read(x, out, count, steps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(steps):
        total += tl.load(x + (step % count) * BLOCK + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(out, tl.sum(total))


@triton.jit  # type: ignore[untyped-decorator]
def _multiply_add(out, steps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    a = (tl.arange(0, BLOCK) + tl.program_id(0)).to(out.dtype.element_ty)
    x = tl.load(out)
    for _ in range(steps):
        a = a * x + x
    if tl.program_id(0) == 0:
        tl.store(out, tl.sum(a.to(tl.float32)).to(out.dtype.element_ty) * 0)


@triton.jit
def _chase(places, out, steps):  # type: ignore[no-untyped-def]
    place = tl.load(out)
    for _ in range(steps):
        place = tl.load(places + place, cache_modifier=".cg")
    tl.store(out, place)


def read(x: torch.Tensor, out: torch.Tensor, count: int, steps: int) -> None:
    """One program reads `steps` blocks of an array of `count` blocks."""
    _read[(1,)](x, out, count, steps, BLOCK=BLOCK, num_warps=2 * WARPS)


def multiply_add(out: torch.Tensor, programs: int, steps: int) -> None:
    """Every program does `steps` multiply-adds with each element of a block."""
    _multiply_add[(programs,)](out, steps, BLOCK=BLOCK, num_warps=WARPS)


def chase(places: torch.Tensor, out: torch.Tensor, steps: int) -> None:
    """One program loads places, each from the place that the load before gave, and goes on."""
    _chase[(1,)](places, out, steps, num_warps=1)


def places(device: str = "cuda", count: int = PLACES) -> torch.Tensor:
    """For each place the next: a chain through all of them."""
    return (torch.arange(count, dtype=torch.int32, device=device) + STRIDE) % count
