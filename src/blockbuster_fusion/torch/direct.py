"""Calls of a compiled graph without AOTAutograd's wrapper around it.

AOTAutograd calls what it had compiled through functions that take care of inputs that were written
to, results that share memory, subclasses of tensors, gradients and autocasting. They cost the host
4 to 6 µs in each call. In inference most graphs need none of that, and torch.compile's own guards
tell that later calls are alike. Then torch.compile gets the compiled graph itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta
from torch._guards import TracingContext
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

OWN = (OutputType.non_alias, OutputType.unsafe_view_alias)
"""The kinds of results that share no memory with inputs or other results."""


def metadata_now() -> Any | None:
    """The facts that AOTAutograd has about the graph that it compiles now, for torch.compile."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def has_modes() -> bool:
    """True if gradients or autocasting are enabled now, which the wrapper switches off."""
    return torch.is_grad_enabled() or bool(torch._C._is_any_autocast_enabled())


def is_direct(
    metadata: Any | None, module: GraphModule, examples: Sequence[Any], graph: GraphModule
) -> bool:
    """True if a call of the graph is all that a call of the captured module has to do.

    `metadata` are AOTAutograd's facts about it, if torch.compile captured the module. `examples`
    are the inputs of the module, and `graph` is the graph that AOTAutograd made of it.
    """
    if metadata is None:
        return False
    if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
        return False
    if any(x.mutates_data or x.mutates_metadata for x in metadata.input_info):
        return False
    if any(x.output_type not in OWN for x in metadata.output_info):
        return False
    if metadata.num_intermediate_bases or metadata.tokens or metadata.is_rng_op_functionalized:
        return False
    if metadata.num_graphsafe_rng_states or metadata.dynamic_outputs:
        return False
    if metadata.grad_enabled_mutation is not None:
        return False
    kinds = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta)
    if not all(isinstance(x, int | PlainTensorMeta) for x in kinds) or _wraps(module, examples):
        return False
    given = graph.graph.find_nodes(op="placeholder")
    results: Any = graph.graph.output_node().args[0]
    is_all = len(given) == len(examples) == len(metadata.input_info)
    return is_all and len(results) == len(metadata.output_info)


def _wraps(module: GraphModule, examples: Sequence[Any]) -> bool:
    """True if an input or a result of a captured module is a tensor of tensors, as a DTensor is.

    AOTAutograd's facts are those of the tensors inside.
    """
    results = pytree.arg_tree_leaves(*module.graph.output_node().args)
    made = (x.meta.get("example_value") for x in results if isinstance(x, Node))
    return any(map(is_traceable_wrapper_subclass, (*examples, *made)))
