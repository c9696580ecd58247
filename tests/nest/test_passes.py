"""Each pass over loop nests by itself: a nest as text, the pass, the nest as text."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from blockbuster_fusion.errors import BadConfig
from blockbuster_fusion.ir.text import from_text, to_text
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.nest.nest import For, Nest
from blockbuster_fusion.nest.passes.divide_masked_loops import divide_masked_loops
from blockbuster_fusion.nest.passes.merge_kernels import merge_kernels
from blockbuster_fusion.nest.passes.split_prologue import split_prologue
from blockbuster_fusion.nest.passes.unroll_short_loops import unroll_short_loops
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.schedule.schedule import Schedule, nest_passes

HEAD = """
M = Axis(Symbol("MM"))
N = Axis(Symbol("NN"))
D = Axis(64)
M0 = Dim(M)
N0 = Dim(N)
D_all = Dim(D, unit=True)
m = Index(M0)
n = Index(N0)
Q = Buffer([BufferAxis(M0), BufferAxis(D_all)], float32)
K = Buffer([BufferAxis(N0), BufferAxis(D_all)], float32)
H = Buffer([BufferAxis(M0), BufferAxis(D_all)], bfloat16)
O = Buffer([BufferAxis(M0)], float32)
q = Tile([M0[m], D_all[0]], float32)
k = Tile([N0[n], D_all[0]], float32)
s = Tile([M0[m], N0[n]], float32)
r = Tile([M0[m]], float32)
a = Tile([M0[m]], float32)
"""

WIDENED_AND_ROUNDED = """
h = Tile([M0[m], D_all[0]], bfloat16)
d = Tile([M0[m], D_all[0]], float32)
y = Tile([M0[m], D_all[0]], bfloat16)
Nest("f", [Kernel("f", [m], [
    Load(h, H[M0[m], D_all[0]]),
    Compute(q, float32(x0), [h]),
    Compute(d, x0 * 2.0, [q]),
    Compute(y, bfloat16(x0), [d]),
    Store(H[M0[m], D_all[0]], y),
])], [H], [View(H, [M, D])])
"""

SUM_BESIDE_ITS_ACCUMULATOR = """
R = Buffer([BufferAxis(M0), BufferAxis(D_all)], float32)
p = Tile([M0[m], D_all[0]], float32)
acc = Tile([M0[m], D_all[0]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(acc, 0.0),
    For(n, [
        Load(k, K[N0[n], D_all[0]]),
        Load(q, Q[M0[m], D_all[0]]),
        Fill(s, 0.0),
        Contract(s, q, k, D_all[0]),
        Fold(r, s, N0[n], max),
        Fill(p, 0.0),
        Contract(p, s, k, N0[n]),
        Compute(acc, x0 * x1 + x2, [acc, r, p]),
    ], gathered=[[add, [acc]]]),
    Store(R[M0[m], D_all[0]], acc),
])], [Q, K], [View(R, [M, D])])
"""

LOAD_IN_A_LOOP = """
Nest("f", [Kernel("f", [m], [
    Fill(a, 0.0),
    For(n, [
        Load(q, Q[M0[m], D_all[0]]),
        Compute(q, x0 * 2.0, [q]),
        Fold(r, q, D_all[0], add),
        Load(k, K[N0[n], D_all[0]]),
        Compute(a, x0 + x1, [a, r]),
    ], gathered=[[add, [a]]]),
    Store(O[M0[m]], a),
])], [Q, K], [View(O, [M])])
"""

LOAD_ONCE_IN_A_LOOP = LOAD_IN_A_LOOP.replace("        Compute(q, x0 * 2.0, [q]),\n", "")

UNREAD = """
Nest("f", [Kernel("f", [m], [
    Load(q, Q[M0[m], D_all[0]]),
    Fold(a, q, D_all[0], add),
    For(n, [
        Load(k, K[N0[n], D_all[0]]),
        Fill(s, 0.0),
    ], gathered=[[add, [s]]]),
    Fold(r, q, D_all[0], max),
    Store(O[M0[m]], r),
])], [Q, K], [View(O, [M])])
"""

REDUCTIONS = """
E = Axis(Symbol("EE"))
E0 = Dim(E)
e = Index(E0)
X = Buffer([BufferAxis(M0), BufferAxis(E0)], float32)
x = Tile([M0[m], E0[e]], float32)
z = Tile([M0[m], E0[e]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(a, 0.0),
    For(e, [
        Load(x, X[M0[m], E0[e]]),
        Fold(r, x, E0[e], add),
        Compute(a, x0 + x1, [a, r]),
        Fold(r, x, E0[e], max),
        Compute(z, exp(x0), [x]),
        Fold(r, z, E0[e], add),
        Compute(a, x0 + x1, [a, r]),
    ], gathered=[[add, [a]]]),
    Store(O[M0[m]], a),
])], [X], [View(O, [M])])
"""

CAUSAL_SUM = """
i = Tile([M0[m]], int64)
j = Tile([N0[n]], int64)
w = Tile([M0[m], N0[n]], float32)
Nest("f", [Kernel("f", [m], [
    Load(q, Q[M0[m], D_all[0]]),
    Positions(i, M0[m]),
    Fill(a, 0.0),
    For(n, [
        Load(k, K[N0[n], D_all[0]]),
        Fill(s, 0.0),
        Contract(s, q, k, D_all[0]),
        Positions(j, N0[n]),
        Compute(w, where(x0 <= x1, x2, 0.0), [j, i, s]),
        Fold(r, w, N0[n], add),
        Compute(a, x0 + x1, [a, r]),
    ], gathered=[[add, [a]]]),
    Store(O[M0[m]], a),
])], [Q, K], [View(O, [M])])
"""

LONG_SUM = """
Nest("f", [Kernel("f", [m], [
    Load(q, Q[M0[m], D_all[0]]),
    Fill(a, 0.0),
    For(n, [
        Load(k, K[N0[n], D_all[0]]),
        Fill(s, 0.0),
        Contract(s, q, k, D_all[0]),
        Fold(r, s, N0[n], add),
        Compute(a, x0 + x1, [a, r]),
    ], gathered=[[add, [a]]]),
    Store(O[M0[m]], a),
])], [Q, K], [View(O, [M])])
"""

TWO_KERNELS = """
P = Axis(Symbol("MM"))
P0 = Dim(P)
p = Index(P0)
V = Buffer([BufferAxis(P0)], float32)
W = Buffer([BufferAxis(P0)], float32)
v = Tile([P0[p]], float32)
Nest("f", [
    Kernel("f_1", [m], [Load(r, O[M0[m]]), Store(O[M0[m]], r)]),
    Kernel("f_2", [p], [Load(v, V[P0[p]]), Store(W[P0[p]], v)]),
], [O, V], [View(O, [M]), View(W, [P])])
"""

DEPENDENT_KERNELS = TWO_KERNELS.replace("V[P0[p]]", "O[P0[p]]")

PROLOGUE = """program {
  axis M = MM
  axis K = KK
  axis N = NN
  %0 = input "X": [M.* K.*](M.* K.*)float32
  %1 = input "B": [N.*](N.*)float32
  %7 = map(each %0, whole %1) over M.0 {
    %2 = input "X": [K.*](M.0 K.*)float32
    %3 = input "B": [N.*](N.*)float32
    %6 = map(each %2) over K.0 {
      %4 = input "X": [](M.0 K.0)float32
      %5 = block_reduce(%4) over K.0 by add
      yield %5 add
    }
    %11 = map(each %3, whole %6) over N.0 {
      %8 = input "B": [](N.0)float32
      %9 = input "": [](M.0)float32
      %10 = apply(%8, %9) x0 * x1
      yield %10 stack
    }
    yield %11 stack
  }
  output "Y" = %7 [M N]
}
"""

TWO_GRIDS = """
B = Axis(Symbol("BB"))
B0 = Dim(B, packed=False)
b = Index(B0)
j = Index(M0)
S = Buffer([BufferAxis(B0), BufferAxis(M0), BufferAxis(N0)], float32)
T = Buffer([BufferAxis(M0)], float32)
t = Tile([B0[b], M0[m], N0[n]], float32)
u = Tile([M0[j]], float32)
Nest("f", [Kernel("f", [b, m, n], [
    Load(t, S[B0[b], M0[m], N0[n]]),
    Store(S[B0[b], M0[m], N0[n]], t),
]), Kernel("f2", [j], [
    Load(u, T[M0[j]]),
    Store(T[M0[j]], u),
])], [S, T], [View(S, [B, M, N]), View(T, [M])])
"""


def run(name: str, body: str, schedule: Schedule | None = None) -> str:
    """The nest after one pass, without the definitions that it had before."""
    nest = nest_from_text(HEAD + body)
    verify_nest(nest)
    passes = {each.name: each.run for each in nest_passes(schedule or Schedule())}
    return changes(nest, passes[name](nest))


def changes(before: Nest, after: Nest) -> str:
    verify_nest(after)
    known = set(nest_to_text(before).splitlines())
    lines = nest_to_text(after).splitlines()
    defined = [line for line in lines if re.match(r"\w+ = ", line)]
    return "\n".join([line for line in lines if line not in defined or line not in known])


CASES = {
    "fold_casts": ("fold_casts", WIDENED_AND_ROUNDED, None),
    "accumulate_in_place": ("accumulate_in_place", SUM_BESIDE_ITS_ACCUMULATOR, None),
    "hoist, accumulator stays": ("hoist", LOAD_IN_A_LOOP, None),
    "hoist": ("hoist", LOAD_ONCE_IN_A_LOOP, None),
    "remove_dead_code": ("remove_dead_code", UNREAD, None),
    "tail_masks": ("tail_masks", REDUCTIONS, None),
    "skip_masked_blocks": ("skip_masked_blocks", CAUSAL_SUM, None),
    "skip_masked_blocks, not masked": ("skip_masked_blocks", LONG_SUM, None),
    "split_reduction": ("split_reduction", LONG_SUM, Schedule(split={"N": 4})),
    "split_reduction, atomic": ("split_reduction", LONG_SUM, Schedule(split={"N": 4}, atomic=True)),
    "order_grid": ("order_grid", TWO_GRIDS, Schedule(order=("N.0", "B.0", "M.0"))),
    "order_grid, some": ("order_grid", TWO_GRIDS, Schedule(order=("N", "M"))),
    "order_grid, as it is": ("order_grid", TWO_GRIDS, None),
    "cascade_sums": ("cascade_sums", LONG_SUM, None),
}


@pytest.mark.parametrize(("name", "body", "schedule"), CASES.values(), ids=CASES)
def test_pass(
    name: str, body: str, schedule: Schedule | None, golden: Callable[[str], None]
) -> None:
    golden(run(name, body, schedule))


def test_every_pass_has_a_case() -> None:
    assert {name for name, _, _ in CASES.values()} == {p.name for p in nest_passes(Schedule())}


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (("M.0", "K.0"), "configuration, order: no loop of a grid has the label K.0; "),
        (("M.0", "K.0"), "known are B.0, M.0, N.0$"),
        (("M.0", "N.0", "M"), "configuration, order: M.0 is named twice$"),
    ],
)
def test_an_order_of_no_loops_is_refused(order: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        run("order_grid", TWO_GRIDS, Schedule(order=order))


def test_split_prologue(golden: Callable[[str], None]) -> None:
    made = split_prologue(from_text(PROLOGUE))
    verify(made)
    golden(to_text(made))


def divided(body: str) -> tuple[Nest, Nest]:
    """A nest with its masked blocks skipped, and the same with its loops divided."""
    nest = skip_masked_blocks_of(nest_from_text(HEAD + body))
    (kernel,) = nest.kernels
    return nest, replace(nest, steps=(divide_masked_loops(kernel),))


def skip_masked_blocks_of(nest: Nest) -> Nest:
    passes = {each.name: each.run for each in nest_passes(Schedule())}
    return passes["skip_masked_blocks"](nest)


def test_divide_masked_loops(golden: Callable[[str], None]) -> None:
    golden(changes(*divided(CAUSAL_SUM)))


def test_a_loop_is_divided_by_its_own_mask_alone() -> None:
    """Rows that see earlier positions only, another mask beside it, and no mask."""
    _, nest = divided(CAUSAL_SUM.replace("x0 <= x1, x2", "x0 + 3 <= x1, x2"))
    assert len([s for s in nest.kernels[0].body if isinstance(s, For)]) == 2
    for mask in ("(x0 <= x1) * (x2 > 0.0) > 0", "x0 >= x1"):
        _, nest = divided(CAUSAL_SUM.replace("x0 <= x1, x2", f"{mask}, x2"))
        assert len([s for s in nest.kernels[0].body if isinstance(s, For)]) == 1
    before, nest = divided(LONG_SUM)
    assert nest.kernels == before.kernels


COMBINED = """
P = Axis(4)
P0 = Dim(P, packed=False)
p = Index(P0)
S = Buffer([BufferAxis(P0, Along.BLOCKS), BufferAxis(M0)], float32)
c = Tile([M0[m]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(a, 0.0),
    For(p, [
        Load(c, S[P0[p], M0[m]]),
        Compute(r, exp(x0), [c]),
        Compute(a, x0 + x1, [a, r]),
    ], gathered=[[add, [a]]]),
    Store(O[M0[m]], a),
])], [S], [View(O, [M])])
"""


def test_unroll_short_loops(golden: Callable[[str], None]) -> None:
    nest = nest_from_text(HEAD + COMBINED)
    (kernel,) = nest.kernels
    golden(changes(nest, replace(nest, steps=(unroll_short_loops(kernel),))))


def test_long_loops_are_not_unrolled() -> None:
    """A loop of many blocks, of blocks with several elements, or with a product."""
    for body in (COMBINED.replace("Axis(4)", "Axis(17)"), LOAD_IN_A_LOOP, LONG_SUM):
        (kernel,) = nest_from_text(HEAD + body).kernels
        assert unroll_short_loops(kernel) is kernel


def test_merge_kernels(golden: Callable[[str], None]) -> None:
    nest = nest_from_text(HEAD + TWO_KERNELS)
    golden(changes(nest, merge_kernels(nest, {})))


def test_kernels_that_depend_on_each_other_are_not_merged() -> None:
    nest = nest_from_text(HEAD + DEPENDENT_KERNELS)
    assert len(merge_kernels(nest, {}).kernels) == 2
