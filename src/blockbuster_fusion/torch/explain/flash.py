"""Recognises kernels in the form of Flash Attention."""

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.ir.expr import contains
from blockbuster_fusion.nest.nest import Compute, Contract, Fold, Launchable, Tile


def is_flash(kernel: Launchable) -> bool:
    """True if exponentials of one contraction are summed, and are an operand of another one.

    The scores of attention then never lie in global memory, whatever else the kernel computes.
    """
    products: set[Tile] = set()
    exponentials: set[Tile] = set()
    is_summed = is_multiplied = False
    for statement in kernel.statements:
        match statement:
            case Contract(tile, left, right):
                is_multiplied |= left in exponentials or right in exponentials
                products.add(tile)
            case Compute(tile, expr, operands):
                if any(x in exponentials for x in operands):
                    exponentials.add(tile)
                elif any(x in products for x in operands):
                    takes_exp = contains(expr, "exp", "exp2")
                    (exponentials if takes_exp else products).add(tile)
            case Fold(tile, operand, _, combiner):
                is_summed |= operand in exponentials and combiner is ADD
                if operand in products:
                    products.add(tile)
    return is_summed and is_multiplied
