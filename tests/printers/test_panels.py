"""Panels: statements between contractions, in C kernels."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import blockbuster_fusion as bb
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.printers.c.layout import Layout
from blockbuster_fusion.printers.c.panels import gather
from blockbuster_fusion.printers.c.streams import Segment
from helpers.effort import part

bb.register_backend()


def nest_of(name: str) -> Nest:
    nest = bb.compile(bb.examples.find(name), sizes={"DD": 64, "LL": 64}).nest
    assert nest is not None
    return nest


def test_a_panel_has_both_reductions_of_softmax() -> None:
    panels = Layout(nest_of("attention").kernels[0], {}).panels.panels.values()
    folds = [[f for i in p.items if isinstance(i, Segment) for f in i.folds] for p in panels]
    assert max(map(len, folds)) == 2


def test_gathering_keeps_every_statement_behind_what_it_reads() -> None:
    nest = nest_of("sliding-window-attention")
    gathered = [gather(kernel) for kernel in nest.kernels]
    verify_nest(replace(nest, steps=tuple(gathered)))
    for kernel, made in zip(nest.kernels, gathered, strict=True):
        assert Counter(map(type, made.statements)) == Counter(map(type, kernel.statements))


def attention(q: Tensor, k: Tensor, v: Tensor, kind: str) -> Tensor:
    """Attention of a kind that PyTorch's own operator does not have."""
    scores = q @ k.mT * 0.3
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    if kind == "stripes":
        scores = scores.masked_fill((rows + columns) // 3 % 2 == 1, -torch.inf)
    elif kind == "window":
        scores = scores.masked_fill((rows - columns).abs() > 5, -torch.inf)
    elif kind == "capped":
        scores = 5.0 * torch.tanh(scores / 5.0) - 0.1 * (rows - columns).abs()
    if kind == "relu":
        return scores.relu() @ v
    weights = scores - scores.amax(-1, keepdim=True)
    weights = weights.exp()
    return (weights @ v) / weights.sum(-1, keepdim=True)


@pytest.mark.sweep(2, reason="other ragged sizes of one loop")
@pytest.mark.parametrize("kind", ["plain", "stripes", "window", "capped", "relu"])
@pytest.mark.parametrize("seed", range(part(12)))
def test_ragged_panels(kind: str, seed: int) -> None:
    """Lanes that fill no panel, blocks that fill no tile, and float64."""
    torch.manual_seed(seed)
    lengths = (1, 2, 7, 31, 32, 33, 65, 129, 300)
    rows, keys, width, out = (lengths[int(torch.randint(9, ()))] for _ in range(4))
    rows, keys = (max(rows, 6), max(keys, 6)) if kind in ("stripes", "window") else (rows, keys)
    keys = rows if kind == "window" else keys
    dtype = torch.float64 if seed % 3 == 2 else torch.float32
    q, k, v = (
        torch.randn(2, *shape, dtype=dtype) for shape in ((rows, width), (keys, width), (keys, out))
    )
    torch._dynamo.reset()
    with torch.no_grad():
        run = torch.compile(attention, backend="blockbuster", options={"library": "never"})
        found, exact = run(q, k, v, kind), attention(q.double(), k.double(), v.double(), kind)
        given = [x.float() for x in (q, k, v)]
        error = attention(*given, kind) - attention(*(x.double() for x in given), kind)
    scale = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
    if dtype == torch.float64:
        scale *= 2  # the reference errs too
    floor = 16 * torch.finfo(dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= 2 * scale * error.abs().max() + floor
