"""Shapes, strides and shared memory of results are known before anything runs."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from blockbuster_fusion.torch.plan.layouts import UNKNOWN, Layouts, layout_of
from blockbuster_fusion.torch.plan.placement import Untaped
from blockbuster_fusion.torch.plan.steps import OperatorStep, Slot, as_tensor, merged, with_strides
from blockbuster_fusion.torch.plan.tape import TensorTape
from helpers.torch_running import CALLS, Watched

aten = torch.ops.aten
generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


INPUTS = {
    "dense": lambda: numbers(6, 4),
    "turned": lambda: numbers(4, 6).t(),
    "cut": lambda: numbers(9, 8)[2:8, 1:5],
    "skipping": lambda: numbers(12, 8)[::2, ::2],
    "broadcast": lambda: numbers(1, 4).expand(6, 4),
    "one row": lambda: numbers(4, 1).t(),
    "empty": lambda: numbers(0, 4),
}
AT = torch.tensor([[2, 0], [1, 1]])
STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "reshape": (torch.Tensor.reshape, (Slot(0), (2, -1)), {}),
    "permute": (torch.Tensor.permute, (Slot(0), [1, 0]), {}),
    "expand": (torch.Tensor.expand, (Slot(0), (3, -1, 4)), {}),
    "slice": (aten.slice.Tensor, (Slot(0), 1, 1, 3), {}),
    "select": (aten.select.int, (Slot(0), 1, 2), {}),
    "diagonal": (aten.diagonal.default, (Slot(0),), {}),
    "bits": (aten.view.dtype, (Slot(0), torch.int32), {}),
    "split": (aten.split.Tensor, (Slot(0), 3, 1), {}),
    "converted": (as_tensor, (Slot(0), torch.float64, torch.device("cpu")), {}),
    "the same": (as_tensor, (Slot(0), torch.float32, torch.device("cpu")), {}),
    "a number": (as_tensor, (3, torch.float64, torch.device("cpu")), {}),
    "strides": (with_strides, (Slot(0), (5, 1)), {}),
    "merged": (merged, (Slot(0), [6, 4], [6, 4], [24]), {}),
    "sum": (aten.add.Tensor, (Slot(0), Slot(0)), {}),
    "or": (aten.logical_or.default, (Slot(0), Slot(0)), {}),
    "power": (aten.pow.Scalar, (2, Slot(0)), {}),
    "product": (aten.mm.default, (Slot(0), Slot(1)), {}),
    "layer": (aten.linear.default, (Slot(0), Slot(2)), {}),
    "softmax": (aten._softmax.default, (Slot(0), 1, False), {}),
    "clone": (aten.clone.default, (Slot(0),), {}),
    "dense clone": (aten.clone.default, (Slot(0),), {"memory_format": torch.contiguous_format}),
    "running sum": (aten.cumsum.default, (Slot(0), 1), {}),
    "sorted": (aten.sort.default, (Slot(0),), {}),
    "joined": (aten.cat.default, ([Slot(0), Slot(0)], 1), {}),
    "looked up": (aten.index.Tensor, (Slot(0), [None, Slot(3)]), {}),
    "positions": (aten.arange.default, (5,), {"device": torch.device("cpu")}),
    "written": (aten.mul_.Tensor, (Slot(0), 2), {}),
    "length": (aten.sym_size.int, (Slot(0), 1), {}),
}


def alike(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple):
        return all(alike(x, y) for x, y in zip(found, wanted, strict=True))
    if not isinstance(wanted, Tensor):
        return bool(found == wanted)
    seen = (found.shape, strides(found), found.dtype, found.storage_offset())
    return seen == (wanted.shape, strides(wanted), wanted.dtype, wanted.storage_offset())


def strides(x: Tensor) -> list[int]:
    """The strides that matter."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]


def owner(x: Any) -> Any:
    return x.untyped_storage()._cdata if isinstance(x, Tensor) else None


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", STEPS)
def test_results_lie_as_they_will(name: str, kind: str) -> None:
    function, arguments, options = STEPS[name]
    given = [INPUTS[kind](), numbers(4, 5), numbers(5, 4), AT]
    step = OperatorStep(name, function, arguments, options, 4)

    def filled(x: Any) -> Any:
        if isinstance(x, Slot):
            return given[x.number]
        return type(x)(map(filled, x)) if isinstance(x, list | tuple) else x

    try:
        wanted = function(*map(filled, arguments), **options)
    except (RuntimeError, IndexError):
        return  # it does not apply to such an input
    layouts = Layouts(given, 1)
    found = layouts.evaluate(step)
    assert alike(found, wanted)
    if isinstance(wanted, Tensor) and name != "written":
        assert (owner(found) == owner(layouts.values[0])) == (owner(wanted) == owner(given[0]))
        assert layouts.devices[4] == wanted.device


def test_marks_of_complex_numbers_are_seen() -> None:
    x = numbers(3, 2)
    turned = torch.view_as_complex(x).conj()
    assert layout_of(turned).is_conj()
    assert layout_of(turned.imag).is_neg()


def test_what_follows_from_the_unknown_is_unknown() -> None:
    layouts = Layouts([torch.eye(3).to_sparse(), torch.eye(3)], 2)
    assert layouts.values[0] is UNKNOWN
    product = OperatorStep("product", aten.mm.default, (Slot(0), Slot(1)), {}, 2)
    assert layouts.evaluate(product) is UNKNOWN
    item = OperatorStep("item", operator.getitem, (Slot(2), 0), {}, 3)
    assert layouts.evaluate(item) is UNKNOWN


# ---------------------------------------------------------------- operators that break their word


@pytest.fixture
def turning() -> Iterator[Callable[[Tensor], Tensor]]:
    """An operator whose result has other strides than it says."""
    library = torch.library.Library("blockbuster_test", "FRAGMENT")
    library.define("turning(Tensor x) -> Tensor")
    library.impl("turning", lambda x: (x * 2).t().contiguous().t(), "CPU")
    torch.library.register_fake("blockbuster_test::turning", torch.empty_like, lib=library)
    yield torch.ops.blockbuster_test.turning
    library._destroy()


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_that_differ_from_those_told(
    turning: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        made = turning(x.softmax(-1))
        return made.softmax(0) + 1, made[1:].t()

    watched = Watched(function, dynamic=dynamic)
    for rows in (5, 7):
        for _ in CALLS:
            watched.check(numbers(rows, 4))
    for graph in watched.graphs:
        (tape,) = graph.plan.tapes.values()
        assert isinstance(tape, TensorTape)
        assert bool(tape.seen) != dynamic  # strides of sizes that vary are read in each call
        assert not tape.met  # nothing is copied since


def test_results_that_are_not_known_before(
    turning: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of which nothing is known runs on a tape; kernels do not read its result on one."""

    def refused(self: Layouts, step: OperatorStep) -> Any:
        raise UnsupportedOperatorException(step.name)

    monkeypatch.setattr(Layouts, "faked", refused)
    for function, kind in (
        (lambda x: (turning(x.softmax(-1)), x.tanh()), TensorTape),
        (lambda x: turning(x.softmax(-1)).softmax(0), Untaped),
    ):
        watched = Watched(function)
        watched.check(numbers(5, 4))
        (graph,) = watched.graphs
        assert [type(tape) for tape in graph.plan.tapes.values()] == [kind]
