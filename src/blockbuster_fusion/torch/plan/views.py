"""Chains of views as one: in calls of one form, one `as_strided` stands for a chain.

A captured graph has many views: a product of matrices comes with three, a head of attention with
five. Each call of one costs the host microseconds.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ViewStep:
    """Makes a view of the tensor in a slot."""

    root: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """The elements from the first of the root to the first of the view."""
    output: int

    def __call__(self, values: list[Any]) -> None:
        x = values[self.root]
        offset = x.storage_offset() + self.offset
        values[self.output] = x.as_strided(self.shape, self.stride, offset)
