"""Programs that are written out safely fuse to the kernels of the paper's examples."""

import re

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array


def last(program: object) -> bb.Graph:
    return bb.fuse(program, "extended").fused[-1]


def kernel(program: object) -> list[str]:
    """The last snapshot's listing, without the names of temporaries."""
    return [re.sub(r"\bt\d+\b", "t", line) for line in bb.show(last(program)).splitlines()]


def written_out(Q: Array, KT: Array, VT: Array) -> dict[str, Array]:
    """Attention with a safe softmax: maximum, difference, exp, sum, and times the inverse."""
    scores = (Q @ KT.T) * ops.size(Q, 1) ** -0.5
    e = ops.exp(scores - scores.max(-1, keepdims=True))
    inverse = ops.elementwise(lambda s: 1 / s, e.sum(-1, keepdims=True))
    return {"O": (e * inverse) @ VT.T}


def test_safe_attention_is_the_kernel_of_example_1() -> None:
    program = bb.trace(written_out, Q="M D", KT="N D", VT="L N")
    assert last(program).digest == last(bb.examples.attention()).digest


def test_a_quotient_in_place_of_the_inverse_is_all_that_differs() -> None:
    """Example 1 takes the inverse of the sum first; `e / e.sum()` divides by it in one operator."""
    expected, found = kernel(bb.examples.attention()), kernel(bb.examples.safe_softmax_attention())
    inverse, scaled = "        t = 1/t", "        t = row_scale(t,t)"
    at = expected.index(inverse)
    assert expected[at + 1] == scaled
    assert found == [*expected[:at], "        t = row_scale(t,1/t)", *expected[at + 2 :]]


def test_two_pass_layernorm_has_the_loops_of_example_2() -> None:
    """The loops, their loads and sums are the same; the variance is another formula of the sums."""

    def loops(lines: list[str]) -> list[str]:
        """Loops and stores in order, then the lines of the innermost loop, sorted."""
        inside = [line for line in lines if line.startswith(" " * 12)]
        around = [line for line in lines if re.match(r" *(for|forall|store)\b", line)]
        return [*around, *sorted(inside)]

    expected = kernel(bb.examples.layernorm_matmul())
    found = kernel(bb.examples.two_pass_layernorm_matmul())
    assert loops(found) == loops(expected)
    assert [line for line in expected if "+=" in line] != []
    assert bb.buffered(last(bb.examples.two_pass_layernorm_matmul())) == []
