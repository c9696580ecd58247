"""The lanes of a kernel with contractions: the dim along which its vectors run."""

from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.nest.nest import Contract, For, Kernel, Space, Store


def lanes_of(kernel: Kernel) -> Dim | None:
    """The packed dim of the grid that results have innermost; None without contractions.

    Results are laid out as the program has its loops, so the order of a grid changes no vectors.
    Shares of a split reduction are laid out otherwise: there it is the last packed dim of the grid.
    """
    packed = [index for index in kernel.grid if index.dim.packed]
    statements = tuple(kernel.statements)
    if not packed or not any(isinstance(s, Contract) for s in statements):
        return None
    if any(isinstance(s, For) and s.share is not None for s in statements):
        return packed[-1].dim
    stores = [s.target for s in statements if isinstance(s, Store)]
    for target in stores:
        own = [index for span in target.spans for index in packed if index is span.at]
        if own and target.buffer.space is Space.GLOBAL:
            return own[-1].dim
    return packed[-1].dim
