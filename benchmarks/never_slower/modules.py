"""The modules of the cases: attention, MLPs, and layers of transformers and of other networks."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def widened(x: Tensor) -> Tensor:
    """Numbers of at least 32 bits; float64 stays, for the run that errors are measured by."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class RMSNorm(nn.Module):
    """As Llama writes it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = widened(x)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class Attention(nn.Module):
    """Self-attention of grouped heads, with or without positions and a cache."""

    def __init__(
        self,
        width: int,
        heads: int,
        groups: int = 0,
        *,
        causal: bool = False,
        rotary: bool = False,
        bias: bool = True,
        room: int = 0,
    ) -> None:
        """`room` is the length of the cache of keys, which is full but for a few; 0 is no cache."""
        super().__init__()
        self.heads, self.groups, self.head = heads, groups or heads, width // heads
        self.causal, self.rotary, self.room = causal, rotary, room
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, self.groups * self.head, bias=bias)
        self.v = nn.Linear(width, self.groups * self.head, bias=bias)
        self.o = nn.Linear(width, width, bias=bias)
        self.register_buffer("at", torch.tensor([max(room - 5, 0)]))
        self.register_buffer("steps", 10000.0 ** -(torch.arange(0, self.head, 2) / self.head))
        if room:
            shape = (1, self.groups, room, self.head)
            self.register_buffer("keys", torch.randn(shape))
            self.register_buffer("values", torch.randn(shape))

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.head).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        q = self.split(self.q(x), self.heads)
        k = self.split(self.k(x), self.groups)
        v = self.split(self.v(x), self.groups)
        if self.rotary:
            at = self.at if self.room else torch.arange(length, device=x.device)
            angles = at[:, None] * widened(self.steps)
            angles = torch.cat((angles, angles), -1)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        mask = None
        if self.room:
            k = self.keys.index_copy_(2, self.at, k)
            v = self.values.index_copy_(2, self.at, v)
            mask = torch.arange(self.room, device=x.device)[None] <= self.at[:, None]
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=self.causal and mask is None,
            enable_gqa=self.groups != self.heads,
        )
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class CrossAttention(nn.Module):
    """Attention to the rows of another input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.q(x), *self.kv(other).chunk(2, -1))
        )
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int, inner: int, approximate: str = "none") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class SwiGLU(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PackedSwiGLU(nn.Module):
    """Gate and up projection as one matrix."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class NormSwiGLU(nn.Module):
    """A norm, SwiGLU and the sum with what came in."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.mlp = RMSNorm(width), SwiGLU(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class SquaredReLU(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).square())


class LowRank(nn.Module):
    """A linear layer with an addition of low rank (LoRA)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.a = nn.Linear(width, rank, bias=False)
        self.b = nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.b(self.a(x))


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int, room: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(
            width, heads, groups, causal=True, rotary=True, bias=False, room=room
        )
        self.mlp = SwiGLU(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Block(nn.Module):
    """A layer of GPT (causal) or of ViT: norms before attention and MLP."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, room: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal, room=room)
        self.mlp = MLP(width, 4 * width, "tanh" if causal else "none")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class BertLayer(nn.Module):
    """Norms after the sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), MLP(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class ParallelLayer(nn.Module):
    """Attention and MLP of one norm, added together, as in GPT-J."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=True, rotary=True, bias=False)
        self.mlp = MLP(width, 4 * width, "tanh")

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y) + self.mlp(y)


class CrossLayer(nn.Module):
    """A decoder's layer of a model that has an encoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.own = Attention(width, heads, causal=True)
        self.other = CrossAttention(width, heads)
        self.mlp = MLP(width, 4 * width)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        x = x + self.own(self.norm1(x))
        x = x + self.other(self.norm2(x), other)
        return x + self.mlp(self.norm3(x))


class Residual(nn.Module):
    """Two convolutions with batch norms, and the sum with what came in."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        same = channels == out and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ConvNextLayer(nn.Module):
    """A convolution of each channel, a norm and an MLP over the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.mlp = nn.LayerNorm(width), MLP(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)


class MixerLayer(nn.Module):
    """MLPs over places and over channels in turn."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.along = MLP(places, 2 * places), MLP(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm2(x))


class Denoiser(nn.Module):
    """A layer of a diffusion transformer: norms that a time step scales and shifts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(width, heads), MLP(width, 4 * width, "tanh")
        self.changes = nn.Linear(width, 6 * width)
        self.width = width

    def norm(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,)) * (1 + scale) + shift

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.changes(F.silu(step))[:, None].chunk(
            6, -1
        )
        x = x + gate1 * self.attention(self.norm(x, shift1, scale1))
        return x + gate2 * self.mlp(self.norm(x, shift2, scale2))
