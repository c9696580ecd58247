"""Every row of the operator table against PyTorch: each operator alone, and through torch.compile.

A `Case` names a row and calls its operator. The cases of a group are one function, so that they
cost one compilation. Results are within twice eager's own error of float64, or a few ulps of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compile_graph import compile_graph
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.explain import Explanation
from blockbuster_fusion.torch.options import Options
from blockbuster_fusion.torch.table.row import TABLE

aten = torch.ops.aten
inf, nan = math.inf, math.nan

ULPS = 6
"""The allowed error in units in the last place, where eager happens to be exact."""


@dataclass(frozen=True)
class Case:
    """An operator of the table, applied to some of the group's inputs."""

    row: str
    call: Callable[..., Any]
    inputs: tuple[str, ...] = ("x",)
    exponent: float = 0.0
    """The largest exponent of an exponential: that half of its last place, where products are
    rounded before one of two uses alone, is so many ulps of the result."""

    def __call__(self, given: dict[str, Tensor]) -> list[Tensor]:
        made = self.call(*(given[name] for name in self.inputs))
        return [*made] if isinstance(made, tuple | list) else [made]


@dataclass(frozen=True)
class Group:
    """Cases that read the same inputs."""

    name: str
    inputs: dict[str, Tensor]
    cases: tuple[Case, ...]

    def function(self, *given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, given, strict=True))
        return tuple(made for case in self.cases for made in case(named))

    @property
    def arguments(self) -> list[Tensor]:
        return [*self.inputs.values()]

    def eager(self, widened: bool = False) -> list[tuple[str, Tensor]]:
        """Each result with the row it comes from; `widened` with float64 in place of float32."""
        given = {name: wide(x) if widened else x for name, x in self.inputs.items()}
        return [(case.row, made) for case in self.cases for made in case(given)]


def wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def check(group: Group, found: Sequence[Tensor]) -> None:
    """Dtypes, shapes, infinities and NaN are eager's; numbers are as near to float64 as eager's."""
    wanted, exact = group.eager(), group.eager(widened=True)
    exponents = [case.exponent for case in group.cases for _ in case(group.inputs)]
    for number, ((row, eager), (_, best)) in enumerate(zip(wanted, exact, strict=True)):
        ours = found[number]
        what = f"{row}, result {number} of {group.name}"
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape), what
        if not eager.is_floating_point():
            assert torch.equal(ours, eager), f"{what}: {ours} is not {eager}"
            continue
        assert torch.equal(ours.isnan(), eager.isnan()), f"{what}: {ours} is not {eager}"
        big = eager.isinf()
        assert torch.equal(ours.isinf(), big), f"{what}: {ours} is not {eager}"
        assert torch.equal(ours[big], eager[big]), what
        plain = eager.isfinite() & best.isfinite()
        best = best[plain].double()
        error = (ours[plain].double() - best).abs()
        own = (eager[plain].double() - best).abs()
        ulp = torch.finfo(eager.dtype).eps * best.abs().clamp(min=torch.finfo(eager.dtype).tiny)
        # sums are off by ulps of their largest term, not of their result
        scale = ulp if row not in SUMS else ulp.max() if ulp.numel() else ulp
        allowed = torch.maximum(2 * own, max(ULPS, exponents[number]) * scale)
        assert bool((error <= allowed).all()), f"{what}: off by {error.max()}, eager by {own.max()}"


def compiled(group: Group, **options: Any) -> tuple[list[Tensor], Explanation]:
    graphs: list[CompiledGraph] = []
    torch._dynamo.reset()
    watched = partial(backend, options=options, watcher=graphs.append)
    with torch.no_grad():
        made = torch.compile(group.function, backend=watched)(*group.arguments)
    return [*made], Explanation(tuple(graphs))


def alone(group: Group) -> tuple[list[Tensor], CompiledGraph]:
    """The operators as they stand, not taken apart as torch.compile does with many of them."""
    with torch.no_grad():
        capture = make_fx(group.function, tracing_mode="fake", pre_dispatch=True)
        module = capture(*group.arguments)
    graph = compile_graph(module, (), Options(target="cpu"))
    with torch.no_grad():
        return graph.plan(*group.arguments), graph


def case(row: str, *inputs: str, call: Callable[..., Any] | None = None) -> Case:
    """A row by its own default overload, or by a call."""
    space, name = row.split(".")[:2]
    function = call or getattr(getattr(torch.ops, space), name).default
    return Case(row, function, inputs or ("x",))


def plain(names: str, *inputs: str) -> list[Case]:
    return [case(f"aten.{name}", *inputs) for name in names.split()]


def tensors(names: str, *inputs: str) -> list[Case]:
    """Rows by the overload for two tensors."""
    return [case(f"aten.{n}", *inputs, call=getattr(aten, n).Tensor) for n in names.split()]


def padded_twice(x: Tensor, pads: list[int], fill: float) -> tuple[Tensor, Tensor]:
    """An input padded, and something computed."""
    return aten.constant_pad_nd(x, pads, fill), aten.constant_pad_nd(x + x, pads, fill) * 2


SPECIAL = torch.tensor(
    [nan, -inf, inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 6.5, 1e-30,
     -1e-30, 19.0, 21.0, 87.0, -87.0, 103.0, -104.0, 1e30, -1e30, 7.25, -3.75, 0.1, -0.1, 0.9]
)  # fmt: skip
generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def wholes(*shape: int) -> Tensor:
    return torch.randint(-9, 10, shape, generator=generator)


def truths(*shape: int) -> Tensor:
    return torch.rand(shape, generator=generator) > 0.5


UNARY = Group(
    "one operand, with infinities, NaN and zeros",
    {"x": SPECIAL, "angles": numbers(30) * 3, "small": torch.linspace(-1, 1, 30)},
    (
        *plain("abs neg floor ceil trunc round sign sqrt isnan isinf isfinite"),
        *plain("exp exp2 expm1 log log2 log10 log1p tanh sinh cosh erf atan asinh"),
        *plain("sin cos tan", "angles"),
        *plain("asin acos atanh", "small"),
        *plain("acosh", "angles"),
        *plain("mish"),
        case("aten.log_sigmoid_forward", call=lambda x: aten.log_sigmoid_forward(x)[0]),
        *plain("reciprocal rsqrt sigmoid silu relu relu6 square hardswish hardsigmoid"),
        *plain("logical_not leaky_relu elu softplus hardtanh clone alias detach lift_fresh_copy"),
        case("aten.gelu", "angles"),  # of infinity, PyTorch gives NaN in float32
        case("aten.gelu", "angles", call=lambda x: aten.gelu(x, approximate="tanh")),
        case("aten.leaky_relu", call=lambda x: aten.leaky_relu(x, 0.2)),
        case("aten.elu", call=lambda x: aten.elu(x, 1.5, 2.0, 0.5)),
        case("aten.softplus", call=lambda x: aten.softplus(x, 2.0, 5.0)),
        case("aten.hardtanh", call=lambda x: aten.hardtanh(x, -2.0, 2.5)),
        case("aten.clamp", call=lambda x: aten.clamp(x, -2.0, 2.5)),
        case("aten.clamp", call=lambda x: aten.clamp(x, None, 2.5)),
        case("aten.clamp", call=lambda x: aten.clamp(x, 0.5)),
        case("aten.clamp_min", call=lambda x: aten.clamp_min(x, 0.25)),
        case("aten.clamp_max", call=lambda x: aten.clamp_max(x, 0.25)),
    ),
)

BINARY = Group(
    "two operands, broadcast, without dimensions, turned and expanded",
    {
        "x": numbers(3, 1, 5),
        "y": numbers(4, 1) + 3,
        "z": numbers(5, 4, 3).permute(2, 1, 0),
        "e": numbers(1, 5).expand(4, 5),
        "n": torch.tensor(2.5),
        "s": SPECIAL,
        "r": SPECIAL.flip(0),
    },
    (
        *tensors("add sub mul div eq ne lt le gt ge", "x", "y"),
        *tensors("add sub mul", "z", "e"),
        *tensors("add mul div", "z", "n"),
        *tensors("eq ne lt le gt ge", "s", "r"),
        *plain("maximum minimum", "s", "r"),
        *plain("maximum minimum atan2", "z", "y"),
        case("aten.xlogy.Tensor", "x", "y", call=aten.xlogy.Tensor),
        case("aten.xlogy.Tensor", "s", "r", call=aten.xlogy.Tensor),
        case("aten.add", "x", "y", call=lambda x, y: aten.add.Tensor(x, y, alpha=2.5)),
        case("aten.sub", "x", "y", call=lambda x, y: aten.sub.Tensor(x, y, alpha=-3)),
        case("aten.rsub", "x", call=lambda x: aten.rsub.Scalar(x, 1.5)),
        case("aten.rsub", "x", "y", call=lambda x, y: aten.rsub.Tensor(x, y, alpha=2)),
        case("aten.add", "s", call=lambda x: x + 0),
        case("aten.mul", "s", call=lambda x: x * 1),
        case("aten.mul", "s", call=lambda x: x * x),
        case("aten.mul", "s", call=lambda x: x * -0.5),
        case("aten.div", "s", call=lambda x: x / 8),
        case("aten.div", "s", call=lambda x: x / 3),
        case("aten.div", "s", call=lambda x: x / 0),
        case("aten.div", "z", "y", call=partial(aten.div.Tensor_mode, rounding_mode="floor")),
        case("aten.floor_divide", "z", "y"),
        case("aten.remainder", "z", "y", call=aten.remainder.Tensor),
        case("aten.remainder", "z", call=lambda x: x % -0.75),
        *(case("aten.pow", "s", call=lambda x, n=n: x**n) for n in (2, 3, 0.5, -1, -0.5, 0, 1)),
        case("aten.pow", "y", "x", call=lambda y, x: (y.abs() + 0.5) ** x),
        case("aten.pow", "x", call=lambda x: 2**x),
        case("aten.clamp", "z", "y", call=lambda x, y: aten.clamp.Tensor(x, -y, y)),
    ),
)

CHOICES = Group(
    "truth values and choices",
    {
        "x": numbers(3, 4),
        "i": wholes(3, 4),
        "p": truths(3, 4),
        "q": truths(4),
        "n": torch.tensor(-inf),
    },
    (
        *plain("logical_and logical_or logical_xor", "p", "q"),
        *plain("logical_and logical_or logical_xor", "x", "i"),
        *plain("logical_not", "i"),
        *tensors("bitwise_and bitwise_or bitwise_xor", "p", "q"),
        case("aten.bitwise_not", "p"),
        case("aten.where", "p", "x", "x", call=lambda p, x, y: aten.where.self(p, x, -y)),
        case("aten.where", "q", "x", call=lambda q, x: torch.where(q, x, -inf)),
        case("aten.where", "q", "i", call=lambda q, i: torch.where(q, i, 0)),
        case("aten.masked_fill", "x", "q", call=lambda x, q: aten.masked_fill.Scalar(x, q, -inf)),
        case("aten.masked_fill", "x", "q", "n", call=aten.masked_fill.Tensor),
        case("aten.masked_fill", "i", "p", call=lambda i, p: aten.masked_fill.Scalar(i, p, 7)),
        case("aten.add", "p", "q", call=lambda p, q: p + q),
        case("aten.mul", "p", "q", call=lambda p, q: p * q),
    ),
)

DTYPES = Group(
    "whole numbers, truth values and floats together",
    {"x": numbers(3, 4), "i": wholes(3, 4), "j": wholes(4).int() * 2 + 1, "p": truths(4)},
    (
        *(case(f"aten.{n}", "i", "x", call=getattr(aten, n).Tensor) for n in ("add", "mul", "sub")),
        *(case(f"aten.{n}", "i", "j", call=getattr(aten, n).Tensor) for n in ("add", "mul", "lt")),
        *(case(f"aten.{n}", "p", "j", call=getattr(aten, n).Tensor) for n in ("add", "mul", "eq")),
        case("aten.mul", "p", "x", call=lambda p, x: p * x),
        case("aten.add", "i", call=lambda i: i + 1.5),
        case("aten.add", "p", call=lambda p: p + 1),
        case("aten.div", "i", "j", call=lambda i, j: i / j),
        case("aten.div", "i", call=lambda i: i / 4),
        case("aten.floor_divide", "i", "j", call=lambda i, j: i // j),
        case("aten.remainder", "i", "j", call=lambda i, j: i % j),
        case("aten.remainder", "i", call=lambda i: i % 5),
        case("aten.pow", "i", call=lambda i: i**2),
        case("aten.abs", "i"),
        case("aten.neg", "j"),
        case("aten.sign", "i"),
        case("aten.maximum", "i", "j"),
        case("aten.clamp", "i", call=lambda i: aten.clamp(i, -2, 3)),
        case("aten.exp", "j"),
        case("aten.sqrt", "i", call=lambda i: aten.sqrt(aten.abs(i))),
        *(
            case("aten._to_copy", "i", call=lambda i, d=d: aten._to_copy(i, dtype=d))
            for d in (torch.float32, torch.float64, torch.int32, torch.bool)
        ),
        *(
            case("aten._to_copy", "x", call=lambda x, d=d: aten._to_copy(x * 3, dtype=d))
            for d in (torch.int64, torch.int32, torch.bool)
        ),
        case("aten._to_copy", "p", call=lambda p: aten._to_copy(p, dtype=torch.float32)),
        case("aten.to.dtype", "p", call=lambda p: aten.to.dtype(p, torch.int64)),
        case(
            "prims.convert_element_type",
            "p",
            call=lambda p: torch.ops.prims.convert_element_type(p, torch.float32),
        ),
    ),
)

REDUCTIONS = Group(
    "along one position, several, all, from the end, kept",
    {"x": numbers(3, 4, 5), "p": truths(3, 4, 5), "i": wholes(3, 4, 5), "w": numbers(5)},
    (
        *(
            case(f"aten.{n}", call=lambda x, n=n, d=d, k=k: getattr(aten, n)(x, d, k))
            for n in ("amax", "amin")
            for d, k in (([1], False), ([-1, 0], True), ([], False))
        ),
        *(
            case(f"aten.{n}", call=lambda x, n=n, d=d, k=k: getattr(aten, n).dim_IntList(x, d, k))
            for n in ("sum",)
            for d, k in (([1], False), ([-1, 0], True), ([0, 1, 2], False))
        ),
        *(
            case("aten.mean", call=lambda x, d=d, k=k: aten.mean.dim(x, d, k))
            for d, k in (([1], False), ([-1, 0], True))
        ),
        case("aten.sum", call=lambda x: aten.sum.default(x)),
        case("aten.mean", call=lambda x: aten.mean.default(x)),
        case("aten.prod", call=lambda x: aten.prod.dim_int(x, -1)),
        case("aten.prod", call=lambda x: aten.prod.default(x)),
        case("aten.sum", "p", call=lambda p: aten.sum.dim_IntList(p, [1])),
        case("aten.sum", "i", call=lambda i: aten.sum.dim_IntList(i, [1], True)),
        case("aten.amax", "i", call=lambda i: aten.amax(i, [0])),
        case("aten.any", "p", call=lambda p: aten.any.dim(p, -1, True)),
        case("aten.all", "p", call=lambda p: aten.all.dim(p, 0)),
        case("aten.any", "i", call=lambda i: aten.any.default(i)),
        case("aten.all", "p", call=lambda p: aten.all.default(p)),
        case("aten._softmax", call=lambda x: aten._softmax(x, -1, False)),
        replace(case("aten._softmax", call=lambda x: aten._softmax(x * 30, 1, False)), exponent=90),
        case("aten.softmax", call=lambda x: aten.softmax.int(x, 0)),
        case("aten._log_softmax", call=lambda x: aten._log_softmax(x, -1, False)),
        case("aten.log_softmax", call=lambda x: aten.log_softmax.int(x, 1)),
        case("aten.var_mean.correction",
             call=lambda x: aten.var_mean.correction(x, [1], correction=0)),
        case("aten.var_mean.correction",
             call=lambda x: aten.var_mean.correction(x, [-1, 0], keepdim=True)),
        case("aten.var_mean.dim", call=lambda x: aten.var_mean.dim(x, [1], False, True)),
        case("aten.var_mean.default", call=lambda x: aten.var_mean.default(x, False)),
        case("aten.var.correction", call=lambda x: aten.var.correction(x, [1], correction=1)),
        case("aten.var.dim", call=lambda x: aten.var.dim(x, [-1], False, True)),
        case("aten.var.default", call=lambda x: aten.var.default(x)),
        case("aten.native_layer_norm", "x", "w",
             call=lambda x, w: aten.native_layer_norm(x, [5], w, w, 1e-5)),
        case("aten.native_layer_norm", "x",
             call=lambda x: aten.native_layer_norm(x, [4, 5], None, None, 1e-3)),
        case("aten.layer_norm", "x", "w", call=lambda x, w: aten.layer_norm(x, [5], w, None)),
        case("aten.rms_norm", "x", "w", call=lambda x, w: aten.rms_norm(x, [5], w, 1e-6)),
        case("aten.rms_norm", "x", call=lambda x: aten.rms_norm(x, [4, 5])),
        case("aten._fused_rms_norm", "x", "w",
             call=lambda x, w: aten._fused_rms_norm(x, [5], w, 1e-6)),
    ),
)  # fmt: skip

CLASSES = torch.tensor([3, 0, 2, -100, 1, 3, 2])
LOSSES = Group(
    "losses",
    {
        "x": numbers(7, 4), "y": numbers(7, 4), "w": numbers(4).abs(), "t": CLASSES,
        "p": torch.rand(7, 4, generator=generator), "q": torch.rand(7, 4, generator=generator),
        "edge": torch.tensor([0.0, 1.0, 0.5]), "none": torch.full((7,), -100),
        "row": numbers(4), "one": torch.tensor(2),
    },
    (
        *(
            case(f"aten.{name}", "x", "y", call=lambda x, y, f=f, kind=kind: f(x, y, kind))
            for name in ("mse_loss", "smooth_l1_loss", "huber_loss")
            for f in (getattr(aten, name),)
            for kind in (0, 1, 2)
        ),
        case("aten.mse_loss", "x", "w", call=lambda x, w: aten.mse_loss(x, w, 0)),
        case("aten.smooth_l1_loss", "x", "y", call=lambda x, y: aten.smooth_l1_loss(x, y, 1, 0.3)),
        case("aten.smooth_l1_loss", "x", "y", call=lambda x, y: aten.smooth_l1_loss(x, y, 0, 0.0)),
        case("aten.huber_loss", "x", "y", call=lambda x, y: aten.huber_loss(x, y, 1, 0.3)),
        case("aten.binary_cross_entropy", "p", "q",
             call=lambda p, q: aten.binary_cross_entropy(aten.sigmoid(p), q)),
        case("aten.binary_cross_entropy", "edge", "edge",
             call=lambda x, y: aten.binary_cross_entropy(aten.clamp(x, 0, 1), 1 - y, None, 0)),
        case("aten.binary_cross_entropy", "p", "q", "w",
             call=lambda p, q, w: aten.binary_cross_entropy(aten.sigmoid(p), q, w, 2)),
        *(
            case("aten.nll_loss_forward", "x", "t", "w", call=lambda x, t, w, k=k, has=has:
                 aten.nll_loss_forward(x, t, w if has else None, k, -100)[0])
            for k in (0, 1, 2) for has in (True, False)
        ),
        case("aten.nll_loss_forward", "x", "t",
             call=lambda x, t: aten.nll_loss_forward(x, t.clamp_min(0), None, 1, 3)),
        case("aten.nll_loss_forward", "x", "none",
             call=lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100)[0]),
        case("aten.nll_loss_forward", "row", "one",
             call=lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100)),
    ),
)  # fmt: skip

CHANNELS = Group(
    "norms of channels",
    {
        "x": numbers(3, 6, 4, 5), "rows": numbers(5, 6), "w": numbers(6), "b": numbers(6),
        "m": numbers(6), "v": numbers(6).abs(),
    },
    (
        case("aten.native_group_norm", "x", "w", "b",
             call=lambda x, w, b: aten.native_group_norm(x, w, b, 3, 6, 20, 2, 1e-5)),
        case("aten.native_group_norm", "rows",
             call=lambda x: aten.native_group_norm(x, None, None, 5, 6, 1, 3, 1e-3)),
        case("aten.native_group_norm", "x",
             call=lambda x: aten.native_group_norm(x, None, None, 3, 6, 20, 1, 1e-3)[0]),
        case("aten._native_batch_norm_legit_no_training", "x", "w", "b", "m", "v",
             call=lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(
                 x, w, b, m, v, 0.1, 1e-5)[0]),
        case("aten._native_batch_norm_legit_no_training", "rows", "m", "v",
             call=lambda x, m, v: aten._native_batch_norm_legit_no_training(
                 x, None, None, m, v, 0.1, 1e-3)[0]),
    ),
)  # fmt: skip

SCANS = Group(
    "scans",
    {"x": numbers(5, 6, 4), "i": wholes(5, 7), "p": truths(5, 7), "one": numbers(1, 3)},
    (
        *(
            case(f"aten.{name}", "x", call=lambda x, n=name, d=d: getattr(aten, n)(x, d))
            for name in ("cumsum", "logcumsumexp")
            for d in (0, 1, -1)
        ),
        *(
            case(f"aten.{name}", "x", call=lambda x, n=name, d=d: getattr(aten, n)(x, d)[0])
            for name in ("cummax", "cummin")
            for d in (0, 1, -1)
        ),
        case("aten.cumsum", "i", call=lambda i: aten.cumsum(i, 1)),
        case("aten.cumsum", "i", call=lambda i: aten.cumsum(i, 0, dtype=torch.float32)),
        case("aten.cumsum", "p", call=lambda p: aten.cumsum(p, -1)),
        case("aten.cumprod", "i", call=lambda i: aten.cumprod(i, 1)),
        case("aten.cummax", "i", call=lambda i: aten.cummax(i, 0)[0]),
        case("aten.cumsum", "one", call=lambda x: aten.cumsum(x, 0)),
        case("aten.cumsum", "one", call=lambda x: aten.cumsum(x.expand(4, 3), 0)),
        case("aten.cummax", "one", call=lambda x: aten.cummax(x.expand(4, 3), 0)[0]),
    ),
)  # fmt: skip

SUMS = {
    "aten.cumsum", "aten.cumprod", "aten.logcumsumexp",
    "aten.sum", "aten.mean", "aten.prod", "aten._softmax", "aten.softmax", "aten._log_softmax",
    "aten.log_softmax", "aten.var.default", "aten.var.correction",
    "aten.var.dim", "aten.var_mean.correction", "aten.var_mean.dim", "aten.var_mean.default",
    "aten.native_layer_norm", "aten.layer_norm", "aten.rms_norm", "aten._fused_rms_norm",
    "aten.mse_loss", "aten.smooth_l1_loss", "aten.huber_loss", "aten.binary_cross_entropy",
    "aten.nll_loss_forward", "aten.native_group_norm",
    "aten._native_batch_norm_legit_no_training",
    "aten.mm", "aten.bmm",
    "aten.addmm", "aten.baddbmm", "aten.mv", "aten.dot", "aten.linear", "aten.matmul",
    "aten.convolution", "aten.gelu",
}  # fmt: skip
"""Rows that add up terms of both signs."""

PRODUCTS = Group(
    "sums of products",
    {
        "a": numbers(4, 6),
        "b": numbers(6, 5),
        "c": numbers(2, 4, 6),
        "d": numbers(2, 6, 5),
        "v": numbers(6),
        "w": numbers(5, 6),
        "bias": numbers(5),
        "h": numbers(3, 1, 4, 6),
    },
    (
        case("aten.mm", "a", "b"),
        case("aten.mm", "a", "w", call=lambda a, w: aten.mm(a, aten.t(w))),
        case("aten.bmm", "c", "d"),
        case("aten.addmm", "bias", "a", "b"),
        case("aten.addmm", "bias", "a", "b",
             call=lambda c, a, b: aten.addmm(c, a, b, beta=0.5, alpha=-2)),
        case("aten.baddbmm", "bias", "c", "d"),
        case("aten.baddbmm", "bias", "c", "d",
             call=lambda z, c, d: aten.baddbmm(z, c, d, beta=0, alpha=0.5)),
        case("aten.mv", "a", "v"),
        case("aten.dot", "v", "v"),
        case("aten.linear", "c", "w", "bias"),
        case("aten.linear", "v", "w"),
        case("aten.matmul", "a", "b"),
        case("aten.matmul", "h", "d"),
        case("aten.matmul", "c", "b"),
    ),
)  # fmt: skip

PATCHES = Group(
    "convolutions of patches",
    {"x": numbers(2, 3, 4, 6), "w": numbers(5, 3, 2, 3), "bias": numbers(5)},
    (
        case("aten.convolution", "x", "w", "bias",
             call=lambda x, w, b: aten.convolution(
                 x, w, b, [2, 3], [0, 0], [1, 1], False, [0, 0], 1)),
        case("aten.convolution", "x", "w",
             call=lambda x, w: aten.convolution(
                 x, w, None, [2, 3], [0, 0], [1, 1], False, [0, 0], 1)),
    ),
)  # fmt: skip

VIEWS = Group(
    "views, each of something computed, and then doubled",
    {"x": numbers(4, 6), "one": numbers(3, 1, 2)},
    tuple(
        case(f"aten.{name}", source, call=lambda x, f=f: f(x * 3) * 2)
        for name, source, f in (
            ("view", "x", lambda x: aten.view(x, [2, 2, 6])),
            ("_unsafe_view", "x", lambda x: aten._unsafe_view(x, [24])),
            ("reshape", "x", lambda x: aten.reshape(x, [4, 3, -1])),
            ("permute", "x", lambda x: aten.permute(x, [-1, 0])),
            ("transpose", "x", lambda x: aten.transpose.int(x, 0, -1)),
            ("t", "x", lambda x: aten.t(x)),
            ("unsqueeze", "x", lambda x: aten.unsqueeze(x, -1)),
            ("unsqueeze", "x", lambda x: aten.unsqueeze(x, 1)),
            ("squeeze", "one", lambda x: aten.squeeze.dim(x, 1)),
            ("squeeze", "one", lambda x: aten.squeeze.dim(x, 0)),
            ("squeeze", "one", lambda x: aten.squeeze.default(x)),
            ("squeeze", "one", lambda x: aten.squeeze.dims(x, [1, 2])),
            ("expand", "one", lambda x: aten.expand(x, [5, 3, 4, 2])),
            ("expand", "one", lambda x: aten.expand(x, [-1, 4, -1])),
            ("repeat", "one", lambda x: aten.repeat(x, [2, 3, 1, 2])),
            ("contiguous", "x", lambda x: aten.contiguous(aten.t(x))),
        )
    ),
)

GENERATED = Group(
    "arrays made from numbers",
    {"x": numbers(4, 6), "i": wholes(6)},
    (
        case("aten.full", call=lambda x: x + aten.full([4, 6], 2.5)),
        case("aten.full_like", call=lambda x: x * aten.full_like(x, 2)),
        case("aten.scalar_tensor", call=lambda x: x * aten.scalar_tensor(0.5)),
        case("aten.arange", call=lambda x: x * aten.arange.default(6)),
        case("aten.arange", call=lambda x: x + aten.arange.start(2, 8)),
        case("aten.arange", call=lambda x: x + aten.arange.start_step(1.0, 4.0, 0.5)),
        case("aten.arange", "i", call=lambda i: i < aten.arange.start_step(12, 0, -2)),
        case("aten.cat", call=lambda x: aten.cat([x * 2, x + 1], -1)),
        case("aten.cat", call=lambda x: aten.cat([x * 2, x, x + 1])),
    ),
)

FILLED = Group(
    "arrays of zeros and ones, which torch.compile writes as full",
    {"x": numbers(4, 6)},
    (
        case("aten.zeros", call=lambda x: x + aten.zeros([6])),
        case("aten.ones", call=lambda x: x + aten.ones([6])),
        case("aten.zeros_like", call=lambda x: x + aten.zeros_like(x)),
        case("aten.ones_like", call=lambda x: x * aten.ones_like(x)),
    ),
)

LOOKUPS = Group(
    "lookups at places that are data",
    {
        "table": numbers(7, 5),
        "ids": torch.tensor([[3, 0, 6], [1, 1, 2]]),
        "rows": torch.tensor([4, 4, 0]),
        "places": torch.tensor([[1, 0], [4, 2], [0, 0], [3, 3], [2, 1], [0, 4], [1, 1]]),
        "words": numbers(3, 7, 5),
        "batches": numbers(2, 3, 7),
        "last": torch.tensor([-1, 0, 6]),
        "one": numbers(1, 7, 5),
        "first": torch.tensor([3]),
        "bias": numbers(5),
    },
    (
        case("aten.embedding", "table", "ids", call=lambda w, i: aten.embedding(w, i) * 2),
        case("aten.index_select", "table", "rows",
             call=lambda w, i: aten.index_select(w, 0, i) * 2),
        case("aten.index_select", "table", "rows",
             call=lambda w, i: aten.index_select(w, -1, i) + 1),
        case("aten.gather", "table", "places", call=lambda w, i: aten.gather(w, 1, i) * 2),
        case("aten.index", "table", "rows", call=lambda w, i: w[i] * 2),
        case("aten.index", "bias", "rows", call=lambda w, i: aten.index.Tensor(w, [i.amax()]) * 2),
        case("aten.index", "table", "ids", call=lambda w, i: w[:, i - 3] * 2),
        case("aten.index", "words", "last", call=lambda x, i: x[torch.arange(3), i] * 2),
        case("aten.index", "words", "last", call=lambda x, i: x[torch.arange(3)[:, None], i] * 2),
        case("aten.index", "words", "places",
             call=lambda x, i: x[torch.arange(3)[:, None], i[:3]] * 2),
        case("aten.index", "words", "places",
             call=lambda x, i: x[i.clamp(max=2)[..., None], torch.arange(7)[:, None, None]] * 2),
        case("aten.index", "batches", "last", call=lambda x, i: x[:, torch.arange(3), i] * 2),
        case("aten.index", "batches", "last",
             call=lambda x, i: x[torch.arange(2)[:, None], torch.arange(3), i] * 2),
        case("aten.index", "one", "first", call=lambda x, i: x[torch.arange(1), i] * 2),
        case("aten.index", "one", "last", call=lambda x, i: x[torch.arange(1), i] * 2),
    ),
)  # fmt: skip

PADDED = Group(
    "padding before and behind, of any dtype, and taking away",
    {"x": numbers(2, 3, 5), "one": numbers(2, 1, 3), "i": wholes(3, 4), "p": truths(3, 4)},
    tuple(
        case("aten.constant_pad_nd", source, call=partial(padded_twice, pads=pads, fill=fill))
        for source, pads, fill in (
            *(("x", [1, 2], 0), ("x", [0, 0, 2, 0], -1.5), ("x", [0, 0, 0, 0, 0, 3], -inf)),
            *(("x", [1, -1], 0.5), ("x", [0, 0, -2, 4], nan), ("x", [0, 0], 1)),
            *(("x", [-1, -2], 0), ("x", [0, -1, -1, -1], 0), ("x", [1, 2, 0, 1, 3, 0], 2)),
            *(("x", [-1, 2, -1, 0, 1, 1], 0), ("one", [0, 0, 2, 1], 3), ("one", [0, 0, -1, 1], 3)),
            *(("i", [1, 2], 7), ("i", [1, 0, 1, 0], 0.0), ("p", [1, 2], True), ("p", [3, -1], 0)),
        )
    ),
)

GROUPS = (
    UNARY, BINARY, CHOICES, DTYPES, REDUCTIONS, SCANS, LOSSES, CHANNELS, PRODUCTS, PATCHES, VIEWS,
    GENERATED, LOOKUPS, PADDED,
)  # fmt: skip


def each(*groups: Group) -> pytest.MarkDecorator:
    ids = [g.name.split(",")[0].replace(" ", "-") for g in groups]
    return pytest.mark.parametrize("group", groups, ids=ids)


ELSEWHERE = {
    # parts of arrays: test_views.py
    "aten.slice", "aten.select", "aten.split", "aten.split_with_sizes", "aten.unbind",
    "aten.narrow", "aten.as_strided", "aten.diagonal",
    # gone before a backend sees them, or of no defined value
    "aten.lift_fresh", "aten.empty",
}  # fmt: skip


def test_every_row_has_a_case() -> None:
    rows = {c.row for group in (*GROUPS, FILLED) for c in group.cases}
    assert rows | ELSEWHERE >= set(TABLE)
    assert rows <= set(TABLE)


@each(*GROUPS, FILLED)
def test_through_torch_compile(group: Group) -> None:
    found, explanation = compiled(group)
    check(group, found)
    assert explanation.fallbacks == []
    assert explanation.misc == []


@each(*GROUPS)
def test_each_row_as_it_stands(group: Group) -> None:
    """The operators that torch.compile would take apart reach their own rows."""
    found, graph = alone(group)
    check(group, found)
    explanation = Explanation((graph,))
    assert explanation.fallbacks == []
    assert explanation.misc == []
    covered = {str(n.target) for f in graph.fused for n in f.part.covered}
    for row in {c.row for c in group.cases if TABLE[c.row].kind is not Kind.VIEW}:
        assert any(name.startswith(row) for name in covered), f"{row} is in no kernel"


BF16 = torch.bfloat16


def test_bfloat16_is_stored_and_float32_is_computed() -> None:
    """A chain is rounded where it is stored and nowhere else: no worse than eager, which rounds
    after each operator."""
    x, y = numbers(6, 32).to(BF16), numbers(32).to(BF16)

    def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * y
        return normal, torch.softmax(normal, -1), x + 1

    group = Group("bfloat16", {"x": x, "y": y}, (Case("aten.sum", chain, ("x", "y")),))
    found, explanation = compiled(group)
    assert explanation.fallbacks == explanation.misc == []
    check(group, found)


def test_integers_beside_bfloat16() -> None:
    x, i = numbers(4, 6).to(BF16), wholes(6)
    calls = (lambda x, i: x * i, lambda x, i: i / 2 + x.float(), lambda x, i: x < i)
    cases = tuple(Case("aten.mul", call, ("x", "i")) for call in calls)
    found, explanation = compiled(group := Group("mixed", {"x": x, "i": i}, cases))
    assert explanation.fallbacks == explanation.misc == []
    check(group, found)


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("division rounded towards zero", lambda i: torch.div(i, 2, rounding_mode="trunc")),
        ("bit arithmetic on whole numbers", lambda i: i & 3),
        ("bit arithmetic on whole numbers", lambda i: ~i),
    ],
)
def test_what_a_row_refuses_runs_eagerly_with_its_reason(
    what: str, call: Callable[[Tensor], Tensor]
) -> None:
    made = Case("aten.add", lambda i: call(i.sum(-1)) + 1, ("i",))
    group = Group("refused", {"i": wholes(4, 6)}, (made,))
    found, explanation = compiled(group, target="interpret")
    check(group, found)
    assert what in str(explanation.fallbacks[0])


def test_what_is_refused_but_cheap_is_made_outside() -> None:
    """An operator on inputs alone is listed as PyTorch's own."""
    group = Group(
        "outside", {"i": wholes(4, 6)}, (Case("aten.add", lambda i: (i & 3) + 1, ("i",)),)
    )
    found, explanation = compiled(group, target="interpret")
    check(group, found)
    assert [left.operator for left in explanation.misc] == ["aten.bitwise_and.Scalar"]
