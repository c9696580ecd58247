"""Norms that models write out: which are recognised, and that PyTorch's operator is as exact."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import blockbuster_fusion as bb
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch import compiled_graph
from blockbuster_fusion.torch.backend import decompositions
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.rivals import choose, library
from blockbuster_fusion.torch.rivals.norms import Norm, found_norms
from helpers.effort import part

B16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
EPS = 1e-5


def captured(function: Callable[..., Any], *inputs: Tensor) -> GraphModule:
    """A function as operators, as a model is captured."""
    with torch.no_grad():
        return make_fx(function, decompositions(), tracing_mode="fake")(*inputs)


def recognised(module: GraphModule) -> list[Norm]:
    """The norms of a graph, which are collapsed in it."""
    found = found_norms(Analysis(module, frozenset()))
    replaced: dict[Any, Any] = {}
    for norm in found:
        targets = [node.target for node in norm.collapse(module.graph, replaced)]
        assert targets.count(norm.operator) == 1
    module.graph.lint()
    module.recompile()
    return found


def rms(x: Tensor) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    return x.var(-1, keepdim=True, unbiased=False)


def llama(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return w * (wide * rms(wide)).to(x.dtype)


def var_mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    spread, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
    return (x - mean) * torch.rsqrt(spread + EPS) * w + b


SPELLINGS: dict[str, Callable[..., Tensor]] = {
    "llama": llama,
    "t5": lambda x, w: w * (x * rms(x.float())).to(x.dtype),
    "gemma": lambda x, w: (x.float() * rms(x.float()) * (1.0 + w.float())).type_as(x),
    "late cast": lambda x, w: (x.float() * rms(x.float()) * w.float()).to(x.dtype),
    "no weight": lambda x: x * rms(x),
    "x * x": lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w,
    "square": lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w,
    "1 / sqrt": lambda x, w: x * (1 / torch.sqrt((x**2).mean(-1, keepdim=True) + EPS)) * w,
    "x / sqrt": lambda x, w: w * (x / torch.sqrt((x**2).mean(-1, keepdim=True) + EPS)),
    "power": lambda x: x * ((x**2).mean(-1, keepdim=True) + EPS) ** -0.5,
    "no eps": lambda x, w: w * x * torch.rsqrt((x**2).mean(-1, keepdim=True)),
    "two axes": lambda x: x * torch.rsqrt((x**2).mean((-1, -2), keepdim=True) + EPS),
    "variance": lambda x, w, b: centred(x) / torch.sqrt(variance(x) + EPS) * w + b,
    "variance, no bias": lambda x, w: w * (centred(x) * torch.rsqrt(variance(x) + EPS)),
    "variance, no weight": lambda x: centred(x) * torch.rsqrt(variance(x) + EPS),
    "variance and mean": var_mean,
    "centred": lambda x, w, b: b + w * (centred(x) * rms(centred(x))),
    "centred once": lambda x, w, b: (lambda c: c * rms(c) * w + b)(centred(x)),
    "weight first": lambda x, w, b: w * centred(x) * torch.rsqrt(variance(x) + EPS) + b,
    "wide": lambda x, w, b: w * (lambda c: c * rms(c))(centred(x.float())).to(x.dtype) + b,
}
CENTRED = ("variance", "centred", "weight first", "wide")


def arguments(function: Callable[..., Any], dtype: torch.dtype) -> list[Tensor]:
    """Random inputs: rows of 24, and as many parameters as a function has."""
    torch.manual_seed(0)
    shapes = [(3, 5, 24), (24,), (24,)][: function.__code__.co_argcount]
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [F32, B16], ids=str)
@pytest.mark.parametrize("name", SPELLINGS)
def test_norms_are_recognised(name: str, dtype: torch.dtype) -> None:
    function = SPELLINGS[name]
    inputs = arguments(function, dtype)
    module = captured(function, *inputs)
    (norm,) = recognised(module)
    assert norm.is_centred == name.startswith(CENTRED)
    assert norm.eps == (0 if name == "no eps" else EPS)
    assert norm.shape == ((5, 24) if name == "two axes" else (24,))
    has = [norm.weight is not None, norm.bias is not None]
    assert has == [len(inputs) > 1, len(inputs) > 2]
    check(module, function, inputs)


def check(module: GraphModule, function: Callable[..., Any], inputs: list[Tensor]) -> None:
    """Results have eager's form, and are as near to float64 as eager's."""
    with torch.no_grad():
        eager, found = function(*inputs), module(*inputs)
    exact = run_wide(function, inputs)
    for ours, own, best in zip(*map(several, (found, eager, exact)), strict=True):
        assert (ours.dtype, ours.shape) == (own.dtype, own.shape)
        assert ours.stride() == own.stride()
        rounding = 2 * torch.finfo(F32).eps * best.norm()  # of what is computed in float32
        assert (ours - best).norm() <= max(1.1 * (own - best).norm(), rounding)


def several(made: Any) -> list[Tensor]:
    return [*made] if isinstance(made, tuple | list) else [made]


class Wide(torch.overrides.TorchFunctionMode):
    """Casts between floats do nothing: the function is computed in float64."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in ("to", "float", "type_as", "bfloat16", "double"):
            return args[0]
        return function(*args, **(kwargs or {}))


def run_wide(function: Callable[..., Any], inputs: list[Tensor]) -> Any:
    given = [x.double() for x in inputs]
    with torch.no_grad(), Wide():
        return function(*given)


# ---------------------------------------------------------------- near misses

MISSES: dict[str, Callable[..., Any]] = {
    "another axis": lambda x: x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + EPS),
    "an axis dropped": lambda x: x[:, 0, :3] * torch.rsqrt(x[:, 0, :3].pow(2).mean(-1) + EPS),
    "a cube": lambda x: x * torch.rsqrt(x.pow(3).abs().mean(-1, keepdim=True) + EPS),
    "squares of others": lambda x: x * rms(x + 1),
    "products": lambda x: x * torch.rsqrt((x * x.abs()).mean(-1, keepdim=True) + 9),
    "a sum": lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + EPS),
    "eps outside": lambda x: x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + EPS),
    "eps scaled": lambda x: x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), 1, alpha=3)),
    "an array for eps": lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + w.abs()),
    "least variance": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp_min(EPS)),
    "another power": lambda x: x * (x.pow(2).mean(-1, keepdim=True) + EPS) ** -0.25,
    "no root": lambda x: x / (x.pow(2).mean(-1, keepdim=True) + EPS),
    "the root": lambda x: x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS),
    "upside down": lambda x: torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS) / x,
    "floors": lambda x: torch.div(
        x, torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS), rounding_mode="floor"
    ),
    "whole numbers": lambda x: x * rms(x).to(torch.int32),
    "of whole numbers": lambda x: x * rms(x.to(torch.int32).float()),
    "unbiased": lambda x: centred(x) * torch.rsqrt(x.var(-1, keepdim=True) + EPS),
    "the standard deviation": lambda x: centred(x) / (x.std(-1, keepdim=True) + EPS),
    "variance alone": lambda x: x * torch.rsqrt(variance(x) + EPS),
    "mean of another": lambda x: (
        (x - (2 * x).mean(-1, keepdim=True)) * torch.rsqrt(variance(x) + EPS)
    ),
    "mean scaled": lambda x: (
        torch.sub(x, x.mean(-1, keepdim=True), alpha=2) * torch.rsqrt(variance(x) + EPS)
    ),
    "mean of another axis": lambda x: (
        (x - x.mean(-2, keepdim=True)) * torch.rsqrt(variance(x) + EPS)
    ),
    "statistic shown": lambda x: (lambda s: (x * torch.rsqrt(s + EPS), s))(
        x.pow(2).mean(-1, keepdim=True)
    ),
    "squares shown": lambda x: (lambda s: (x * torch.rsqrt(s.mean(-1, keepdim=True)), s))(x**2),
    "scale shown": lambda x: (lambda s: (x * s, s))(rms(x)),
    "mean shown": lambda x: (lambda m: ((x - m) * torch.rsqrt(variance(x) + EPS), m))(
        x.mean(-1, keepdim=True)
    ),
    "rows reshaped": lambda x: x.reshape(15, 24) * rms(x).reshape(15, 1).flip(0),
    "the scale reshaped": lambda x: x.mT * rms(x).mT,
    "a strided operand": lambda x: x.mT * rms(x.mT),
}


@pytest.mark.parametrize("name", MISSES)
def test_what_is_no_norm(name: str) -> None:
    function = MISSES[name]
    inputs = arguments(function, F32)
    module = captured(function, *inputs)
    assert not recognised(module)
    with torch.no_grad():
        for ours, own in zip(several(module(*inputs)), several(function(*inputs)), strict=True):
            torch.testing.assert_close(ours, own)


SHORTER: dict[str, tuple[Callable[..., Any], list[torch.dtype]]] = {
    "a weight for each row": (lambda x, w: x * rms(x) * w[:5, None], [F32, F32]),
    "the unweighted shown": (lambda x, w: (lambda y: (y * w, y))(x * rms(x)), [F32, F32]),
    "itself as weight": (lambda x: (lambda y: y * y)(x * rms(x)), [F32]),
    "bias scaled": (lambda x, w: torch.add(x * rms(x), w, alpha=2), [F32, F32]),
    "bias of RMSNorm": (lambda x, w: x * rms(x) + w, [F32, F32]),
    "rounded to integers": (lambda x: (x * rms(x)).to(torch.int32), [F32]),
    "wider inside": (lambda x: (x.double() * rms(x.double())).to(x.dtype), [F32]),
    "another 16-bit float": (lambda x: (x.float() * rms(x.float())).to(F16), [B16]),
}


@pytest.mark.parametrize("name", SHORTER)
def test_a_norm_ends_where_it_is_read(name: str) -> None:
    """The norm before a step that is no part of it is recognised, without weight or bias."""
    function, dtypes = SHORTER[name]
    inputs = [x.to(d) for x, d in zip(arguments(function, F32), dtypes, strict=True)]
    module = captured(function, *inputs)
    (norm,) = recognised(module)
    assert norm.weight is None
    assert norm.bias is None
    with torch.no_grad():
        for ours, own in zip(several(module(*inputs)), several(function(*inputs)), strict=True):
            torch.testing.assert_close(ours, own)


def test_a_wide_weight_makes_a_wide_result() -> None:
    """Llama's norm of 16-bit rows with a float32 weight is float32; so is PyTorch's operand."""
    x, w = arguments(llama, F32)
    inputs = [x.to(B16), w]
    module = captured(llama, *inputs)
    (norm,) = recognised(module)
    assert norm.x.meta["val"].dtype is F32
    check(module, llama, inputs)


# ---------------------------------------------------------------- random spellings


@dataclass(frozen=True)
class Spelling:
    """A norm, written in one of many ways; some show a value in between, or compute wider."""

    kind: str
    wide: torch.dtype | None
    square: str
    root: str
    weight: str
    casts_back: bool
    shows: bool

    def __call__(self, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = x if self.wide is None else x.to(self.wide)
        c = centred(y) if self.kind != "rms" else y
        squares = c * c if self.square == "product" else c**2
        mean = variance(y) if self.kind == "variance" else squares.mean(-1, keepdim=True)
        s = mean + EPS
        weight = w if self.wide is None else w.to(self.wide)
        top = weight * c if self.weight == "first" else c
        made = self.rooted(top, s)
        made = made * weight if self.weight == "before the cast" else made
        made = made.to(x.dtype) if self.casts_back else made
        made = w * made if self.weight == "last" else made
        made = made + b if self.kind != "rms" else made
        return (made, s) if self.shows else (made,)

    def rooted(self, top: Tensor, s: Tensor) -> Tensor:
        match self.root:
            case "rsqrt":
                return top * torch.rsqrt(s)
            case "reciprocal":
                return (1 / s.sqrt()) * top
            case "power":
                return top * s**-0.5
        return top / s.sqrt()


def drawn(r: random.Random) -> Spelling:
    return Spelling(
        r.choice(("rms", "variance", "centred")),
        r.choice((None, F32, F32, F64)),
        r.choice(("product", "power")),
        r.choice(("rsqrt", "reciprocal", "power", "division")),
        r.choice(("first", "before the cast", "last", "none")),
        r.random() < 0.7,
        r.random() < 0.2,
    )


def test_random_spellings() -> None:
    r, found, count = random.Random(0), 0, part(120)
    for _ in range(count):
        spelling = drawn(r)
        dtype, other = r.choice((F32, F64, B16, F16)), r.choice((None, None, F32))
        torch.manual_seed(r.randrange(1000))
        inputs = [torch.randn(3, 33) + r.choice((0, 3)), torch.randn(33), torch.randn(33)]
        inputs = [inputs[0].to(dtype), *(x.to(other or dtype) for x in inputs[1:])]
        module = captured(spelling, *inputs)
        found += len(recognised(module))
        check(module, spelling, inputs)
    assert 0.4 * count < found < 0.9 * count


# ---------------------------------------------------------------- in compiled models


def pretend(monkeypatch: pytest.MonkeyPatch, of_norms: float) -> None:
    """A library that is faster than any kernel, but for the time that norms take."""

    def timed(self: object, name: str, *_: object) -> Seconds:
        return Seconds(of_norms if "norm" in name else 1e-12)

    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)
    monkeypatch.setattr(compiled_graph.CompiledGraph, "gains", True)  # run the plan
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["llama", "x * x", "variance", "variance and mean", "centred"])
@pytest.mark.parametrize("is_faster", [True, False])
def test_the_library_runs_the_faster_form(
    name: str, is_faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 1e-15 if is_faster else 1.0)
    function = SPELLINGS[name]
    x, *parameters = arguments(function, B16)

    def model(x: Tensor, *given: Tensor) -> Tensor:
        return torch.relu(function(x + 1, *given)) * 2

    compiled = bb.compile(model, x, *parameters, library="auto")
    (graph,) = compiled.explanation.graphs
    assert len(graph.collapsed) == is_faster
    targets = {n.target for n in graph.analysis.nodes}
    whole = {torch.ops.aten._fused_rms_norm.default, torch.ops.aten.native_layer_norm.default}
    assert bool(targets & whole) == is_faster
    torch.testing.assert_close(compiled(x, *parameters), model(x, *parameters), atol=0.1, rtol=0.02)


def test_kernels_compute_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that kernels win is as it was written."""
    monkeypatch.setattr(library.LibraryTimes, "_timed", lambda *_: Seconds(1e3))
    torch._dynamo.reset()
    x, w = arguments(llama, F32)
    compiled = bb.compile(llama, x, w, library="auto")
    found = compiled.explanation
    assert not found.library
    assert found.coverage == 1
    torch.testing.assert_close(compiled(x, w), llama(x, w))


@pytest.mark.parametrize("calls", [True, False])
def test_a_norm_that_the_model_calls_is_no_gain(
    calls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch writes its own RMSNorm out on a CPU; the captured graph has it as one operator."""

    def timed(self: object, name: str, *_: object) -> Seconds:
        return Seconds(1e-6 if "norm" in name else 1e-3)

    never = choose.Estimate(Seconds(1e3), "at least")
    monkeypatch.setattr(library.LibraryTimes, "_timed", timed)
    monkeypatch.setattr(choose.Chooser, "at_least", lambda *_: never)
    monkeypatch.setattr(choose.KernelFuser, "floor", lambda *_: None)
    torch._dynamo.reset()
    x, w = arguments(llama, F32)

    def model(x: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (24,), w, EPS) if calls else llama(x, w)

    compiled = bb.compile(model, x, w, library="auto")
    (graph,) = compiled.explanation.graphs
    assert len(graph.collapsed) == 1
    assert graph.gains == (not calls)
    torch.testing.assert_close(compiled(x, w), model(x, w))


def test_norms_of_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1e-15)
    x, w = arguments(llama, F32)

    def model(x: Tensor, w: Tensor) -> Tensor:
        return llama(x + llama(llama(x, w), w), w)

    compiled = bb.compile(model, x, w, library="auto")
    (graph,) = compiled.explanation.graphs
    assert len(graph.collapsed) == 3
    torch.testing.assert_close(compiled(x, w), model(x, w))


def test_sizes_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 1e-15)
    x, w = arguments(llama, F32)
    compiled = bb.compile(llama, x, w, dynamic=True, library="auto")
    for length in (2, 7):
        given = torch.randn(4, length, 24)
        torch.testing.assert_close(compiled(given, w), llama(given, w))
