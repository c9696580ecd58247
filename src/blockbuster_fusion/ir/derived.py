"""Derived attributes: computed on first access, then kept."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class derived(Generic[T]):
    """Like functools.cached_property, without its lock.

    Rewriting makes thousands of graphs and reads few attributes of each; the lock costs more than
    most computations. Two threads may compute the same value twice, and keep either.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self.name] = self.compute(instance)
        return value
