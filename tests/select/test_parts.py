"""The policy that cuts a model into parts, rule by rule of its docstring.

A model is a list of operators; `i -> part` is read off the parts that come back.
"""

from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from blockbuster_fusion.select.parts import MOST_PRODUCTS, Kind, Layerwise, OperatorInfo


def parts(*operators: OperatorInfo) -> list[list[int]]:
    return Layerwise().parts(operators)


def pointwise(*operands: int, region: str = "") -> OperatorInfo:
    return OperatorInfo(Kind.POINTWISE, operands, region)


def reduction(*operands: int, region: str = "") -> OperatorInfo:
    return OperatorInfo(Kind.REDUCTION, operands, region)


def projection(*operands: int, region: str = "") -> OperatorInfo:
    """A product with a weight, which is no operand: it comes from outside."""
    return OperatorInfo(Kind.CONTRACTION, operands, region, has_weight=True)


def product(*operands: int, region: str = "") -> OperatorInfo:
    """A product of computed arrays."""
    return OperatorInfo(Kind.CONTRACTION, operands, region)


def of(op: OperatorInfo, *factors: str) -> OperatorInfo:
    """A product of some arrays."""
    return replace(op, factors=frozenset(factors))


def misc(*operands: int, region: str = "") -> OperatorInfo:
    return OperatorInfo(Kind.MISC, operands, region)


def stored(op: OperatorInfo) -> OperatorInfo:
    """Somebody reads a slice of it, or PyTorch reads it."""
    return replace(op, is_stored=True)


def output(op: OperatorInfo) -> OperatorInfo:
    return replace(op, is_output=True)


NORM = [pointwise(), reduction(0), pointwise(0, 1)]
"""x**2, its mean, x * rsqrt(mean)."""

# ------------------------------------------------------------------------ regions


def test_nothing_gives_nothing() -> None:
    assert parts() == []


def test_on_a_gpu_a_norm_goes_with_the_sum_of_the_layer_before() -> None:
    """Where PyTorch runs the product; the next layer begins a part, as on a CPU."""
    norm = [reduction(1, region="2"), pointwise(1, 2, region="2")]
    model = [misc(region="1"), pointwise(0, region="1"), *norm, pointwise(3, region="3")]
    assert Layerwise(apart=True).parts(model) == [[0], [1, 2, 3], [4]]
    assert parts(*model) == [[0], [1], [2, 3], [4]]


def test_on_a_gpu_tables_are_looked_up_before_the_first_layer() -> None:
    model = [pointwise(region="0"), pointwise(0, region="0"), reduction(1, region="1")]
    assert Layerwise(apart=True).parts(model) == [[0, 1], [2]]


def test_parts_never_reach_across_a_region() -> None:
    assert parts(pointwise(region="layers.0"), pointwise(0, region="layers.1")) == [[0], [1]]
    assert parts(pointwise(region="layers.0"), pointwise(0, region="layers.0")) == [[0, 1]]


def test_neither_does_what_is_moved_at_last() -> None:
    """An operator that only the next layer reads stays in its own."""
    made = parts(pointwise(region="0"), output(pointwise(0, region="0")), pointwise(0, region="1"))
    assert made == [[0, 1], [2]]


def test_a_misc_operator_is_a_part_of_its_own() -> None:
    assert parts(pointwise(), misc(0), pointwise(1)) == [[0], [1], [2]]
    assert parts(misc(), misc(), pointwise(0, 1)) == [[0], [1], [2]]


# ------------------------------------------------------------------------ joining


def test_an_operator_joins_the_part_of_its_latest_operand() -> None:
    """The second layer's product is latest, so the residual sum goes there."""
    hidden, made = [projection(), pointwise(0)], projection(1)
    residual = pointwise(1, 2)
    assert parts(*hidden, made, residual) == [[0, 1], [2, 3]]


def test_products_with_weights_meet_in_one_part() -> None:
    """Both halves of a gated perceptron, and two products that are added; but no two layers."""
    gate, up = [projection(), pointwise(0)], projection()
    assert parts(*gate, up, pointwise(1, 2)) == [[0, 1, 2, 3]]
    assert parts(projection(), projection(), projection(), pointwise(0, 1, 2)) == [[0, 1, 2, 3]]
    other = output(pointwise(0))
    assert parts(projection(), other, projection(), pointwise(1, 2)) == [[0, 1], [2, 3]]


def test_a_pointwise_operator_always_joins() -> None:
    assert parts(projection(), pointwise(0), pointwise(1), pointwise(0, 2)) == [[0, 1, 2, 3]]
    assert parts(product(), reduction(0), pointwise(0, 1)) == [[0, 1, 2]]


def test_a_pointwise_operator_does_not_join_what_is_stored_anyway() -> None:
    """A slice of a projection is read from memory: rotary embeddings begin a part."""
    assert parts(stored(projection()), pointwise(0)) == [[0], [1]]


def test_pointwise_operators_that_read_nothing_in_common_stand_side_by_side() -> None:
    """Rotary embeddings of queries and keys, both of stored arrays, are one part."""
    assert parts(stored(projection()), pointwise(0), pointwise(0)) == [[0], [1, 2]]
    assert parts(pointwise(), pointwise()) == [[0, 1]]


def test_side_by_side_only_within_a_region_and_among_pointwise_operators() -> None:
    assert parts(pointwise(region="0"), pointwise(region="1")) == [[0], [1]]
    assert parts(projection(), pointwise()) == [[0], [1]]


def test_a_reduction_joins_what_it_reduces() -> None:
    assert parts(pointwise(), reduction(0)) == [[0, 1]]


def test_a_reduction_does_not_join_a_product_with_a_weight() -> None:
    """The norm goes with its readers, not with the projection before it."""
    assert parts(projection(), reduction(0)) == [[0], [1]]


def test_a_reduction_joins_a_product_of_computed_arrays() -> None:
    """The row sums of a softmax stay with the scores."""
    assert parts(product(), pointwise(0), reduction(1)) == [[0, 1, 2]]


# ------------------------------------------------------------------------ products


def test_a_norm_goes_with_all_projections_that_read_it() -> None:
    queries, keys, values = (projection(2) for _ in range(3))
    assert parts(*NORM, queries, keys, values) == [[0, 1, 2, 3, 4, 5]]


def test_two_layers_of_a_perceptron_are_two_parts() -> None:
    assert parts(projection(), pointwise(0), projection(1)) == [[0, 1], [2]]


def test_a_gated_perceptron_is_cut_before_its_second_layer() -> None:
    up, gate = projection(2), projection(2)
    assert parts(*NORM, up, gate, pointwise(3, 4), projection(5)) == [[0, 1, 2, 3, 4, 5], [6]]


def test_attention_is_one_part() -> None:
    """Scores, their softmax, and the product with the values: the second reads the first."""
    queries, keys, values = projection(), projection(), projection()
    softmax = [pointwise(3), reduction(4), pointwise(4, 5)]
    made = parts(queries, keys, values, product(0, 1), *softmax, product(6, 2))
    assert made == [[0], [1], [2], [3, 4, 5, 6, 7]]


def test_a_third_product_is_no_attention() -> None:
    one, two, three = product(), product(0), product(1)
    assert parts(one, two, three) == [[0, 1], [2]]


def test_the_output_projection_does_not_join_attention() -> None:
    assert parts(product(), product(0), projection(1)) == [[0, 1], [2]]


def test_a_product_of_which_one_side_is_computed_by_no_product_joins() -> None:
    """A computed array times one from outside; two computed ones begin a part."""
    assert parts(pointwise(), product(0)) == [[0, 1]]
    assert parts(output(pointwise()), output(pointwise()), product(0, 1)) == [[0, 1], [2]]


# ------------------------------------------------------------------------ on a GPU


def on_a_gpu(*operators: OperatorInfo) -> list[list[int]]:
    return Layerwise(apart=True).parts(operators)


def test_projections_of_one_array_are_one_part_on_a_gpu() -> None:
    """A launch may run them at the same time; the norm before them is a part of its own."""
    queries, keys = of(projection(2), "x", "q"), of(projection(2), "x", "k")
    values = of(projection(2), "x", "v")
    assert on_a_gpu(*NORM, queries, keys, values) == [[0, 1, 2], [3, 4, 5]]
    assert on_a_gpu(*NORM, queries, keys, pointwise(4), values) == [[0, 1, 2], [3, 4, 5, 6]]
    assert on_a_gpu(*NORM, stored(queries), pointwise(3), values) == [[0, 1, 2], [3, 5], [4]]
    assert on_a_gpu(*NORM, queries, misc(3), values) == [[0, 1, 2], [3, 5], [4]]


def test_projections_that_do_not_go_together_begin_parts_on_a_gpu() -> None:
    """Other arrays, other layers, products without weights, and what depends on the first."""
    first, other = of(projection(), "x", "q"), of(projection(), "y", "k")
    assert on_a_gpu(first, other) == [[0], [1]]
    assert on_a_gpu(first, of(projection(region="1"), "x", "k")) == [[0], [1]]
    assert on_a_gpu(first, of(product(), "x", "k")) == [[0], [1]]
    assert on_a_gpu(first, of(projection(0), "x", "k")) == [[0], [1]]
    assert on_a_gpu(first, misc(0), of(projection(1), "x", "k")) == [[0], [1], [2]]
    many = [of(projection(), "x", str(number)) for number in range(MOST_PRODUCTS + 1)]
    assert [len(part) for part in on_a_gpu(*many)] == [MOST_PRODUCTS, 1]


def test_two_products_of_one_array_meet_on_a_gpu() -> None:
    """Both halves of a gated perceptron; not two products of different arrays, and no layers."""
    gate, up = of(projection(2), "x", "w"), of(projection(2), "x", "v")
    down = of(projection(6), "h", "u")
    model = [*NORM, gate, pointwise(3), up, pointwise(4, 5), down]
    assert on_a_gpu(*model) == [[0, 1, 2], [3, 4, 5, 6], [7]]
    model[5] = of(projection(2), "y", "v")
    assert on_a_gpu(*model) == [[0, 1, 2], [3, 4], [5, 6], [7]]
    second = of(projection(1), "x", "v")
    assert on_a_gpu(of(projection(), "x", "w"), pointwise(0), second, pointwise(1, 2)) == [
        [0, 1],
        [2, 3],
    ]


def test_a_norm_comes_along_if_only_both_products_read_it() -> None:
    """Arrays that are no weights: the norm is in the part of the first product."""
    gate, up = of(product(2), "x", "w"), of(product(2), "x", "v")
    model = [*NORM, gate, pointwise(3), up, pointwise(4, 5)]
    assert on_a_gpu(*model) == [[0, 1, 2, 3, 4, 5, 6]]
    shown = [*model[:2], output(model[2]), *model[3:]]
    assert on_a_gpu(*shown) == [[0, 1, 2, 3, 4], [5, 6]]


# ------------------------------------------------------------------------ sinking


def test_half_a_norm_does_not_stay_behind() -> None:
    """The square of a residual that is given out is computed where its mean is."""
    residual = output(pointwise(0))
    made = parts(projection(), residual, pointwise(1), reduction(2), pointwise(1, 3))
    assert made == [[0, 1], [2, 3, 4]]


def test_what_would_have_to_be_stored_instead_stays() -> None:
    """Nobody else reads the projection: moving its activation would store it all the same."""
    assert parts(projection(), pointwise(0), reduction(1)) == [[0, 1], [2]]


def test_what_is_given_out_or_read_by_two_parts_stays() -> None:
    shown = output(projection())
    assert parts(shown, output(pointwise(0)), reduction(1)) == [[0, 1], [2]]
    two_readers = parts(shown, pointwise(0), reduction(1), misc(1))
    assert two_readers == [[0, 1], [2], [3]]


def test_nothing_moves_into_a_misc_operator() -> None:
    assert parts(output(projection()), pointwise(0), misc(1)) == [[0, 1], [2]]


# ------------------------------------------------------------------------ any model


@st.composite
def models(draw: st.DrawFn) -> list[OperatorInfo]:
    """Operators that each read some earlier ones."""
    made: list[OperatorInfo] = []
    kinds = [Kind.POINTWISE, Kind.POINTWISE, Kind.REDUCTION, Kind.CONTRACTION, Kind.MISC]
    for i in range(draw(st.integers(0, 24))):
        near = range(max(0, i - 6), i)
        operands = draw(st.sets(st.sampled_from(near), max_size=3)) if i else set()
        made.append(
            OperatorInfo(
                draw(st.sampled_from(kinds)),
                tuple(sorted(operands)),
                f"layers.{i // 8}",
                has_weight=draw(st.booleans()),
                is_stored=draw(st.integers(0, 5)) == 0,
                is_output=draw(st.integers(0, 7)) == 0,
                factors=frozenset(draw(st.sets(st.sampled_from("xyz"), max_size=2))),
            )
        )
    return made


@settings(deadline=None, max_examples=150)
@given(models(), st.booleans())
def test_parts_cover_all_once_and_run_in_order(model: list[OperatorInfo], apart: bool) -> None:
    made = Layerwise(apart).parts(model)
    assert sorted(i for part in made for i in part) == [*range(len(model))]
    assert all(made), "no part is empty"
    assert all(part == sorted(part) for part in made)
    check_order(model, made)
    for part in made:
        assert apart or len({model[i].region for i in part}) == 1
        assert len(part) == 1 or all(model[i].kind is not Kind.MISC for i in part)


def check_order(model: Sequence[OperatorInfo], made: Sequence[Sequence[int]]) -> None:
    """Every operand is made by the same part or by one before it: the quotient has no cycle."""
    when = {i: number for number, part in enumerate(made) for i in part}
    late = [(v, i) for i, op in enumerate(model) for v in op.operands if when[v] > when[i]]
    assert late == []
