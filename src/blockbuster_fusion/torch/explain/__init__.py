"""`bb.explain`: what became of each operator of a model, as data and as text."""

from collections.abc import Mapping
from typing import Any

from blockbuster_fusion.progress import doing
from blockbuster_fusion.torch.backend import options_from
from blockbuster_fusion.torch.explain.explanation import Explanation, model_name
from blockbuster_fusion.torch.explain.kernels import KernelReport, Region
from blockbuster_fusion.torch.observer import observed

__all__ = ["Explanation", "KernelReport", "Region", "explain", "model_name"]


@doing("explaining the model")
def explain(
    model: Any,
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    measure: bool = False,
    **named: Any,
) -> Explanation:
    """The explanation of a model, a function or an exported program.

    `inputs` and `named` are what it is called with; an exported program needs none. The model is
    compiled and run once, without gradients; with `measure`, some more times, to measure each step.
    Unlike compiling, it looks for the best kernels of the parts that PyTorch runs, too. Collectives
    are not run: of several ranks, one may explain the model while the others do something else.
    """
    found = observed(
        "explain",
        model,
        inputs,
        named,
        mode=mode,
        options=options,
        dynamic=dynamic,
        measures=measure,
        thorough=True,
    )
    about = (found.graphs, found.graph_breaks, found.needs_gradients, found.seconds or {})
    return Explanation(*about, options_from(mode, options), model_name(model))
