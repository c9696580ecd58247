"""Each pass over loop nests by itself: a nest as text, the pass, the nest as text."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.errors import BadConfig
from blockbuster_fusion.ir.text import from_text, to_text
from blockbuster_fusion.ir.verify import verify
from blockbuster_fusion.nest.nest import Along, Fold, For, Nest
from blockbuster_fusion.nest.passes.divide_masked_loops import divide_masked_loops
from blockbuster_fusion.nest.passes.gather_in_groups import gather_in_groups
from blockbuster_fusion.nest.passes.join_rows import join_rows
from blockbuster_fusion.nest.passes.merge_kernels import merge_kernels
from blockbuster_fusion.nest.passes.narrow_operands import narrow_operands
from blockbuster_fusion.nest.passes.once_per_row import once_per_row
from blockbuster_fusion.nest.passes.select_once import select_once
from blockbuster_fusion.nest.passes.sink import sink
from blockbuster_fusion.nest.passes.split_prologue import split_prologue
from blockbuster_fusion.nest.passes.unroll_short_loops import unroll_short_loops
from blockbuster_fusion.nest.passes.untie_kernels import untie_kernels
from blockbuster_fusion.nest.text import nest_from_text, nest_to_text
from blockbuster_fusion.nest.verify import verify_nest
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.schedule.schedule import Schedule, each_kernel, nest_passes

OUTER = Schedule(grid="outer")
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

NESTED_SUMS = """
T = Buffer([], float32)
X = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
t = Tile([], float32)
w = Tile([], float32)
j = Index(M0)
x = Tile([M0[j], N0[n]], float32)
y = Tile([M0[j]], float32)
z = Tile([M0[j]], float32)
Nest("f", [Kernel("f", [], [
    Fill(t, 0.0),
    For(j, [
        Fill(z, 0.0),
        For(n, [
            Load(x, X[M0[j], N0[n]]),
            Fold(y, x, N0[n], add, tail_masked=False),
            Compute(z, x0 + x1, [z, y]),
        ], gathered=[[add, [z]]]),
        Fold(w, z, M0[j], add, tail_masked=False),
        Compute(t, x0 + x1, [t, w]),
    ], gathered=[[add, [t]]]),
    Store(T[()], t),
])], [X], [View(T, [])])
"""

MASKED_SUMS = NESTED_SUMS.replace(", add, tail_masked=False", ", add")

SUM_AND_PRODUCT = """
both = Combiner([0.0, 1.0], [x0 + x2, x1 * x3])
P = Buffer([BufferAxis(M0)], float32)
S = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
b = Tile([M0[m]], float32)
p = Tile([M0[m]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(a, 0.0),
    Fill(b, 1.0),
    For(n, [
        Load(s, S[M0[m], N0[n]]),
        Fold(r, s, N0[n], add),
        Fold(p, s, N0[n], mul),
        Compute(a, x0 + x1, [a, r]),
        Compute(b, x0 * x1, [b, p]),
    ], gathered=[[both, [a, b]]]),
    Store(O[M0[m]], a),
    Store(P[M0[m]], b),
])], [S], [View(O, [M]), View(P, [M])])
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

UNMASKED_SUM = LONG_SUM.replace("N0[n], add)", "N0[n], add, tail_masked=False)")

NORM_AND_VECTOR = """
x = Tile([N0[n]], float32)
y = Tile([N0[n]], float32)
z = Tile([], float32)
e = Tile([], float32)
X = Buffer([BufferAxis(N0)], float32)
W = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
w = Tile([M0[m], N0[n]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(e, 0.0),
    Fill(a, 0.0),
    For(n, [
        Load(x, X[N0[n]]),
        Load(w, W[M0[m], N0[n]]),
        Compute(y, x0 * x0, [x]),
        Fold(z, y, N0[n], add, tail_masked=False),
        Contract(a, w, x, N0[n]),
        Compute(e, x0 + x1, [e, z]),
    ], gathered=[[add, [a]], [add, [e]]]),
    Compute(a, x0 / x1, [a, e]),
    Store(O[M0[m]], a),
])], [X, W], [View(O, [M])])
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

CONTINUED_KERNELS = """
X = Buffer([BufferAxis(M0)], float32)
Y = Buffer([BufferAxis(M0)], float32)
p = Index(M0)
r2 = Tile("r", [M0[p]], float32)
Nest("f", [
    Kernel("f_1", [m], [Load(r, X[M0[m]]), Compute(a, x0 * 2.0, [r]), Store(Y[M0[m]], a)]),
    Kernel("f_2", [p], [Load(r2, Y[M0[p]]), Store(O[M0[p]], r2)]),
], [X], [View(O, [M])], between=[Y])
"""

DEPENDENT_KERNELS = {
    "another block": CONTINUED_KERNELS.replace("r2, Y[M0[p]]", "r2, Y[M0[0]]"),
    "rounded": CONTINUED_KERNELS.replace(
        "Y = Buffer([BufferAxis(M0)], float32)", "Y = Buffer([BufferAxis(M0)], bfloat16)"
    ),
    "added to": CONTINUED_KERNELS.replace("Store(Y[M0[m]], a)", "Store(Y[M0[m]], a, atomic=True)"),
    "stored twice": CONTINUED_KERNELS.replace(
        "Store(Y[M0[m]], a)", "Store(Y[M0[m]], r), Store(Y[M0[m]], a)"
    ),
    "overwritten": CONTINUED_KERNELS.replace("Store(O[M0[p]], r2)", "Store(X[M0[p]], r2)"),
}

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

MADE_AND_MULTIPLIED = """
R = Axis(33)
R0 = Dim(R)
i = Index(R0)
j = Index(R0)
A = Buffer([BufferAxis(R0), BufferAxis(M0)], float32)
B = Buffer([BufferAxis(R0), BufferAxis(M0)], float32)
C = Buffer([BufferAxis(N0), BufferAxis(M0)], bfloat16)
P = Buffer([BufferAxis(R0), BufferAxis(N0)], bfloat16)
t = Tile([R0[i], M0[m]], float32)
h = Tile([R0[j], M0[m]], float32)
u = Tile([N0[n], M0[m]], float32)
v = Tile([R0[j], N0[n]], float32)
w = Tile([R0[j]], float32)
Nest("f", [Kernel("f1", [i, m], [
    Load(t, A[R0[i], M0[m]]),
    Compute(t, exp(x0), [t]),
    Store(B[R0[i], M0[m]], t),
]), Kernel("f2", [j, n], [
    Fill(v, 0.0),
    For(m, [
        Load(h, B[R0[j], M0[m]]),
        Load(u, C[N0[n], M0[m]]),
        Contract(v, h, u, M0[m], [False, False]),
        READER
    ], gathered=[[add, [v]]]),
    Store(P[R0[j], N0[n]], v),
])], [A, C], [View(P, [R, N])], between=[B])
"""

MADE_AND_READ = """
j = Index(M0)
l = Index(N0)
i = Index(M0)
S = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
T = Buffer([BufferAxis(M0)], float32)
t = Tile([M0[m]], float32)
u = Tile([M0[j], N0[l]], float32)
v = Tile([M0[j]], float32)
w = Tile([M0[i]], float32)
z = Tile([M0[j]], float32)
Nest("f", [Kernel("f1", [m], [
    Load(t, O[M0[m]]),
    Store(T[M0[m]], t),
]), Kernel("f2", [j], [
    Load(v, T[M0[j]]),
    For(l, [
        Load(u, S[M0[j], N0[l]]),
        Compute(u, x0 * x1, [u, v]),
        Fold(z, u, N0[l], add),
        Store(S[M0[j], N0[l]], u),
    ]),
]), Kernel("f3", [i], [
    Load(w, O[M0[i]]),
    Store(O[M0[i]], w),
])], [O, S], [View(S, [M, N]), View(O, [M])], between=[T])
"""

TWO_GRIDS = """
B = Axis(Symbol("BB"))
B0 = Dim(B, packed=False)
b = Index(B0)
j = Index(M0)
S = Buffer([BufferAxis(B0), BufferAxis(M0), BufferAxis(N0)], float32)
T = Buffer([BufferAxis(M0)], float32)
t = Tile([M0[m], N0[n]], float32)
u = Tile([M0[j]], float32)
Nest("f", [Kernel("f", [b, m, n], [
    Load(t, S[B0[b], M0[m], N0[n]]),
    Store(S[B0[b], M0[m], N0[n]], t),
]), Kernel("f2", [j], [
    Load(u, T[M0[j]]),
    Store(T[M0[j]], u),
])], [S, T], [View(S, [B, M, N]), View(T, [M])])
"""


ODD_PRODUCT = """
R = Axis(33)
S = Axis(45)
C = Axis(48)
R0 = Dim(R)
S0 = Dim(S)
C0 = Dim(C)
i = Index(R0)
l = Index(S0)
j = Index(C0)
A = Buffer([BufferAxis(R0), BufferAxis(S0)], bfloat16)
B = Buffer([BufferAxis(S0), BufferAxis(C0)], bfloat16)
P = Buffer([BufferAxis(R0), BufferAxis(C0)], bfloat16)
t = Tile([R0[i], S0[l]], float32)
u = Tile([S0[l], C0[j]], float32)
v = Tile([R0[i], C0[j]], float32)
Nest("f", [Kernel("f", [i, j], [
    Fill(v, 0.0),
    For(l, [
        Load(t, A[R0[i], S0[l]]),
        Load(u, B[S0[l], C0[j]]),
        Contract(v, t, u, S0[l], [False, False]),
    ], gathered=[[add, [v]]]),
    Store(P[R0[i], C0[j]], v),
])], [A, B], [View(P, [R, C])])
"""


def run(name: str, body: str, schedule: Schedule | None = None) -> str:
    """The nest after one pass, without the definitions that it had before."""
    nest = nest_from_text(HEAD + body)
    verify_nest(nest)
    own = nest_passes(schedule or Schedule(), folds_late=True)
    passes = {each.name: each.run for each in own}
    return changes(nest, passes[name](nest))


def changes(before: Nest, after: Nest) -> str:
    verify_nest(after)
    known = set(nest_to_text(before).splitlines())
    lines = nest_to_text(after).splitlines()
    defined = [line for line in lines if re.match(r"\w+ = ", line)]
    return "\n".join([line for line in lines if line not in defined or line not in known])


RUNNING_SUM = """
X = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
Y = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
f = Tile([M0[m], N0[n]], float32)
w = Tile([M0[m], N0[n]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(a, 0.0),
    For(n, [
        Load(s, X[M0[m], N0[n]]),
        RunningFold(f, s, N0[n], add),
        Compute(w, x0 + x1, [a, f]),
        Store(Y[M0[m], N0[n]], w),
        Last(a, w, N0[n]),
    ], carried=[[add, a]]),
])], [X], [View(Y, [M, N])])
"""

TURNED = """
P = Buffer([BufferAxis(M0), BufferAxis(D_all)], float32)
w = Tile([D_all[0], M0[m]], float32)
Nest("f", [Kernel("f", [m], [
    Load(q, Q[M0[m], D_all[0]]),
    Load(r, O[M0[m]]),
    Compute(w, x0 + x1, [q, r]),
    Store(P[M0[m], D_all[0]], w),
])], [Q, O], [View(P, [M, D])])
"""

SQUARE = """
A = Axis(300)
C = Axis(300)
A0 = Dim(A)
C0 = Dim(C)
i = Index(A0)
j = Index(C0)
X = Buffer([BufferAxis(A0), BufferAxis(C0)], float32)
Y = Buffer([BufferAxis(C0), BufferAxis(A0)], float32)
Z = Buffer([BufferAxis(A0), BufferAxis(C0)], float32)
x = Tile([A0[i], C0[j]], float32)
y = Tile([A0[i], C0[j]], float32)
z = Tile([A0[i], C0[j]], float32)
Nest("f", [Kernel("f", [i, j], [
    Load(x, X[A0[i], C0[j]]),
    Load(y, Y[C0[j], A0[i]]),
    Compute(z, x0 + x1, [x, y]),
    Store(Z[A0[i], C0[j]], z),
])], [X, Y], [View(Z, [A, C])])
"""

LONG_ROWS = """
L = Axis(8200)
L0 = Dim(L)
l = Index(L0)
rescaled = Combiner([-3e38, 0.0], [
    maximum(x0, x2),
    x1 * exp(x0 - maximum(x0, x2)) + x3 * exp(x2 - maximum(x0, x2)),
])
X = Buffer([BufferAxis(M0), BufferAxis(L0)], bfloat16)
S = Buffer([BufferAxis(M0)], float32)
x = Tile([M0[m], L0[l]], float32)
e = Tile([M0[m], L0[l]], float32)
largest = Tile([M0[m]], float32)
both = Tile([M0[m]], float32)
scale = Tile([M0[m]], float32)
total = Tile([M0[m]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(a, -3e38),
    Fill(total, 0.0),
    For(l, [
        Load(x, X[M0[m], L0[l]], beyond=-inf),
        Fold(largest, x, L0[l], max, tail_masked=False),
        Compute(both, maximum(x0, x1), [a, largest]),
        Compute(scale, exp(x0 - x1), [a, both]),
        Compute(e, exp(x0 - x1), [x, both]),
        Fold(r, e, L0[l], add, tail_masked=False),
        Compute(total, x0 * x1 + x2, [total, scale, r]),
        Compute(a, x0, [both]),
    ], gathered=[[rescaled, [a, total]]]),
    Store(O[M0[m]], a),
    Store(S[M0[m]], total),
])], [X], [View(O, [M]), View(S, [M])])
"""

GATES = """
R = Axis(33)
S = Axis(48)
C = Axis(64)
R0 = Dim(R)
S0 = Dim(S)
C0 = Dim(C)
i = Index(R0)
l = Index(S0)
j = Index(C0)
A = Buffer([BufferAxis(R0), BufferAxis(S0)], bfloat16)
B = Buffer([BufferAxis(C0), BufferAxis(S0)], bfloat16)
E = Buffer([BufferAxis(C0), BufferAxis(S0)], bfloat16)
P = Buffer([BufferAxis(R0), BufferAxis(C0)], bfloat16)
rows = Tile([R0[i], S0[l]], float32)
left = Tile([C0[j], S0[l]], float32)
right = Tile([C0[j], S0[l]], float32)
one = Tile([R0[i], C0[j]], float32)
two = Tile([R0[i], C0[j]], float32)
made = Tile([R0[i], C0[j]], float32)
Nest("f", [Kernel("f", [i, j], [
    Fill(one, 0.0),
    Fill(two, 0.0),
    For(l, [
        Load(rows, A[R0[i], S0[l]]),
        Load(left, B[C0[j], S0[l]]),
        Load(right, E[C0[j], S0[l]]),
        Contract(one, rows, left, S0[l], [False, False]),
        Contract(two, rows, right, S0[l], [False, False]),
    ], gathered=[[add, [one]], [add, [two]]]),
    Compute(made, x0 * x1, [one, two]),
    Store(P[R0[i], C0[j]], made),
], is_described=True)], [A, B, E], [View(P, [R, C])])
"""

FEW_ROWS = ODD_PRODUCT.replace("R = Axis(33)", "R = Axis(5)").replace(
    "C = Axis(48)", "C = Axis(72)"
)

TWO_SUMS = """
X = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
d = Tile([M0[m]], float32)
e = Tile([M0[m]], float32)
t = Tile([M0[m], N0[n]], float32)
u = Tile([M0[m], N0[n]], float32)
Nest("f", [Kernel("f", [m], [
    Fill(a, 0.0),
    For(n, [
        Load(s, X[M0[m], N0[n]]),
        Fold(r, s, N0[n], add),
        Compute(a, x0 + x1, [a, r]),
    ], gathered=[[add, [a]]]),
    Fill(d, 0.0),
    For(n, [
        Load(t, X[M0[m], N0[n]]),
        Compute(u, (x0 - x1) ** 2, [t, a]),
        Fold(e, u, N0[n], add),
        Compute(d, x0 + x1, [d, e]),
    ], gathered=[[add, [d]]]),
    Store(O[M0[m]], d),
])], [X], [View(O, [M])])
"""

SHARED_SUM = """
N_parts = Axis(4)
S1 = Dim(N_parts, 1)
M1 = Dim(M, 1)
i = Index(M1)
p = Index(S1)
P = Buffer([BufferAxis(S1), BufferAxis(M0)], float32)
T = Buffer([BufferAxis(M0)], float32)
X = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
Y = Buffer([BufferAxis(M0), BufferAxis(N0)], float32)
b = Tile([S1[p], M1[i]], float32)
c = Tile([M1[i]], float32)
d = Tile([M1[i]], float32)
Nest("f", [
    Kernel("f_1", [i], [
        Fill(d, 0.0),
        For(p, [
            Load(b, P[S1[p], M1[i]]),
            Fold(c, b, S1[p], add),
            Compute(d, x0 + x1, [d, c]),
        ], gathered=[[add, [d]]]),
        Store(T[M1[i]], d),
    ]),
    Kernel("f_2", [m, n], [
        Load(s, X[M0[m], N0[n]]),
        Load(r, T[M0[m]]),
        Compute(s, x0 / x1, [s, r]),
        Fold(a, s, N0[n], max),
        Store(Y[M0[m], N0[n]], s),
    ]),
], [X], [View(Y, [M, N])], between=[P, T])
"""

TURNED_COLUMNS = "Buffer([BufferAxis(S0), BufferAxis(C0)], bfloat16)"
OTHER_TYPE = "Buffer([BufferAxis(C0), BufferAxis(S0)], float16)"
CASES = {
    "fold_casts": ("fold_casts", WIDENED_AND_ROUNDED, None),
    "accumulate_in_place": ("accumulate_in_place", SUM_BESIDE_ITS_ACCUMULATOR, None),
    "hoist, accumulator stays": ("hoist", LOAD_IN_A_LOOP, None),
    "hoist": ("hoist", LOAD_ONCE_IN_A_LOOP, None),
    "remove_dead_code": ("remove_dead_code", UNREAD, None),
    "order_tiles": ("order_tiles", TURNED, None),
    "order_tiles, reductions": ("order_tiles", REDUCTIONS, None),
    "tail_masks": ("tail_masks", REDUCTIONS, None),
    "skip_masked_blocks": ("skip_masked_blocks", CAUSAL_SUM, None),
    "skip_masked_blocks, not masked": ("skip_masked_blocks", LONG_SUM, None),
    "split_reduction": ("split_reduction", LONG_SUM, Schedule(split={"N": 4})),
    "split_reduction, atomic": ("split_reduction", LONG_SUM, Schedule(split={"N": 4}, atomic=True)),
    "split_reduction, power sums": ("split_reduction", TWO_SUMS, Schedule(split={"N": 4})),
    "split_reduction, one after the other": (
        "split_reduction",
        TWO_SUMS.replace("(x0 - x1) ** 2", "exp(x0 - x1)"),
        Schedule(split={"N": 4}),
    ),
    "combine_where_read": ("combine_where_read", SHARED_SUM, None),
    "split_scan": ("split_scan", RUNNING_SUM, Schedule(split={"N": 4})),
    "split_scan, not asked for": ("split_scan", RUNNING_SUM, None),
    "pad_operands": ("pad_operands", ODD_PRODUCT, Schedule(padded=True)),
    "pad_operands, not asked for": ("pad_operands", ODD_PRODUCT, None),
    "split_reduction, one by one": ("split_reduction", SUM_AND_PRODUCT, Schedule(split={"N": 4})),
    "fold_after_loops": ("fold_after_loops", NESTED_SUMS, None),
    "fold_after_loops, masked": ("fold_after_loops", MASKED_SUMS, None),
    "fold_after_loops, a product": ("fold_after_loops", UNMASKED_SUM, None),
    "fold_after_loops, a product with a vector": ("fold_after_loops", NORM_AND_VECTOR, None),
    "gather_in_groups": ("gather_in_groups", LONG_ROWS, None),
    "take_turns": ("take_turns", ODD_PRODUCT, Schedule(programs=132)),
    "transpose_products": ("transpose_products", FEW_ROWS, Schedule(transposed=True)),
    "transpose_products, not asked for": ("transpose_products", FEW_ROWS, None),
    "transpose_products, many rows": (
        "transpose_products",
        ODD_PRODUCT,
        Schedule(transposed=True),
    ),
    "describe_operands": ("describe_operands", ODD_PRODUCT, Schedule(described=True)),
    "describe_operands, not asked for": ("describe_operands", ODD_PRODUCT, None),
    "describe_operands, no product": ("describe_operands", SQUARE, Schedule(described=True)),
    "join_products": ("join_products", GATES, Schedule(joined=True)),
    "join_products, not asked for": ("join_products", GATES, None),
    "order_grid": ("order_grid", TWO_GRIDS, Schedule(order=("N.0", "B.0", "M.0"))),
    "order_grid, some": ("order_grid", TWO_GRIDS, Schedule(order=("N", "M"))),
    "order_grid, as it is": ("order_grid", TWO_GRIDS, None),
    "mirror_grid": ("mirror_grid", SQUARE, Schedule(mirrored=True)),
    "mirror_grid, not asked for": ("mirror_grid", SQUARE, None),
    "cascade_sums": ("cascade_sums", LONG_SUM, None),
}


@pytest.mark.parametrize(("name", "body", "schedule"), CASES.values(), ids=CASES)
def test_pass(
    name: str, body: str, schedule: Schedule | None, golden: Callable[[str], None]
) -> None:
    golden(run(name, body, schedule))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", is_described=True", ""),
        ("Load(right, E[", "Load(right, B["),  # one array
        ("E = Buffer([BufferAxis(C0), BufferAxis(S0)], bfloat16)", f"E = {TURNED_COLUMNS}"),
        ("E = Buffer([BufferAxis(C0), BufferAxis(S0)], bfloat16)", f"E = {OTHER_TYPE}"),
        ("Fill(two, 0.0)", "Fill(two, 1.0)"),
        (
            "Contract(two, rows, right, S0[l], [False, False])",
            "Contract(two, rows, right, S0[l], [False, True])",
        ),
        ("Contract(two, rows, right,", "Contract(two, again, right,"),  # other rows
        ("    For(l, [", "    For(u, [For(l, ["),  # the sums of an outer loop
    ],
)
def test_other_products_are_not_joined(old: str, new: str) -> None:
    """Each by itself keeps two products from being one."""
    body = GATES.replace(old, new)
    if "BufferAxis(S0), BufferAxis(C0)" in new:
        body = body.replace("E[C0[j], S0[l]]", "E[S0[l], C0[j]]")
    if "again" in body:
        tile = "again = Tile([R0[i], S0[l]], float32)\none = Tile"
        load = "Load(again, A[R0[i], S0[l]]), Load(left,"
        body = body.replace("one = Tile", tile).replace("Load(left,", load)
    if "For(u" in body:
        gathered = "gathered=[[add, [one]], [add, [two]]])"
        outer = "R0 = Dim(R)\nU = Axis(3)\nU0 = Dim(U, 0, False)\nu = Index(U0)"
        body = body.replace(gathered, f"{gathered}], {gathered}").replace("R0 = Dim(R)", outer)
        body = body.replace("A = Buffer([", "A = Buffer([BufferAxis(U0), ")
        body = body.replace("A[R0[i]", "A[U0[u], R0[i]")
    assert body != GATES
    assert "is_joined" not in run("join_products", body, Schedule(joined=True))


def test_every_pass_has_a_case() -> None:
    passes = nest_passes(Schedule(), folds_late=True)
    assert {name for name, _, _ in CASES.values()} == {p.name for p in passes}


KEPT = {
    "rows are not aligned": ("L = Axis(8200)", "L = Axis(8201)"),
    "rows are short": ("L = Axis(8200)", "L = Axis(4096)"),
    "lengths are not known": ("L = Axis(8200)", 'L = Axis(Symbol("LL"))'),
    "places are rows": ("Tile([M0[m], L0[l]], float32)", "Tile([L0[l], M0[m]], float32)"),
    "groups are stored": (
        "        Compute(a, x0, [both]),",
        "        Compute(a, x0, [both]),\n        Store(S[M0[m]], r),",
    ),
    "accumulators begin with something": ("Fill(total, 0.0)", "Load(total, S[M0[m]])"),
    "an accumulator is not gathered": (
        "gathered=[[rescaled, [a, total]]]",
        "gathered=[[rescaled, [a, a]]]",
    ),
    "a step reads what the last one has folded": ("exp(x0 - x1), [a, both]", "x0 - x1, [a, r]"),
}
"""Changes to long rows after which blocks are folded in each step."""


@pytest.mark.parametrize(("old", "new"), KEPT.values(), ids=KEPT)
def test_rows_that_are_not_gathered_in_groups(old: str, new: str) -> None:
    assert old in LONG_ROWS
    nest = nest_from_text(HEAD + LONG_ROWS.replace(old, new))
    assert nest_to_text(each_kernel(gather_in_groups, "").run(nest)) == nest_to_text(nest)


def test_blocks_in_groups_have_the_axes_that_their_operands_lack() -> None:
    """All rows have the same maximum, and each a sum of its own."""
    body = LONG_ROWS.replace("x = Tile([M0[m], L0[l]]", "x = Tile([L0[l]]")
    body = body.replace("X = Buffer([BufferAxis(M0), ", "X = Buffer([").replace("X[M0[m], ", "X[")
    for name in ("largest", "both", "scale"):
        body = body.replace(f"{name} = Tile([M0[m]]", f"{name} = Tile([]")
    body = body.replace("both = Tile", "top = Tile([], float32)\nboth = Tile").replace(
        "Store(O[M0[m]], a)", "Compute(a, x0, [top]),\n    Store(O[M0[m]], a)"
    )
    for old in ("Fill(a", "[a, largest]", "[a, both]", "Compute(a, x0, [both])", "[a, total]"):
        body = body.replace(old, old.replace("(a", "(top").replace("[a", "[top"))
    nest = each_kernel(gather_in_groups, "").run(nest_from_text(HEAD + body))
    verify_nest(nest)
    assert "tl.reshape(tl.broadcast_to(" in print_triton(nest)


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


@pytest.mark.parametrize("reader", ["", "Fold(w, h, M0[m], add),"], ids=["dots", "a sum too"])
def test_narrow_operands(reader: str, golden: Callable[[str], None]) -> None:
    """A product with 16-bit numbers rounds what it reads; a sum does not."""
    nest = nest_from_text(HEAD + MADE_AND_MULTIPLIED.replace("READER", reader))
    golden(changes(nest, narrow_operands(nest)))


def test_a_product_of_float32_keeps_what_it_reads() -> None:
    """The program multiplies float32 numbers, of which one operand is stored in 16 bits."""
    before, after = "[False, False])", "[False, False], float32)"
    text = MADE_AND_MULTIPLIED.replace("READER", "").replace(before, after)
    nest = nest_from_text(HEAD + text)
    assert narrow_operands(nest) is nest
    assert text.count(after) == 1


GATED_PRODUCT = (
    ODD_PRODUCT.replace(
        "Nest(",
        """G = Buffer([BufferAxis(R0), BufferAxis(C0)], bfloat16)
g = Tile([R0[i], C0[j]], float32)
h = Tile([R0[i], C0[j]], float32)
o = Tile([R0[i], C0[j]], float32)
Nest(""",
    )
    .replace(
        "    Fill(v, 0.0),\n",
        """    Load(g, G[R0[i], C0[j]]),
    Compute(h, exp(x0), [g]),
    Compute(o, x0 + x1, [g, h]),
    Fill(v, 0.0),
""",
    )
    .replace(
        "    Store(P[R0[i], C0[j]], v),\n])], [A, B],",
        """    Compute(v, x0 * x1, [v, o]),
    Store(P[R0[i], C0[j]], v),
])], [A, B, G],""",
    )
)


def test_sink(golden: Callable[[str], None]) -> None:
    """A gate that is stored in 16 bits is computed behind the loop."""
    nest = nest_from_text(HEAD + GATED_PRODUCT)
    golden(changes(nest, each_kernel(sink, "").run(nest)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("C0)], bfloat16)\ng =", "C0)], float32)\ng ="),  # it takes as many registers as the gate
        ("Contract(v, t, u,", "Compute(g, x0 * 0.5, [g]),\n        Contract(v, t, u,"),
        ("Contract(v, t, u,", "Compute(h, x0 + x1, [h, o]),\n        Contract(v, t, u,"),
    ],
    ids=["as large", "changed in the loop", "needed in the loop"],
)
def test_other_gates_stay_before_the_loop(old: str, new: str) -> None:
    assert old in GATED_PRODUCT
    nest = nest_from_text(HEAD + GATED_PRODUCT.replace(old, new))
    assert nest_to_text(each_kernel(sink, "").run(nest)) == nest_to_text(nest)


def test_untie_kernels(golden: Callable[[str], None]) -> None:
    """A kernel iterates what another stores in blocks of its own; equal levels share dims."""
    nest = nest_from_text(HEAD + MADE_AND_READ)
    golden(changes(nest, untie_kernels(nest)))


STATISTICS = """
R = Axis(40)
R0 = Dim(R, 0)
j = Index(R0)
l = Index(M0)
w = Index(R0)
X = Buffer([BufferAxis(M0), BufferAxis(R0)], float32)
Y = Buffer([BufferAxis(M0), BufferAxis(R0)], float32)
T = Buffer([BufferAxis(M0)], float32)
e = Tile([M0[m], R0[j]], float32)
t = Tile([M0[l]], float32)
y = Tile([M0[l], R0[w]], float32)
Nest("f", [Kernel("f1", [m], [
    Fill(a, 0),
    For(j, [
        Load(e, X[M0[m], R0[j]]),
        Fold(r, e, R0[j], add),
        Compute(a, x0 + x1, [a, r]),
    ]),
    Store(T[M0[m]], a),
]), Kernel("f2", [l, w], [
    Load(y, X[M0[l], R0[w]]),
    Load(t, T[M0[l]]),
    Compute(y, x0 / x1, [y, t]),
    Store(Y[M0[l], R0[w]], y),
])], [X], [View(Y, [M, R])], between=[T])
"""


def test_join_rows(golden: Callable[[str], None]) -> None:
    """A kernel that divides rows by their sums goes on where the sums were made."""
    nest = nest_from_text(HEAD + STATISTICS)
    golden(changes(nest, join_rows(nest)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("R = Axis(40)", "R = Axis(40000)"),
        ("R = Axis(40)", 'R = Axis(Symbol("RR"))'),
        ("Load(t, T[M0[l]])", "Load(t, O[M0[l]])"),
        ("[l, w]", "[w, l]"),
        ("Store(Y[M0[l], R0[w]], y)", "Store(X[M0[l], R0[w]], y)"),
    ],
    ids=["long", "unknown", "independent", "other grid", "in place"],
)
def test_rows_that_are_not_joined(old: str, new: str) -> None:
    nest = nest_from_text(HEAD + STATISTICS.replace(old, new))
    assert len(join_rows(nest).kernels) == 2


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


SELECTED = """
z = Tile([M0[m], D_all[0]], float32)
Nest("f", [Kernel("f", [m], [
    Load(r, O[M0[m]]),
    Load(q, Q[M0[m], D_all[0]]),
    Compute(a, exp(x0), [r]),
    Compute(z, EXPRESSION, [a, r, q]),
    Store(H[M0[m], D_all[0]], z),
])], [O, Q], [View(H, [M, D])])
"""
"""The first two operands have a number for each row, and the last one for each element."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x0 * where(x1 == 3.0, nan, x2)", "where(x1 == 3.0, nan, x0) * x2"),
        ("where(x1 == 3.0, nan, x2) * x0 + 1.0", "where(x1 == 3.0, nan, x0) * x2 + 1.0"),
        ("x0 * where(x1 == 3.0, 2.0, x2)", None),
        ("x0 * where(x2 == 3.0, nan, x2) + x1", None),
        ("x2 * where(x1 == 3.0, nan, x0)", None),
        ("x0 + where(x1 == 3.0, nan, x2)", None),
    ],
    ids=["a row", "the other side", "a number", "an element's test", "an element", "a sum"],
)
def test_select_once(before: str, after: str | None) -> None:
    """A factor of the row is selected instead of its product with each element."""
    given, expected = (
        nest_from_text(HEAD + SELECTED.replace("EXPRESSION", text)).kernels[0]
        for text in (before, after or before)
    )
    made = select_once(given)
    assert [getattr(s, "expr", None) for s in made.statements] == [
        getattr(s, "expr", None) for s in expected.statements
    ]


def test_long_loops_are_not_unrolled() -> None:
    """A loop of many blocks, of blocks with several elements, or with a product."""
    for body in (COMBINED.replace("Axis(4)", "Axis(17)"), LOAD_IN_A_LOOP, LONG_SUM):
        (kernel,) = nest_from_text(HEAD + body).kernels
        assert unroll_short_loops(kernel) is kernel


def test_merge_kernels(golden: Callable[[str], None]) -> None:
    nest = nest_from_text(HEAD + TWO_KERNELS)
    golden(changes(nest, merge_kernels(nest, {})))


def test_a_kernel_continues_with_the_blocks_of_its_program(golden: Callable[[str], None]) -> None:
    nest = nest_from_text(HEAD + CONTINUED_KERNELS)
    golden(changes(nest, merge_kernels(nest, {})))


@pytest.mark.parametrize("text", DEPENDENT_KERNELS.values(), ids=DEPENDENT_KERNELS)
def test_kernels_that_depend_on_each_other_are_not_merged(text: str) -> None:
    nest = nest_from_text(HEAD + text)
    assert len(merge_kernels(nest, {}).kernels) == 2


LOG_OF_A_SUM = """
R = Buffer([BufferAxis(M0), BufferAxis(D_all)], float32)
y = Tile([M0[m], D_all[0]], float32)
Nest("f", [Kernel("f", [m], [
    Load(q, Q[M0[m], D_all[0]]),
    Fold(r, q, D_all[0], add),
    Compute(y, x0 - log(x1) * x0 + log(x1) / (x1 + 1.0), [q, r]),
    Store(R[M0[m], D_all[0]], y),
])], [Q], [View(R, [M, D])])
"""


def test_once_per_row(golden: Callable[[str], None]) -> None:
    nest = nest_from_text(HEAD + LOG_OF_A_SUM)
    golden(changes(nest, replace(nest, steps=tuple(once_per_row(k) for k in nest.kernels))))


FOLDED_AFTER_A_STORE = """
Y = Buffer([BufferAxis(M0), BufferAxis(D_all)], float32)
y = Tile([M0[m], D_all[0]], float32)
z = Tile([M0[m], D_all[0]], float32)
Nest("f", [
    Kernel("f_1", [m], [
        Load(q, Q[M0[m], D_all[0]]),
        Compute(y, x0 + 1.0, [q]),
        Store(Y[M0[m], D_all[0]], y),
    ]),
    Kernel("f_2", [m], [
        Load(z, Y[M0[m], D_all[0]]),
        Fold(r, z, D_all[0], add, tail_masked=False),
        Store(O[M0[m]], r),
    ]),
], [Q], [View(O, [M])], between=[Y])
"""


def test_a_fold_that_continues_a_kernel_is_masked() -> None:
    """A load ends in zeros; the tile that takes its place holds anything beyond the axis."""
    nest = nest_from_text(HEAD + FOLDED_AFTER_A_STORE)
    (kernel,) = merge_kernels(nest, {}).kernels
    (fold,) = [s for s in kernel.statements if isinstance(s, Fold)]
    assert fold.tail_masked


def test_kernels_stay_tied_by_their_scratch_memory() -> None:
    """A buffer for one block has the length of its dim's blocks."""

    def norms(X, s, w, V):  # type: ignore[no-untyped-def]
        d = X - bb.ops.mean(X, (-2,), keepdims=True)
        z = d * (bb.ops.mean(d**2, (-2,), keepdims=True) + 1e-5) ** -0.5
        return {"P": (z * s) @ V, "L": bb.ops.layernorm(z, w, w, axis=-1)}

    program = bb.trace(norms, "M N", (), "N", "N E")
    sizes = {"M": 70, "N": 100, "E": 100}
    (choice, *_) = choose(Request(program, target="cuda", sizes=sizes, schedule=OUTER))
    nest, _ = choice.scheduled()
    for kernel in nest.kernels:
        own = {index.dim for index in kernel.grid}
        own |= {s.index.dim for s in kernel.statements if isinstance(s, For)}
        for buffer in kernel.buffers:
            blocks = {a.dim for a in buffer.axes if a.along is not Along.AXIS and a.dim.packed}
            assert blocks <= own


@pytest.mark.parametrize(
    ("function", "specs", "sizes", "is_mirrored"),
    [
        (lambda X, Y: X + Y.T, ("M N", "N M"), {"M": 300, "N": 300}, True),
        (
            lambda X, Y: X + bb.ops.transpose(Y, (0, 2, 1)),
            ("B M N", "B N M"),
            {"B": 2, "M": 300, "N": 300},
            True,
        ),
        (lambda X, Y: X + Y.T, ("M N", "N M"), {"M": 300, "N": 200}, False),
        (lambda X, Y: X + Y, ("M N", "M N"), {"M": 300, "N": 300}, False),
        (lambda X: X.T + 1, ("N M",), {"M": 300, "N": 300}, False),
    ],
)
def test_mirror_grid(
    function: Callable, specs: tuple[str, ...], sizes: dict[str, int], is_mirrored: bool
) -> None:
    """A square grid whose programs read blocks at (i, j) and at (j, i)."""
    request = Request(bb.trace(function, *specs), target="cuda", sizes=sizes, capability=90)
    for schedule in (Schedule(), Schedule(mirrored=True)):
        nest, _ = replace(choose(request)[0], schedule=schedule).scheduled()
        expected = is_mirrored and schedule.mirrored
        assert [kernel.is_mirrored for kernel in nest.kernels] == [expected]
