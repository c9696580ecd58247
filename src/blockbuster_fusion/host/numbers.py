"""Numbers on the host: NumPy arrays of each dtype, conversions and checks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.errors import BadInput
from blockbuster_fusion.ir.types import DType

NumpyArray = NDArray[Any]


_SIXTEEN = (DType.float16, DType.bfloat16)


class NumericMode:
    """The NumPy dtypes that hold values of the declared dtypes, and the rounding to these.

    As declared, 16-bit floats are held in float32 arrays and rounded after each operator. When
    exact, all floats are float64, whatever is declared.
    """

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact
        self.held: dict[DType, np.dtype[Any]] = {
            dtype: np.dtype(
                np.float64
                if exact and dtype.is_float
                else np.float32
                if dtype in _SIXTEEN
                else dtype.value
            )
            for dtype in DType
        }

    def rounded(self, number: Any, dtype: DType) -> NumpyArray:
        """`number` (an array, or one number) as a value of `dtype`."""
        x: NumpyArray = np.asarray(number)
        if not self.exact:
            if dtype is DType.float16:
                return np.asarray(x, np.float16).astype(np.float32)
            if dtype is DType.bfloat16:
                return round_to_bfloat16(x)
        held = self.held[dtype]
        return x if x.dtype == held else x.astype(held)

    def identity(self, value: float, shape: tuple[int, ...], dtype: DType) -> NumpyArray:
        """An array of a combiner's identity; an infinity is an integer's extreme."""
        held = self.held[dtype]
        if held.kind == "i":
            limits = np.iinfo(held)
            return np.full(shape, int(min(max(value, limits.min), limits.max)), held)
        return np.full(shape, value > 0 if held.kind == "b" else value, held)

    def given(self, x: NumpyArray, dtype: DType) -> NumpyArray:
        """A copy of `x` as callers know the dtype: float16 as such, bfloat16 in float32."""
        narrow = dtype is DType.float16 and not self.exact
        return np.array(x, np.float16 if narrow else self.held[dtype], order="C")


def round_to_bfloat16(x: NumpyArray) -> NumpyArray:
    """`x` rounded to the nearest bfloat16, ties to even, in a float32 array."""
    narrow = np.array(x, np.float32, order="C", ndmin=1)  # a copy: its bits are changed
    bits = narrow.view(np.uint32)
    if x.dtype == np.float64:
        # rounding to float32 may have made a new tie: undo it
        lost = np.abs(x).reshape(narrow.shape) - np.abs(narrow)
        tie = (bits & 0xFFFF) == 0x8000
        bits += np.where(tie & (lost > 0), 1, 0).astype(np.uint32)
        bits -= np.where(tie & (lost < 0), 1, 0).astype(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    bits[...] = np.where(np.isnan(narrow), bits | 0x400000, rounded)
    return narrow.reshape(x.shape)


def as_array(name: str, given: object) -> NumpyArray:
    """An input as an array of numbers, or BadInput."""
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        problem = "is a masked array, and masks are not read; fill it first: x.filled(0)"
        raise BadInput(name=name, problem=problem)
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise BadInput(name=name, problem=f"is no array: {error}") from error
    if array.dtype.kind not in "biuf":
        problem = f"has the dtype {array.dtype}; give booleans, integers or real numbers"
        raise BadInput(name=name, problem=problem)
    return array


def misfit(array: NumpyArray, dtype: DType) -> str | None:
    """The reason why the elements of an array are no values of `dtype`, or None."""
    kind = array.dtype.kind
    if dtype.is_float or kind == "b":
        return None
    if kind == "f":
        return f"has {array.dtype} elements where {dtype} is declared; convert them first"
    limits = (0, 1)
    if dtype is not DType.bool_:
        info = np.iinfo(dtype.value)
        limits = (info.min, info.max)
    for extreme in (array.min(), array.max()) if array.size else ():
        if not limits[0] <= int(extreme) <= limits[1]:
            return f"holds {extreme}, which is no {dtype}"
    return None
