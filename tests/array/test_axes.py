"""The axes solver: positions as sequences of factors, views that vanish, and NumPy's results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import event, given, settings

from blockbuster_fusion.array.axes import ONE, Axes, AxesDisagree, AxesMeet, Size, product
from blockbuster_fusion.array.positional import PositionalBuilder
from blockbuster_fusion.array.program import ArrayInput, ArrayProgram, ArrayType
from blockbuster_fusion.array.records import FrameworkLayout, PositionalArray, PositionalProgram
from blockbuster_fusion.errors import NotExpressible
from blockbuster_fusion.interp.evaluate import evaluate
from blockbuster_fusion.ir.combiner import ADD, MAX, MIN, Combiner
from blockbuster_fusion.ir.expr import Expr, call
from blockbuster_fusion.ir.types import DType
from helpers.effort import part

LENGTHS = {"s": 3, "t": 2}
"""Lengths of the symbols at run time. They equal known sizes: a mix-up of the
two does not show in shapes, but in values."""

S, T = Size(1, ("s",)), Size(1, ("t",))

# ------------------------------------------------------------------------ sizes


def test_sizes_are_products_of_a_number_and_symbols() -> None:
    assert Size(2) * S * Size(3) * T == Size(6, ("s", "t"))
    assert str(Size(6, ("s", "t"))) == "6*s*t"
    assert str(S) == "s"
    assert str(ONE) == "1"
    assert product([]) == ONE


def test_a_size_is_divided_only_where_the_quotient_is_whole_for_all_lengths() -> None:
    assert Size(6, ("s", "t")).divided_by(Size(2, ("t",))) == Size(3, ("s",))
    assert (S * S).divided_by(S) == S
    assert Size(6).divided_by(Size(4)) is None
    assert Size(6).divided_by(S) is None  # even if s happens to be 3
    assert S.divided_by(Size(2)) is None
    assert Size(6).divided_by(Size(0)) is None


# ------------------------------------------------------------------------ equations


def test_a_position_of_length_1_is_no_axis() -> None:
    assert Axes().new(ONE) == ()


def test_equal_factors_become_one() -> None:
    axes = Axes()
    a, b = axes.new(Size(4)), axes.new(Size(4))
    axes.unify(a, b)
    assert axes.atoms(a) == axes.atoms(b)


def test_the_larger_factor_is_split_by_the_smaller() -> None:
    axes = Axes()
    whole, first, rest = axes.new(Size(12)), axes.new(Size(3)), axes.new(Size(4))
    axes.unify(whole, first + rest)
    assert axes.atoms(whole) == first + axes.atoms(rest)


def test_two_splits_of_one_axis_meet_in_smaller_atoms() -> None:
    axes = Axes()
    left = axes.new(Size(2)) + axes.new(Size(12))
    right = axes.new(Size(4, ())) + axes.new(Size(6))
    axes.unify(left, right)
    assert axes.atoms(left) == axes.atoms(right)
    assert [f.size.number for f in axes.atoms(left)] == [2, 2, 6]


def test_symbolic_factors_are_split_as_numbers_are() -> None:
    axes = Axes()
    whole = axes.new(Size(8) * S * T)
    parts = axes.new(S) + axes.new(Size(4)) + axes.new(Size(2) * T)
    axes.unify(whole, parts)
    assert axes.atoms(whole) == axes.atoms(parts)


def test_factors_that_do_not_divide_each_other_disagree() -> None:
    axes = Axes()
    with pytest.raises(AxesDisagree, match="4 and 6 have no common factors"):
        axes.unify(axes.new(Size(4)), axes.new(Size(6)))
    with pytest.raises(AxesDisagree, match=r"\(s\) and \(s, 2\) have no common factors"):
        axes.unify(axes.new(S), axes.new(S) + axes.new(Size(2)))


def test_two_axes_of_one_array_do_not_become_one() -> None:
    axes = Axes()
    a, b = axes.new(S), axes.new(S)
    axes.keep_apart(a + b)
    with pytest.raises(AxesMeet, match="s and s would be one axis, and one array has both"):
        axes.unify(a, b)


def test_an_axis_is_not_split_by_another_axis_of_the_same_array() -> None:
    axes = Axes()
    a, b = axes.new(Size(6)), axes.new(Size(2))
    axes.keep_apart(a + b)
    with pytest.raises(AxesMeet, match="6 and 2 would be one axis"):
        axes.unify(a, b + axes.new(Size(3)))


# ------------------------------------------------------------------------ programs against NumPy


class Pair:
    """A value of the program in the making, and the NumPy array that it stands for."""

    def __init__(self, value: PositionalArray, array: np.ndarray) -> None:
        self.value, self.array = value, array
        assert array.shape == tuple(map(length, value.sizes)), "positions have the array's lengths"

    @property
    def sizes(self) -> tuple[Size, ...]:
        return self.value.sizes

    def __repr__(self) -> str:
        return f"({', '.join(map(str, self.sizes))})"


class Both:
    """Each operator twice: over positions, and in NumPy."""

    def __init__(self) -> None:
        self.program = PositionalBuilder("P")
        self.arrays: dict[str, np.ndarray] = {}

    def input(self, *sizes: Size) -> Pair:
        name = f"X{len(self.arrays)}"
        rng = np.random.default_rng(len(self.arrays))
        self.arrays[name] = rng.standard_normal([length(s) for s in sizes])
        value = self.program.input(name, sizes, DType.float64)
        return Pair(value, self.arrays[name])

    def constant(self, number: float, *sizes: Size) -> Pair:
        made = np.full([length(s) for s in sizes], number)
        return Pair(self.program.constant(number, sizes, DType.float64), made)

    def counting(self, extent: Size) -> Pair:
        return Pair(self.program.counting(extent), np.arange(length(extent)))

    def view(self, x: Pair, *sizes: Size) -> Pair:
        made = x.array.reshape([length(s) for s in sizes])
        return Pair(self.program.view(x.value, sizes), made)

    def permute(self, x: Pair, *order: int) -> Pair:
        return Pair(self.program.permute(x.value, order), x.array.transpose(order))

    def insert(self, x: Pair, at: int) -> Pair:
        return Pair(self.program.insert(x.value, at), np.expand_dims(x.array, at))

    def drop(self, x: Pair, at: Sequence[int]) -> Pair:
        return Pair(self.program.drop(x.value, at), np.squeeze(x.array, tuple(at)))

    def expand(self, x: Pair, *sizes: Size) -> Pair:
        made = np.broadcast_to(x.array, [length(s) for s in sizes])
        return Pair(self.program.expand(x.value, sizes), made)

    def apply(self, make: Callable[..., Expr], numpy: Callable[..., Any], *x: Pair) -> Pair:
        made = self.program.elementwise(make, *(p.value for p in x))
        return Pair(made, np.asarray(numpy(*(p.array for p in x))))

    def add(self, x: Pair, y: Pair) -> Pair:
        return self.apply(lambda a, b: a + 2 * b, lambda a, b: a + 2 * b, x, y)

    def reduce(self, combiner: Combiner, x: Pair, at: Sequence[int], keep: bool = False) -> Pair:
        ufunc = {ADD: np.add, MAX: np.maximum, MIN: np.minimum}[combiner]
        made = ufunc.reduce(x.array, axis=tuple(at), keepdims=keep)
        return Pair(self.program.reduce(combiner, x.value, at, keep=keep), np.asarray(made))

    def contract(self, x: Pair, y: Pair, letters: str) -> Pair:
        operands, result = letters.split("->")
        left, right = operands.split(",")
        made = self.program.contract(x.value, y.value, left, right, result)
        return Pair(made, np.asarray(np.einsum(letters, x.array, y.array)))

    def stack(self, pieces: Sequence[Pair], at: int) -> Pair:
        made = self.program.stack([p.value for p in pieces], at)
        return Pair(made, np.concatenate([p.array for p in pieces], at))

    def check(self, *results: Pair) -> PositionalProgram:
        """The program gives these results; a given array is none, so each is doubled."""
        doubled = [self.apply(lambda t: 2 * t, lambda t: 2 * t, r) for r in results]
        outputs = {f"O{i}": r.value for i, r in enumerate(doubled)}
        expressed = self.program.finish(outputs)
        inputs = {
            layout.name: self.arrays[layout.source].reshape(inner(layout))
            for layout in expressed.inputs
        }
        found = evaluate(*with_lengths(expressed, inputs))
        for layout, wanted in zip(expressed.outputs, doubled, strict=True):
            shown = seen(layout, found[layout.name])
            assert shown.shape == wanted.array.shape
            np.testing.assert_allclose(shown, wanted.array, rtol=1e-12, atol=1e-12)
        return expressed


def length(size: Size) -> int:
    """The length of a size at run time."""
    return size.number * int(np.prod([LENGTHS[s] for s in size.symbols], dtype=int))


def inner(layout: FrameworkLayout) -> list[int]:
    """The shape of a program's own array: a dimension for each axis."""
    return [length(size) for position in layout.positions for size, has in position if has]


def with_lengths(
    expressed: PositionalProgram, inputs: Mapping[str, np.ndarray]
) -> tuple[ArrayProgram, dict[str, np.ndarray]]:
    """The program with an array more for each open axis, which says how long that is."""
    program, count = expressed.program, len(expressed.sizes)
    own = len(program.inputs)

    def moved(value: int) -> int:
        return value + count if value >= own else value

    lengths = {f"length{i}": np.zeros(length(s)) for i, (_, s) in enumerate(expressed.sizes)}
    types = [ArrayType((axis,), DType.float64) for axis, _ in expressed.sizes]
    more = [ArrayInput(name, kind) for name, kind in zip(lengths, types, strict=True)]
    made = ArrayProgram(
        program.name,
        (*program.inputs, *more),
        tuple(replace(o, operands=tuple(map(moved, o.operands))) for o in program.operators),
        tuple(replace(o, value=moved(o.value)) for o in program.outputs),
    )
    return made, {**inputs, **lengths}


def seen(layout: FrameworkLayout, array: np.ndarray) -> np.ndarray:
    """A result as the framework sees it."""
    factors = [pair for position in layout.positions for pair in position]
    array = array.reshape([length(size) if has else 1 for size, has in factors])
    array = np.broadcast_to(array, [length(size) for size, _ in factors])
    return array.reshape([length(product(s for s, _ in p)) for p in layout.positions])


def names(expressed: PositionalProgram) -> list[str]:
    """The operators of a program."""
    return [operator.name for operator in expressed.program.operators]


def test_views_are_nothing() -> None:
    """Heads are split off, moved and merged again: no operator is left but the doubling."""
    b = Both()
    x = b.input(Size(2), S, Size(12))
    heads = b.permute(b.view(x, Size(2), S, Size(4), Size(3)), 0, 2, 1, 3)
    merged = b.view(b.permute(heads, 0, 2, 1, 3), Size(2) * S, Size(12))
    assert names(b.check(merged)) == ["elementwise"]


def test_split_and_merge_of_symbolic_sizes() -> None:
    b = Both()
    x = b.input(S * T, Size(6))
    split = b.view(x, S, T, Size(2), Size(3))
    turned = b.permute(split, 1, 0, 3, 2)
    merged = b.view(turned, S * T, Size(3), Size(2))
    b.check(turned, merged)


def test_an_outer_view_splits_what_an_inner_one_has_merged() -> None:
    b = Both()
    x = b.input(Size(4), Size(6))
    b.check(b.view(b.view(x, Size(24)), Size(2), Size(12)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((Size(6), Size(4)), (Size(4), Size(6))),
        ((S, T), (T, S)),
        ((Size(2), S), (S, Size(2))),
        ((Size(9),), (Size(4), Size(2))),
        ((Size(4),), (Size(4), Size(2))),
    ],
    ids=lambda sizes: "x".join(map(str, sizes)),
)
def test_views_that_no_split_gives_are_refused(
    before: tuple[Size, ...], after: tuple[Size, ...]
) -> None:
    """Neither border falls on the other's, so an element's new place is no function of axes."""
    program = PositionalBuilder("P")
    x = program.input("X", before, DType.float32)
    with pytest.raises(NotExpressible, match=r"a view that no split of axes gives .* has no form"):
        program.view(x, after)


def test_a_refused_view_leaves_the_program_usable() -> None:
    b = Both()
    x = b.input(Size(6), Size(4))
    with pytest.raises(NotExpressible):
        b.view(x, Size(4), Size(6))
    b.check(b.view(x, Size(2), Size(12)))


def test_an_array_times_its_transpose() -> None:
    """x * x.T of an input takes it in twice; of a computed array, an axis gets another name."""
    b = Both()
    x = b.input(Size(3), Size(3))
    expressed = b.check(b.add(x, b.permute(x, 1, 0)))
    assert [layout.source for layout in expressed.inputs] == ["X0", "X0"]
    b = Both()
    y = b.apply(lambda t: t**2, np.square, b.input(Size(3), Size(3)))
    b.check(b.add(y, b.permute(y, 1, 0)))


def test_a_computed_array_contracted_with_itself() -> None:
    """x @ x.T: the rows of the second operand are other rows than those of the first."""
    b = Both()
    x = b.apply(lambda t: call("exp", t), np.exp, b.input(S, Size(4)))
    expressed = b.check(b.contract(x, x, "mk,nk->mn"))
    assert names(expressed) == ["elementwise", "rename", "matmul", "elementwise"]


def test_a_square_array_contracted_with_itself() -> None:
    """x @ x of a square array: the middle axis is columns of one and rows of the other."""
    b = Both()
    x = b.apply(lambda t: call("exp", t), np.exp, b.input(Size(3), Size(3)))
    b.check(b.contract(x, x, "mk,kn->mn"), b.contract(x, x, "mk,km->m"))


def test_an_axis_is_split_under_all_its_names() -> None:
    """x @ x.T, then a view of x alone: the renamed rows are split as the rows are."""
    b = Both()
    x = b.apply(lambda t: call("exp", t), np.exp, b.input(Size(6), S))
    b.check(b.contract(x, x, "mk,nk->mn"), b.view(x, Size(2), Size(3), S))


def test_a_row_plus_the_same_row_as_a_column() -> None:
    b = Both()
    x = b.input(Size(4))
    row, column = b.insert(x, 0), b.insert(x, 1)
    b.check(b.add(row, column))
    b.check(b.add(b.expand(row, Size(4), Size(4)), column))
    b.check(b.add(column, b.expand(row, Size(4), Size(4))))


def test_an_expanded_axis_keeps_its_own_meaning() -> None:
    """An expanded axis is not merged with the axis beside it."""
    b = Both()
    row = b.expand(b.insert(b.input(S), 0), S, S)
    b.check(row, b.add(row, b.permute(row, 1, 0)))


def test_repeated_heads() -> None:
    """GQA's expand and reshape: the axis of copies is split off the other operand's heads."""
    b = Both()
    keys = b.input(Size(2), Size(4), S)
    repeated = b.expand(b.insert(keys, 1), Size(2), Size(3), Size(4), S)
    heads = b.view(repeated, Size(6), Size(4), S)
    queries = b.input(Size(6), T, Size(4))
    b.check(b.contract(queries, heads, "hqd,hdk->hqk"))


def test_reductions_over_several_positions_and_over_split_ones() -> None:
    b = Both()
    x = b.input(Size(4), S, Size(6))
    split = b.view(x, Size(2), Size(2), S, Size(6))
    b.check(
        b.reduce(ADD, x, [0, 2]),
        b.reduce(MAX, x, [1], keep=True),
        b.reduce(ADD, split, [1, 3], keep=True),
        b.reduce(MIN, b.view(split, Size(4) * S, Size(6)), [0]),
    )


def test_reductions_along_copies() -> None:
    """A sum of copies is a multiple; the largest of copies is the one."""
    b = Both()
    x = b.expand(b.insert(b.input(S), 0), Size(5), S)
    b.check(b.reduce(ADD, x, [0]), b.reduce(MAX, x, [0]), b.reduce(ADD, x, [0, 1]))


def test_contractions_over_split_axes() -> None:
    """The output projection of attention: heads and their elements are summed together."""
    b = Both()
    attended = b.permute(b.input(Size(2), S, Size(3)), 1, 0, 2)
    b.check(b.contract(b.view(attended, S, Size(6)), b.input(Size(5), Size(6)), "sk,nk->sn"))


def test_a_contraction_of_length_1_is_a_product() -> None:
    b = Both()
    b.check(b.contract(b.input(S, ONE), b.input(ONE, T), "mk,kn->mn"))


def test_positions_that_are_counted() -> None:
    b = Both()
    i, j = b.counting(S), b.counting(S)
    table = b.add(b.insert(i, 1), b.insert(j, 0))
    b.check(b.add(table, b.input(S, S)))
    b = Both()
    x = b.input(Size(6))
    b.check(b.add(b.counting(Size(6)), x), b.view(b.add(b.counting(Size(6)), x), Size(2), Size(3)))


def test_one_counted_position_along_both_axes() -> None:
    """A causal mask from a single arange: it is counted once along the rows and once along the
    columns."""
    b = Both()
    i = b.counting(S)
    b.check(b.add(b.insert(i, 1), b.insert(i, 0)))


def test_pieces_that_are_stacked() -> None:
    b = Both()
    x, y = b.input(Size(3), S), b.input(Size(3), S)
    b.check(b.stack([x, y], 0), b.stack([x, y, x], 1))


def test_an_array_stacked_with_itself() -> None:
    b = Both()
    x = b.input(Size(2), S)
    b.check(b.stack([x, x], 0), b.stack([x, b.apply(lambda t: -t, np.negative, x)], 1))


def test_copies_in_a_row_are_no_axis_of_the_array() -> None:
    """The axis that counts the copies is not mistaken for one of the array beside it."""
    b = Both()
    x = b.view(b.input(Size(4)), Size(2), Size(2))
    copies = b.stack([x, x], 0)
    b.check(b.add(copies, b.view(b.view(x, Size(4)), Size(4), ONE)))


def test_pieces_of_length_1() -> None:
    b = Both()
    x, y = b.input(ONE, S), b.input(ONE, S)
    b.check(b.stack([x, y], 0))


@pytest.mark.parametrize(
    ("what", "program"),
    [
        ("a constant as a result", lambda p: p.finish({"O": p.constant(1.0, (S,), DType.float32)})),
        (
            "a concatenation of unequal pieces",
            lambda p: p.stack([p.input(f"X{n}", (Size(n),), DType.float32) for n in (2, 3)], 0),
        ),
        (
            "a reduction or contraction of a constant",
            lambda p: p.reduce(ADD, p.constant(1.0, (S,), DType.float32), [0]),
        ),
        (
            "positions that fit no common axes",
            lambda p: p.elementwise(
                lambda a, b: a + b,
                *(p.input(n, (s,), DType.float32) for n, s in (("X", S), ("Y", T))),
            ),
        ),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_by_a_sentence(
    what: str, program: Callable[[PositionalBuilder], object]
) -> None:
    with pytest.raises(NotExpressible, match=f"{what}.* has no form over named axes"):
        program(PositionalBuilder("P"))


# ------------------------------------------------------------------------ random chains

SIZES = (ONE, Size(2), Size(3), Size(4), Size(6), S, T, Size(2) * S, S * T)


def splits(size: Size) -> list[tuple[Size, Size]]:
    """The ways to write a size as a product of two."""
    factors = [Size(2), Size(3), S, T]
    return [(f, rest) for f in factors if (rest := size.divided_by(f)) is not None]


class Chain:
    """A random program: each step takes results of earlier steps."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.both = data, Both()
        shape = data.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
        self.pairs = [self.both.input(*shape)]

    def choose(self, among: Sequence[Any]) -> Any:
        return self.data.draw(st.sampled_from(among))

    def run(self, steps: int) -> None:
        moves: Mapping[str, Callable[[Pair], Pair | None]] = {
            "split": self.split,
            "merge": self.merge,
            "permute": self.permute,
            "insert": lambda x: self.both.insert(x, self.choose(range(len(x.sizes) + 1))),
            "expand": self.expand,
            "elementwise": self.elementwise,
            "with itself": self.with_itself,
            "reduce": self.reduce,
            "contract": self.contract,
            "count": self.count,
            "stack": self.stack,
        }
        for _ in range(steps):
            name = self.choose([*moves])
            try:
                made = moves[name](self.choose(self.pairs))
            except NotExpressible as refusal:
                event(f"{name}: {refusal}"[:90])
                continue
            if made is not None and len(made.sizes) <= 5 and made.array.size <= 2000:
                self.pairs.append(made)
        self.both.check(self.pairs[-1], self.choose(self.pairs))

    def split(self, x: Pair) -> Pair | None:
        ways = [(i, way) for i, s in enumerate(x.sizes) for way in splits(s)]
        if not ways:
            return None
        i, way = self.choose(ways)
        return self.both.view(x, *x.sizes[:i], *way, *x.sizes[i + 1 :])

    def merge(self, x: Pair) -> Pair | None:
        if len(x.sizes) < 2:
            return None
        i = self.choose(range(len(x.sizes) - 1))
        merged = x.sizes[i] * x.sizes[i + 1]
        return self.both.view(x, *x.sizes[:i], merged, *x.sizes[i + 2 :])

    def permute(self, x: Pair) -> Pair:
        return self.both.permute(x, *self.data.draw(st.permutations(range(len(x.sizes)))))

    def expand(self, x: Pair) -> Pair:
        wide = [self.choose(SIZES) if s == ONE else s for s in x.sizes]
        return self.both.expand(x, *([self.choose(SIZES)] if self.choose([0, 1]) else []), *wide)

    def elementwise(self, x: Pair) -> Pair:
        """Any earlier array that is broadcast with this one, or a new one."""
        others = [y for y in self.pairs if is_broadcast(x.sizes, y.sizes)]
        rank = self.choose(range(len(x.sizes) + 1))
        fresh = [self.choose([ONE, s]) for s in x.sizes[rank:]]
        return self.both.add(x, self.choose([*others, self.both.input(*fresh)]))

    def with_itself(self, x: Pair) -> Pair | None:
        """The array and itself with two positions of one size exchanged."""
        equal = [(i, j) for i in range(len(x.sizes)) for j in range(i) if x.sizes[i] == x.sizes[j]]
        if not equal:
            return None
        i, j = self.choose(equal)
        order = [*range(len(x.sizes))]
        order[i], order[j] = order[j], order[i]
        return self.both.add(x, self.both.permute(x, *order))

    def reduce(self, x: Pair) -> Pair | None:
        if not x.sizes:
            return None
        at = self.data.draw(st.sets(st.sampled_from(range(len(x.sizes))), min_size=1))
        combiner = self.choose([ADD, MAX, MIN])
        return self.both.reduce(combiner, x, sorted(at), keep=self.choose([True, False]))

    def contract(self, x: Pair) -> Pair | None:
        """With an earlier array, the same one too, or with a new one, along one position."""
        if not x.sizes:
            return None
        at = self.choose(range(len(x.sizes)))
        letters = "abcde"[: len(x.sizes)]
        fresh = self.both.input(x.sizes[at], self.choose(SIZES))
        others = [
            y for y in [*self.pairs, fresh] if len(y.sizes) == 2 and y.sizes[0] == x.sizes[at]
        ]
        other = self.choose(others)
        result = letters.replace(letters[at], "z")
        return self.both.contract(x, other, f"{letters},{letters[at]}z->{result}")

    def count(self, x: Pair) -> Pair | None:
        return self.both.add(x, self.both.counting(x.sizes[-1])) if x.sizes else None

    def stack(self, x: Pair) -> Pair | None:
        pieces = [y for y in self.pairs if y.sizes == x.sizes]
        if not x.sizes:
            return None
        chosen = [x, *(self.choose(pieces) for _ in range(self.choose([1, 2])))]
        return self.both.stack(chosen, self.choose(range(len(x.sizes))))


def is_broadcast(left: Sequence[Size], right: Sequence[Size]) -> bool:
    """True if two shapes broadcast for all values of the symbols."""
    pairs = zip(reversed(left), reversed(right), strict=False)
    return all(a == b or ONE in (a, b) for a, b in pairs)


@settings(deadline=None, max_examples=part(300))
@given(st.data())
def test_random_chains_equal_numpy(data: st.DataObject) -> None:
    Chain(data).run(data.draw(st.integers(1, 8)))
