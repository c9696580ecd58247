"""Kernels that combine shares where they are read: the nests that stay as they are."""

from dataclasses import replace

import pytest

from blockbuster_fusion.ir.ops import Misc
from blockbuster_fusion.nest.nest import Call, Kernel, Nest, View
from blockbuster_fusion.nest.passes.combine_where_read import combine_where_read
from blockbuster_fusion.nest.text import nest_from_text
from blockbuster_fusion.nest.verify import verify_nest
from nest.test_passes import HEAD, SHARED_SUM

READ_AGAIN = """    Kernel("f_3", [m], [
        Load(a, T[M0[m]]),
        Store(O[M0[m]], a),
    ]),
], [X], [View(Y, [M, N]), View(O, [M])]"""

REFUSED = {
    "an input": (("[X], [View", "[X, P], [View"), ("[P, T]", "[T]")),
    "an axis of no parts": (("N_parts", "N_rest"),),
    "read in a loop": (("[m, n], [", "[n], [For(m, ["), ("s),\n    ]),", "s),\n    ])]),")),
    "read by another kernel": (("], [X], [View(Y, [M, N])]", READ_AGAIN),),
    "added by several programs": (("Store(T[M1[i]], d)", "Store(T[M1[i]], d, atomic=True)"),),
    "stored in 16 bits": (
        ("T = Buffer([BufferAxis(M0)], float32)", "T = Buffer([BufferAxis(M0)], bfloat16)"),
    ),
}


def made(*changes: tuple[str, str]) -> Nest:
    text = SHARED_SUM
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    nest = nest_from_text(HEAD + text)
    verify_nest(nest)
    return nest


def test_one_kernel_is_left() -> None:
    assert len(combine_where_read(made()).kernels) == 1


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_kernels_that_stay(changes: tuple[tuple[str, str], ...]) -> None:
    nest = made(*changes)
    assert combine_where_read(nest).kernels == nest.kernels


def test_an_operator_of_another_library_reads_what_is_stored() -> None:
    nest = made()
    first, second = nest.kernels
    (buffer,) = (b for b in nest.between if b.name == "T")
    view = View(buffer, tuple(axis.dim.axis for axis in buffer.axes))
    call = Call(Misc("other", "roll", (), ()), (view,), (view,))
    for steps in ((first, second, call), (first, call, second)):
        kept = combine_where_read(replace(nest, steps=steps))
        assert [s for s in kept.steps if isinstance(s, Kernel)] == [first, second]
