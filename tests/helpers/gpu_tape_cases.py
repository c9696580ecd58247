"""Runs models on a stand-in for a GPU, with sizes that change: `python gpu_tape_cases.py CASE`.

Each case prints a line of JSON: the launches by the driver, those by Triton, and the kinds of
tapes. A result that differs from eager mode's is an AssertionError. It needs TRITON_INTERPRET=1.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, distributed

from blockbuster_fusion import improve
from blockbuster_fusion.torch.plan import layouts
from blockbuster_fusion.torch.plan.steps import BoundOperator
from helpers.rivals import by_pytorch, is_product
from helpers.stand_in_gpu import StandIn, installed
from helpers.torch_running import Watched
from helpers.watched_collectives import Overwritten

generator = torch.Generator().manual_seed(0)
LENGTHS = (5, 7, 33, 16, 20, 5, 48, 3, 33)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1) * 2 + x.sum(-1, keepdim=True)


def product(x: Tensor) -> Tensor:
    return (x.tanh() @ x.mT).relu()


def scored(x: Tensor) -> Tensor:
    """The kernel has an array of its own, which depends on sizes."""
    return (x @ x.mT).softmax(-1)


def broadcast(x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[0]
    means = x.mean(0).expand(n, 4)
    return means.repeat_interleave(2, 0) * 2, (x.tanh()[:, None] @ x.t()).reshape(n, n)


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    h = (x @ x.t()).unflatten(1, (-1, 1))
    return x.t() * 2, h.transpose(0, 1).flatten(1).tanh()


def cut(x: Tensor) -> Tensor:
    """An operator of PyTorch's own between kernels, and views of its result."""
    first, second = (x.exp() + 1).chunk(2, -1)
    return torch.cat((second.sigmoid(), first.cumsum(0)), 0).flip(0) @ first[-1]


def grown(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    cache = torch.cat((cache, new.tanh()), 1)
    return (new @ cache.mT).softmax(-1) @ cache, cache


def written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y.softmax(-1))
    return x + 1


class Projections(torch.nn.Module):
    """Products of one array with weights of several widths: a launch runs them together."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((200, 100), (70, 100), (90, 100))
        self.weights = torch.nn.ParameterList(numbers(*shape) for shape in shapes)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first, second, third = (x @ weight.t() for weight in self.weights)
        return first.tanh(), second, third + 1


def compiled(function: Callable[..., Any]) -> Watched:
    return Watched(function, dynamic=True, target="cuda", library="never")


def check(made: Watched, *inputs: Tensor) -> None:
    eager = [x.clone() for x in inputs]
    wanted = made.function(*eager)
    torch.testing.assert_close(made(*inputs), wanted)
    torch.testing.assert_close([*inputs], eager)


# ---------------------------------------------------------------- cases


def plain(function: Callable[..., Any], width: int = 4) -> Callable[[], Watched]:
    def run() -> Watched:
        made = compiled(function)
        for length in LENGTHS:
            check(made, numbers(length, width))
        return made

    return run


def fixed(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Watched]:
    """The same sizes in all calls: each kernel has one form, which is met in the first call."""

    def run() -> Watched:
        made = Watched(function, dynamic=False, target="cuda", library="never")
        for _ in range(5):
            check(made, *(numbers(*shape) for shape in shapes))
        return made

    return run


def strides() -> Watched:
    """Inputs whose strides differ, in one graph: its tape reads them in each call."""
    made = compiled(softmax)
    for length in LENGTHS:
        check(made, numbers(length, 8))
        for x in (
            numbers(8, length).t(),
            numbers(length, 16)[:, 3:11],
            numbers(length, 32)[:, ::4],
        ):
            (graph,) = made.graphs[:1]
            (found,) = graph.plan(*_arguments(graph, x))
            torch.testing.assert_close(found, softmax(x))
    return made


def aligned() -> Watched:
    """Full blocks and multiples of 16 have a form of their own."""
    made = compiled(softmax)
    for length in (33, 16, 20, 32, 48, 7, 64, 33):
        check(made, numbers(length, 16))
    return made


def odd_addresses() -> Watched:
    made = compiled(softmax)
    for number, length in enumerate(LENGTHS):
        room = numbers(8 * length + 1)
        check(made, room[number % 2 :][: 8 * length].view(length, 8))
    return made


def fixed_odd_addresses() -> Watched:
    made = Watched(softmax, dynamic=False, target="cuda", library="never")
    for at in (1, 0, 1, 2, 0, 4, 3, 0):  # the fourth element is at a multiple of 16 bytes
        check(made, numbers(44)[at:][:40].view(5, 8))
    return made


def caches() -> Watched:
    made, cache = compiled(grown), numbers(2, 4, 8)
    for _ in range(8):
        new = numbers(2, 1, 8)
        check(made, cache, new)
        cache = grown(cache, new)[1]
    return made


def mutated() -> Watched:
    made = compiled(written)
    for length in LENGTHS:
        check(made, numbers(length, 4), numbers(length, 4))
    return made


def inference() -> Watched:
    made = compiled(softmax)
    with torch.inference_mode():
        for length in LENGTHS:
            check(made, numbers(length, 4))
    return made


def threads() -> Watched:
    made = compiled(softmax)
    check(made, numbers(9, 4))
    inputs = [numbers(length, 4) for length in (*LENGTHS, *LENGTHS[::-1])]

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = made.graphs[0].plan(*_arguments(made.graphs[0], x))[0]
            return found

    with ThreadPoolExecutor(4) as pool:
        for x, found in zip(inputs, pool.map(run, inputs), strict=True):
            torch.testing.assert_close(found, softmax(x))
    return made


# ---------------------------------------------------------------- products that PyTorch runs


class Layers(torch.nn.Module):
    """Linear layers with and without a bias, of a turned input too, and a product of both."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.down(torch.tanh(self.up(x)) * 0.5)
        turned = self.up(x.mT.contiguous().mT) + 1
        return torch.bmm(h, h.mT).softmax(-1), h, self.up(h).view(-1, 32)[1:], turned


def layers(*, dynamic: bool) -> Watched:
    with by_pytorch(is_product):
        model = Layers().eval()
        made = Watched(model, dynamic=dynamic, target="cuda", library="auto", time_model=False)
        for call in range(6):
            check(made, numbers(2, 3 + call * dynamic, 16))
            with torch.no_grad():
                model.up.weight.mul_(0.5)
            if call == 3:
                model.down.weight.data = numbers(16, 32)
    return made


# ---------------------------------------------------------------- operators that C calls by name


def scattered(x: Tensor, new: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Elements of an input are added to, which no kernel does; its rows are joined with others."""
    x.index_put_((rows, columns), new.tanh(), accumulate=True)
    joined = torch.cat((x, x.flip(0), new.exp()[None, :4]))
    return (x @ x.mT).softmax(-1), joined.cumsum(0)


def writes(*, dynamic: bool) -> Watched:
    made = Watched(scattered, dynamic=dynamic, target="cuda", library="never")
    for call in range(5):
        length = 6 + call * dynamic
        at = torch.arange(length) % 3
        check(made, numbers(length, 4), numbers(length), at, at + 1)
    return made


def operators_by_name() -> Watched:
    made = writes(dynamic=False)
    tape = next(iter(made.graphs[0].plan.tapes.values()))
    names = [name for part in tape.parts for name in part.names]
    steps = [part.step for part in tape.parts if part.step is not None]
    assert any("index_put_" in name for name in names), (names, steps)
    assert any("copy_" in name or "cat" in name for name in names), (names, steps)
    held = [numbers(6, 4), numbers(6), torch.arange(6) % 3, torch.arange(6) % 2]
    with torch.inference_mode():
        check(made, *held)
    check(made, *held)
    return made


def operators_by_name_of_any_size() -> Watched:
    return writes(dynamic=True)


# ---------------------------------------------------------------- results that PyTorch allocates


def ordered(x: Tensor) -> tuple[Tensor, ...]:
    """Several results of one operator; kernels, views and the caller read them."""
    values, places = (x.tanh() + 1).topk(3, 0)
    turned = (x * 2).flip(0)
    lowest, _ = turned.exp().sort(-1)
    return values.t() * 2, places, turned, lowest.softmax(-1), values[1:]


class Windows(torch.nn.Module):
    """Convolutions and pooling, which have lists and flags among their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(2, 4, 3), torch.nn.Conv2d(4, 2, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.nn.functional.max_pool2d(torch.tanh(self.first(x)) * 2, 2, 1)
        return (self.second(h) + 1).softmax(-1)


def attentive(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention by PyTorch between kernels, with and without a mask and a scale."""
    attention = torch.nn.functional.scaled_dot_product_attention
    first = attention(q.tanh(), k.sin(), v.cos(), is_causal=True)
    second = attention(first.exp(), k.cos(), v.sin(), attn_mask=mask.sin(), scale=0.5)
    return second.transpose(1, 2).flatten(2) * 2, first


def is_attention(nodes: Sequence[Any]) -> bool:
    return any("mm" in str(n.target) or "softmax" in str(n.target) for n in nodes)


def names_in(made: Watched) -> list[str]:
    """The names of the launches of a tape; all operators of PyTorch's are among them."""
    tape = next(iter(made.graphs[0].plan.tapes.values()))
    steps = [part.step for part in tape.parts if part.step is not None]
    assert not any(isinstance(step, BoundOperator) for step in steps), [
        step.step for step in steps if isinstance(step, BoundOperator)
    ]
    return [name for part in tape.parts for name in part.names]


def allocated() -> Watched:
    made = Watched(ordered, dynamic=False, target="cuda", library="never")
    for _ in range(5):
        check(made, numbers(6, 4))
    names = names_in(made)
    assert {"topk", "sort"} <= {name.split(".")[1] for name in names if "." in name}, names
    with torch.inference_mode():
        check(made, numbers(6, 4))
    inputs = [numbers(6, 4) for _ in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for x, found in zip(inputs, pool.map(made, inputs), strict=True):
            torch.testing.assert_close(found, ordered(x))
    return made


def windows() -> Watched:
    made = Watched(Windows().eval(), dynamic=False, target="cuda", library="never")
    for _ in range(5):
        check(made, numbers(1, 2, 9, 8))
    names_in(made)
    return made


def attention_by_pytorch() -> Watched:
    with by_pytorch(is_attention):
        made = Watched(attentive, dynamic=False, target="cuda", library="auto", time_model=False)
        for _ in range(5):
            given = (numbers(2, 3, 6, 4), numbers(2, 3, 5, 4), numbers(2, 3, 5, 4))
            check(made, *given, numbers(6, 5))
    names = names_in(made)
    assert sum("scaled_dot_product_attention" in name for name in names) == 2, names
    return made


def other_strides() -> Watched:
    """PyTorch tells other strides than an operator has: its result is copied, and then known."""
    told = layouts.Layouts.faked

    def turned(self: Any, step: Any) -> Any:
        found = told(self, step)
        if "sort" not in step.name:
            return found
        return tuple(
            torch.empty_strided(x.shape, x.stride()[::-1], dtype=x.dtype, device="meta")
            for x in found
        )

    with mock.patch.object(layouts.Layouts, "faked", turned):
        made = Watched(ordered, dynamic=False, target="cuda", library="never")
        for _ in range(5):
            check(made, numbers(4, 4))
    tape = next(iter(made.graphs[0].plan.tapes.values()))
    assert [*tape.seen.values()] == [(4, 1)], tape.seen
    return made


def failing() -> Watched:
    """An operator that fails leaves no result behind, and the next call is right."""
    made = Watched(placed, dynamic=False, target="cuda", library="never")
    table, rows = numbers(5, 4), torch.tensor([1, 4])
    check(made, table, rows)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of bounds"):  # PyTorch's own error
            made(table, rows + 3)
        check(made, table, rows)
    writing = Watched(added, dynamic=False, target="cuda", library="never")
    with torch.no_grad():
        writing(table.clone(), numbers(2, 4), rows)
        with pytest.raises(IndexError, match="out of bounds"):  # also if it has no result
            writing(table.clone(), numbers(2, 4), rows + 3)
    return made


def added(table: Tensor, more: Tensor, rows: Tensor) -> Tensor:
    table.index_put_((rows,), more.tanh(), accumulate=True)
    return more * 2


def placed(table: Tensor, rows: Tensor) -> Tensor:
    lowest, _ = (table * 2).sort(0)
    return table.tanh().scatter(0, rows[:, None].expand(2, 4), lowest) * 2 + lowest.sum()


def library_steps() -> Watched:
    made = layers(dynamic=False)
    tape = next(iter(made.graphs[0].plan.tapes.values()))
    names = [name for part in tape.parts for name in part.names]
    assert sum("mm" in name or "linear" in name for name in names) == 5, names
    held = numbers(2, 3, 16)
    wanted = made.function(held)
    with torch.inference_mode():
        found = made(held)
    torch.testing.assert_close(found, wanted)
    inputs = [numbers(2, 3, 16) for _ in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for x, found in zip(inputs, pool.map(made, inputs), strict=True):
            torch.testing.assert_close(found, made.function(x))
    return made


def library_steps_of_any_size() -> Watched:
    return layers(dynamic=True)


def conjugated() -> Watched:
    """The numbers of a conjugated input are not those in memory, so that C must not read them."""

    def transformed(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1) * 2, torch.fft.fft(z, dim=0)

    made = Watched(transformed, dynamic=False, target="cuda", library="never")
    z, x = torch.complex(numbers(6, 4), numbers(6, 4)), numbers(6, 4)
    for given in (z, z.conj(), z, z.conj(), z.conj()):
        with torch.no_grad():
            found = made(given, x)[1]
        torch.testing.assert_close(found, torch.fft.fft(given, dim=0))
    return made


def gathered() -> Watched:
    """A collective that is in flight while kernels run, of a group of one rank."""
    functional = torch.ops._c10d_functional
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        name = distributed.group.WORLD.group_name

        def model(x: Tensor) -> tuple[Tensor, Tensor]:
            every = functional.all_gather_into_tensor((x * 2 + 1).relu(), 1, name)
            beside = x
            for _ in range(4):
                beside = (beside - beside.mean(0)).sin()
            return functional.wait_tensor(every) * 3, beside

        made = Watched(model, dynamic=False, target="cuda", library="never")
        for _ in range(5):
            check(made, numbers(6, 4))
        with Overwritten() as seen:
            made(numbers(6, 4))
        distributed.destroy_process_group()
    assert (seen.count, seen.changed) == (1, [])
    return made


def _arguments(graph: Any, x: Tensor) -> Iterator[Any]:
    """The arguments of a graph of one tensor: the sizes that it takes, and the tensor."""
    sizes = iter(x.shape)
    for node in graph.analysis.inputs:
        yield x if isinstance(node.meta["val"], Tensor) else next(sizes)


CASES: dict[str, Callable[[], Watched]] = {
    **{f"fixed_{f.__name__}": fixed(f, (7, 4)) for f in (scored, broadcast, turned)},
    "projections": plain(Projections(), 100),
    "fixed_projections": fixed(Projections(), (7, 100)),
    "fixed_caches": fixed(grown, (2, 4, 8), (2, 1, 8)),
    "fixed_mutated": fixed(written, (7, 4), (7, 4)),
    **{f.__name__: plain(f) for f in (softmax, product, scored, broadcast, turned, cut)},
    **{f.__name__: f for f in (strides, aligned, odd_addresses, fixed_odd_addresses)},
    **{f.__name__: f for f in (caches, mutated, inference, threads, conjugated)},
    **{f.__name__: f for f in (library_steps, library_steps_of_any_size)},
    **{f.__name__: f for f in (operators_by_name, operators_by_name_of_any_size)},
    **{f.__name__: f for f in (allocated, windows, attention_by_pytorch, other_strides, failing)},
    "gathered": gathered,
}


def told(gpu: StandIn, made: Watched) -> dict[str, Any]:
    tapes = [type(tape).__name__ for graph in made.graphs for tape in graph.plan.tapes.values()]
    reasons = [
        str(tape)
        for graph in made.graphs
        for tape in graph.plan.tapes.values()
        if isinstance(tape, Exception)
    ]
    problems = [str(problem) for problem in gpu.problems]
    nests = [f.executable.nest for graph in made.graphs for f in graph.fused]
    together = [len(x.kernels) for nest in nests if nest for x in nest.launches]
    return {
        "driver": gpu.by_driver,
        "met": gpu.met,
        "ahead": gpu.ahead,
        "tapes": tapes,
        "reasons": reasons,
        "problems": problems,
        "together": together,
    }


def main(chosen: Sequence[str]) -> None:
    improve.MOST_RANGED = 1  # the same kernels for all sizes
    found = {}
    for name in chosen or CASES:
        with installed() as gpu:
            made = CASES[name]()
        found[name] = told(gpu, made)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
