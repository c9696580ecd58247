"""Sums of products: matrix products, linear layers, convolutions of patches."""

from collections.abc import Sequence

from blockbuster_fusion.array.axes import ONE, Size
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.records import PositionalArray
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.torch.table.row import contraction


@contraction("mm")
def _mm(p: PositionalBuilder, x: PositionalArray, y: PositionalArray) -> PositionalArray:
    return p.contract(x, y, "mk", "kn", "mn")


@contraction("bmm")
def _bmm(p: PositionalBuilder, x: PositionalArray, y: PositionalArray) -> PositionalArray:
    return p.contract(x, y, "bmk", "bkn", "bmn")


@contraction("addmm")
def _addmm(
    p: PositionalBuilder,
    bias: PositionalArray,
    x: PositionalArray,
    y: PositionalArray,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> PositionalArray:
    made = _mm(p, x, y)
    if beta == 0:  # what is not added need not be a number
        return made if alpha == 1 else p.elementwise(lambda a: alpha * a, made)
    return p.elementwise(
        lambda a, b: (a if alpha == 1 else alpha * a) + (b if beta == 1 else beta * b), made, bias
    )


@contraction("baddbmm")
def _baddbmm(
    p: PositionalBuilder,
    bias: PositionalArray,
    x: PositionalArray,
    y: PositionalArray,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> PositionalArray:
    made = _bmm(p, x, y)
    if beta == 0:
        return p.elementwise(lambda a: alpha * a, made)
    return p.elementwise(
        lambda a, b: (a if alpha == 1 else alpha * a) + (b if beta == 1 else beta * b), made, bias
    )


@contraction("mv")
def _mv(p: PositionalBuilder, x: PositionalArray, y: PositionalArray) -> PositionalArray:
    return p.contract(x, y, "mk", "k", "m")


@contraction("dot")
def _dot(p: PositionalBuilder, x: PositionalArray, y: PositionalArray) -> PositionalArray:
    return p.contract(x, y, "k", "k", "")


@contraction("linear")
def _linear(
    p: PositionalBuilder,
    x: PositionalArray,
    weight: PositionalArray,
    bias: PositionalArray | None = None,
) -> PositionalArray:
    batch = "abcdefgh"[: len(x.sizes) - 1]
    made = p.contract(x, weight, f"{batch}k", "nk", f"{batch}n")
    return made if bias is None else p.elementwise(lambda a, b: a + b, made, bias)


@contraction("matmul")
def _matmul(p: PositionalBuilder, x: PositionalArray, y: PositionalArray) -> PositionalArray:
    if len(x.sizes) < 2 or len(y.sizes) < 2:
        raise NotExpressible(what="a product with a vector")
    rank = max(len(x.sizes), len(y.sizes)) - 2
    letters = "abcdefgh"[:rank]
    own = letters[rank - (len(x.sizes) - 2) :]
    other = letters[rank - (len(y.sizes) - 2) :]
    return p.contract(x, y, f"{own}mk", f"{other}kn", f"{letters}mn")


@contraction("convolution")
def _convolution(
    p: PositionalBuilder,
    x: PositionalArray,
    weight: PositionalArray,
    bias: PositionalArray | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> PositionalArray:
    """A convolution of patches that do not overlap: each patch is multiplied by the weights."""
    window = weight.sizes[2:]
    steps = tuple(Size(s) for s in [*stride] * (len(window) // len(stride)))
    is_plain = groups == 1 and not transposed and not any(padding)
    if not is_plain or steps != window or any(d != 1 for d in dilation):
        raise NotExpressible(what="a convolution whose windows overlap")
    shape = [*x.sizes[:2]]
    for extent, step in zip(x.sizes[2:], steps, strict=True):
        count = extent.divided_by(step)
        if count is None:
            raise NotExpressible(what="a convolution that leaves out a part of its operand")
        shape += [count, step]
    places, inner = "hwd"[: len(window)], "ijk"[: len(window)]
    split = "".join(a + b for a, b in zip(places, inner, strict=True))
    made = p.contract(p.view(x, shape), weight, f"bc{split}", f"oc{inner}", f"bo{places}")
    if bias is None:
        return made
    shaped = p.view(bias, [bias.sizes[0], *(ONE for _ in window)])
    return p.elementwise(lambda a, b: a + b, made, shaped)
