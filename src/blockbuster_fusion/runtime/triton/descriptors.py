"""Tensor descriptors: matrices as arguments of Triton kernels that load blocks of them.

The compiler turns each into several parameters: the descriptor in 128 bytes, which the driver of
the GPU encodes (driver.py), then the shape and the strides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from blockbuster_fusion.runtime.triton.variants import ALIGNED

LONGEST, FARTHEST = 1 << 31, 1 << 40
"""The lengths of axes, and the bytes from row to row, are less than these."""
KINDS = {8: 10, 9: 8, 10: 9}
"""The driver's numbers of dtypes that differ from the compiler's."""
ENCODED = 9
"""The numbers of a descriptor: its parameter, those that the driver encodes, and the parameter of
the other array if it is for two; else -1."""
IN_ORDER, SWAPPED = 2, 3
"""Numbers that tell a kernel which of two matrices lies first: one compiled kernel serves both."""
SOURCE = f"""
#include <stdint.h>
typedef unsigned u;
typedef int (*encode_map)(void *, int, u, void *, const uint64_t *, const uint64_t *, const u *,
                          const u *, int, int, int, int);
struct map {{
    _Alignas(64) uint64_t words[16];
}};
static encode_map encode; /* none in drivers for GPUs without descriptors */

/* The descriptor of a matrix from the numbers of an encoding, or of two at some distance. Beyond a
   matrix there are zeros. */
static int encoded(struct map *made, const int64_t *one, int64_t address, int64_t distance) {{
    const uint64_t lengths[] = {{(uint64_t)one[2], (uint64_t)one[3], 2}};
    const uint64_t steps[] = {{(uint64_t)one[4], (uint64_t)distance}};
    const u block[] = {{(u)one[5], (u)one[6], 2}}, each[] = {{1, 1, 1}};
    enum {{ NOT_INTERLEAVED = 0, LINES_OF_128_BYTES = 2, ZEROS = 0 }};
    return encode(made, (int)one[0], distance ? 3 : 2, (void *)address, lengths, steps, block, each,
                  NOT_INTERLEAVED, (int)one[1], LINES_OF_128_BYTES, ZEROS);
}}

/* True if two matrices do not overlap, and are not too far apart for one descriptor. */
static int are_apart(const int64_t *one, int64_t distance) {{
    return distance >= one[3] * one[4] && distance < {FARTHEST};
}}
"""
"""The encoding in C."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix with its blocks, whatever its address.

    With `other`, it and a second one are loaded by one descriptor: that is the place of the second
    among the arguments, which tells whether the second comes first in memory. Both have `bytes`.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    other: int = -1
    bytes: int = 0

    def at(self, array: Any) -> TensorDescriptor:
        """The descriptor of the matrix that begins where an array does."""
        return TensorDescriptor(array, [*self.shape], [*self.strides], [*self.block])

    def joined(self, array: Any, other: Any) -> tuple[TensorDescriptor, int]:
        """The descriptor of the matrices that begin where two arrays do, and their order."""
        first, second = array.data_ptr(), other.data_ptr()
        step = abs(second - first) // array.dtype.itemsize or math.prod(self.shape)
        shape, strides, block = [2, *self.shape], [step, *self.strides], [2, *self.block]
        low, order = (other, SWAPPED) if second < first else (array, IN_ORDER)
        return TensorDescriptor(low, shape, strides, block), order

    def are_apart(self, first: int, second: int) -> bool:
        """True if matrices at two addresses can have one descriptor."""
        return self.bytes <= abs(second - first) < FARTHEST

    @property
    def is_joined(self) -> bool:
        """True if its descriptor is for two matrices."""
        return self.other >= 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """The lengths and strides; the distance of two matrices is in their descriptor alone."""
        more = (2, 0) if self.is_joined else ()
        return (*more[:1], *self.shape, *more[1:], *self.strides)

    def encoding(self, about: Any) -> tuple[int, ...]:
        """The numbers that the driver encodes, by what the compiler says of the descriptor.

        They are the dtype, the swizzle, and for columns and rows: lengths, bytes from row to row,
        and elements that are copied at a time.
        """
        (rows, columns), (high, wide) = self.shape, about["block_size"][-2:]
        kind, step = about["elem_type"], self.strides[0] * about["elem_size"]
        return (KINDS.get(kind, kind), about["swizzle"], columns, rows, step, wide, high)


def is_describable(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """True if a matrix of elements of some bytes has contiguous rows that are aligned."""
    (rows, columns), (step, one) = shape, strides
    is_short = min(rows, columns) > 0 and max(rows, columns) < LONGEST and step * size < FARTHEST
    return is_short and one == 1 and step >= columns and step * size % ALIGNED == 0


def described(arguments: Sequence[Any], matrices: Mapping[int, Matrix]) -> list[Any]:
    """Arguments with descriptors in place of some arrays."""
    made = [*arguments]
    for at, matrix in without_others(matrices).items():
        if matrix.is_joined:
            made[at], made[matrix.other] = matrix.joined(arguments[at], arguments[matrix.other])
        else:
            made[at] = matrix.at(arguments[at])
    return made


def without_others(matrices: Mapping[int, Matrix]) -> dict[int, Matrix]:
    """The matrices that have a descriptor: those that another one is for have none."""
    others = {matrix.other for matrix in matrices.values() if matrix.is_joined}
    return {at: matrix for at, matrix in matrices.items() if at not in others}
