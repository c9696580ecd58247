"""The text form: it reads back exactly, and each unreadable text is refused with a sentence."""

import math
import random
import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockbuster_fusion.errors import BadText
from blockbuster_fusion.ir import text as text_form
from blockbuster_fusion.ir.axis import Axis, Dim, Symbol
from blockbuster_fusion.ir.builder import Builder
from blockbuster_fusion.ir.combiner import MAX, Combiner, Reduced
from blockbuster_fusion.ir.expr import FUNCTIONS, Expr, arg, arity, call, cast, const, size
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import (
    Elementwise,
    Input,
    Map,
    Misc,
    Node,
    Output,
    Plain,
    Reduce,
    Value,
)
from blockbuster_fusion.ir.text import from_text, to_text
from blockbuster_fusion.ir.types import DType, Type
from blockbuster_fusion.ir.verify import verify
from helpers.effort import part
from helpers.graphs import H, K, M, N, array, every_operator, item, k, m, matmul_relu


def assert_reads_back(graph: Graph) -> None:
    """The text reads back to the same program: ids, order, names, types, operators, digest."""
    text = to_text(graph)
    found = from_text(text)
    assert to_text(found) == text
    assert found.digest == graph.digest
    walks = list(zip(graph.walk(), found.walk(), strict=True))
    for (path, wanted), (found_path, made) in walks:
        assert found_path == path
        assert list(made.nodes) == list(wanted.nodes)
        assert made.inputs == wanted.inputs
        assert made.outputs == wanted.outputs
        for i, node in wanted.nodes.items():
            assert made[i].inputs == node.inputs
            assert made[i].types == node.types
            if isinstance(node.op, Map):
                other = made.map(i)
                assert (other.dim, other.iterated) == (node.op.dim, node.op.iterated)
                assert (other.modes, other.first) == (node.op.modes, node.op.first)
            elif not isinstance(node.op, Misc):  # NaN in attributes equals nothing: see below
                assert made[i].op == node.op


def elementwise(expr: Expr, *kinds: Type) -> Graph:
    """A program of one elementwise operator."""
    build = Builder()
    wanted = [*kinds, *([item(m)] * arity(expr))][: arity(expr)]
    operands = [build.input(f"x{i}", kind) for i, kind in enumerate(wanted)]
    build.output("y", build.one(Elementwise(expr), *operands))
    return build.build()


def expr_of(graph: Graph) -> Expr:
    (expr,) = (n.op.expr for n in graph.nodes.values() if isinstance(n.op, Elementwise))
    return expr


def text_of(expr: Expr) -> str:
    """The line of an elementwise operator, without its operands."""
    (found,) = re.findall(r"= apply\([^)]*\) (.*)\n", to_text(elementwise(expr)))
    return str(found)


# -------------------------------------------------------------------- whole programs


def test_every_operator(golden: Callable[[str], None]) -> None:
    graph = every_operator()
    assert_reads_back(graph)
    golden(to_text(graph))


def test_matmul_relu(golden: Callable[[str], None]) -> None:
    graph = matmul_relu()
    assert_reads_back(graph)
    golden(to_text(graph))


def test_the_documented_program() -> None:
    graph = from_text(f"{text_form.__doc__}".partition("\n\n")[2].partition("\n\n")[0])
    assert_reads_back(graph)
    verify(graph)


def test_a_program_without_anything() -> None:
    assert to_text(Graph({}, (), ())) == "program {\n}\n"
    assert_reads_back(Graph({}, (), ()))


def test_comments_blank_lines_and_indentation_mean_nothing() -> None:
    text = to_text(matmul_relu())
    noisy = "# head\n\n" + text.replace("\n", "  # a comment\r\n\t \n").replace("  %", "%")
    assert to_text(from_text(noisy)) == text


def test_the_order_of_inputs_may_differ_from_that_of_nodes() -> None:
    kind = item(m)
    nodes = {i: Node(Input(f"x{i}", kind), (), (kind,)) for i in (5, 2, 9)}
    graph = Graph(nodes, (9, 5, 2), [Output("y", Value(2))])
    assert "  inputs %9, %5, %2\n" in to_text(graph)
    assert_reads_back(graph)


def test_names_and_layouts_of_a_body_are_kept() -> None:
    build, inner = Builder(), Builder(iter(range(10, 20)))
    inner.output("row", inner.input("x", item(m, k)), (K, M))
    x = build.input("x", Type((k,), (m, k), DType.float32))
    build.output("y", build.one(Map(k, inner.build(), (True,), (None,)), x))
    assert 'yield %10 stack "row" [K M]' in to_text(build.build())
    assert_reads_back(build.build())


def test_the_dtype_of_a_product_is_kept() -> None:
    text = to_text(matmul_relu())
    (line,) = (line for line in text.splitlines() if "= dot(" in line)
    exact = text.replace(line, f"{line} in float32")
    assert to_text(from_text(exact)) == exact
    assert from_text(exact).digest != from_text(text).digest


def test_dims_are_told_apart() -> None:
    build = Builder()
    for at, dim in enumerate((Dim(M), Dim(M, 7), Dim(M, None), Dim(M, 0, False), Dim(H, 3, False))):
        build.input(f"x{at}", Type((dim,), (Dim(N, at),), DType.bool_, virtual=at == 2))
    text = to_text(build.build())
    assert re.findall(r"\[(.*)\]", text) == ["M.0", "M.7", "M.*", "M.0/1", "H.3/1"]
    assert_reads_back(build.build())


def test_names_that_are_not_plain_words() -> None:
    names = [
        "a b",
        "1st",
        'q"',
        "é",
        "axis",
        "M.0",
        "\\",
    ]
    build = Builder()
    for at, name in enumerate(names):
        dim = Dim(Axis(name, Symbol(names[-1 - at])))
        build.input(name, Type((dim,), (), DType.int32))
    assert_reads_back(build.build())
    assert "axis é = " in to_text(build.build())
    assert 'axis "a b" = ' in to_text(build.build())


@pytest.mark.parametrize(
    "name", ["", "line\nbreak", "\ud800", "\U000e0001", "\u202eabc", "x" * 1001]
)
def test_axes_and_sizes_have_names_that_can_be_seen(name: str) -> None:
    """Names of arrays may be anything; those of axes and sizes are printed in every listing."""
    named = Builder()
    named.input(name, Type((Dim(M),), (), DType.int32))
    assert_reads_back(named.build())
    for axis in (Axis(name, 4), Axis("M", Symbol(name))):
        build = Builder()
        build.input("x", Type((Dim(axis),), (), DType.int32))
        with pytest.raises(BadText, match="is no name for an axis or a size"):
            from_text(to_text(build.build()))


def test_an_extent_may_be_zero() -> None:
    build = Builder()
    build.input("x", array(Dim(Axis("E", 0))))
    assert_reads_back(build.build())


def test_combiners_of_one_name_are_told_apart() -> None:
    largest = call("maximum", arg(0), arg(1))
    combiners = [
        MAX,
        Combiner("max", (0.0,), (largest,)),
        Combiner("max", (0,), (largest,)),
        Combiner("stack", (math.nan,), (largest,)),
        Combiner("a b", (True,), (largest + size(N),)),
    ]
    build = Builder()
    x = build.input("x", array(k))
    for at, combiner in enumerate(combiners):
        build.output(f"r{at}", build.one(Reduce(k, combiner), x))
        (y,) = build.map(k, [x], [], lambda g, v, c=combiner: [(v, Reduced(c))])
        build.output(f"m{at}", y)
    graph = build.build()
    text = to_text(graph)
    assert re.findall(r"combiner (.*) =", text) == ["max'2", "max'3", "stack'2", '"a b"']
    assert "  axis N = NN\n" in text
    assert_reads_back(graph)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3).map(tuple),
        max_leaves=8,
    ),
    st.text(max_size=5),
)
def test_attributes_read_back(value: Plain, name: str) -> None:
    op = Misc(name, name, ((name, value), (name, ())), (item(m),))
    graph = Graph({3: Node(op, (), op.results)}, (), ())
    assert repr(from_text(to_text(graph)).op(3)) == repr(op)


# -------------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (arg(0) + arg(1) * 2.0, "x0 + x1 * 2.0"),
        ((arg(0) + arg(1)) * 2, "(x0 + x1) * 2"),
        (arg(0) - (arg(1) - arg(0)), "x0 - (x1 - x0)"),
        (arg(0) - arg(1) - arg(0), "x0 - x1 - x0"),
        (-arg(0), "-x0"),
        (call("neg", -arg(0)), "-(-x0)"),
        (const(-2.0), "-2.0"),
        (-const(2.0), "-(2.0)"),
        (-const(-2.0), "-(-2.0)"),
        (-(const(2.0) ** arg(0)), "-(2.0**x0)"),
        (-(arg(0) ** 2), "-x0**2"),
        (const(-2) ** arg(0), "(-2)**x0"),
        (arg(0) ** -0.5, "x0**-0.5"),
        (arg(0) ** -arg(1), "x0**(-x1)"),
        ((arg(0) ** 2) ** 3, "(x0**2)**3"),
        (arg(0) ** (arg(0) ** 3), "x0**(x0**3)"),
        (arg(0) - -1, "x0 - -1"),
        ((arg(0) < 1) & ~(arg(1) >= 2) | (arg(0) < arg(1)), "x0 < 1 and not x1 >= 2 or x0 < x1"),
        (~((arg(0) < 1) & (arg(0) > 1)), "not (x0 < 1 and x0 > 1)"),
        ((arg(0) < 1) < arg(1), "(x0 < 1) < x1"),
        (call("eq", arg(0) < 1, arg(0) > 2), "(x0 < 1) == (x0 > 2)"),
        (call("where", arg(0) > 0, arg(0), -math.inf), "where(x0 > 0, x0, -inf)"),
        (cast(cast(arg(0), DType.float16), DType.bool_), "bool(float16(x0))"),
        (size(K) + arg(0) % 3 // 2, "size(K) + x0 % 3 // 2"),
        (call("arctan2", arg(0), math.nan), "arctan2(x0, nan)"),
        (-const(math.nan), "-nan"),
        (-const(math.inf), "-(inf)"),
        (-(const(math.inf) ** 2), "-(inf**2)"),
        (const(-0.0) + const(1e300) + const(1e-7) + const(10**30), None),
        (const(True) | const(False), "True or False"),
        (const(1) + const(1.0) + const(True), "1 + 1.0 + True"),
    ],
)
def test_small_expressions_are_infix(expr: Expr, text: str | None) -> None:
    found = text_of(expr)
    assert text is None or found == text
    assert expr_of(from_text(to_text(elementwise(expr)))) is expr


def random_expr(rng: random.Random, budget: int) -> Expr:
    """An expression of about `budget` parts, some of them shared."""
    made: list[Expr] = [arg(0), arg(1), size(K), const(rng.choice([0, -1, 2.5, -0.0, True]))]
    for _ in range(budget):
        recent = made[-6:] if rng.random() < 0.7 else made
        if rng.random() < 0.1:
            made.append(cast(rng.choice(recent), rng.choice(list(DType))))
            continue
        function = rng.choice(list(FUNCTIONS.values()))
        operands = [rng.choice(recent) for _ in range(function.arity)]
        made.append(Expr(function.name, tuple(operands)))
    return made[-1]


def test_random_expressions_read_back() -> None:
    rng = random.Random(1)
    for _ in range(300):
        expr = random_expr(rng, rng.choice((3, 8, 40)))
        text = to_text(elementwise(expr))
        assert expr_of(from_text(text)) is expr, text
        assert len(text) < 20_000


@pytest.mark.parametrize(
    ("step", "count"),
    [
        (lambda x: call("exp", x), 20_000),
        (lambda x: -x, 20_000),
        (lambda x: 1 + x, 20_000),
        (lambda x: x * x, 200),
        (lambda x: call("where", x > 0, x, x * x), 2_000),
    ],
)
def test_deep_and_shared_expressions(step: Callable[[Expr], Expr], count: int) -> None:
    expr = arg(0)
    for _ in range(count):
        expr = step(expr)
    graph = elementwise(expr)
    text = to_text(graph)
    assert len(text) < 200 * count
    assert max(map(len, text.split("\n"))) < 1000
    assert expr_of(from_text(text)) is expr


def test_the_parts_of_a_large_expression_are_named(golden: Callable[[str], None]) -> None:
    gelu = 0.5 * arg(0) * (1 + call("erf", arg(0) * 0.5**0.5))
    golden(to_text(elementwise(gelu * gelu + call("exp", gelu) * (1 - gelu))))


def test_written_nesting_is_read_without_recursion() -> None:
    depth = 30_000
    nested = "exp(" * depth + "x0" + ")" * depth
    text = to_text(elementwise(call("exp", arg(0)))).replace("exp(x0)", nested)
    assert sum(1 for _ in re.finditer("exp", text)) == depth
    assert expr_of(from_text(text)).op == "exp"


def test_maps_nest_without_recursion() -> None:
    kind = item(m)
    graph = Graph({0: Node(Input("x", kind), (), (kind,))}, (0,), [Output("", Value(0))])
    depth = 3_000
    for level in range(depth):
        at = 2 * level + 1
        op = Map(Dim(Axis(f"L{level}", 2)), graph, (False,), (Reduced(MAX),))
        nodes = {at: Node(Input("x", kind), (), (kind,)), at + 1: Node(op, (Value(at),), (kind,))}
        graph = Graph(nodes, (at,), [Output("", Value(at + 1))])
    text = to_text(graph)
    assert to_text(from_text(text)) == text


def test_tuples_nest_without_recursion() -> None:
    text = "program {\n  %0 = misc() a.b {c = " + "(" * 9_000 + ")" * 9_000 + "}\n}\n"
    assert to_text(from_text(text)) == text


# -------------------------------------------------------------------- refusals

SMALL = """\
program {
  axis M = MM
  axis K = 64
  combiner online = (-inf, 0.0) {
    t1 = maximum(x0, x2)
    return t1, x1 * exp(x0 - t1) + x3 * exp(x2 - t1)
  }
  %0 = input "x": [K.*](M.0 K.*)float32
  %5 = map(each %0) over K.0 {
    %1 = input "x": [](M.0 K.0)float32
    %2 = apply(%1) exp(x0) * 2
    %3 = block_reduce(%2) over K.0 by add
    yield %3 stack, %3 online:0, %3 online:1
  }
  %6 = reduce(%5) over K.0 by max
  %7 = misc(%6) numpy.sort {axis = -1, text = "a"}: [](M.0)float32
  output "y" = %7 [M]
}
"""


def test_the_small_program_can_be_read() -> None:
    assert_reads_back(from_text(SMALL))


@pytest.mark.parametrize(
    ("old", "new", "place", "sentence"),
    [
        (SMALL, "", "1:1", "the text is empty: expected `program {`"),
        (SMALL, "\n # only a comment\n", "3:1", "the text is empty: expected `program {`"),
        ("program {", "progam {", "1:1", "expected `program` at the beginning, found `progam`"),
        ("program {", "program", "1:8", "expected `{` after program, found the end of the line"),
        ("[M]\n}\n", "[M]\n", "18:1", "expected `}` for the `{` of line 1, found the end of the"),
        ("[M]\n}\n", "[M]\n}\nprogram {", "19:1", "expected nothing after the program's `}`"),
        ("max\n", "max max\n", "15:35", "expected the end of the line, found `max`"),
        ("axis M = MM", "axis M = 0x", "2:13", "expected the end of the line, found `x`"),
        ("axis M = MM", "axis M = -1", "2:12", "the extent of an axis cannot be negative"),
        ("axis M = MM", "axis M = 1.5", "2:12", "expected an extent, which is a whole number"),
        ("axis M = MM", "axis M =", "2:11", "expected an extent, which is a whole number or a"),
        ("axis M = MM", "axis K = MM", "3:8", "axis K is declared already"),
        ("axis M = MM", f"axis M = {'9' * 30}", "2:12", "is too large a number"),
        ("[M]", "[Z]", "17:20", "unknown axis Z: declare it at the head of the program"),
        ("[](M.0 K.0)", "[](M.0 Q.0)", "10:28", "unknown axis Q: declare it at the head"),
        ("over K.0 {", "over K {", "9:28", "expected `.` and a number, or `.*`, after the axis"),
        ("over K.0 {", "over K.x {", "9:28", "expected the dim's number, or `*`, found `x`"),
        ("over K.0 {", "over K.0/2 {", "9:30", "expected `1` or `all` after `/`: the size of"),
        ("over K.0 {", "over K.* {", "9:3", "map K.*: a loop needs a dim of its own, and this"),
        ("over K.0 {", "over K.0 from 2 {", "9:3", "a map starts at block 0 or 1, not 2"),
        ("over K.0 {", "over K.0", "9:29", "expected `{` before the body of the map"),
        ("each %0", "%0", "9:12", "expected `each` or `whole` before the operand of a map"),
        ("each %0", "each %0.1", "9:17", "%0.1: %0 has 1 result(s)"),
        ("each %0", "each %4", "9:17", "%4 is not defined above"),
        ("(%1)", "(%0)", "11:16", "%0 is defined outside this map, and a body is closed: list it"),
        ("(%1)", "(%1, %1)", "11:15", "the expression takes 1 operands and has 2"),
        ("%2 =", "%1 =", "11:5", "%1 is defined already: ids are unique in a program"),
        ("%2 =", "%2.1 =", "11:5", "a node is defined as %2, without a port"),
        ("apply", "aply", "11:10", "unknown operator `aply`: expected one of input, apply,"),
        ("exp(x0)", "exq(x0)", "11:20", "unknown function or name `exq`"),
        ("exp(x0)", "exp x0", "11:24", "expected `(` after exp, found `x0`"),
        ("exp(x0)", "exp(x0", "11:30", "expected `)` for the `(` of column 23, found the end"),
        ("exp(x0)", "exp()", "11:24", "expected an expression, found `)`"),
        ("exp(x0)", "exp(x0, 1)", "11:23", "exp takes 1 operands and has 2"),
        ("exp(x0)", "float32(x0, 1)", "11:27", "float32 takes 1 operands and has 2"),
        ("exp(x0)", "(x0, 1)", "11:23", "expected `)`, found `,`"),
        ("exp(x0)", "x0 < 1 < 2", "11:27", "`<` and `<` do not chain: put one comparison in"),
        ("exp(x0)", "-2**x0", "11:22", "a power of a negative number: put the base in"),
        ("exp(x0)", "size(Z)", "11:25", "unknown axis Z"),
        ("exp(x0)", "size(K", "11:27", "expected `)` after the axis, found `*`"),
        ("exp(x0)", "x0 + 1e999", "11:25", "`1e999` is too large for a number: write inf"),
        ("exp(x0) * 2", "exp(x0) *", "11:29", "expected an expression, found the end of the line"),
        ("exp(x0) * 2", "{\nreturn x0, x0\n}", "11:15", "apply returns one expression, not 2"),
        ("t1 = max", "u1 = max", "5:5", "expected a part such as `t1 = …`, or return"),
        ("    return", "t1 = x0\n return", "6:1", "`t1` is defined already"),
        ("(-inf, 0.0)", "(-inf)", "4:12", "a combiner has one of each for a component, not 1"),
        ("(-inf, 0.0)", "(-inf 0.0)", "4:27", "expected `,` or `)` after an identity"),
        ("x3", "x4", "4:12", "2 components have the arguments x0 to x3, not x4"),
        ("combiner online", "combiner max", "4:12", "combiner max is known already"),
        ("combiner online", "combiner stack", "4:12", "a combiner cannot be called stack: write"),
        (
            "by max",
            "by most",
            "15:31",
            "unknown combiner most: known are add, mul, max,",
        ),
        ("by max", "by online", "15:3", "reduce online over K.0: takes 2 operands and has 1"),
        (", %3 online:1", "", "9:3", "map K.0: components of online are missing at the end"),
        ("online:1", "online:0", "9:3", "map K.0: output 2: component 1 of online belongs here"),
        ("    yield", "    #", "14:3", "the map yields nothing: expected a yield line before `}`"),
        ("yield %3 stack,", "yield %3,", "13:13", "expected the name of a combiner, found `,`"),
        ("yield %3 stack,", "yield\nyield", "14:1", "expected `}` after yield, which is the last"),
        ("yield %3", "output", "13:12", "outputs are the program's: a map's body has yield"),
        ('output "y"', "yield %7", "17:9", "yield stands in the body of a map: a program has"),
        ('output "y" =', "output y =", "17:10", "expected the output's name in quotes, found `y`"),
        ('output "y" =', 'output "y =', "17:10", "the string is not closed: expected another"),
        ('output "y"', 'output "\\q"', "17:10", "unknown escape \\q in the string"),
        ('output "y"', 'output "\\U00110000"', "17:10", "unknown escape \\U00110000 in the string"),
        ('output "y"', 'axs "y"', "17:3", "expected a node such as `%3 = …`, axis, combiner,"),
        ("output", "inputs %0, %5\noutput", "19:1", "`inputs` must list each input of the graph"),
        ("output", "inputs %0\ninputs %0\noutput", "18:8", "the order of the inputs is given"),
        ("    %1 =", "axis Z = 3\n %1 =", "10:1", "`axis` stands at the head of the program"),
        ('"x": [K', '"x" [K', "8:18", "expected `:` and a type after the input's name"),
        ("K.*)float32", "K.*)float33", "8:33", "expected a dtype (float64, float32, float16,"),
        ("[](M.0)f", "(M.0)f", "16:53", "expected `[` before the list dims of a type"),
        ("numpy.sort", "numpy", "16:23", "expected `.` between namespace and name"),
        ("axis = -1", "axis = print", "16:36", "expected a number, a string, True, False, None"),
        ("axis = -1", "axis = (1 2)", "16:39", "expected `,` or `)` in a tuple"),
        ("axis = -1,", "axis = -1", "16:39", "expected `,` or `}` after an attribute"),
        ("reduce(%5)", "reduce(%5 %5)", "15:18", "expected `,` or `)` after an operand"),
        ("reduce(%5)", "reduce(%5.1)", "15:3", "reduce max over K.0: [](M.0)float32 is no list"),
        ("reduce(%5)", "reduce($5)", "15:15", "the character '$' means nothing here"),
    ],
)
def test_bad_text_is_told(old: str, new: str, place: str, sentence: str) -> None:
    assert SMALL.count(old) >= 1
    with pytest.raises(BadText) as error:
        from_text(SMALL.replace(old, new, 1))
    assert sentence in str(error.value)
    assert f"{error.value.line}:{error.value.column}" == place


def mutated(text: str, start: str, rng: random.Random) -> str:
    """The text with a character or a line dropped, doubled, moved or replaced."""
    at = rng.randrange(len(text) + 1)
    lines = text.split("\n")
    row, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(7):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + rng.choice("(){}[]%.,:=\"'\\*/-0179xtMKe #\n\x00é") + text[at:]
        case 2:
            return text[:at] + rng.choice(start) + text[at + 1 :]
        case 3:
            lines.insert(row, lines[row])
        case 4:
            del lines[row]
        case 5:
            lines[row], lines[other] = lines[other], lines[row]
        case 6:
            return text[:at]
    return "\n".join(lines)


@pytest.mark.parametrize("start", [SMALL, to_text(every_operator())], ids=["small", "every"])
def test_changed_texts_give_a_graph_or_a_sentence(start: str) -> None:
    rng, count = random.Random(7), part(1500, of=3)
    read = 0
    for _ in range(count):
        text = start
        for _ in range(rng.choice((1, 1, 2, 4))):
            text = mutated(text, start, rng)
        with suppress(BadText):
            graph = from_text(text)
            read += 1
            assert_reads_back(graph)
    assert count // 50 < read < count - count // 15


@given(st.text(alphabet="program{}axisMK=%0123:.\"[]()*float32applyxmapeachover \n-+,'"))
def test_any_text_gives_a_graph_or_a_sentence(text: str) -> None:
    for candidate in (text, f"program {{\n{text}\n}}"):
        with suppress(BadText):
            from_text(candidate)
