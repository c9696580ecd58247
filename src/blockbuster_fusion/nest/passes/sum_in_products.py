"""Products that sum over all axes at once that their results are summed over, on a GPU.

A convolution multiplies blocks for each place of its window, and sums the products. In one dot with
merged axes, tensor cores do both.
"""

from dataclasses import replace
from functools import partial

from blockbuster_fusion.ir.combiner import ADD
from blockbuster_fusion.nest.analysis.matrix_products import product_of
from blockbuster_fusion.nest.nest import (
    Body,
    Contract,
    Fill,
    Fold,
    For,
    Kernel,
    Statement,
    tiles,
    walk,
)
from blockbuster_fusion.nest.passes.accumulate_in_place import accumulate_in_place
from blockbuster_fusion.nest.rewrite import all_read, all_written, rebuilt


def sum_in_products(kernel: Kernel) -> Kernel:
    """Has products of matrices sum over the axes that a fold sums their result over.

    The pattern is a tile that is filled with 0, gathers products, in a loop or not, and is then
    folded along an axis of all operands. Elements beyond its end are 0, and nothing else reads the
    tile. The sum of a sum is found in another round.
    """
    while True:
        made = replace(kernel, body=rebuilt(kernel.body, partial(_rewritten, kernel=kernel)))
        if _folds(made) == _folds(kernel):
            return kernel
        kernel = accumulate_in_place(made)


def _folds(kernel: Kernel) -> int:
    return sum(isinstance(s, Fold) for s in kernel.statements)


def _rewritten(body: Body, kernel: Kernel) -> Body:
    """The body without the folds that products do."""
    done = body
    for statement in body:
        if isinstance(statement, Fold):
            done = _summed(done, statement, kernel)
    return done


def _summed(body: Body, fold: Fold, kernel: Kernel) -> Body:
    """The body with a fold done by the products whose result it sums, if there are any."""
    tile = fold.operand
    if fold.tail_masked or fold.combiner is not ADD or not tile.dtype.is_float:
        return body
    around = [s for s in body if tile in all_read(s) | all_written(s)]
    if len(around) != 3 or around[2] is not fold:
        return body
    begin, products, _ = around
    sums = [s for s in walk((products,)) if isinstance(s, Contract) and s.tile is tile]
    users = [s for s in kernel.statements if tile in tiles(s)]
    if not sums or len(users) != len(sums) + 2 or not all(_may_sum(s, fold) for s in sums):
        return body
    if not isinstance(begin, Fill) or begin.value != 0:
        return body
    new: dict[Statement, Statement] = {
        begin: replace(begin, tile=fold.tile),
        products: _summing(products, fold),
    }
    return tuple(new.get(s, s) for s in body if s is not fold)


def _may_sum(product: Contract, fold: Fold) -> bool:
    """True if a product is one of matrices for each position of the axis of a fold."""
    roles = product_of(product)
    return fold.span in roles.batch and bool(roles.rows and roles.columns)


def _summing(statement: Statement, fold: Fold) -> Statement:
    """A product, or a loop with it, that sums over the axis of a fold as well."""
    if isinstance(statement, Contract) and statement.tile is fold.operand:
        return replace(statement, tile=fold.tile, also=(fold.span, *statement.also))
    if isinstance(statement, For):
        gathered = tuple(
            (combiner, tuple(fold.tile if t is fold.operand else t for t in group))
            for combiner, group in statement.gathered
        )
        body = tuple(_summing(s, fold) for s in statement.body)
        return replace(statement, body=body, gathered=gathered)
    return statement
