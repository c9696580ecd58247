"""The form of a call's arguments: what is the same in calls that are judged alike.

A form has the structure of the arguments, all that is known of a tensor but its contents, tensors
that come twice, and all other values. It also has the modes of PyTorch in which operators compute
otherwise. Arguments of other kinds have no form.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import torch

from blockbuster_fusion.torch.plan.operator_properties import PLAIN

CONSTANTS = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})
"""The types of arguments that are known by their values."""
DEVICES = ("cpu", "cuda")
"""The kinds of devices for which autocasting is part of a form."""


class Formless(Exception):
    """The arguments of a call have no form."""


def form_of(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Hashable | None:
    """The form of the arguments of a call, or None."""
    first: dict[int, int] = {}
    try:
        return _modes(), _form(arguments, first), _form(named, first)
    except Formless:
        return None


def _modes() -> Hashable:
    """The modes in which operators compute otherwise: of inference, and of autocasting."""
    is_cast = torch._C._is_any_autocast_enabled()
    cast = [torch.get_autocast_dtype(x) if torch.is_autocast_enabled(x) else None for x in DEVICES]
    return torch.is_inference_mode_enabled(), (*cast,) if is_cast else ()


def _form(x: Any, first: dict[int, int]) -> Hashable:
    """The form of one argument; `first` has the numbers of the tensors that came before."""
    kind = type(x)
    if kind in PLAIN:
        if id(x) in first:
            return first[id(x)]
        first[id(x)] = len(first)
        if x.is_nested or x.layout is not torch.strided:
            raise Formless
        return kind, x.shape, x.stride(), x.dtype, x.device, x.requires_grad
    if kind is tuple or kind is list:
        return kind, *[_form(inner, first) for inner in x]
    if kind is dict and all(type(key) is str for key in x):
        return kind, *[(key, _form(x[key], first)) for key in sorted(x)]
    if kind in CONSTANTS and x == x:  # a number that is none is not like itself
        return kind, x
    raise Formless
