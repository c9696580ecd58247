"""The outputs of a program: arrays in order and by name."""

from collections.abc import ItemsView, KeysView, Sequence, ValuesView
from typing import Any, Self, SupportsIndex, overload


class ByName(tuple[Any, ...]):
    """The outputs of a program, in order and by name."""

    names: tuple[str, ...]

    def __new__(cls, names: Sequence[str], arrays: Sequence[Any]) -> Self:
        made = super().__new__(cls, arrays)
        made.names = tuple(names)
        return made

    def __getnewargs__(self) -> tuple[object, ...]:
        return self.names, tuple(self)

    @overload
    def __getitem__(self, key: SupportsIndex | str, /) -> Any: ...
    @overload
    def __getitem__(self, key: slice, /) -> tuple[Any, ...]: ...
    def __getitem__(self, key: SupportsIndex | slice | str, /) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            raise KeyError(f"no output {key!r}; the outputs are {', '.join(self.names)}")
        return super().__getitem__(self.names.index(key))

    def __contains__(self, key: object) -> bool:
        return key in self.names if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> KeysView[str]:
        return self._by_name().keys()

    def values(self) -> ValuesView[Any]:
        return self._by_name().values()

    def items(self) -> ItemsView[str, Any]:
        return self._by_name().items()

    def _by_name(self) -> dict[str, Any]:
        return dict(zip(self.names, self, strict=True))
