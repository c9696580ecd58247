"""Whole models, small ones."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from never_slower.modules import BertLayer, Block, LlamaLayer, Residual, RMSNorm


class Llama(nn.Module):
    def __init__(
        self, layers: int, width: int, heads: int, groups: int, vocabulary: int, room: int = 0
    ) -> None:
        super().__init__()
        inner = 8 * width // 3 // 64 * 64
        self.embed, self.norm = nn.Embedding(vocabulary, width), RMSNorm(width)
        made = (LlamaLayer(width, heads, groups, inner, room) for _ in range(layers))
        self.layers = nn.ModuleList(made)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads, causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Bert(nn.Module):
    """An encoder of sentences: the mean of its last layer, of length 1."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return F.normalize(x.mean(1), dim=-1)


class ViT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, image: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2, width))
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class ResNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.layers = nn.Sequential(
            Residual(width, width), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)
        )
        self.head = nn.Linear(4 * width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.layers(x).mean((2, 3)))


class Ranker(nn.Module):
    """A recommender: tables of embeddings, their products with each other, and an MLP."""

    def __init__(self, tables: int, rows: int, width: int, inner: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.dense = nn.Sequential(nn.Linear(13, inner), nn.ReLU(), nn.Linear(inner, width))
        pairs = (tables + 1) ** 2
        self.head = nn.Sequential(nn.Linear(pairs + width, inner), nn.ReLU(), nn.Linear(inner, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.dense(dense)
        rows = [table(ids[:, number]) for number, table in enumerate(self.tables)]
        both = torch.stack([x, *rows], 1)
        pairs = (both @ both.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.head(torch.cat((x, pairs), 1)))
