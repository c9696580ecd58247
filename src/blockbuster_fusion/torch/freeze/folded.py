"""Weights and biases with constants folded in, computed in float64 and rounded once."""

import torch

Array = torch.Tensor


def scaled(weight: Array, factor: Array, dim: int) -> Array:
    """A weight, each slice along a dimension multiplied by a factor of its own."""
    shape = [1] * weight.dim()
    shape[dim] = -1
    if factor.dtype is weight.dtype:  # a product is rounded once in any dtype
        return weight * factor.reshape(shape)
    return (weight.double() * factor.double().reshape(shape)).to(weight.dtype)


def carried(term: Array, weight: Array, bias: Array | None) -> Array:
    """The bias that a term before a product comes to: bias + term @ weight."""
    made = term.double().reshape(-1) @ weight.double()
    return (made if bias is None else made + bias.double()).to(weight.dtype)


def batch_scale(variance: Array, weight: Array | None, eps: float) -> Array:
    """The factor by which a batch norm multiplies, in float64."""
    made = (variance.double() + eps).rsqrt()
    return made if weight is None else made * weight.double()


def scaled_bias(
    weight: Array, factor: Array, bias: Array | None, mean: Array | None, term: Array | None
) -> Array:
    """The bias of a scaled layer: (bias - mean) * factor + term, in the dtype of its weight."""
    made = torch.zeros_like(factor, dtype=torch.float64).reshape(-1)
    made = made if bias is None else made + bias.double()
    made = made if mean is None else made - mean.double()
    made = made * factor.double().reshape(-1)
    return (made if term is None else made + term.double()).to(weight.dtype)


FOLDED = (scaled, carried, batch_scale, scaled_bias)
"""The functions that compute constants beside PyTorch's operators."""
