"""Types of values: list dims, item dims and dtype."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from blockbuster_fusion.ir.axis import Axis, Dim
from blockbuster_fusion.ir.interned import InternedValue


class DType(Enum):
    """Element types."""

    float64 = "float64"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int64 = "int64"
    int32 = "int32"
    bool_ = "bool"

    @property
    def is_float(self) -> bool:
        return "float" in self.value

    @property
    def bytes(self) -> int:
        return _BYTES[self]

    def __str__(self) -> str:
        return self.value


_BYTES = {
    DType.float64: 8,
    DType.float32: 4,
    DType.float16: 2,
    DType.bfloat16: 2,
    DType.int64: 8,
    DType.int32: 4,
    DType.bool_: 1,
}

_RANK = [
    DType.bool_,
    DType.int32,
    DType.int64,
    DType.float16,
    DType.bfloat16,
    DType.float32,
    DType.float64,
]


def promote(*dtypes: DType) -> DType:
    """The narrowest dtype that holds values of all of `dtypes`."""
    if {DType.float16, DType.bfloat16} <= set(dtypes):
        dtypes = (*dtypes, DType.float32)
    return max(dtypes, key=_RANK.index)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Type(InternedValue):
    """A list over `lists` (outermost first) of items with the axes `items`.

    Without list dims the value is an item in local memory. A *virtual* list is computed when it is
    iterated and is never in memory.
    """

    lists: tuple[Dim, ...]
    items: tuple[Dim, ...]
    dtype: DType
    virtual: bool = False

    @property
    def is_list(self) -> bool:
        return bool(self.lists)

    @property
    def is_buffered(self) -> bool:
        """True if an edge of this type goes through global memory."""
        return bool(self.lists) and not self.virtual

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*self.lists, *(d for d in self.items if d not in self.lists))

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(dim.axis for dim in self.dims)

    def list_dim(self, dim: Dim) -> Dim | None:
        """The list dim that a loop over `dim` iterates, if there is one."""
        return next((d for d in self.lists if dim.iterates(d)), None)

    def iterate(self, dim: Dim) -> "Type":
        """The type of the elements of this list in a loop over `dim`."""
        return _iterated(self, dim)

    def stack(self, dim: Dim) -> "Type":
        """A list over `dim` of values of this type."""
        return _stacked(self, dim)

    def substitute(self, mapping: Mapping[Dim, Dim]) -> "Type":
        return Type(
            tuple(mapping.get(d, d) for d in self.lists),
            tuple(mapping.get(d, d) for d in self.items),
            self.dtype,
            self.virtual,
        )

    def __str__(self) -> str:
        lists = " ".join(d.label for d in self.lists)
        items = " ".join(d.label for d in self.items)
        virtual = "virtual " if self.virtual else ""
        return f"{virtual}[{lists}]({items}){self.dtype}"


@lru_cache(maxsize=4096)
def _iterated(kind: Type, dim: Dim) -> Type:
    walked = kind.list_dim(dim)
    assert walked is not None, f"{kind} is no list over {dim.label}"
    lists = tuple(d for d in kind.lists if d is not walked)
    items = tuple(dim if d is walked else d for d in kind.items)
    return Type(lists, items, kind.dtype, kind.virtual and bool(lists))


@lru_cache(maxsize=4096)
def _stacked(kind: Type, dim: Dim) -> Type:
    return Type((dim, *kind.lists), kind.items, kind.dtype, kind.virtual)
