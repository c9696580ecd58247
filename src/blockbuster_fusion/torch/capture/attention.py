"""Scaled dot-product attention, written in simple operators for fusion."""

import math
from typing import Any

import torch
from torch.fx import GraphModule


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Scaled dot-product attention as torch.nn.functional defines it, without dropout."""
    width = query.shape[-1]
    factor = scale
    if scale is None:
        factor = 1 / math.sqrt(width) if width else 1.0  # of no width, every score is 0
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (_repeated(x, times) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * factor
    sees: torch.Tensor | None = None
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)
        columns = torch.arange(key.shape[-2], device=query.device)
        causal = columns.unsqueeze(0) <= rows.unsqueeze(1)
        scores = torch.where(causal, scores, -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        sees = attn_mask
        scores = torch.where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        sees = attn_mask != -math.inf
        scores = scores + attn_mask
    made = torch.softmax(scores, -1) @ value
    if sees is None:
        return made
    # PyTorch gives 0 to a query that sees no key
    return torch.where(sees.any(-1, keepdim=True), made, 0.0)


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    shape = (*x.shape[:-2], times, *x.shape[-2:])
    return x.unsqueeze(-3).expand(shape).flatten(-4, -3)


def write_out_attention(module: GraphModule) -> int:
    """Replaces the calls of attention without dropout in a captured graph; returns their number."""
    whole = torch.nn.functional.scaled_dot_product_attention
    calls = module.graph.find_nodes(op="call_function", target=whole)
    for node in calls:
        dropout = node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0)
        if dropout == 0:
            node.target = attention
    if calls:
        module.recompile()
    return len(calls)


def restore_attention(module: GraphModule) -> None:
    """Undoes what `write_out_attention` did."""
    calls = module.graph.find_nodes(op="call_function", target=attention)
    for node in calls:
        node.target = torch.nn.functional.scaled_dot_product_attention
    if calls:
        module.recompile()
