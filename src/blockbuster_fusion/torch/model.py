"""`bb.compile` of a PyTorch module or function."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from blockbuster_fusion.torch.backend import backend, warn_of_lost_gradients
from blockbuster_fusion.torch.compile_graph import CompiledGraph
from blockbuster_fusion.torch.explain import Explanation
from blockbuster_fusion.torch.options import Options


class CompiledModel:
    """A module or function that runs on compiled kernels, compiled anew where guards fail."""

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        dynamic: bool | None = None,
        mode: str | None = None,
        **options: Any,
    ) -> None:
        self.model = model
        self.has_warned = False
        self.graphs: list[CompiledGraph] = []
        watched = partial(backend, mode=mode, options=options, watcher=self.graphs.append)
        self.compiled = torch.compile(model, backend=watched, dynamic=dynamic)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The model's results, without gradients; inputs that require some get one warning."""
        if torch.is_grad_enabled() and not self.has_warned:
            self.has_warned = warn_of_lost_gradients((arguments, named))
        with torch.no_grad():
            return self.compiled(*arguments, **named)

    @property
    def explanation(self) -> Explanation:
        """The explanation of the graphs that have been compiled so far."""
        return Explanation(tuple(self.graphs))


def compile_model(model: Callable[..., Any], *examples: Any, **named: Any) -> CompiledModel:
    """The model compiled for inference, and run once with the examples, if there are any.

    `dynamic`, `mode` and the fields of `Options` are options; all else is an example by name.
    """
    known = ("dynamic", "mode", *Options.names())
    made = CompiledModel(model, **{name: named.pop(name) for name in known if name in named})
    if examples or named:
        made(*examples, **named)
    return made
