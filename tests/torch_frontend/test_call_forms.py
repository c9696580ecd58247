"""Calls of the model itself: which arguments are of the form of others, by data and by text."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from blockbuster_fusion.torch.call_text import alone_call
from blockbuster_fusion.torch.forms import form_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Marked(Tensor):
    """A tensor with behaviour of its own."""


class Pair(NamedTuple):
    first: bool
    second: Tensor


class Row(list[Any]):
    pass


class Word(str):
    __slots__ = ()


def numbers(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), **options)


def given(*arguments: Any, **named: Any) -> Arguments:
    return arguments, named


def usual() -> Arguments:
    """Arguments of all kinds that have a form."""
    x, table = numbers(3, 4), {"a": numbers(5), "b": [1, "one", None]}
    return given(x, numbers(3, 4), table, 2.5, scale=(True, x), kind=torch.float32, axis=-1)


def changed(change: Callable[[list[Any], dict[str, Any]], Any]) -> Arguments:
    """The same arguments with one change."""
    arguments, named = usual()
    made = [*arguments]
    change(made, named)
    return tuple(made), named


def put(at: Any, value: Any) -> Callable[[list[Any], dict[str, Any]], Any]:
    """A change of one argument, by its position or its name."""

    def change(arguments: list[Any], named: dict[str, Any]) -> None:
        if isinstance(at, int):
            arguments[at] = value
        else:
            named[at] = value

    return change


CHANGES: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "a longer tensor": put(1, numbers(4, 4)),
    "a tensor of one dimension more": put(1, numbers(1, 3, 4)),
    "other strides": put(1, numbers(4, 3).t()),
    "steps in memory": put(1, numbers(3, 8)[:, ::2]),
    "another dtype": put(1, numbers(3, 4, dtype=torch.float64)),
    "another device": put(1, numbers(3, 4).to("meta")),
    "gradients": put(1, numbers(3, 4).requires_grad_()),
    "a parameter": put(1, torch.nn.Parameter(numbers(3, 4), requires_grad=False)),
    "a number for a tensor": put(1, 1.0),
    "None for a tensor": put(1, None),
    "another number": put(3, 3.5),
    "an integer for a float": put(3, 2),
    "one argument more": lambda arguments, named: arguments.append(None),
    "one argument less": lambda arguments, named: arguments.pop(),
    "one name more": put("other", None),
    "one name less": lambda arguments, named: named.pop("axis"),
    "another name": lambda arguments, named: named.update(axes=named.pop("axis")),
    "another name of a tuple": lambda arguments, named: named.update(by=named.pop("scale")),
    "another name of a dtype": lambda arguments, named: named.update(dtype=named.pop("kind")),
    "another key of a tensor": lambda arguments, named: arguments[2].update(
        c=arguments[2].pop("a")
    ),
    "another value by name": put("axis", 0),
    "a float by name": put("axis", -1.0),
    "another dtype by name": put("kind", torch.float64),
    "a list for a tuple": lambda arguments, named: named.update(scale=[*named["scale"]]),
    "a longer tuple": lambda arguments, named: named.update(scale=(*named["scale"], None)),
    "a longer list": lambda arguments, named: arguments[2]["b"].append(3),
    "a shorter list": lambda arguments, named: arguments[2]["b"].pop(),
    "another integer": lambda arguments, named: arguments[2]["b"].__setitem__(0, 2),
    "another text": lambda arguments, named: arguments[2]["b"].__setitem__(1, "two"),
    "a value for None": lambda arguments, named: arguments[2]["b"].__setitem__(2, 0),
    "True for one": lambda arguments, named: arguments[2]["b"].__setitem__(0, True),
    "another flag": lambda arguments, named: named.update(scale=(False, arguments[0])),
    "another key": lambda arguments, named: arguments[2].update(c=arguments[2].pop("b")),
    "one key more": lambda arguments, named: arguments[2].update(c=None),
    "a tensor that comes no more": lambda arguments, named: named.update(
        scale=(True, numbers(3, 4))
    ),
    "a number of NumPy's": put(3, np.float64(2.5)),
    "an array of NumPy's for a dtype": put("kind", np.ones(2)),
    "an ordered mapping": lambda arguments, named: put(2, OrderedDict(arguments[2]))(
        arguments, named
    ),
    "another kind of tuple": lambda arguments, named: named.update(scale=Pair(*named["scale"])),
    "another kind of list": lambda arguments, named: arguments[2].update(b=Row(arguments[2]["b"])),
    "another kind of text": lambda arguments, named: arguments[2]["b"].__setitem__(1, Word("one")),
    "a tensor that comes again": lambda arguments, named: arguments.__setitem__(1, arguments[0]),
}


def verdict(known: Arguments, asked: Arguments) -> tuple[bool, bool]:
    """True, by form and by text, if arguments are like known ones."""
    call = alone_call(lambda *x, **y: True, *known, lambda x, y: False)
    return form_of(*known) == form_of(*asked), call(*asked)


def test_like_arguments_have_one_form() -> None:
    assert form_of(*usual()) is not None
    assert verdict(usual(), usual()) == (True, True)
    assert verdict(given(), given()) == (True, True)


@pytest.mark.parametrize("change", CHANGES)
def test_other_arguments_have_another_form(change: str) -> None:
    asked = changed(CHANGES[change])
    assert verdict(usual(), asked) == (False, False)
    if form_of(*asked) is not None:
        assert verdict(asked, usual()) == (False, False)


def test_each_test_of_the_text_is_needed() -> None:
    """Without it, the model would be called with arguments of another form, or none at all."""
    call = alone_call(lambda *x, **y: True, *usual(), lambda x, y: False)
    head, *tests = str(call.__doc__).partition("\n    ):")[0].split("\n        and ")
    rest = str(call.__doc__).partition("\n    ):")[2]
    assert len(tests) > 20
    for left_out in tests:
        kept = [test for test in tests if test != left_out]
        names = dict(call.__globals__)  # type: ignore[attr-defined]
        exec("\n        and ".join([head, *kept]) + "\n    ):" + rest, names)
        assert any(_passes(names["call"], changed(x)) for x in CHANGES.values()), left_out


def _passes(call: Callable[..., bool], asked: Arguments) -> bool:
    """True if the model would be called, or if a test fails."""
    try:
        return call(*asked)
    except (KeyError, IndexError, TypeError, ValueError):
        return True


@pytest.mark.parametrize(
    "x",
    [
        *(numbers(3).as_subclass(Marked), numbers(3, 3).to_sparse(), object(), float("nan")),
        *(slice(2), {1: "x"}, torch.Size([3]), (numbers(3), {3})),
    ],
    ids=lambda x: type(x).__name__,
)
def test_other_kinds_have_no_form(x: Any) -> None:
    assert form_of((x,), {}) is None
    assert form_of((), {"x": [x]}) is None


@pytest.mark.parametrize(
    "mode",
    [
        *(torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)),
        lambda: torch.autocast("cpu", torch.float16),
    ],
    ids=["inference", "bfloat16", "float16"],
)
def test_modes_are_part_of_a_form(mode: Callable[[], Any]) -> None:
    asked = usual()
    before = form_of(*asked)
    with mode():
        assert form_of(*asked) != before
        assert alone_call(lambda *x, **y: True, *asked, lambda x, y: False)(*asked)
    assert form_of(*asked) == before


def test_negated_tensors_are_not_alike() -> None:
    x = numbers(3)
    assert verdict(given(x), given(torch._neg_view(x)))[1] is False


def test_gradients_are_off_in_a_call() -> None:
    noted: list[bool] = []

    def model(x: Tensor) -> None:
        noted.append(torch.is_grad_enabled())
        if x.sum() > 1e3:
            raise ValueError("too large")

    def otherwise(arguments: Any, named: Any) -> str:
        return "otherwise"

    call = alone_call(model, (numbers(3),), {}, otherwise)
    call((numbers(3),), {})
    with torch.no_grad():
        call((numbers(3),), {})
        assert not torch.is_grad_enabled()
    with pytest.raises(ValueError, match="too large"):
        call((torch.full((3,), 1e3),), {})
    assert noted == [False, False, False]
    assert torch.is_grad_enabled()
    needing = numbers(3).requires_grad_()
    call = alone_call(model, (needing,), {}, otherwise)
    assert call((needing,), {}) == "otherwise", "a warning may be due"


def test_the_text_of_a_call(golden: Callable[[str], None]) -> None:
    golden(str(alone_call(lambda *x, **y: None, *usual(), lambda x, y: None).__doc__) + "\n")
