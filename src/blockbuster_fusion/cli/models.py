"""PyTorch models that a function of a file makes: what commands do with them."""

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from blockbuster_fusion.cli.programs import Model
from blockbuster_fusion.errors import MissingPackage

if TYPE_CHECKING:
    from blockbuster_fusion.torch.explain import Explanation

MODEL_FUNCTION = """\
For a PyTorch model, name a function that takes nothing and returns the model and its inputs:

    def make():
        return torch.nn.Linear(64, 8).eval(), (torch.ones(2, 64),)
"""
HOMES = {
    "plan": "blockbuster_fusion.torch.planned.make",
    "explain": "blockbuster_fusion.torch.explain",
}
"""The modules of the functions that take a model; they need PyTorch."""


def compiled_by(function: Literal["plan", "explain"], model: Model, **options: Any) -> Any:
    """The result of a function of the package for a model."""
    try:
        home = importlib.import_module(HOMES[function])
    except ImportError as error:
        package = error.name or "torch"
        raise MissingPackage(function=function, package=package, extra="torch") from error
    made, inputs = model
    return getattr(home, function)(made, *inputs, **options)


def explained(model: Model, *, measure: bool) -> "Explanation":
    """The explanation of a model for a command, where nobody asks for gradients."""
    made: Explanation = compiled_by("explain", model, measure=measure)
    return replace(made, needs_gradients=False)
