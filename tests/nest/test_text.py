"""Nests as text: a round trip, and a sentence for each text that cannot be read."""

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.errors import BadText
from blockbuster_fusion.nest.text import MAX_NESTING, nest_from_text, nest_to_text
from blockbuster_fusion.printers.c.kernel import print_c
from blockbuster_fusion.printers.triton.kernel import print_triton
from blockbuster_fusion.schedule.defaults import default_tiles
from blockbuster_fusion.schedule.schedule import Schedule, scheduled
from helpers.deep_programs import chain
from helpers.nest_text import read_back

SCALE = """
M = Axis(Symbol("MM"))
M0 = Dim(M)
m = Index(M0)
X = Buffer([BufferAxis(M0)], float32)
t1 = Tile([M0[m]], float32)
Nest("scale", [
    Kernel("scale", [m], [
        Load(t1, X[M0[m]]),
        Compute(t1, exp(x0) * 2.0, [t1]),
        Store(X[M0[m]], t1),
    ]),
], [X], [View(X, [M])])
"""


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", bb.examples.EXAMPLES)
def test_kernels_of_a_nest_that_was_read_back_are_the_same(name: str) -> None:
    graph = bb.fuse(bb.lower(bb.examples.find(name))).snapshots[-1]
    for schedule in (Schedule(), Schedule(grid="outer", apart=True)):
        nest, tiles = scheduled(graph, "k", schedule), default_tiles(graph, "cpu")
        made = read_back(nest)
        assert print_c(made, tiles) == print_c(nest, tiles)
        assert print_triton(made) == print_triton(nest)


def test_large_expressions_have_named_parts() -> None:
    nest = scheduled(bb.fuse(bb.lower(chain(400))).snapshots[-1])
    read_back(nest)


def test_the_text_of_the_docs() -> None:
    nest = nest_from_text(SCALE)
    (kernel,) = nest.kernels
    assert [type(s).__name__ for s in kernel.body] == ["Load", "Compute", "Store"]
    assert nest_from_text(nest_to_text(nest)).name == "scale"


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("-x0", "-x0"),
        ("neg(3.0)", "neg(3.0)"),
        ("(-0.5) ** x0 - (x0 - 1)", "((-0.5) ** x0) - (x0 - 1)"),
        ("not (x0 < inf and x0 != -inf)", "not ((x0 < inf) and (x0 != (-inf)))"),
        ("float32(bool_(x0)) / size(M)", "float32(bool_(x0)) / size(M)"),
        ("where(x0 > 0, x0 // 2, x0 % 2)", "where(x0 > 0, x0 // 2, x0 % 2)"),
        ("3", "3"),
        ("True", "True"),
    ],
)
def test_expressions(expression: str, written: str) -> None:
    nest = nest_from_text(SCALE.replace("exp(x0) * 2.0", expression))
    assert f"Compute(t1, {written}, [t1])" in nest_to_text(nest)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("t1, X[M0[m]]", "t1, X[M0[k]]", "line 9, column 23: k is not defined"),
        ("Load(t1", "Lode(t1", "line 9, column 9: unknown class or function Lode"),
        ("Load(t1, ", "Load(", "line 9, column 9: the field tile of Load cannot be a Access"),
        ("Load(t1, X[M0[m]])", "Load(t1)", "Load needs the field source"),
        (
            "Load(t1, X[M0[m]])",
            "Load(t1, X[M0[m]], 0.0, t1)",
            "Load has the fields tile, source, beyond",
        ),
        ("Load(t1, X[M0[m]])", "Load(t1, tile=t1)", "Load has two values for tile"),
        ("Load(t1, X[M0[m]])", "Load(t1, X[M0[m]], eager=True)", "Load has no field eager"),
        ("exp(x0) * 2.0", "exp(x0, x0)", "exp takes 1 operands"),
        ("exp(x0) * 2.0", "exp(t1)", "a Tile is no part of an expression"),
        ("exp(x0) * 2.0", "x0 @ x0", "unknown operator in x0 @ x0"),
        ("exp(x0) * 2.0", "x0 < x0 < x0", "x0 < x0 < x0 has no meaning in a nest"),
        ("exp(x0) * 2.0", "__import__('os').getcwd()", "has no meaning in a nest"),
        ("exp(x0) * 2.0", "(lambda: 1)()", "has no meaning in a nest"),
        ("float32)\nt1", "float33)\nt1", "line 5, column 30: float33 is not defined"),
        ("t1 = Tile", "X = Tile", "line 6, column 1: X is defined already"),
        ("t1 = Tile", "x1 = Tile", "x1 is defined already"),
        ("Nest(", "m + (", "line 7, column 1: a Index is no part of an expression"),
        ("[View(X, [M])])", "[View(X, [M])]", "line 7, column 5: '(' was never closed"),
        ("m = Index(M0)", "import os", "expected a definition"),
        ("m = Index(M0)", "m = Space.MOON", "unknown value Space.MOON"),
        ("[m], [\n", "[m], [t1[m],\n", "only a Dim (a span) and a Buffer (an access) have [ ]"),
    ],
)
def test_what_cannot_be_read(old: str, new: str, message: str) -> None:
    assert old in SCALE
    with pytest.raises(BadText) as caught:
        nest_from_text(SCALE.replace(old, new, 1))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "X = 1\n", "Index", "-" * 100_000 + "1", "(" * 5_000, "\0", "[" * 150 + "]" * 150]
)
def test_hostile_texts(text: str) -> None:
    with pytest.raises(BadText):
        nest_from_text(text)


def test_deep_nesting() -> None:
    deep = "-".join(["x0"] * (MAX_NESTING + 5))
    with pytest.raises(BadText, match=f"more than {MAX_NESTING} levels of nesting"):
        nest_from_text(SCALE.replace("exp(x0) * 2.0", deep))
