"""Lists in the global memory of the interpreter; items are plain NumPy arrays."""

from blockbuster_fusion.host.numbers import NumpyArray


class Allocation:
    """One list in global memory: a list that is made again is another one.

    `place` is its name in the traffic; a virtual list has none.
    """

    __slots__ = ("place",)

    def __init__(self, place: str | None) -> None:
        self.place = place


class StoredList:
    """A list, or a part of one: its blocks side by side in an array with the axes of `Type.dims`.

    A list dim whose axis the items lack is an array axis with one element for each block. The
    address of the part is its allocation and `index`.
    """

    __slots__ = ("allocation", "array", "index")

    def __init__(
        self, array: NumpyArray, allocation: Allocation, index: tuple[int, ...] = ()
    ) -> None:
        self.array = array
        self.allocation = allocation
        self.index = index
