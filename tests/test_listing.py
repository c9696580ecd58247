"""The comparison of listings: blind to names, order and inlining, and to nothing else."""

from textwrap import dedent

import pytest

from helpers.listing import canonical

BASE = """
forall m in range(M):
    for k in range(K):
        t1 = load(X[m,k])
        t2 = t1**2
        t3 += row_sum(t2)
        t4 = load(Y[k])
        t5 += dot(t1,t4)
    t6 = 1/sqrt(t3)
    t7 = row_scale(t5,t6)
    store(t7,I1[m])
forall m in range(M):
    t8 = load(I1[m])
    t9 = exp(t8)
    store(t9,O[m])
"""

SAME = {
    "reordered": """
forall m in range(M):
    for k in range(K):
        t4 = load(Y[k])
        t1 = load(X[m,k])
        t5 += dot(t1,t4)
        t2 = t1**2
        t3 += row_sum(t2)
    t6 = 1/sqrt(t3)
    t7 = row_scale(t5,t6)
    store(t7,I1[m])
forall m in range(M):
    t8 = load(I1[m])
    t9 = exp(t8)
    store(t9,O[m])
""",
    "inlined": """
forall m in range(M):
    for k in range(K):
        t1 = load(X[m,k])
        t3 += row_sum(t1**2)
        t5 += dot(t1, load(Y[k]))
    store(row_scale(t5, 1/sqrt(t3)), I1[m])
forall m in range(M):
    store(exp(load(I1[m])), O[m])
""",
    "renamed": """
forall m in range(M):
    for k in range(K):
        a = load(X[m,k])
        b = a**2
        c += row_sum(b)
        t1 = load(Y[k])
        e += dot(a,t1)
    t3 = 1/sqrt(c)
    t2 = row_scale(e,t3)
    store(t2,I[m])
forall m in range(M):
    t2 = load(I[m])
    t3 = exp(t2)
    store(t3,O[m])
""",
    "with tabs and blank lines": BASE.replace("    ", "\t").replace("    t6", "\n    t6"),
    "set to zero first": BASE.replace("    for k", "    t3 = 0\n    t5 = 0.0\n    for k"),
    "sum spelt out": BASE.replace("t3 += row_sum(t2)", "t3 = t3+row_sum(t2)"),
}

CHANGES = {
    "operand": ("dot(t1,t4)", "dot(t2,t4)"),
    "order of operands": ("dot(t1,t4)", "dot(t4,t1)"),
    "function": ("exp(t8)", "log(t8)"),
    "number": ("t1**2", "t1**3"),
    "combiner": ("t3 += row_sum(t2)", "t3 = max(t3,row_sum(t2))"),
    "index of a load": ("load(X[m,k])", "load(X[k,m])"),
    "array": ("load(Y[k])", "load(Z[k])"),
    "index of a store": ("store(t9,O[m])", "store(t9,O[0])"),
    "output": ("store(t9,O[m])", "store(t9,P[m])"),
    "bound": ("for k in range(K)", "for k in range(N)"),
    "start": ("for k in range(K)", "for k in range(1,K)"),
    "kind of loop": ("    for k", "    forall k"),
    "lock": ("        t3 += row_sum(t2)", "        with lock:\n            t3 += row_sum(t2)"),
    "load before the loop": (
        "    for k in range(K):\n        t1 = load(X[m,k])",
        "    t1 = load(X[m,k])\n    for k in range(K):",
    ),
    "load twice": ("row_scale(t5,t6)", "row_scale(t5,load(X[m,k]))"),
    "one more load": ("    t6 = 1", "    t10 = load(X[m,0])\n    t6 = 1"),
    "store in another loop": ("    store(t7,I1[m])\nforall m in range(M):", "    store(t7,I1[m])"),
    "no store": ("    store(t9,O[m])\n", ""),
    "sum from another value": ("    for k", "    t3 = 1\n    for k"),
    "sum used inside its loop": ("t5 += dot(t1,t4)", "t5 += dot(t3,t4)"),
}


@pytest.mark.parametrize("name", SAME)
def test_same_program(name: str) -> None:
    assert canonical(SAME[name]) == canonical(BASE)


@pytest.mark.parametrize("name", CHANGES)
def test_other_program(name: str) -> None:
    old, new = CHANGES[name]
    changed = BASE.replace(old, new)
    assert changed != BASE
    assert canonical(changed) != canonical(BASE)


def test_exchanged_buffers() -> None:
    two = """
    forall m in range(M):
        store(exp(load(X[m])),I1[m])
        store(log(load(X[m])),I2[m])
    forall m in range(M):
        store(sub(load({}[m]),load({}[m])),O[m])
    """
    renamed = two.replace("I1", "I7").replace("I2", "I1")
    as_written, exchanged = (dedent(two).format(*pair) for pair in (("I1", "I2"), ("I2", "I1")))
    assert canonical(as_written) != canonical(exchanged)
    assert canonical(dedent(renamed).format("I7", "I1")) == canonical(as_written)


def test_products_of_blocks() -> None:
    assert canonical("store(load(A)@load(B),C)") == canonical("store(dot(load(A),load(B).T),C)")
    assert canonical("store(load(A)@load(B).T,C)") == canonical("store(dot(load(A),load(B)),C)")


def test_accumulators_that_depend_on_one_another() -> None:
    tuple_fold = """
    for n in range(N):
        t1 = load(X[n])
        t4 = maximum(t2,t1)
        t2,t3 = t4,t3*exp(t2-t4)+exp(t1-t4)
    store(t3,S)
    """
    renamed = tuple_fold.replace("t2", "a").replace("t3", "t2").replace("t4", "t3")
    inlined = """
    for n in range(N):
        t1 = load(X[n])
        a,b = maximum(a,t1),b*exp(a-maximum(a,t1))+exp(t1-maximum(a,t1))
    store(b,S)
    """
    assert canonical(dedent(renamed)) == canonical(dedent(tuple_fold))
    assert canonical(dedent(inlined)) == canonical(dedent(tuple_fold))
    other = tuple_fold.replace("store(t3,S)", "store(t2,S)")
    assert canonical(dedent(other)) != canonical(dedent(tuple_fold))


def test_whole_arrays() -> None:
    def program(buffer: str, alias: str = "I1R", result: str = "Y") -> str:
        return (
            f"{buffer} = numpy.sort(X, axis=1)\n"
            f"{alias} = rename({buffer}, M->N)\n"
            f"{result} = copy({alias})\n"
        )

    assert canonical(program("I3", alias="I3R")) == canonical(program("I1"))
    assert canonical(program("I1", result="Z")) != canonical(program("I1"))


def test_long_expressions_stay_small_and_equal() -> None:
    chain = "t1 = load(X)\n" + "".join(f"t{i + 1} = t{i}*t{i}+exp(t{i})\n" for i in range(1, 60))
    whole = chain + "store(t60,Y)\n"
    assert len(repr(canonical(whole))) < 2000
    shifted = "a = load(X)\nt2 = a*a+exp(a)\n" + whole.partition("t2 = t1*t1+exp(t1)\n")[2]
    inlined = whole.replace("t31 = t30*t30+exp(t30)\n", "").replace("t31", "(t30*t30+exp(t30))")
    assert canonical(shifted) == canonical(inlined) == canonical(whole)
    assert canonical(whole.replace("exp(t1)", "exp(-t1)")) != canonical(whole)


@pytest.mark.parametrize("line", ["del t1", "t1 = lambda: 0"])
def test_what_is_no_listing(line: str) -> None:
    with pytest.raises(ValueError, match=r"not an? \w+ of a listing"):
        canonical(line)
