"""`torch.compile(model, backend="blockbuster")`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from blockbuster_fusion.compiler import check_target
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.frontends.torch.attention import write_out_attention
from blockbuster_fusion.frontends.torch.groups import Options
from blockbuster_fusion.frontends.torch.planner import Planned, plan
from blockbuster_fusion.runtime.torch_replay import replayed

NAME = "blockbuster"

Watcher = Callable[[Planned], None]
"""Who is told of each graph that is compiled."""

_warned = False


def backend(
    module: GraphModule,
    examples: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
) -> Callable[..., Any]:
    """What torch.compile calls with each graph: kernels for inference, eager for training."""
    chosen = options_from(mode, options)
    if torch.is_grad_enabled() and any(_needs_gradient(x) for x in examples):
        _warn_of_training()
        return module.forward
    write_out_attention(module)

    def inference(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made = plan(graph, _static_inputs(), chosen)
        if watcher is not None:
            watcher(made)
        return replayed(made.plan) if mode in REPLAYING else made.plan

    compiled = aot_autograd(
        fw_compiler=inference,
        inference_compiler=inference,
        decompositions=core_aten_decompositions(),
        keep_inference_input_mutations=True,
    )
    made: Callable[..., Any] = compiled(module, examples)
    return made


def _needs_gradient(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _static_inputs() -> list[int]:
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return [] if metadata is None else [*metadata.static_input_indices]


def _warn_of_training() -> None:
    global _warned
    if not _warned:
        _warned = True
        sentence = (
            "blockbuster compiles inference only: this graph needs gradients and runs eagerly, "
            "with the right gradients; call the model under torch.no_grad() to have it fused"
        )
        warnings.warn(sentence, stacklevel=2)


MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
REPLAYING = ("reduce-overhead", "max-autotune")
"""The modes in which a plan on a GPU is replayed as a CUDA graph."""


def options_from(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options that a caller of torch.compile gave, or WrongKind."""
    if mode not in MODES:
        raise WrongKind(
            function="torch.compile",
            wanted=f"a mode of {', '.join(map(str, MODES[1:]))}",
            given=repr(mode),
            remedy="leave it out",
        )
    known = Options.names()
    for name in options or {}:
        if name not in known:
            raise WrongKind(
                function="torch.compile",
                wanted=f"the options {', '.join(known)}",
                given=repr(name),
                remedy="see docs/pytorch.md",
            )
    made = Options(**dict(options or {}))
    if not isinstance(made.strict, bool):
        raise WrongKind(
            function="torch.compile",
            wanted="strict as True or False",
            given=repr(made.strict),
            remedy="leave it out for False",
        )
    if made.selection is not None and not callable(getattr(made.selection, "parts", None)):
        raise WrongKind(
            function="torch.compile",
            wanted="a selection with a method `parts`, as select/parts.py has it",
            given=repr(made.selection),
            remedy="leave it out for the usual policy",
        )
    if made.target is not None:
        check_target(made.target)
    if made.threads is not None and (type(made.threads) is not int or made.threads < 1):
        raise WrongKind(
            function="torch.compile",
            wanted="a number of threads from 1 on",
            given=repr(made.threads),
            remedy="leave it out for PyTorch's own number",
        )
    return made


def register_backend() -> None:
    """Make the backend known to torch.compile, where the package is not installed."""
    if NAME not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(name=NAME)(backend)
