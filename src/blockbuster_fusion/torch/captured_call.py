"""The call that torch.compile captures, as the user makes it."""

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch.fx import GraphModule


@dataclass(frozen=True)
class CapturedCall:
    """A call of a model whose operators are one graph, all of them."""

    plain: Callable[[], Any]
    """Makes the call once more, by PyTorch alone."""
    has_effects: bool
    """True if Python changes an object that was there before the call."""


def captured_call(frame: CodeType, module: GraphModule) -> CapturedCall | None:
    """The call that is captured now; None if the graph is not all of it.

    `frame` is the code of the function that torch.compile was given, which calls a `model` with
    `arguments` and `named`. `module` is the graph.
    """
    now = InstructionTranslator.current_tx()
    reason: Any = module.compile_subgraph_reason
    if now.f_code is not frame or reason.graph_break:
        return None
    effects, given = now.output.side_effects, now.f_locals
    changed = [x for x in effects.id_to_variable.values() if effects.is_modified(x)]
    made = (AttributeMutationNew, ValueMutationNew)
    has_effects = any(not isinstance(x.mutation_type, made) for x in changed)
    model, arguments, named = (given[name] for name in ("model", "arguments", "named"))
    return CapturedCall(lambda: model(*arguments, **named), has_effects)
