"""Complex numbers as pairs of floats, and those that stay complex."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb
from helpers.torch_running import Watched

generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))


def as_real(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2)


def angles(positions: Tensor, width: int) -> Tensor:
    return positions[:, None] * 10000.0 ** -(torch.arange(width) / width)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """DeepSeek-V2's rotary embedding of (batch, head, word, place)."""
    turns = angles(positions.float(), x.shape[-1] // 2)
    frequencies = torch.polar(torch.ones_like(turns), turns) * 1.5
    frequencies = frequencies.unsqueeze(0).unsqueeze(1).to(x.device)
    return as_real(as_complex(x) * frequencies).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_embeddings_are_kernels(dtype: torch.dtype) -> None:
    watched = Watched(lambda x, w, i: torch.tanh(rotate(x @ w, i)), target="cpu")
    watched.check(numbers(2, 3, 5, 6).to(dtype), numbers(6, 8).to(dtype), torch.arange(5))
    assert watched.explanation.fallbacks == watched.explanation.misc == []


def test_of_lengths_that_change() -> None:
    watched = Watched(rotate, dynamic=True, target="interpret")
    for length in (5, 8):
        watched.check(numbers(2, 3, length, 8), torch.arange(length))
    assert len(watched.graphs) == 1
    assert watched.explanation.fallbacks == watched.explanation.misc == []


def test_in_an_exported_program() -> None:
    class Rotary(torch.nn.Module):
        def forward(self, x: Tensor, positions: Tensor) -> Tensor:
            return rotate(x, positions)

    given = numbers(2, 3, 5, 8), torch.arange(5)
    compiled = bb.from_torch(torch.export.export(Rotary(), given), target="interpret")
    torch.testing.assert_close(compiled(*given), rotate(*given))
    assert compiled.explanation.fallbacks == compiled.explanation.misc == []


def test_arrays_that_are_given_are_seen_as_pairs() -> None:
    """Llama's own code has a table of frequencies: a view of it is no work."""

    def turned(x: Tensor, table: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        shape = (1, x.shape[1], 1, -1)
        first = table[: x.shape[1]].view(shape)
        return as_real(as_complex(x) * first), as_real(as_complex(x) * table[places].view(shape))

    turns = angles(torch.arange(9.0), 4)
    table = torch.polar(torch.ones_like(turns), turns)
    watched = Watched(turned, target="interpret")
    watched.check(numbers(2, 5, 3, 8), table, torch.tensor([4, 0, 8, 2, 2]))
    assert {left.operator for left in watched.explanation.misc} == {"aten.view_as_real.default"}
    assert watched.explanation.fallbacks == []


KNOWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda x, y: x + y - 2,
    "product": lambda x, y: x * y * -0.5,
    "complex number": lambda x, y: x * 2j + y,
    "with real numbers": lambda x, y: x * y.real + y.imag,
    "square": lambda x, y: x * x,
    "conjugate": lambda x, y: -(x * y.conj()).resolve_conj(),
    "from parts": lambda x, y: torch.complex(x.real * 2, y.real) * x,
    "from real numbers": lambda x, y: x.real.to(torch.complex64) * y + x.real.to(torch.complex64),
    "real after all": lambda x, y: x.real.to(torch.complex64) * 2,
    "turned": lambda x, y: (x * y).transpose(0, 1)[:, None, 1:].expand(-1, 2, -1).reshape(-1, 4),
    "joined": lambda x, y: torch.cat([x * y, x + y]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_operators(name: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.view_as_real(KNOWN[name](as_complex(x), as_complex(y)))

    watched = Watched(function, target="interpret")
    watched.check(numbers(3, 8), numbers(3, 8))
    assert watched.explanation.fallbacks == watched.explanation.misc == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: as_complex(x) * 2,
        lambda x: (as_complex(x) * 2).abs() + 1,
        lambda x: torch.fft.fft(as_complex(x) * 2).real + 1,
        lambda x: torch.view_as_real(torch.exp(as_complex(x) * 1j)) + 1,
    ],
    ids=["given out", "length", "transform", "power"],
)
def test_others_stay_complex(function: Callable[[Tensor], Tensor]) -> None:
    watched = Watched(function, target="interpret")
    watched.check(numbers(3, 8))
    left = watched.explanation.misc
    assert "kernels do not compute with torch.complex64" in {x.reason for x in left}
