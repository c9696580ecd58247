"""Cases of attention, MLPs, layers of transformers and whole small models."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from never_slower import models, modules
from never_slower.case import Case, Family, Input, by_name, chances, normal, places

HEADS = {"cpu": (1, 8, 256, 64), "cuda": (4, 16, 2048, 128)}
"""Batch, heads, length and width of a head, where a case names none."""
SQUARE = {
    "cpu": ((1, 8, 512, 64), (1, 2, 1024, 64), (4, 4, 128, 32), (1, 4, 333, 80), (1, 4, 256, 128)),
    "cuda": (
        (4, 32, 2048, 128), (1, 16, 8192, 128), (64, 12, 128, 64), (2, 16, 1000, 80),
        (8, 16, 1024, 64),
    ),
}  # fmt: skip
LONG = {"cpu": 2048, "cuda": 8192}
"""The number of keys for one query."""
MLPS = {"cpu": (512, 1536), "cuda": (4096, 14336)}
MLP_ROWS = {"cpu": (1, 16, 128), "cuda": (1, 16, 1024)}
WIDTH = {"cpu": (256, 8), "cuda": (2048, 16)}
"""Width and number of heads of a layer."""
LENGTH = {"cpu": 64, "cuda": 1024}
VOCABULARY = {"cpu": 1000, "cuda": 32_000}


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def distances(q: Tensor, k: Tensor) -> Tensor:
    """The distance of each key before a query."""
    rows = torch.arange(q.shape[-2], device=q.device)
    columns = torch.arange(k.shape[-2], device=q.device)
    return rows[:, None] - columns


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scores_of(q, k).softmax(-1) @ v


def causal_written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = scores_of(q, k).masked_fill(distances(q, k) < 0, -torch.inf)
    return scores.softmax(-1) @ v


def sliding_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    behind = distances(q, k)
    outside = (behind < 0) | (behind >= 64)
    return scores_of(q, k).masked_fill(outside, -torch.inf).softmax(-1) @ v


def relu_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.relu(scores_of(q, k)) @ v / k.shape[-2]


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    behind = distances(q, k)
    scores = scores_of(q, k) - slopes.abs()[:, None, None] * behind
    return scores.masked_fill(behind < 0, -torch.inf).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = 20.0 * torch.tanh(scores_of(q, k) / 20.0)
    return scores.masked_fill(distances(q, k) < 0, -torch.inf).softmax(-1) @ v


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2, keepdim=True).transpose(-1, -2))


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] > 1, enable_gqa=True)


def cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def attentions(device: str) -> Iterator[Case]:
    family = Family("attention", device)
    for shape in SQUARE[device]:
        given = [normal(*shape)] * 3
        yield family.function(f"attention {by_name(shape)}", plain, *given)
        yield family.function(f"causal attention {by_name(shape)}", causal, *given)
    batch, heads, length, width = shape = HEADS[device]
    size, given = by_name(shape), [normal(*shape)] * 3
    yield family.function(f"attention, mask {size}", masked, *given, chances(length, length))
    yield family.function(
        f"attention, float bias {size}", masked, *given, normal(heads, length, length)
    )
    few = [normal(batch, heads // 4, length, width)] * 2
    yield family.function(f"attention, grouped heads {size}", grouped, normal(*shape), *few)
    keys = normal(batch, heads, 4 * length, width)
    name = f"attention, {length} queries, {4 * length} keys"
    yield family.function(name, plain, normal(*shape), keys, keys)
    long = LONG[device]
    one, keys = normal(1, heads, 1, width), normal(1, heads, long, width)
    yield family.function(f"attention, one query, {long} keys", plain, one, keys, keys)
    few = normal(1, heads // 4, long, width)
    yield family.function(f"attention, one query, grouped, {long} keys", cached, one, few, few)
    many, keys = normal(8, heads, 1, width), normal(8, heads, long // 4, width)
    yield family.function(f"attention, 8 of one query, {long // 4} keys", plain, many, keys, keys)
    for word, function in (
        ("written out", written_out),
        ("causal written out", causal_written_out),
        ("sliding window", sliding_window),
        ("relu", relu_attention),
        ("capped", capped),
        ("linear", linear_attention),
    ):
        yield family.function(f"attention, {word} {size}", function, *given)
    yield family.function(f"attention, alibi {size}", alibi, *given, normal(heads))
    if device == "cuda":
        given = [normal(2, 16, 1024, 64)] * 3
        for word, function in (("attention", plain), ("attention, written out", written_out)):
            name = f"{word} {by_name((2, 16, 1024, 64))}"
            yield family.function(name, function, *given, dtype=torch.float32)


def mlps(device: str) -> Iterator[Case]:
    family = Family("MLPs", device)
    width, inner = MLPS[device]
    for rows in MLP_ROWS[device]:
        size = by_name((rows, width, inner))
        for word, module in (
            ("gelu MLP", modules.MLP),
            ("SwiGLU", modules.SwiGLU),
            ("norm, SwiGLU, residual", modules.NormSwiGLU),
        ):
            yield family.module(
                f"{word} {size}", partial(module, width, inner), normal(rows, width)
            )
    x = normal(rows, width)
    yield family.module(
        f"SwiGLU of one matrix {size}", partial(modules.PackedSwiGLU, width, inner), x
    )
    yield family.module(f"squared relu MLP {size}", partial(modules.SquaredReLU, width, inner), x)
    size = by_name((rows, width, 16))
    yield family.module(f"linear of low rank {size}", partial(modules.LowRank, width, 16), x)


def layers(device: str) -> Iterator[Case]:
    family = Family("layers", device)
    width, heads = WIDTH[device]
    length, room = LENGTH[device], 8 * LENGTH[device]
    rows, one = normal(1, length, width), normal(1, 1, width)
    images = 8 if device == "cuda" else 1
    llama = partial(modules.LlamaLayer, width, heads, heads // 4, 8 * width // 3 // 64 * 64)
    gpt = partial(modules.Block, width, heads, causal=True)
    yield family.module(f"Llama layer, {length} words", llama, rows)
    yield family.module(f"Llama layer, {length // 4} words", llama, normal(1, length // 4, width))
    for keys in (room // 4, room):
        yield family.module(f"Llama layer, cache of {keys}", partial(llama, room=keys), one)
    yield family.module(f"GPT layer, {length} words", gpt, rows)
    yield family.module(f"GPT layer, cache of {room}", partial(gpt, room=room), one)
    yield family.module(
        f"GPT-J layer, {length} words", partial(modules.ParallelLayer, width, heads), rows
    )
    yield family.module(
        f"BERT layer, {length} words", partial(modules.BertLayer, width, heads), rows
    )
    yield family.module(
        f"ViT layer {by_name((images, 196, width // 2))}",
        partial(modules.Block, width // 2, heads // 2),
        normal(images, 196, width // 2),
    )
    yield family.module(
        f"decoder layer with an encoder, {length} words",
        partial(modules.CrossLayer, width, heads),
        *(rows, normal(1, 2 * length, width)),
    )
    yield family.module(
        f"diffusion layer, {length} patches",
        partial(modules.Denoiser, width, heads),
        *(rows, normal(1, width)),
    )
    yield family.module(
        f"nn.TransformerEncoderLayer, {length} words",
        partial(nn.TransformerEncoderLayer, width, heads, 4 * width, batch_first=True),
        rows,
    )
    yield family.module(
        f"attention layer with projections, {length} words",
        partial(modules.Attention, width, heads),
        rows,
    )
    yield family.module(
        f"mixer layer, {length} places", partial(modules.MixerLayer, length, width), rows
    )
    channels, side = (128, 56) if device == "cuda" else (32, 28)
    image = normal(images, channels, side, side)
    size = by_name(image.shape)
    yield family.module(
        f"residual layer {size}", partial(modules.Residual, channels, channels), image
    )
    yield family.module(f"ConvNext layer {size}", partial(modules.ConvNextLayer, channels), image)


def whole_models(device: str) -> Iterator[Case]:
    family = Family("models", device)
    width, heads = (width // 2 for width in WIDTH[device])
    length, words = LENGTH[device] // 2, VOCABULARY[device]
    ids, one = places(words, 1, length), places(words, 1, 1)
    llama = partial(models.Llama, 2, width, heads, heads // 2, words)
    yield family.module(f"Llama, {length} words", llama, ids)
    yield family.module(f"Llama, cache of {4 * length}", partial(llama, room=4 * length), one)
    yield family.module(
        f"GPT, {length} words", partial(models.GPT, 2, width, heads, words, length), ids
    )
    yield family.module(
        f"GPT, 4 texts of {length // 4} words",
        partial(models.GPT, 2, width, heads, words, length),
        places(words, 4, length // 4),
    )
    yield family.module(
        f"BERT, {length} words", partial(models.Bert, 2, width, heads, words, length), ids
    )
    side, count = (224, 8) if device == "cuda" else (64, 1)
    image: Input = normal(count, 3, side, side)
    size = by_name(image.shape)
    yield family.module(f"ViT {size}", partial(models.ViT, 2, width, heads, side, 16), image)
    yield family.module(f"ResNet {size}", partial(models.ResNet, width // 16), image)
    rows = 2048 if device == "cuda" else 64
    yield family.module(
        f"recommender, {rows} users",
        partial(models.Ranker, 8, 1000, 32, 256),
        *(normal(rows, 13), places(1000, rows, 8)),
    )
