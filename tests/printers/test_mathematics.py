"""The vector mathematics of C kernels: error bounds, special numbers, parts of the prelude."""

import platform
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import BlockbusterError
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.printers.c.expressions import ExpressionWriter
from blockbuster_fusion.printers.c.mathematics.bounds import BOUNDS, X
from blockbuster_fusion.printers.c.mathematics.parts import FUNCTIONS, OF_BATCHES, mathematics
from blockbuster_fusion.printers.c.mathematics.trigonometry import DIGITS, TWO_OVER_PI, window
from blockbuster_fusion.printers.c.prelude import prelude
from blockbuster_fusion.printers.operators import C_TYPES
from blockbuster_fusion.runtime.c.compiler import FLAGS, compiler
from blockbuster_fusion.tools.check import mathematics as checking

ops = bb.ops
DTYPES = ("float32", "float64")
EVERY, SAMPLE = 100_003, 10_000


def findings(name):
    return list(checking.check_mathematics([name], every=EVERY, sample=SAMPLE, threads=1))


# --------------------------------------------------------------------- bounds


def test_every_function_has_a_bound():
    assert set(FUNCTIONS) <= set(BOUNDS)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_hold(name):
    """For a part of all float32 numbers, and samples with special numbers of both dtypes."""
    for found in findings(name):
        assert found.ok, str(found)
        assert found.ulp >= 0.3  # nothing that is rounded is more exact


@pytest.mark.parametrize(
    ("name", "expr"),
    [
        ("exp", call("exp", X * 1.000001)),
        ("sin", call("where", call("abs", X) < 1e-30, 0.0, call("sin", X))),  # -0 becomes 0
        ("log", call("where", call("eq", X, 0.0), -700.0, call("log", X))),
        ("tanh", call("minimum", call("tanh", X), call("where", X > 60, 0.9999999, 1.0))),
        ("expm1", call("exp", X) - 1),
        ("pow", call("exp", call("log", X) * arg(1))),
    ],
)
def test_the_check_finds_faults(monkeypatch, name, expr):
    monkeypatch.setitem(checking.BOUNDS, name, replace(BOUNDS[name], expr=expr))
    assert not all(found.ok for found in findings(name))


def test_digits_of_two_over_pi():
    """Machin's formula gives pi, and the parts of a window add up to the digits."""
    one = 1 << (DIGITS + 64)

    def inverse_tangent(n):
        term, total, k = one // n, 0, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term, k = term // (n * n), k + 1
        return total

    pi = 4 * (4 * inverse_tangent(5) - inverse_tangent(239))
    assert 2 * one * (1 << DIGITS) // pi == TWO_OVER_PI
    for top in (-1, -24, -100):
        parts = sum(int(part * 2.0**600) << (DIGITS - 600) for part in window(top, 3))
        rest = TWO_OVER_PI % (1 << (DIGITS + top + 1)) - parts
        assert 0 <= rest < 1 << (DIGITS + top + 1 - 159)


def test_the_docs_have_the_bounds():
    """The table has every function, and no error above its bound."""
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    table = page.partition("<!-- mathematics -->")[2].partition("<!-- /mathematics -->")[0]
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in table.strip().splitlines()[2:]]
    assert [row[0] for row in rows] == list(BOUNDS)
    for name, bound32, error32, _, bound64, error64, *_ in rows:
        assert (float(bound32), float(bound64)) == (BOUNDS[name].float32, BOUNDS[name].float64)
        assert float(error32) <= float(bound32)
        assert float(error64) <= float(bound64)


# -------------------------------------------------------------------- kernels

KERNELS = {
    "tanh": ops.tanh,
    "erf": ops.erf,
    "log": ops.log,
    "exp": ops.exp,
    "sin": ops.sin,
    "cos": ops.cos,
    "sigmoid": ops.sigmoid,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_has_the_same_result_wherever_it_stands(dtype):
    """In vectors and in the rest of a row; special numbers do not disturb their neighbours."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -3.0, 1e30]
    X = np.concatenate([np.linspace(0.1, 9, 53), special]).astype(dtype)
    kernel = bb.compile(
        lambda X: {name: f(X) for name, f in KERNELS.items()}, X=bb.array("N", dtype=dtype)
    )
    found = kernel(X)
    for shift in (1, 3, 30):
        for name, shifted in kernel(np.roll(X, shift)[: X.size - 5]).items():
            np.testing.assert_array_equal(shifted, np.roll(found[name], shift)[: X.size - 5], name)


def test_a_sigmoid_is_one_function():
    assert "sigmoid_float32(x)" in written(1 / (1 + call("exp", -X)))
    assert "exp_float32" in written(1 / (2 + call("exp", -X)))
    assert "exp_float32" in written(2 / (1 + call("exp", -X)))


def written(expr, dtype="float32", texts=("x", "y"), needs=None):
    own = DType(dtype)
    writer = ExpressionWriter(str, set() if needs is None else needs)
    return writer.write(expr, texts, [own] * 2, own)[0]


def test_a_sigmoid_of_large_numbers_keeps_its_digits():
    kernel = bb.compile(lambda X: {"Y": ops.sigmoid(X)}, X="N")
    X = np.array([-100.0, -90.0, -np.inf, np.inf, 100.0], np.float32)
    exact = np.array([3.7200759760208356e-44, 8.194012623990515e-40, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(kernel(X)["Y"], exact, rtol=3e-7, atol=2e-45)


# -------------------------------------------------------------------- prelude


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*FUNCTIONS, *OF_BATCHES])
def test_a_function_comes_with_those_that_it_calls_alone(name, dtype):
    texts = mathematics({(name, dtype)})
    made = "\n".join(texts)
    defined = re.findall(r"^(?:INLINE|static .*\)\)) \w+ (\w+)\(", made, re.MULTILINE)
    called = set(re.findall(r"\b(\w+_float(?:32|64)|float(?:32|64)_of_bits)\(", made))
    assert called <= set(defined)
    for at, text in enumerate(texts[:-1]):  # each is there for a later one
        names = re.findall(r"^INLINE \w+ (\w+)\(", text, re.MULTILINE)
        assert any(own in later for own in names for later in texts[at + 1 :])


def test_a_kernel_without_mathematics_has_none():
    assert not mathematics({("maximum", "float32")})


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the options are those of x86-64")
def test_gcc_vectorises_every_function(tmp_path: Path):
    command = compiler()
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    if "Free Software Foundation" not in said.stdout:
        pytest.skip("the C compiler is not gcc")
    needs: set[tuple[str, ...]] = set()
    loops = []
    for dtype in DTYPES:
        c_type = C_TYPES[DType(dtype)]
        for name, row in BOUNDS.items():
            text = written(row.expr, dtype, ("x[i]", "y[i]"), needs)
            loops.append(f"""
void run_{name}_{dtype}(const {c_type} *RESTRICT x, const {c_type} *RESTRICT y,
                        {c_type} *RESTRICT z, int64_t n) {{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) z[i] = {text};
}}""")
    file = tmp_path / "loops.c"
    file.write_text(prelude(needs) + "\n".join(loops), encoding="utf-8")
    options = [*FLAGS, "-march=haswell", "-fopenmp-simd", "-fopt-info-vec-optimized", "-S"]
    options = [option for option in options if option not in ("-shared", "-march=native")]
    done = subprocess.run(
        [*command, *options, "-o", str(tmp_path / "loops.s"), str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = file.read_text(encoding="utf-8").splitlines()
    vectorised = {int(found) for found in re.findall(r":(\d+):\d+: optimized", done.stderr)}
    missed = [
        line for at, line in enumerate(lines, 1) if "z[i] = " in line and at not in vectorised
    ]
    assert not missed


# -------------------------------------------------------------------- command


def test_the_command_prints_the_largest_error(capsys):
    arguments = ["exp", "pow", "--dtype", "float32", "--every", "1000003", "--sample", "5000"]
    assert main(["mathematics", *arguments, "--threads", "1"]) == 0
    header, exp, power = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["function", "dtype", "ulp"]
    assert exp.startswith("exp       float32")
    assert "4295" in exp
    assert power.count(",") == 1


def test_the_command_fails_beyond_a_bound(monkeypatch, capsys):
    monkeypatch.setitem(checking.BOUNDS, "exp", replace(BOUNDS["exp"], float32=0.1))
    assert main(["mathematics", "exp", "--dtype", "float32", "--every", "1000003"]) == 1
    said = capsys.readouterr()
    assert "exceeds its bound" in said.out
    assert "more than the stated error: exp" in said.err


def test_an_unknown_function_gets_a_sentence():
    with pytest.raises(BlockbusterError, match="unknown function 'tahn'; known: exp, "):
        list(checking.check_mathematics(["tahn"]))
