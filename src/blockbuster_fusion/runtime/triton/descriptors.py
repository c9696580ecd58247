"""Tensor descriptors: matrices as arguments of Triton kernels that load blocks of them.

The compiler turns each into several parameters: the descriptor in 128 bytes, which the driver of
the GPU encodes (driver.py), then the shape and the strides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from blockbuster_fusion.runtime.triton.variants import ALIGNED

LONGEST, FARTHEST = 1 << 31, 1 << 40
"""The lengths of axes, and the bytes from row to row, are less than these."""
KINDS = {8: 10, 9: 8, 10: 9}
"""The driver's numbers of dtypes that differ from the compiler's."""
ENCODED = 8
"""The numbers of a descriptor: its parameter, and those that the driver encodes."""
SOURCE = """
#include <stdint.h>
typedef unsigned u;
typedef int (*encode_map)(void *, int, u, void *, const uint64_t *, const uint64_t *, const u *,
                          const u *, int, int, int, int);
struct map {
    _Alignas(64) uint64_t words[16];
};
static encode_map encode; /* none in drivers for GPUs without descriptors */

/* The descriptor of a matrix from the numbers of an encoding. Beyond the matrix there are zeros. */
static int encoded(struct map *made, const int64_t *one, int64_t address) {
    const uint64_t lengths[] = {(uint64_t)one[2], (uint64_t)one[3]}, step[] = {(uint64_t)one[4]};
    const u block[] = {(u)one[5], (u)one[6]}, each[] = {1, 1};
    enum { NOT_INTERLEAVED = 0, LINES_OF_128_BYTES = 2, ZEROS = 0 };
    return encode(made, (int)one[0], 2, (void *)address, lengths, step, block, each,
                  NOT_INTERLEAVED, (int)one[1], LINES_OF_128_BYTES, ZEROS);
}
"""
"""The encoding in C."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix with its blocks, whatever its address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]

    def at(self, array: Any) -> TensorDescriptor:
        """The descriptor of the matrix that begins where an array does."""
        return TensorDescriptor(array, [*self.shape], [*self.strides], [*self.block])

    def encoding(self, about: Any) -> tuple[int, ...]:
        """The numbers that the driver encodes, by what the compiler says of the descriptor.

        They are the dtype, the swizzle, and for columns and rows: lengths, bytes from row to row,
        and elements that are copied at a time.
        """
        (rows, columns), (high, wide) = self.shape, about["block_size"]
        kind, step = about["elem_type"], self.strides[0] * about["elem_size"]
        return (KINDS.get(kind, kind), about["swizzle"], columns, rows, step, wide, high)


def is_describable(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """True if a matrix of elements of some bytes has contiguous rows that are aligned."""
    (rows, columns), (step, one) = shape, strides
    is_short = min(rows, columns) > 0 and max(rows, columns) < LONGEST and step * size < FARTHEST
    return is_short and one == 1 and step >= columns and step * size % ALIGNED == 0


def described(arguments: Sequence[Any], matrices: Mapping[int, Matrix]) -> list[Any]:
    """Arguments with descriptors in place of some arrays."""
    return [matrices[at].at(x) if at in matrices else x for at, x in enumerate(arguments)]
