"""Products that sum over all axes at once."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.nest import Contract, Fold
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest
from helpers.summed_products import SUMMED, convolution, merged

o = bb.ops


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SUMMED)
def test_a_convolution_is_one_dot(name: str, dtype: str) -> None:
    """It multiplied a block for each place of its window, and summed the products after that."""
    _, (choice, *_) = convolution(name, dtype)
    nest, _ = choice.scheduled()
    verify_nest(nest)
    statements = [s for kernel in nest.kernels for s in kernel.statements]
    (product,) = (s for s in statements if isinstance(s, Contract))
    assert not any(isinstance(s, Fold) for s in statements)
    window = SUMMED[name][1][1:]
    assert merged(choice) == sum(length > 1 for length in window) - 1
    assert len({span.dim for span in product.summed}) == len(product.summed)
    text = nest_to_text(nest)
    assert nest_to_text(nest_from_text(text)) == text


@pytest.mark.parametrize(
    ("function", "specs"),
    [
        (lambda X, W: o.max(X @ W, axis=0), ("A M K", "A K N")),
        (lambda X, W: o.sum(X @ W, axis=0), ("M K", "K N")),
        (lambda X, W: o.sum(o.exp(X @ W), axis=0), ("A M K", "A K N")),
    ],
)
def test_other_folds_stay(function: object, specs: tuple[str, ...]) -> None:
    """Maxima, sums over the rows of one operand, and sums of what is computed from products."""
    known = {"A": 4, "M": 32, "K": 16, "N": 32}
    sizes = {axis: length for axis, length in known.items() if axis in specs[0] + specs[1]}
    program = bb.trace(function, *specs)  # type: ignore[arg-type]
    for choice in choose(Request(program, target="cuda", sizes=sizes, capability=90)):
        assert merged(choice) == 0
