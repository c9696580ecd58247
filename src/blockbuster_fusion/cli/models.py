"""PyTorch models that a function of a file makes: what commands do with them."""

import importlib
from typing import Any, Literal

from blockbuster_fusion.cli.programs import Model
from blockbuster_fusion.errors import MissingPackage

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
