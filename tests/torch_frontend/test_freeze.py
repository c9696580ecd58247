"""Constant weights: with `freeze`, what depends on weights alone is computed once."""

import copy
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import blockbuster_fusion as bb
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.torch.freeze import Constants
from blockbuster_fusion.torch.model import CompiledModel
from blockbuster_fusion.torch.rivals.choose import Chooser
from blockbuster_fusion.torch.rivals.fusers import KernelFuser
from helpers.effort import crossed, part

INTERPRETED = {"freeze": True, "target": "interpret"}
"""Nothing is timed, nor compiled by a C compiler."""


def randomised(model: nn.Module) -> nn.Module:
    """A model with random weights and statistics, in evaluation."""
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        if x.is_floating_point():
            x.data.copy_(torch.rand(x.shape) + 0.5 if "var" in name else torch.randn(x.shape))
    return model.eval()


def frozen(model: Callable[..., Any], *inputs: Any, **options: Any) -> CompiledModel:
    with torch.no_grad():
        return bb.compile(model, *inputs, **{"dynamic": False, **INTERPRETED, **options})


def constants_of(compiled: CompiledModel) -> Constants:
    (graph,) = compiled.graphs
    assert graph.constants is not None
    return graph.constants


def makers(compiled: CompiledModel) -> set[str]:
    """The functions and operators that make constants."""
    return {report.operator for report in compiled.explanation.frozen}


def assert_exact(compiled: Callable[..., Any], model: nn.Module, *inputs: Tensor) -> None:
    """The error against float64 is at most twice eager's own, and a few roundings.

    Eager's own error in float64 is that in float32, by the smaller epsilon.
    """

    def run(dtype: torch.dtype) -> Tensor:
        given = (x.to(dtype) if x.is_floating_point() else x for x in inputs)
        made: Tensor = copy.deepcopy(model).to(dtype)(*given)
        return made

    def error(found: Tensor) -> float:
        return (found.double() - exact).norm().item() / (exact.norm().item() or 1.0)

    with torch.no_grad():
        found, plain = compiled(*inputs), model(*inputs)
        dtype, exact = plain.dtype, run(torch.float64)
        usual = error(plain)
        if dtype is torch.float64:
            scale = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
            usual = error(run(torch.float32)) * scale
    assert found.shape == plain.shape
    assert found.stride() == plain.stride()
    assert error(found) <= 2 * usual + 4 * torch.finfo(dtype).eps


class Norms(nn.Module):
    """Norms before and behind linear layers, a scale, and a table of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one = nn.LayerNorm(7), nn.Linear(7, 5)
        self.second, self.two = nn.RMSNorm(5), nn.Linear(5, 3, bias=False)
        self.batch, self.scale = nn.BatchNorm1d(3), nn.Parameter(torch.ones(3))
        self.register_buffer("speeds", torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.batch(self.two(self.second(self.one(self.first(x)))))
        angles = torch.arange(x.shape[0])[:, None] * self.speeds
        return y * angles.cos()


def test_what_depends_on_weights_alone_is_computed_once() -> None:
    model = randomised(Norms())
    x = torch.randn(17, 7)
    compiled = frozen(model, x)
    constants = constants_of(compiled)
    count, compute = [0], constants.compute

    def counted(*given: Any) -> dict[str, Any]:
        count[0] += 1
        return compute(*given)

    constants.compute = counted
    for _ in range(3):
        assert_exact(compiled, model, x)
    # assert_exact converts the model, and back: its weights lie elsewhere after that
    before = count[0]
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
    assert count[0] <= before + 1
    assert makers(compiled) == {"scaled", "carried", "scaled_bias", "cos.default"}
    steps = {name for kernel in compiled.explanation.kernels for name in kernel.operators}
    assert not any("cos" in name or "batch_norm" in name for name in steps)


def test_nothing_is_frozen_unasked() -> None:
    model, x = randomised(Norms()), torch.randn(4, 7)
    compiled = frozen(model, x, freeze=False)
    assert compiled.explanation.frozen == []
    assert compiled.explanation.frozen_bytes == 0


def write_in_place(model: Norms) -> None:
    with torch.inference_mode():
        model.one.weight.add_(1)


def take_a_step(model: Norms) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def load(model: Norms) -> None:
    model.load_state_dict({name: x + 1 for name, x in model.state_dict().items()})


def assign(model: Norms) -> None:
    model.load_state_dict({k: x + 1 for k, x in model.state_dict().items()}, assign=True)


def put_elsewhere(model: Norms) -> None:
    model.one.weight.data = torch.randn(5, 7)


def write_a_buffer(model: Norms) -> None:
    model.batch.running_mean.add_(1)  # type: ignore[union-attr]


def test_changes_of_weights_are_seen() -> None:
    """Operators that write move a weight's version counter; other memory has another address."""
    model, x = Norms(), torch.randn(4, 7)
    compiled = frozen(randomised(model), x)
    for change in (write_in_place, take_a_step, load, assign, put_elsewhere, write_a_buffer):
        with torch.no_grad():
            before = compiled(x)
            change(model)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(compiled(x), before)


def test_writes_through_data_are_not_seen() -> None:
    """This is why freezing is asked for: `.data` has a version counter of its own."""
    model, x = randomised(Norms()), torch.randn(4, 7)
    compiled = frozen(model, x)
    with torch.no_grad():
        before = compiled(x)
        model.first.weight.data.mul_(2)  # type: ignore[union-attr]
        assert torch.equal(compiled(x), before)
        model.first.weight.add_(0)  # type: ignore[union-attr]
        assert not torch.allclose(compiled(x), before)


class Counting(nn.Module):
    """A model that writes a buffer, from which it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1  # type: ignore[operator]
        return x * self.count.exp(), self.weight.exp()  # type: ignore[operator]


def test_written_buffers_and_results_are_not_constants() -> None:
    model, x = Counting(), torch.randn(5, 3)
    compiled = frozen(model)
    with torch.no_grad():
        for count in (1, 2, 3):
            y, table = compiled(x)
            torch.testing.assert_close(y, x * torch.tensor(float(count)).exp())
            torch.testing.assert_close(table, model.weight.exp())
            table.zero_()  # it is the caller's own
    assert compiled.explanation.frozen == []


def test_memory_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model, x = randomised(Norms()), torch.randn(4, 7)
    with caplog.at_level(logging.INFO, "blockbuster_fusion"):
        compiled = frozen(model, x)
    explanation, values = compiled.explanation, constants_of(compiled).values
    assert values is not None
    whole = sum(value.nbytes for value in values.values.values())
    assert explanation.frozen_bytes == whole > 0
    assert explanation.data()["frozen_bytes"] == whole
    assert len(explanation.data()["frozen"]) == len(values.values)
    assert f"constants, computed once: {len(values.values)}, {whole} B" in str(explanation)
    assert f"{len(values.values)} constants take {whole} bytes" in caplog.text
    told = bb.explain(model, x, options=INTERPRETED, dynamic=False)
    assert told.frozen_bytes == whole


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_wrong_options_get_a_sentence(given: object) -> None:
    with pytest.raises(WrongKind, match="freeze as True or False"):
        bb.compile(Norms(), freeze=given)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        scores = (x @ x.mT + self.bias).masked_fill(later, -torch.inf)
        return scores.softmax(-1) @ x


def test_masks_of_positions_stay_in_kernels() -> None:
    """A kernel skips what they leave out, and they need no memory."""
    model, x = Causal(), torch.randn(2, 33, 8)
    compiled = frozen(model, x)
    assert_exact(compiled, model, x)
    assert compiled.explanation.frozen == []


class Tied(nn.Module):
    """A language model in short: one weight is the embedding and the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 6), nn.LayerNorm(6)
        self.last = nn.Linear(6, 11, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.norm(self.embedding(tokens)))


def test_tied_weights_are_not_copied() -> None:
    model, tokens = randomised(Tied()), torch.randint(0, 11, (2, 5))
    compiled = frozen(model, tokens)
    assert_exact(compiled, model, tokens)
    assert compiled.explanation.frozen == []


def test_changing_sizes() -> None:
    model = randomised(Norms())
    compiled = frozen(model, dynamic=True)
    for rows in (5, 3, 17):
        assert_exact(compiled, model, torch.randn(rows, 7))
    assert "scaled" in makers(compiled)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes(mode: str) -> None:
    model, x = randomised(Norms()), torch.randn(3, 7)
    assert_exact(frozen(model, x, mode=mode, seconds=1), model, x)


def test_exported_programs() -> None:
    model, x = randomised(Norms()), torch.randn(3, 7)
    exported = bb.from_torch(torch.export.export(model, (x,)), **INTERPRETED)
    assert_exact(exported, model, x)
    assert exported.explanation.frozen_bytes > 0


def test_other_dtypes_are_compiled_anew() -> None:
    model, x = randomised(Norms()), torch.randn(3, 7)
    compiled = frozen(model, x)
    assert_exact(compiled, model.double(), x.double())
    model.float()
    assert_exact(compiled, model.bfloat16(), x.bfloat16())


def test_inference_tensors_are_read() -> None:
    with torch.inference_mode():
        model = randomised(Norms())
        x = torch.randn(3, 7)
    compiled = frozen(model, x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- models at random


def random_model(numbers: random.Random) -> tuple[nn.Module, Tensor]:
    """A chain of layers, norms, activations and casts, with an input."""
    width = numbers.choice([1, 3, 8, 17])
    shape = [*numbers.choices([1, 2, 5], k=numbers.choice([0, 1])), numbers.choice([2, 7]), width]
    layers: list[nn.Module] = []
    for _ in range(numbers.choice([2, 3, 4])):
        norm = numbers.choice([nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.Identity, nn.Tanh])
        if norm is nn.BatchNorm1d:
            norm = norm if len(shape) == 2 else nn.Identity
        affine = (
            {} if norm in (nn.Identity, nn.Tanh) else {norm_option(norm): numbers.random() > 0.3}
        )
        layers.append(norm(width, **affine) if affine else norm())
        wider = numbers.choice([1, 4, 9])
        layers.append(nn.Linear(width, wider, bias=numbers.random() > 0.4))
        width = wider
    model = randomised(nn.Sequential(*layers))
    turned = numbers.random() > 0.5 and len(shape) == 3
    x = (
        torch.randn(shape).transpose(0, 1).contiguous().transpose(0, 1)
        if turned
        else torch.randn(shape)
    )
    return model, x


def norm_option(norm: type[nn.Module]) -> str:
    return "affine" if norm is nn.BatchNorm1d else "elementwise_affine"


DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.parametrize(("seed", "dtype"), crossed(range(part(16)), DTYPES))
def test_random_models(seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    model, x = random_model(random.Random(seed))
    model, x = model.to(dtype), x.to(dtype)
    target = "interpret" if seed % 4 else None
    assert_exact(frozen(model, x, target=target, library="never"), model, x)


class Convolved(nn.Module):
    def __init__(self, groups: int, bias: bool, affine: bool) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 6, (3, 2), padding=1, groups=groups, bias=bias)
        self.norm = nn.BatchNorm2d(6, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.layer(x)))


@pytest.mark.parametrize(("groups", "bias", "affine"), [(1, True, True), (2, False, False)])
def test_batch_norm_behind_a_convolution(groups: int, bias: bool, affine: bool) -> None:
    model, x = randomised(Convolved(groups, bias, affine)), torch.randn(2, 4, 5, 7)
    x = x.to(memory_format=torch.channels_last) if affine else x
    compiled = frozen(model, x)
    assert_exact(compiled, model, x)
    assert makers(compiled) == {"scaled", "scaled_bias"}


# ---------------------------------------------------------------- packed layers


def prefer_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes PyTorch's operators faster than kernels, and packed layers faster than others."""
    monkeypatch.setattr(Chooser, "is_faster", lambda *_: True)
    monkeypatch.setattr(KernelFuser, "floor", lambda *_: None)
    monkeypatch.setattr(Chooser, "spared", lambda _: 1.0)  # a plan pays


SHAPES = ((1, 3), (3, 17), (2, 5, 33), (4, 1, 2, 64))


@pytest.mark.parametrize(("shape", "dtype"), crossed(SHAPES, (torch.float32, torch.bfloat16)))
def test_packed_layers(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch runs a layer with a weight that is packed once, if that is faster."""
    prefer_packed(monkeypatch)
    width = shape[-1]
    model = randomised(nn.Sequential(nn.Linear(width, 9), nn.Linear(9, 5, bias=False)))
    model, x = model.to(dtype), torch.randn(shape, dtype=dtype)
    compiled = frozen(model, x, target=None, library="auto")
    assert_exact(compiled, model, x)
    assert makers(compiled) == {"packed"}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert_exact(compiled, model, x)


class Halves(nn.Module):
    """A layer whose result is cut: each half is a product with half of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.layer(x).chunk(2, dim=-1)
        return gate.exp() * up


def test_packed_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_packed(monkeypatch)
    model, x = randomised(Halves()), torch.randn(3, 5)
    compiled = frozen(model, x, target=None, library="auto")
    assert_exact(compiled, model, x)
    packed = [report for report in compiled.explanation.frozen if report.operator == "packed"]
    assert [(report.shape, report.bytes) for report in packed] == [((3, 5), 60), ((3, 5), 60)]
