"""Arrays as kernels see them: addresses, shapes and strides. Here are those of NumPy.

An `ArrayLibrary` adapts the arrays of one library. Kernels work on the memory of the caller;
only arrays that need a conversion are copied.
"""

import ctypes
import sys
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from blockbuster_fusion.errors import BadInput
from blockbuster_fusion.host.numbers import NumpyArray, as_array, misfit, round_to_bfloat16
from blockbuster_fusion.ir.types import DType


class ArrayLibrary(Protocol):
    """The operations that the runtime needs of an array library. Strides count elements."""

    @property
    def name(self) -> Hashable:
        """The identity of the library; libraries of equal names share their arrays."""

    @property
    def is_prompt(self) -> bool:
        """True if a kernel is done when its launch returns: then its scratch can be reused."""

    def seen(self, x: Any) -> Hashable:
        """The key for binding: shape, strides and dtype of an array."""

    def admitted(self, name: str, x: object, dtype: DType) -> Any:
        """An input as an array of the stored dtype, or BadInput."""

    def shape(self, x: Any) -> tuple[int, ...]: ...

    def strides(self, x: Any) -> tuple[int, ...]: ...

    def handle(self, x: Any) -> Any:
        """The argument of a kernel: an address, or the array itself."""

    def empty(self, shape: Sequence[int], dtype: DType) -> Any: ...

    def shaped(self, flat: Any, shape: Sequence[int]) -> Any:
        """The beginning of a flat array as an array of a shape."""

    def permuted(self, x: Any, order: Sequence[int]) -> Any: ...

    def copied(self, x: Any) -> Any:
        """A contiguous copy."""

    def clear(self, x: Any) -> None: ...

    def handed_out(self, x: Any, dtype: DType) -> Any:
        """An output as the caller gets it."""

    def to_numpy(self, x: Any, dtype: DType) -> NumpyArray:
        """A copy as executors of misc operators take it: bfloat16 in float32."""

    def from_numpy(self, x: NumpyArray, dtype: DType) -> Any:
        """The result of an executor as an array of the stored dtype."""


def has_tensor(given: Sequence[Any]) -> bool:
    """True if one of the inputs is a tensor; without PyTorch there is none."""
    if "torch" not in sys.modules or all(type(x) is np.ndarray for x in given):
        return False
    from blockbuster_fusion.runtime.tensors import is_tensor

    return any(is_tensor(x) for x in given)


STORED = {dtype: np.dtype(np.uint16 if dtype is DType.bfloat16 else dtype.value) for dtype in DType}
"""The NumPy dtype of each stored dtype; a bfloat16 is stored as its bits."""


class NumpyArrays:
    """The arrays of NumPy. bfloat16 arrays are given and returned as float32, and converted."""

    name = "numpy"
    is_prompt = True

    def seen(self, x: NumpyArray) -> Hashable:
        return x.shape, x.strides, x.dtype

    def admitted(self, name: str, x: object, dtype: DType) -> NumpyArray:
        array = x if type(x) is np.ndarray else _plain(name, x, dtype)
        if dtype is DType.bfloat16:
            if array.dtype.name == "bfloat16":  # of the package ml_dtypes
                return array.view(np.uint16)
            if array.dtype != np.float32:
                raise BadInput(name=name, problem=_wrong_dtype(array.dtype, "float32, rounded"))
            return to_bfloat16(array)
        if array.dtype != STORED[dtype]:
            raise BadInput(name=name, problem=_wrong_dtype(array.dtype, str(dtype)))
        if any(stride % array.itemsize for stride in array.strides):  # a field of a record
            return array.copy()
        return array

    def shape(self, x: NumpyArray) -> tuple[int, ...]:
        return x.shape

    def strides(self, x: NumpyArray) -> tuple[int, ...]:
        size = x.itemsize
        return tuple(stride // size for stride in x.strides)

    def handle(self, x: NumpyArray) -> int:
        return address(x)

    def empty(self, shape: Sequence[int], dtype: DType) -> NumpyArray:
        return np.empty(shape, STORED[dtype])

    def shaped(self, flat: NumpyArray, shape: Sequence[int]) -> NumpyArray:
        return flat[: _count(shape)].reshape(shape)

    def permuted(self, x: NumpyArray, order: Sequence[int]) -> NumpyArray:
        return x.transpose(order)

    def copied(self, x: NumpyArray) -> NumpyArray:
        return np.array(x, order="C")

    def clear(self, x: NumpyArray) -> None:
        x.fill(0)

    def handed_out(self, x: NumpyArray, dtype: DType) -> NumpyArray:
        return from_bfloat16(x) if dtype is DType.bfloat16 else x

    def to_numpy(self, x: NumpyArray, dtype: DType) -> NumpyArray:
        return from_bfloat16(x) if dtype is DType.bfloat16 else self.copied(x)

    def from_numpy(self, x: NumpyArray, dtype: DType) -> NumpyArray:
        if dtype is DType.bfloat16:
            return to_bfloat16(x)
        return np.array(x, STORED[dtype], order="C")


def _plain(name: str, x: object, dtype: DType) -> NumpyArray:
    """Numbers or lists as an array of the wanted dtype."""
    array = as_array(name, x)
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(array)
    problem = misfit(array, dtype)
    if problem is not None:
        raise BadInput(name=name, problem=problem)
    return array.astype(np.float32 if dtype is DType.bfloat16 else STORED[dtype])


def _wrong_dtype(found: object, wanted: str) -> str:
    return f"has the dtype {found}, and the kernel takes {wanted}; convert it first"


def _count(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def to_bfloat16(x: NumpyArray) -> NumpyArray:
    """The bits of numbers rounded to bfloat16."""
    bits = round_to_bfloat16(x).view(np.uint32) if x.ndim else round_to_bfloat16(x).reshape(1)
    return (bits.view(np.uint32) >> 16).astype(np.uint16).reshape(x.shape)


def from_bfloat16(bits: NumpyArray) -> NumpyArray:
    """The numbers as float32."""
    return np.left_shift(bits, 16, dtype=np.uint32, order="C").view(np.float32)


# ------------------------------------------------------------------ addresses

_DATA = object.__basicsize__
"""The offset of the data pointer in NumPy's array object: right after the object header."""

_address_at = ctypes.c_void_p.from_address


def _quick_address(x: NumpyArray) -> int:
    return _address_at(id(x) + _DATA).value or 0


def _slow_address(x: NumpyArray) -> int:
    return int(x.__array_interface__["data"][0])


def _is_quick() -> bool:
    """True if array objects have the expected layout: the addresses of several are compared."""
    base = np.zeros((3, 4), np.float32)
    return all(_quick_address(x) == _slow_address(x) for x in (base, base[1:], base.T, base[2, 3:]))


address = _quick_address if _is_quick() else _slow_address
"""The address of an array's data, in a tenth of the 3 µs that NumPy's own functions take."""
