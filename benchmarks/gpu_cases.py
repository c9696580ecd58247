"""The cases of benchmarks/gpu_limits.py: products, rows, reductions and pointwise kernels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from limits import Case, norm_linear, norm_swiglu
from never_slower.elements import long_chain
from torch import Tensor

LARGE = 64e6
"""Bytes from which on a kernel without products is compared with the memory."""
PLAIN = "plain product"
"""The baseline of a product with more: our own kernel of the product alone."""
GOALS = {"memory": 0.90, "PyTorch": 1.0, "cuBLAS": 0.92, PLAIN: 0.97}


@dataclass(frozen=True)
class GpuCase(Case):
    """A case in bfloat16, with what it is compared with."""

    baselines: tuple[str, ...] = ("eager", "Inductor")
    classes: int = 0
    """If there are any, the last input has one for each row."""
    plain: Callable[..., Tensor] | None = None
    """The product alone, of the same inputs: what comes before or after it is to cost little."""

    def sets(self, count: int, device: str = "cuda") -> Iterator[list[Tensor]]:
        """Inputs of the case, with other numbers each time."""
        for seed in range(count):
            torch.manual_seed(seed)
            made = [torch.randn(shape, device=device) for shape in self.shapes]
            made = [x / x.shape[-1] ** 0.5 if number else x for number, x in enumerate(made)]
            given = [x.bfloat16() for x in made]
            if self.classes:
                given[-1] = torch.randint(self.classes, self.shapes[-1], device=device)
            yield given

    @property
    def limit(self) -> str:
        """A baseline, the better of them, the product alone, or "memory"."""
        if self.plain is not None:
            return PLAIN
        if len(self.baselines) == 1:
            return self.baselines[0]
        if not self.flops and self.bytes >= LARGE:
            return "memory"
        return "PyTorch"

    @property
    def goal(self) -> float:
        return GOALS[self.limit]

    @property
    def bytes(self) -> float:
        """The bytes of inputs and results, each moved once."""
        device = torch.device("meta")
        given = [torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in self.shapes]
        if self.classes:
            given[-1] = given[-1].long()
        return float(sum(x.nbytes for x in (*given, self.function(*given))))


# fmt: off
PRODUCTS = (
    (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
    (8205, 2949, 5921), (1001, 999, 1003), (64, 65536, 64), (65536, 512, 64), (128, 512, 65536),
    (1, 4096, 4096), (16, 4096, 4096),
)
LINEARS = (
    (4096, 4096, 4096), (512, 1024, 4096), (128, 4096, 4096), (333, 2570, 1025),
    (1, 4096, 4096), (4, 4096, 4096), (16, 4096, 4096), (16, 4096, 14336), (1, 2048, 128256),
)
# fmt: on


def named(name: str, *shape: int) -> str:
    return f"{name} {'x'.join(map(str, shape))}"


def products() -> Iterator[GpuCase]:
    alone = ("cuBLAS",)
    for m, k, n in PRODUCTS:
        name = named("product", m, k, n)
        yield GpuCase(name, torch.matmul, ((m, k), (k, n)), 2.0 * m * k * n, alone)
    for m, k, n in LINEARS:
        name = named("linear", m, k, n)
        yield GpuCase(name, F.linear, ((m, k), (n, k)), 2.0 * m * k * n, alone)
    b, m, k, n = 64, 512, 128, 512
    name = named("batched product", b, m, k, n)
    yield GpuCase(name, torch.matmul, ((b, m, k), (b, k, n)), 2.0 * b * m * k * n, alone)
    for m, n in ((16384, 8192), (4096, 4096)):
        yield GpuCase(named("matrix times vector", m, n), torch.mv, ((m, n), (n,)))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight)


def rows() -> Iterator[GpuCase]:
    for m, n in ((8192, 768), (8192, 4096), (16384, 8192), (333, 5921)):
        yield GpuCase(named("layer norm", m, n), layer_norm, ((m, n), (n,), (n,)))
    for m, n in ((4096, 4096), (16384, 8192), (16, 4096)):
        yield GpuCase(named("rms norm", m, n), rms_norm, ((m, n), (n,)))
    for m, n in ((16384, 1000), (8192, 8192), (64, 128256), (200_000, 100)):
        yield GpuCase(named("softmax", m, n), lambda x: x.softmax(-1), ((m, n),))
    for m, n in ((512, 32000), (8192, 8192)):
        yield GpuCase(named("log softmax", m, n), lambda x: x.log_softmax(-1), ((m, n),))
    for m, n in ((8192, 1000), (1024, 128256)):
        name = named("cross entropy", m, n)
        yield GpuCase(name, F.cross_entropy, ((m, n), (m,)), classes=n)
    for m, n in ((1000, 10_000), (50_000, 100), (4, 1_000_000)):
        yield GpuCase(named("cumsum of rows", m, n), lambda x: x.cumsum(-1), ((m, n),))
    yield GpuCase(named("cumsum of columns", 8192, 4096), lambda x: x.cumsum(0), ((8192, 4096),))
    name = named("cumsum of a softmax", 64, 128_256)
    yield GpuCase(name, lambda x: x.softmax(-1).cumsum(-1), ((64, 128_256),))
    name, shape = named("cumsum between", 8192, 4096), (8192, 4096)
    yield GpuCase(name, lambda x, y, z: (x * y).cumsum(-1) + z, (shape, shape, shape))


def sums() -> Iterator[GpuCase]:
    yield GpuCase("sum of all 16000000", torch.sum, ((16_000_000,),))
    yield GpuCase("sum of all 16384x8192", torch.sum, ((16384, 8192),))
    for m, n in ((200, 100_000), (200_000, 100), (16384, 8192)):
        yield GpuCase(named("sum of rows", m, n), lambda x: x.sum(-1), ((m, n),))
    for m, n in ((4096, 4096), (200, 100_000), (200_000, 100), (16384, 8192)):
        yield GpuCase(named("sum of columns", m, n), lambda x: x.sum(0), ((m, n),))
    yield GpuCase(named("mse", 8192, 4096), F.mse_loss, ((8192, 4096),) * 2)


def pointwise() -> Iterator[GpuCase]:
    shape = (8192, 4096)
    for m, n in ((16384, 1000), (200_000, 100), shape, (16384, 8192)):  # what a copy reaches
        yield GpuCase(named("negation", m, n), torch.neg, ((m, n),))
    yield GpuCase(named("gelu", *shape), F.gelu, (shape,))
    yield GpuCase(named("silu gate", *shape), lambda x, y: F.silu(x) * y, (shape, shape))
    for m in (4096, 8192):
        yield GpuCase(named("sum with a transpose", m, m), lambda x: x + x.t(), ((m, m),))
    yield GpuCase(
        named("row and column", *shape), lambda x, r, c: x * r + c, (shape, shape[1:], (8192, 1))
    )
    for m, n in ((256, 1024), shape):
        yield GpuCase(named("long chain", m, n), long_chain, ((m, n), (m, n)))


def fused_products() -> Iterator[GpuCase]:
    for m, k, n in ((4096, 4096, 4096), (8192, 1024, 4096), (128, 4096, 4096), (16, 8192, 8192)):
        shapes = (m, k), (k,), (k,), (n, k)
        yield GpuCase(named("layer norm, linear", m, k, n), norm_linear, shapes, 2.0 * m * k * n)
    few, many = (1, 16, 128), (1024, 4096)
    for d, inner, counts in ((4096, 14336, (*few, *many)), (1024, 2816, few)):
        for m in counts:
            shapes = (m, d), (d,), (inner, d), (inner, d), (d, inner)
            name = named("rms norm, SwiGLU, residual", m, d, inner)
            yield GpuCase(name, norm_swiglu, shapes, 6.0 * m * d * inner)


def additions() -> Iterator[GpuCase]:
    """Products with an epilogue or a prologue, beside the same products alone."""

    def plain(x: Tensor, weight: Tensor, *_: Tensor) -> Tensor:
        return F.linear(x, weight)

    def epilogue(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(F.linear(x, weight, bias))

    def residual(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
        return y + F.linear(x, weight)

    def prologue(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return F.linear(rms_norm(x, scale), weight)

    for m, k, n in ((4096, 4096, 4096), (2048, 4096, 14336), (512, 1024, 4096), (16, 4096, 4096)):
        for name, function, more in (
            ("linear and gelu", epilogue, (n,)),
            ("linear and residual", residual, (m, n)),
            ("rms norm and linear", prologue, (k,)),
        ):
            shapes, flops = ((m, k), (n, k), more), 2.0 * m * k * n
            yield GpuCase(named(name, m, k, n), function, shapes, flops, plain=plain)


CASES = [*products(), *rows(), *sums(), *pointwise(), *fused_products(), *additions()]
