"""Rounding of a careful evaluation: in its dtype, or at random in several samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.host.numbers import round_to_bfloat16
from blockbuster_fusion.ir.types import DType

Array = NDArray[Any]


@dataclass(slots=True)
class Rounding:
    """The dtype of an evaluation, and the random changes that stand for its rounding."""

    dtype: type[np.floating[Any]]
    samples: int = 0
    eps: float = 0.0
    """The relative size of a random change; 0 where there is one sample."""
    largest: float = np.inf
    """The largest number of the dtype that is judged."""
    narrow_eps: dict[DType, float] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    doubted: bool = False
    """True once a number had several right answers."""

    def moved(self, x: Array, sizes: Array | None = None, eps: float | None = None) -> Array:
        """A rounded result: every sample but the first is changed at random."""
        if x.dtype.kind != "f":
            return x
        if x.dtype != self.dtype:
            x = x.astype(self.dtype)
        eps = self.eps if eps is None else eps
        if not self.samples or not eps:
            return x
        shape = (self.samples, *x.shape[1:])
        noise = self.rng.uniform(-1.0, 1.0, shape)
        noise[0] = 0.0
        change = noise * (np.abs(x) if sizes is None else sizes) * eps
        with np.errstate(all="ignore"):
            return np.asarray(np.where(np.isfinite(x) & np.isfinite(change), x + change, x))

    def given(self, x: Array) -> Array:
        """An input: exact, but denormal numbers are known to half of their last digit only."""
        kind = x.dtype
        x = x.astype(self.dtype)
        denormal = (np.abs(x) < np.finfo(kind).tiny) & (x != 0) if kind.kind == "f" else None
        if not self.samples or denormal is None or not denormal.any():
            return x
        unit = float(np.finfo(kind).smallest_subnormal)
        noise = self.rng.uniform(-0.5, 0.5, (self.samples, *x.shape[1:]))
        noise[0] = 0.0
        return np.asarray(x + np.where(denormal, noise * unit, 0.0))

    def unless_overflowed(self, x: Array, operands: Sequence[Array]) -> Array:
        """A result whose samples disagree where it overflows the dtype.

        An infinity from a division by 0 is right and stays.
        """
        if x.dtype.kind != "f":
            return x
        with np.errstate(all="ignore"):
            beyond = np.asarray(~(np.abs(x[0]) <= self.largest))
            if not beyond.any():
                return x
            for operand in operands:
                last = operand is operands[-1] and len(operands) > 1
                fits = np.isfinite(operand[0])
                beyond = np.asarray(beyond & (fits & (operand[0] != 0) if last else fits))
        return self.in_doubt(x, np.asarray(beyond))

    def error_of(self, x: Array) -> Array:
        """The error of a computed number, in eps: its magnitude, or the spread of its samples."""
        with np.errstate(all="ignore"):
            spread = np.sqrt(np.mean((x[1:] - x[0]) ** 2, axis=0))
        return np.asarray(
            np.maximum(np.abs(x), np.where(np.isfinite(spread), spread, 0) / self.eps)
        )

    def in_doubt(self, x: Array, where: Array) -> Array:
        """An array whose samples alternate between 1 and NaN for some elements."""
        if not where.any():
            return x
        self.doubted = True
        made = np.broadcast_to(x, (self.samples, *x.shape[1:])).copy()
        made[1::2] = np.where(where, np.nan, made[1::2])
        made[2::2] = np.where(where, 1.0, made[2::2])
        return made

    def narrowed(self, x: Array, dtype: DType) -> Array:
        """An array rounded to a 16-bit dtype."""
        if self.samples:
            return self.moved(x, eps=self.narrow_eps[dtype])
        if dtype is DType.float16:
            return x.astype(np.float16).astype(self.dtype)
        return round_to_bfloat16(x).astype(self.dtype)
