"""Constant weights: what depends on weights alone is computed once, not in each call.

A caller asks for this with `freeze=True`. Then weights, and buffers that the model only reads,
count as constants. Norm weights and batch norms are folded into the weights of products and
convolutions (fold.py). Computations from constants alone leave the graph of a call (split.py)
for a graph that is run once, in the first call (constants.py). The graph of a call has its results
as further inputs, behind its own.

The results are computed anew when a weight has changed: when it lies elsewhere, or when its version
counter has moved, as it does with each operator that writes into it. A write through `.data` moves
no counter and stays unseen, so nothing is ever frozen without being asked for.
"""

from collections.abc import Sequence

from torch.fx import GraphModule

from blockbuster_fusion.torch.freeze.constants import ConstantReport, Constants
from blockbuster_fusion.torch.freeze.fold import fold
from blockbuster_fusion.torch.freeze.split import split_constants, weights_of

__all__ = ["ConstantReport", "Constants", "freeze"]


def freeze(module: GraphModule, static: Sequence[int]) -> Constants:
    """Takes what depends on weights alone out of a graph; `static` are the inputs that are weights.

    The graph gets an input for each constant that it reads, behind its own inputs.
    """
    weights = weights_of(module.graph, static)
    constants = Constants(module, weights)
    constants.spared += fold(module.graph, weights)
    split_constants(module.graph, weights, constants)
    return constants
