"""The error report, its adversarial inputs, and both on the command line."""

import numpy as np
import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.cli.main import main
from blockbuster_fusion.errors import BadExtent, BadInput, WrongKind
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.tools.check.adversarial import (
    KINDS,
    MASKS,
    NOT_FINITE,
    SCALARS,
    VECTORS,
    Case,
)
from blockbuster_fusion.tools.check.judge import CheckedOutput, Report, relative_error

ops = bb.ops
SOFTMAX = bb.examples.softmax()


def names(array: str) -> list[str]:
    """The cases of a program with one array of two axes."""
    return ["ordinary", *(f"{array}: {kind}" for kind in (*KINDS, NOT_FINITE))]


def cases(program: bb.ArrayProgram, **sizes: int) -> dict[str, Case]:
    return {case.name: case for case in bb.adversarial(program, sizes)}


# ---------------------------------------------------------------- the report


def test_the_report_as_data() -> None:
    report = bb.check(SOFTMAX)
    snapshots = len(bb.fuse(SOFTMAX).fused)
    assert report.dtype is DType.float32
    assert [(row.case, row.snapshot) for row in report.rows] == [
        (name, number) for name in names("X") for number in range(snapshots)
    ]
    assert report.ok
    assert report.failures == ()
    assert report.worst == max(row.error for row in report.rows)
    assert all(row.ok and row.output == "O" for row in report.rows)
    assert {row.bar for row in report.rows} >= {4 * 2.0**-23}
    assert all(row.bar >= 2 * row.careful for row in report.rows)
    assert all(row.careful <= 2.0**-23 for row in report.rows if "denormal" not in row.case)


def test_the_report_as_text() -> None:
    rows = (
        CheckedOutput("X: huge", 0, 1.5e-3, 1e-7, 4.8e-7, "O"),
        CheckedOutput("X: zero", 1, 0.0, 2e-8, 4.8e-7, "O"),
        CheckedOutput("X: huge", 2, float("inf"), 0.0, 4.8e-7, "O", claimed=False),
    )
    report = Report(DType.bfloat16, rows)
    loses = "loses 4.1 digits of O on inputs 'X: huge'"
    lost = "loses what is finite of O on inputs 'X: huge', as its class says"
    assert str(report).splitlines() == [
        "inputs               snapshot      error    careful        bar   (bfloat16)",
        "X: huge                     1    1.5e-03    1.0e-07    4.8e-07   not ok",
        "X: zero                     2    0.0e+00    2.0e-08    4.8e-07",
        "X: huge                     3        inf    0.0e+00    4.8e-07   not ok",
        f"snapshot 1 {loses}: error 1.5e-03, careful 1.0e-07, bar 4.8e-07",
        f"snapshot 3 {lost}: error inf, careful 0.0e+00, bar 4.8e-07",
    ]
    assert not report.ok
    assert Report(DType.float32, rows[1:]).ok  # a case that is classed as lossy may lose digits
    assert [row.misjudged for row in rows] == [True, False, False]
    empty = Report(DType.float32, ())
    assert (empty.worst, empty.ok) == (0.0, True)
    assert empty.verdict == "ok: as exact as the careful program, 0 snapshots on 0 cases"
    exact = "is as exact as a careful program on inputs 'X: zero'"
    figures = "error 0.0e+00, careful 2.0e-08, bar 4.8e-07"
    assert str(rows[1]) == f"snapshot 2 {exact}: {figures}"


def test_without_safety() -> None:
    """As the rules made it the program overflows, and the careful unfused one does not."""
    safe, raw = bb.check(SOFTMAX), bb.check(SOFTMAX, safe=False)
    huge = [row for row in raw.rows if row.case == "X: huge"]
    assert {row.error for row in huge} == {np.inf}
    assert all(row.careful < 1e-6 for row in huge)
    assert safe.ok
    assert not raw.ok
    assert "loses what is finite of O on inputs" in raw.verdict


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", DType.bfloat16])
def test_dtypes(dtype: str | DType) -> None:
    report = bb.check(SOFTMAX, {"X": np.linspace(-3, 3, 12).reshape(3, 4)}, dtype=dtype)
    assert str(report.dtype) == str(dtype)
    floors = {"float64": 2.0**-50, "float32": 2.0**-21, "bfloat16": 2.0**-5, "float16": 2.0**-8}
    assert {row.bar for row in report.rows} == {floors[str(dtype)]}
    assert report.ok
    if report.dtype.bytes == 2:
        assert report.worst > 1e-5  # stored numbers are rounded


def test_given_inputs() -> None:
    x = np.array([[1000.0, 0.0], [0.0, 1.0]])
    report = bb.check(SOFTMAX, {"X": x}, tiles={"N": 1})
    assert {row.case for row in report.rows} == {"given"}
    assert report.ok
    assert bb.check(bb.lower(SOFTMAX), {"X": x}, tiles={"N": 1}) == report


def test_other_programs_are_judged() -> None:
    """A softmax without a shift is as exact as the careful one until it overflows."""
    plain = bb.lower(SOFTMAX)
    for offset, exact in ((0, True), (100, False)):
        x = offset + np.linspace(-3, 3, 12).reshape(3, 4)
        report = bb.check(SOFTMAX, {"X": x}, snapshots=[plain])
        assert (len(report.rows), report.ok) == (1, exact)


def test_cases_are_chosen() -> None:
    few = [case for case in bb.adversarial(SOFTMAX) if "1e5" in case.name]
    report = bb.check(SOFTMAX, cases=few)
    assert {row.case for row in report.rows} == {"X: rows at 10 to 1e5", "X: columns at 10 to 1e5"}


def test_rules_and_unit_dims() -> None:
    x = {"X": np.ones((3, 4))}
    for unit in ((), ("N",)):
        for rules in ("paper", "extended"):
            report = bb.check(SOFTMAX, x, rules=rules, unit=unit)
            assert len(report.rows) == len(bb.fuse(SOFTMAX, rules, unit=unit).fused)
            assert report.ok


# ---------------------------------------------------------------- wrong arguments get a sentence


@pytest.mark.parametrize("dtype", ["foo", "int32", DType.bool_, None, 3])
def test_no_float_dtype(dtype: object) -> None:
    known = "known are float64, float32, float16, bfloat16"
    with pytest.raises(WrongKind, match=rf"^check: takes a float dtype, not \w+; {known}$"):
        bb.check(SOFTMAX, dtype=dtype)  # type: ignore[arg-type]


def test_a_block_program_wants_inputs() -> None:
    with pytest.raises(WrongKind, match="give arrays by name, or the array program"):
        bb.check(bb.lower(SOFTMAX))


def test_something_else_than_a_program() -> None:
    with pytest.raises(WrongKind, match=r"^check: takes a"):
        bb.check(3)  # type: ignore[arg-type]


def test_inputs_that_do_not_fit() -> None:
    with pytest.raises(BadInput, match="there is no such input"):
        bb.check(SOFTMAX, {"Y": np.ones((2, 2))})


def test_unknown_sizes() -> None:
    with pytest.raises(BadExtent, match=r"^extent ZZ: unknown; known are M, MM, N, NN$"):
        list(bb.adversarial(SOFTMAX, {"ZZ": 3}))


# ---------------------------------------------------------------- errors


def test_relative_errors() -> None:
    wanted = {"Y": np.array([[1.0, 100.0], [0.01, 0.0]])}

    def error(*rows: tuple[float, float]) -> float:
        return relative_error({"Y": np.array(rows)}, wanted)

    assert error((1.0, 100.0), (0.01, 0.0)) == 0.0
    assert error((2.0, 100.0), (0.01, 0.0)) == 0.01  # beside 100
    assert error((1.0, 100.0), (0.02, 0.0)) == 1.0  # its own row counts
    assert error((np.nan, 100.0), (0.01, 0.0)) == np.inf
    assert error((1.0, np.inf), (0.01, 0.0)) == np.inf


def test_what_is_not_finite_does_not_count() -> None:
    wanted = {"Y": np.array([np.inf, np.nan, 2.0])}
    assert relative_error({"Y": np.array([0.0, 1.0, 2.0])}, wanted) == 0.0
    assert relative_error({"Y": np.array(2.0)}, {"Y": np.array(1.0)}) == 1.0
    assert relative_error({"Y": np.zeros((0, 3))}, {"Y": np.zeros((0, 3))}) == 0.0


# ---------------------------------------------------------------- adversarial inputs


def test_kinds_of_trouble() -> None:
    found = cases(SOFTMAX)
    assert list(found) == names("X")
    assert not any(case.inputs["X"].dtype != np.float32 for case in found.values())
    sizes = {name.removeprefix("X: "): np.abs(case.inputs["X"]) for name, case in found.items()}
    assert sizes["ordinary"].max() < 10
    assert sizes["huge"].max() > 1e5
    assert sizes["huge beside tiny"][0].max() > 1e3 * sizes["huge beside tiny"][1:].max()
    around = {1.0, 2.0, 3.0, 4.0, 5.0}
    assert set(np.round(np.log10(sizes["rows at 10 to 1e5"].mean(1)))) == around
    assert set(np.round(np.log10(sizes["columns at 10 to 1e5"].mean(0)))) == around
    spread = sizes["rows times 1e-3 to 1e3"].mean(1)
    assert spread.max() > 1e5 * spread.min()
    assert sizes["nearly constant"].std(1).max() < 0.02 < 900 < sizes["nearly constant"].min()
    assert 0 < sizes["tiny"].max() < 1e-28
    assert 0 < sizes["denormal"].max() < np.finfo(np.float32).tiny
    assert (sizes["an element at 1e4"] > 1e3).sum() == 1
    assert ((sizes["a column at 1e4"] > 1e3).sum(0) > 0).sum() == 1
    first = (sizes["first block at 1e4"] > 1e3).all(0)
    assert first[0]
    assert 0.2 < first.mean() < 0.5
    assert set(np.unique(found["X: saturated"].inputs["X"])) == {-1000.0, 5.0}
    assert not sizes["zero"].any()
    assert np.signbit(found["X: zero"].inputs["X"]).any()
    special = found["X: not finite"].inputs["X"]
    assert np.isposinf(special[1]).sum() == np.isneginf(special[2]).sum() == 1
    assert np.isnan(special[3]).sum() == 1
    assert np.isneginf(special[4]).all()
    assert np.isfinite(special[5:]).all()


def test_every_array_vector_and_number_has_its_turn() -> None:
    program = bb.trace(lambda X, Y, w, s: ops.layernorm(X * w + s) @ Y, "M K", "K N", "K", ())
    found = cases(program)
    expected = ["ordinary", *(f"X: {kind}" for kind in (*KINDS, NOT_FINITE))]
    expected += [f"Y: {kind}" for kind in KINDS] + [f"w: {kind}" for kind in VECTORS]
    expected += [f"s: {kind}" for kind in SCALARS]
    assert list(found) == expected
    assert found["s: 1e5"].inputs["s"] == 1e5
    assert found["w: at 1e3"].inputs["w"].min() > 900
    ordinary = found["ordinary"].inputs
    for name, case in found.items():
        same = [key for key in ordinary if np.array_equal(case.inputs[key], ordinary[key])]
        assert sorted([*same, name.partition(":")[0]]) == sorted(["X", "Y", "w", "s"]) or (
            name == "ordinary"
        )


def test_the_same_seed_gives_the_same_inputs() -> None:
    one, other, third = (
        [case.inputs["X"] for case in bb.adversarial(SOFTMAX, seed=seed)] for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))
    assert not np.array_equal(one[0], third[0])


def test_sizes_by_symbol_or_axis() -> None:
    for sizes in ({"MM": 3, "N": 7}, {"M": 3, "NN": 7}):
        assert cases(SOFTMAX, **sizes)["X: huge"].inputs["X"].shape == (3, 7)
    rows, columns = cases(SOFTMAX)["X: huge"].inputs["X"].shape
    assert rows != columns
    assert rows % 16
    assert columns % 16
    fixed = bb.trace(ops.softmax, x="M:4 N")
    assert cases(fixed)["x: zero"].inputs["x"].shape[0] == 4


def test_masks() -> None:
    """In every row something is left to be seen; in a hidden one it all counts the same."""
    program = bb.examples.additive_mask_attention()
    found = {name: case.inputs["mask"] for name, case in cases(program).items() if name in MASKS}
    assert list(found) == list(MASKS) == ["masks", "hidden rows", "mixed masks"]
    assert np.isneginf(found["masks"][0, 1:]).all()
    assert 0.3 < np.isneginf(found["masks"][1:]).mean() < 0.7
    assert (found["hidden rows"][0] == np.float32(-1e30)).all()
    assert 0.3 < (found["hidden rows"][1:] == 0).mean() < 0.7
    assert len(np.unique(found["mixed masks"])) == 5
    for mask in found.values():
        assert np.isfinite(mask).any(axis=1).all()
    assert bb.check(program).worst < np.inf


@pytest.mark.parametrize(
    ("spec", "has_case"),
    [("N", True), ("M N", True), ((), False), (bb.array("M N", dtype="bool"), False)],
    ids=["vector", "matrix", "number", "bool"],
)
def test_masks_of_any_shape(spec: object, has_case: bool) -> None:
    def program(X, mask):
        return ops.softmax(ops.where(mask != 0, X, -1e30) if not has_case else X + mask)

    traced = bb.trace(program, X="M N", mask=spec)
    found = cases(traced, MM=5, NN=6)
    assert (found.keys() >= MASKS.keys()) == has_case
    snapshot = bb.fuse(traced).snapshots[-1]
    for name, case in found.items():
        if NOT_FINITE not in name:
            assert np.isfinite(bb.interpret(snapshot, case.inputs)[0]).all()


def test_whole_numbers_are_left_alone() -> None:
    """Arrays of floats are the ones that get the trouble."""

    def program(T, X):
        return ops.softmax(ops.where(T > 0, X, -1e30))

    found = cases(bb.trace(program, T=bb.array("M N", dtype="int64"), X="M N"))
    for case in found.values():
        assert case.inputs["T"].dtype == np.int64
        assert set(np.unique(case.inputs["T"])) <= {0, 1}
    assert np.abs(found["X: huge"].inputs["X"]).max() > 1e5


def test_programs_of_vectors() -> None:
    found = cases(bb.trace(ops.softmax, x="N"))
    assert list(found) == ["ordinary", *(f"x: {kind}" for kind in VECTORS)]


# ---------------------------------------------------------------- the command line


def test_check_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "softmax", "--dtype", "bfloat16"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{bb.check(SOFTMAX, dtype='bfloat16')}\n"
    assert printed.startswith("inputs")
    assert "(bfloat16)" in printed
    assert "huge beside tiny" in printed


def test_bad_arguments_of_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "flash"]) == 1
    assert "unknown example 'flash'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["check", "attention", "--dtype", "int8"])
    assert "invalid choice: 'int8'" in capsys.readouterr().err


def test_fuse_prints_safe_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "attention"]) == 0
    printed = capsys.readouterr().out
    fusion = bb.fuse(bb.examples.attention())
    assert bb.show(fusion.snapshots[-1]) in printed
    assert "made safe: %13/%49/%12/%26: exponent per row along N" in printed


def test_fuse_prints_raw_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "attention", "--raw"]) == 0
    printed = capsys.readouterr().out
    fusion = bb.fuse(bb.examples.attention())
    assert bb.show(fusion.fused[-1]) in printed
    assert "row_max" not in printed
    assert "made safe:" not in printed
