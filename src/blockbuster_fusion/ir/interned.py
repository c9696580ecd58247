"""Interned values: equal arguments give the same object; equality is identity, hashing is free."""

from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary


class Interned(type):
    """Metaclass of small immutable dataclasses (axes, dims, types, expressions).

    Rewriting compares and hashes millions of these. Identity makes that cheap, and compares
    expressions of any depth without recursion.
    """

    _known: ClassVar[WeakValueDictionary[object, Any]] = WeakValueDictionary()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = Interned._known
        asked = (cls, *map(_key, args), *kwargs.items())
        found = known.get(asked)
        if found is None:
            made = super().__call__(*args, **kwargs)
            fields: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
            found = known.setdefault((cls, *(_key(getattr(made, f)) for f in fields)), made)
            known[asked] = found
        return found


class InternedValue(metaclass=Interned):
    """Base of interned dataclasses: copies and unpickled values are the same object."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _key(value: object) -> object:
    # 1, 1.0 and True are equal in Python but print differently, and NaN equals nothing.
    kind = type(value)
    if kind is float or kind is int or kind is bool:
        return kind, repr(value)
    if kind is tuple and value and type(value[0]) in (float, int, bool):  # type: ignore[index]
        return tuple(map(_key, value))  # type: ignore[call-overload]
    return value
