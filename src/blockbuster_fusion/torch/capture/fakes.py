"""New nodes of a graph, with their fake values: shapes, strides and dtypes without data.

Equal layers ask for equal fake values. So the form of a result is kept by the forms of its
operands, as long as the fake mode of a capture lives. A result of a known form is made without
PyTorch's dispatcher, which takes ten times as long.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx import Graph, Node
from torch.utils._mode_utils import no_dispatch

from blockbuster_fusion.torch.capture.nodes import tensor_of

NONE: Mapping[str, Any] = MappingProxyType({})
PLAIN = (bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""The types of arguments that are written into a key as they are."""


@dataclass(frozen=True, slots=True)
class _Form:
    """An array without symbolic sizes, as it lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    shown: int | None = None
    """The number of the operand whose memory it shows; None if it has its own."""


class _Unknown(Exception):
    """A form that is not kept: with symbols, or of several arrays that share memory."""


_KNOWN: WeakKeyDictionary[FakeTensorMode, dict[Hashable, Any]] = WeakKeyDictionary()
"""The forms of results, by the fake mode of a capture."""


def inserted(
    graph: Graph,
    target: Any,
    arguments: tuple[Any, ...],
    like: Node,
    options: Mapping[str, Any] = NONE,
) -> Node:
    """A new node at the insertion point of a graph, with the origin of an old one."""
    value = fake_result(target, arguments, like, options)
    made = graph.call_function(target, arguments, dict(options))
    made.meta = meta_like(like, value)
    return made


def fake_result(
    target: Any, arguments: tuple[Any, ...], like: Node, options: Mapping[str, Any] = NONE
) -> Any:
    """The fake result of an operator; `like` is a node of the graph that its operands are in."""
    given = [fake_argument(x) for x in arguments]
    named = {k: fake_argument(v) for k, v in options.items()}
    mode: FakeTensorMode | None = getattr(tensor_of(like), "fake_mode", None)
    if mode is None:
        return _evaluated(target, given, named, like)
    operands: list[torch.Tensor] = []
    try:
        key = (target, _key(given, mode, operands), _key([*named.items()], mode, operands))
    except _Unknown:
        return _evaluated(target, given, named, like)
    known = _KNOWN.setdefault(mode, {})
    form = known.get(key)
    if isinstance(form, list):
        return tuple([_made(x, mode, operands) for x in form])
    if form is not None:
        return _made(form, mode, operands)
    made = _evaluated(target, given, named, like)
    with suppress(_Unknown):
        is_one = type(made) is not tuple
        known[key] = _form(made, mode, operands) if is_one else _forms(made, mode, operands)
    return made


def _evaluated(target: Any, given: list[Any], named: dict[str, Any], like: Node) -> Any:
    with fake_mode_of(tensor_of(like)):
        return target(*given, **named)


def known_form(
    key: Hashable, operands: Sequence[torch.Tensor | None], made: Callable[[], torch.Tensor | None]
) -> torch.Tensor | None:
    """A meta tensor of the form that a function gives to its result.

    The form depends on `key` and on the forms of `operands` alone.
    """
    mode = next((x.fake_mode for x in operands if isinstance(x, FakeTensor)), None)
    if mode is None:
        return made()
    try:
        whole = (key, _key([*operands], mode, []))
    except _Unknown:
        return made()
    known = _KNOWN.setdefault(mode, {})
    if whole not in known:
        found = made()
        try:
            known[whole] = None if found is None else _form(found, mode, operands)
        except _Unknown:
            return found
    form = known[whole]
    return None if form is None else _meta(form)


def _key(given: Any, mode: FakeTensorMode, operands: list[torch.Tensor]) -> Hashable:
    """All of some arguments that the form of a result depends on; their arrays are collected."""
    if isinstance(given, list | tuple):
        return tuple(_key(x, mode, operands) for x in given)
    if isinstance(given, torch.Tensor):
        operands.append(given)
        return _form(given, mode, operands[:-1])
    if isinstance(given, float | complex):
        return repr(given)  # -0.0 is not 0.0
    if given is None or isinstance(given, PLAIN):
        return type(given), given
    raise _Unknown


def _form(x: Any, mode: FakeTensorMode, operands: Sequence[torch.Tensor | None]) -> _Form:
    """The form of an array that may show the memory of one of some operands."""
    if not isinstance(x, FakeTensor) or x.fake_mode is not mode or x.constant is not None:
        raise _Unknown
    if x.layout is not torch.strided or x.is_nested or x.is_conj() or x.is_neg():
        raise _Unknown
    shape, strides, offset = tuple(x.shape), x.stride(), cast(int, x.storage_offset())
    if not all(type(n) is int for n in (*shape, *strides, offset)):
        raise _Unknown
    memory = x.untyped_storage()._cdata
    own = [i for i, y in enumerate(operands) if y is not None and _memory(y) == memory]
    return _Form(shape, strides, offset, x.dtype, x.device, own[0] if own else None)


def _forms(
    several: tuple[Any, ...], mode: FakeTensorMode, operands: Sequence[torch.Tensor | None]
) -> list[_Form]:
    """The forms of several arrays, each of which has its own memory."""
    found = [_form(x, mode, operands) for x in several]
    if any(x.shown is not None for x in found) or len({*map(_memory, several)}) < len(several):
        raise _Unknown
    return found


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata if x.layout is torch.strided else 0


def _made(form: _Form, mode: FakeTensorMode, operands: Sequence[torch.Tensor]) -> FakeTensor:
    """A new fake tensor of a form."""
    made = _meta(form)
    if form.shown is not None:
        memory = operands[form.shown].untyped_storage()
        with in_kernel_invocation_manager(mode), torch.no_grad():
            made.set_(memory, form.offset, form.shape, form.strides)
    return FakeTensor(mode, made, form.device)


def _meta(form: _Form) -> torch.Tensor:
    with no_dispatch():
        return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")


def meta_like(like: Node, value: Any) -> dict[str, Any]:
    """The metadata of a node, with another value."""
    kept = {k: v for k, v in like.meta.items() if k not in ("val", "tensor_meta")}
    return {**kept, "val": value}


@contextmanager
def fake_mode_of(tensor: torch.Tensor) -> Iterator[None]:
    """The fake mode of a tensor; the graph gets no guards from what is computed in it."""
    mode = getattr(tensor, "fake_mode", None)
    sizes = None if mode is None else mode.shape_env
    with mode or nullcontext(), nullcontext() if sizes is None else sizes.suppress_guards():
        yield


def fake_argument(given: Any) -> Any:
    """An argument with fake values in place of nodes."""
    if isinstance(given, Node):
        return given.meta["val"]
    if isinstance(given, list | tuple):
        return [fake_argument(x) for x in given]
    return given
