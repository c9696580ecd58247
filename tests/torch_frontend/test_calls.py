"""Calls with inputs of the same layout as before: they run on a tape, and nothing else changes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockbuster_fusion import improve
from blockbuster_fusion.errors import PlaceOutside
from blockbuster_fusion.runtime.recently_used import RecentlyUsed
from blockbuster_fusion.torch import compile_parts
from blockbuster_fusion.torch.plan import assembling as torch_assembling
from blockbuster_fusion.torch.plan import plan as torch_plan
from blockbuster_fusion.torch.plan import tape as torch_tape
from blockbuster_fusion.torch.plan.placement import Untaped
from blockbuster_fusion.torch.plan.tape import TensorTape
from helpers.torch_running import CALLS, Watched

generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No graph of an earlier test, and the same kernels for all sizes: there is a tape for each."""
    monkeypatch.setattr(improve, "MOST_RANGED", 1)
    monkeypatch.setattr(compile_parts, "_COMPILED", RecentlyUsed(256))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Heads that are turned and cut, an operator of PyTorch's own, and a result of two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.up(x).view(*x.shape[:-1], 4, 8).transpose(-3, -2)
        first, second = h[..., :4], h[..., 4:]
        turned = torch.cat((-second, first), -1).transpose(-3, -2).flatten(-2)
        return self.down(F.silu(turned)).cumsum(-1) * 2, h


def compiled(function: Callable[..., Any], **options: Any) -> Watched:
    return Watched(function, threads=1, **options)


def tapes(made: Watched) -> list[TensorTape | Untaped]:
    return [tape for graph in made.graphs for tape in graph.plan.tapes.values()]


def is_taped(made: Watched) -> bool:
    return all(isinstance(tape, TensorTape) for tape in tapes(made))


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted)


def test_all_calls_run_on_a_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one too: no call has to run before there is a tape."""
    monkeypatch.delattr(torch_plan.ModelPlan, "run")
    model = Block().eval()
    made = compiled(model)
    x = numbers(3, 16)
    for _ in CALLS:
        same(made(x), model(x))
    (tape,) = tapes(made)
    assert isinstance(tape, TensorTape)
    assert any(part.tape is not None for part in tape.parts)


def test_other_inputs_and_weights() -> None:
    """Weights may be written to, and may be others that lie in the same way."""
    model = Block().eval()
    made = compiled(model)
    for call in range(8):
        x = numbers(3, 16)
        same(made(x), model(x))
        with torch.no_grad():
            model.up.weight.mul_(0.5)
        if call == 4:
            model.down.weight.data = numbers(16, 32)
        if call == 6:
            model.up.bias = nn.Parameter(numbers(32))


def test_other_strides() -> None:
    def scaled(x: Tensor, y: Tensor) -> Tensor:
        return (x * 2 + y).softmax(-1)

    made = compiled(scaled, dynamic=True)
    for _ in CALLS:
        for x in (numbers(6, 6), numbers(6, 12)[:, ::2], numbers(1, 6).expand(6, 6)):
            same(made(x, x.t()), scaled(x, x.t()))
        same(made(x, x), scaled(x, x))


def test_results_are_nobody_elses() -> None:
    model = Block().eval()
    made = compiled(model)
    x = numbers(3, 16)
    wanted = model(x)
    for _ in range(5):
        earlier = made(x)
        made(numbers(3, 16))
        same(earlier, wanted)
        for result in earlier:
            result.zero_()


def test_constants_that_leave_are_made_anew() -> None:
    def positions(x: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(5).cumsum(0)
        return at.view(1, 5), x * at

    made = compiled(positions)
    x = numbers(5)
    for _ in range(5):
        at, scaled = made(x)
        same(scaled, positions(x)[1])
        same(at, positions(x)[0])
        at.zero_()


def test_inputs_that_are_written_to() -> None:
    def written(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(1, at, new * 2)
        return (cache @ new.transpose(-1, -2)).softmax(1) + cache[:, :1, :1]

    made = compiled(written)
    own, eager = numbers(2, 6, 4), torch.empty(2, 6, 4)
    eager.copy_(own)
    for step in range(6):
        new, at = numbers(2, 1, 4), torch.tensor([step])
        same(made(own, new, at), written(eager, new, at))
        same(own, eager)
    assert is_taped(made)


def test_one_tensor_given_twice_and_then_two() -> None:
    def added(x: Tensor, y: Tensor) -> Tensor:
        return (x + 1) * y.tanh()

    made = compiled(added)
    for _ in CALLS:
        x, y = numbers(4, 4), numbers(4, 4)
        same(made(x, y), added(x, y))
        same(made(x, x), added(x, x))


def test_threads_share_a_tape() -> None:
    model = Block().eval()
    made = compiled(model)
    inputs = [numbers(3, 16) for _ in range(16)]
    for x in inputs[: len(CALLS)]:
        made(x)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for _ in range(20):
                found = made.compiled(x)
        return found

    with ThreadPoolExecutor(4) as pool:
        for x, found in zip(inputs, pool.map(run, inputs), strict=True):
            same(found, model(x))


def test_lookups_outside_of_a_table_raise_on_a_tape() -> None:
    table = nn.Embedding(5, 4)
    made = compiled(lambda at: table(at).tanh())
    for _ in CALLS:
        made(torch.tensor([0, 4]))
    assert is_taped(made)
    with pytest.raises(PlaceOutside):
        made(torch.tensor([0, 5]))
    same(made(torch.tensor([3, 1])), table(torch.tensor([3, 1])).tanh())


def test_forms_of_inputs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of sizes that are fixed has a tape for each way in which its inputs lie."""
    monkeypatch.setattr(torch_plan, "MOST_BINDINGS", 4)
    made = compiled(lambda x: (x * 2).tanh())
    made(numbers(3, 4))
    (graph,) = made.graphs
    for step in (*range(1, 8), 2, 2, 7, 1):
        x = numbers(3, 4 * step)[:, ::step]
        same(graph.plan(x), [(x * 2).tanh()])
    assert len(tapes(made)) == 4


# ---------------------------------------------------------------- sizes that vary


def grown(cache: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """A step of attention over a cache that it makes longer."""
    cache = torch.cat((cache, new.tanh()), 1)
    return (new @ cache.mT).softmax(-1) @ cache, cache


def positions(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[0])
    return (x * at[:, None]).softmax(-1) + x.shape[0]


def broadcast(x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[0]
    means = x.mean(0).expand(n, 4)
    return means.repeat_interleave(2, 0) * 2, (x.tanh()[:, None] @ x.t()).reshape(n, n)


def turned(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = (x @ x.t()).unflatten(1, (-1, 1))
    return x.t() * 2, h.transpose(0, 1).flatten(1).tanh(), h[1:, :-1].clone()


def cut(x: Tensor) -> Tensor:
    first, second = (x.exp() + 1).chunk(2, -1)
    return torch.cat((second.sigmoid(), first.cumsum(0)), 0).flip(0) @ first[-1]


STRIDES: dict[str, Callable[[int], Tensor]] = {
    "contiguous": lambda length: numbers(length, 4),
    "transposed": lambda length: numbers(4, length).t(),
    "sliced": lambda length: numbers(length, 8)[:, 3:7],
}
"""Inputs of several strides; each has a graph of its own."""


@pytest.mark.parametrize(
    ("function", "strides"),
    [
        (positions, ("contiguous", "transposed", "sliced")),
        (broadcast, ("sliced",)),
        (turned, ("transposed",)),
        (cut, ("sliced",)),
        *(pytest.param(f, (*STRIDES,), marks=pytest.mark.long) for f in (broadcast, turned, cut)),
    ],
)
def test_one_tape_serves_all_sizes(
    function: Callable[[Tensor], Any], strides: tuple[str, ...]
) -> None:
    made = compiled(function, dynamic=True)
    earlier: list[tuple[Any, Any]] = []
    for length in (5, 7, 2, 64, 65, 300, 3, 5):
        for x in (STRIDES[name](length) for name in strides):
            earlier.append((made(x), function(x)))
    for found, wanted in earlier:
        same(found, wanted)
    assert is_taped(made)
    assert len(tapes(made)) == len(made.graphs)


def test_sizes_that_come_again_have_a_tape_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_plan, "MOST_REPEATS", 2)
    made = compiled(broadcast, dynamic=True)
    for length in (3, 5, 5, 5, 5, 4, 5, 4):
        x = numbers(length, 4)
        same(made(x), broadcast(x))
    general, own = tapes(made)
    assert isinstance(general, TensorTape)
    assert isinstance(own, TensorTape)
    assert general.lengths
    assert not own.lengths


def test_empty_and_large_arrays_of_changing_sizes_run_without_a_tape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def summed(x: Tensor) -> Tensor:
        return (x.softmax(0).softmax(-1).softmax(0) * 2).sum(0)

    made = compiled(summed, dynamic=True)
    for length in (5, 7):
        x = numbers(length, 4)
        same(made(x), summed(x))
    (graph,), (tape,) = made.graphs, tapes(made)
    assert isinstance(tape, TensorTape)
    assert tape.regions.bytes

    def call(x: Tensor) -> Tensor:
        sizes = iter(x.shape)
        kinds = [isinstance(node.meta["val"], Tensor) for node in graph.analysis.inputs]
        (found,) = graph.plan(*[x if is_tensor else next(sizes) for is_tensor in kinds])
        return found

    empty, longer = numbers(0, 4), numbers(2000, 4)
    same(call(empty), summed(empty))
    monkeypatch.setattr(tape, "most", 1 << 10)
    same(call(longer), summed(longer))
    assert len(tapes(made)) == 1
    graph.plan.tapes.clear()
    same(call(empty), summed(empty))  # in the first call, too
    assert not tapes(made)
    same(call(x), summed(x))
    assert is_taped(made)
    assert len(tapes(made)) == 1


def test_a_cache_that_grows() -> None:
    made = compiled(grown, dynamic=True)
    cache = numbers(2, 4, 8)
    for _ in range(12):
        new = numbers(2, 1, 8)
        found, wanted = made(cache, new), grown(cache, new)
        same(found, wanted)
        cache = found[1]
    assert is_taped(made)
    assert len(tapes(made)) == 1


def test_a_cache_that_grows_to_more_than_a_thread_takes() -> None:
    made = Watched(grown, threads=2, dynamic=True)
    for length in (4, 3000, 5):
        cache, new = numbers(2, length, 8), numbers(2, 1, 8)
        same(made(cache, new), grown(cache, new))


def test_inputs_of_any_size_that_are_written_to() -> None:
    def written(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(y.softmax(-1))
        return (x @ y.t()).tanh() + x[:1, :1]

    made = compiled(written, dynamic=True)
    for length in (3, 6, 2, 9):
        x, y = numbers(length, 4), numbers(length, 4)
        own = x.clone()
        same(made(own, y), written(x, y))
        same(own, x)
    assert is_taped(made)


def test_threads_with_sizes_of_their_own_share_a_tape() -> None:
    made = compiled(broadcast, dynamic=True)
    inputs = [numbers(length, 4) for length in range(2, 18)]
    made(inputs[3])

    def run(x: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for _ in range(20):
                found = made.compiled(x)
        return found

    with ThreadPoolExecutor(4) as pool:
        for x, found in zip(inputs, pool.map(run, inputs), strict=True):
            same(found, broadcast(x))


def test_lookups_of_any_number_outside_of_a_table_raise() -> None:
    table = nn.Embedding(5, 4)
    made = compiled(lambda at: table(at).tanh(), dynamic=True)
    for length in (3, 4, 7):
        at = torch.arange(length) % 5
        same(made(at), table(at).tanh())
    assert is_taped(made)
    with pytest.raises(PlaceOutside):
        made(torch.arange(6))


# ---------------------------------------------------------------- where there is no tape


@pytest.mark.parametrize(
    ("owner", "limit"), [(torch_tape, "MOST_ARENA"), (torch_assembling, "MOST_KEPT")]
)
def test_large_arrays_are_freed(monkeypatch: pytest.MonkeyPatch, owner: Any, limit: str) -> None:
    """Large tensors are not kept, and a call whose arena would be large has none."""

    def weighed(x: Tensor) -> Tensor:
        return (x * torch.arange(8).cumsum(0)).cumsum(0).tanh() @ x.softmax(-1).t()

    monkeypatch.setattr(owner, limit, 0)
    made = compiled(weighed)
    x = numbers(8, 8)
    for _ in CALLS:
        same(made(x), weighed(x))
    (tape,) = tapes(made)
    assert isinstance(tape, TensorTape)
    assert (tape.arena == 0) == (limit == "MOST_ARENA")


def test_picking_by_places_and_by_a_mask() -> None:
    """The number of elements that a mask selects varies, so that there is no tape."""

    def by_places(x: Tensor, at: Tensor) -> Tensor:
        return (x.softmax(-1) > 0.2)[at[:, None], at] * 2 + x.tanh()[at][:, :2]

    made = compiled(by_places)
    for start in range(4):
        x, at = numbers(5, 5), torch.tensor([start, 2])
        same(made(x, at), by_places(x, at))
    assert is_taped(made)

    def by_mask(x: Tensor) -> Tensor:
        return (x.tanh() * 2)[x > 0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        made = compiled(by_mask)
        for _ in range(4):
            x = numbers(4, 4)
            same(made(x), by_mask(x))


def test_what_has_no_compiled_kernels_has_no_tape() -> None:
    made = Watched(lambda x: x.softmax(-1), target="interpret")
    for _ in CALLS:
        made(numbers(3, 4))
    assert not is_taped(made)


def test_calls_where_another_device_is_the_default() -> None:
    """Arrays that a call makes for kernels are on the device of the kernels."""
    watched = Watched(lambda x, n: torch.relu(x @ x.t()) @ x + n)
    x = torch.randn(4, 8)
    wanted = watched.function(x, 3)
    with torch.device("meta"):
        found = [watched(x, 3) for _ in range(4)]
    for made in found:
        torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.view_as_complex(x).conj().imag + 1,
        lambda x: torch.fft.rfft(x).conj().imag.sum(-1),
    ],
)
def test_what_is_negated_where_it_is_read(function: Callable[..., Any]) -> None:
    """PyTorch only notes that the imaginary parts of a conjugate are to be negated."""
    watched = Watched(function)
    for _ in range(2):
        watched.check(torch.randn(4, 2))
