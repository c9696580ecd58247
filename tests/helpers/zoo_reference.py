"""Outputs of a model of the zoo in float64, and the errors of its own dtype."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.zoo import Architecture


class Float64(TorchDispatchMode):
    """Make float64 of every float32 that a model asks for by name, as norms and softmaxes do."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


def reference(
    architecture: Architecture, dtype: torch.dtype, attention: str, inputs: Mapping[str, Tensor]
) -> list[Tensor]:
    """The outputs in float64 throughout, of the weights as `dtype` has them."""
    model = architecture.build(dtype, attention).double()
    if architecture.router:
        model.set_experts_implementation("eager")  # grouped_mm has no float64
    widened = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
    with torch.no_grad(), Float64():
        outputs = architecture.output(model(**widened))
    assert all(x.dtype == torch.float64 for x in outputs), [x.dtype for x in outputs]
    return outputs


def relative_errors(outputs: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """‖y - exact‖ / ‖exact‖ of each output; a NaN gives infinity."""
    errors = []
    for y, expected in zip(outputs, exact, strict=True):
        assert y.shape == expected.shape, (tuple(y.shape), tuple(expected.shape))
        error = ((y.double() - expected).norm() / expected.norm()).item()
        errors.append(error if error == error else float("inf"))
    return errors


def eager_errors(
    architecture: Architecture,
    dtype: torch.dtype,
    attention: str,
    inputs: Mapping[str, Tensor],
    exact: Sequence[Tensor],
) -> list[float]:
    """The relative error of each of eager's outputs."""
    with torch.no_grad():
        outputs = architecture.output(architecture.build(dtype, attention)(**inputs))
    return relative_errors(outputs, exact)


def tolerances(dtype: torch.dtype, eager: Sequence[float]) -> list[float]:
    """Twice eager's own error of each output; where it happens to be exact, one rounding."""
    floor = torch.finfo(dtype).eps / 2
    return [max(2 * error, floor) for error in eager]
