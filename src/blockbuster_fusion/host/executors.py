"""Executors: functions that run the misc operators of a namespace."""

from collections.abc import Callable
from typing import Any

import numpy as np

from blockbuster_fusion.errors import NoExecutor
from blockbuster_fusion.host.numbers import NumpyArray

Executor = Callable[[str, dict[str, Any], list[NumpyArray]], list[NumpyArray]]
"""`run(name, attributes, arrays)` gives the results as full arrays, in order."""

_EXECUTORS: dict[str, Executor] = {}


def register_executor(namespace: str, run: Executor) -> None:
    """Registers `run(name, attributes, arrays)` for all misc operators of a namespace.

    It gets full arrays (copies, in the layouts that the operator asks for) and returns a list of
    full arrays, one for each result that the operator declares.
    """
    _EXECUTORS[namespace] = run


def executor_of(namespace: str, name: str) -> Executor:
    """The executor of a namespace, or NoExecutor."""
    if namespace not in _EXECUTORS:
        raise NoExecutor(namespace=namespace, name=name)
    return _EXECUTORS[namespace]


def _concatenate(*arrays: NumpyArray, **attributes: Any) -> NumpyArray:
    return np.concatenate(arrays, **attributes)


NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "argmax": np.argmax,
    "argmin": np.argmin,
    "argsort": np.argsort,
    "concatenate": _concatenate,
    "cumprod": np.cumprod,
    "cumsum": np.cumsum,
    "flip": np.flip,
    "linalg.cholesky": np.linalg.cholesky,
    "linalg.det": np.linalg.det,
    "linalg.inv": np.linalg.inv,
    "linalg.solve": np.linalg.solve,
    "roll": np.roll,
    "searchsorted": np.searchsorted,
    "sort": np.sort,
    "take": np.take,
    "take_along_axis": np.take_along_axis,
    "tril": np.tril,
    "triu": np.triu,
}
"""The operators of the namespace `numpy`; operands are positional, attributes are keywords."""


def _run_numpy(name: str, attributes: dict[str, Any], arrays: list[NumpyArray]) -> list[NumpyArray]:
    if name not in NUMPY_FUNCTIONS:
        raise NoExecutor(namespace="numpy", name=name)
    return [NUMPY_FUNCTIONS[name](*arrays, **attributes)]


register_executor("numpy", _run_numpy)
