"""Compiled programs as a user calls them: arrays of all kinds, names, and sentences."""

import numpy as np
import pytest
import torch

import blockbuster_fusion as bb
from blockbuster_fusion.errors import (
    BadExtent,
    BadInput,
    BadResult,
    BadTarget,
    BadTile,
    BlockbusterError,
    WrongKind,
)

TARGETS = ["interpret", "cpu"]


def arrays(*shapes: tuple[int, ...], dtype: object = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return request.param


def test_in_order_and_by_name(target: str) -> None:
    kernel = bb.compile(bb.examples.matmul_relu(), target=target)
    A, BT = arrays((5, 7), (6, 7))
    wanted = np.maximum(A @ BT.T, 0)
    for found in (kernel(A, BT), kernel(A=A, BT=BT), kernel(BT=BT, A=A), kernel(A, BT=BT)):
        np.testing.assert_allclose(found["C"], wanted, atol=1e-5)
        assert found.names == ("C",)
        assert found["C"] is found[0]
    assert kernel.inputs == ("A", "BT")
    assert kernel.outputs == ("C",)


def test_functions_are_traced(target: str) -> None:
    kernel = bb.compile(lambda x, y: bb.ops.exp(x) + y, "M N", y="N", target=target)
    x, y = arrays((3, 4), (4,))
    np.testing.assert_allclose(kernel(x, y)[0], np.exp(x) + y, rtol=1e-6)


def test_tensors_give_tensors(target: str) -> None:
    kernel = bb.compile(bb.examples.matmul_relu(), target=target)
    A, BT = (torch.from_numpy(x) for x in arrays((5, 7), (6, 7)))
    found = kernel(A, BT)["C"]
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, torch.relu(A @ BT.T))
    mixed = kernel(A, BT.numpy())["C"]
    assert torch.equal(mixed, found)
    parameter = torch.nn.Parameter(A)
    assert torch.equal(kernel(parameter, BT)["C"], found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_tensors(target: str, dtype: str) -> None:
    kernel = bb.compile(bb.examples.matmul_relu(), target=target, dtype=dtype)
    narrow = getattr(torch, dtype)
    A, BT = (torch.from_numpy(x).to(narrow) for x in arrays((5, 7), (6, 7)))
    found = kernel(A, BT)["C"]
    assert found.dtype is narrow
    wanted = torch.relu(A.double() @ BT.double().T).to(narrow)
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_numpy_has_no_bfloat16_so_it_comes_and_goes_as_float32(target: str) -> None:
    kernel = bb.compile(bb.examples.matmul_relu(), target=target, dtype="bfloat16")
    A, BT = arrays((5, 7), (6, 7))
    found = kernel(A, BT)["C"]
    assert found.dtype == np.float32
    rounded = [torch.from_numpy(x).bfloat16() for x in (A, BT)]
    np.testing.assert_array_equal(found, kernel(*rounded)["C"].float().numpy())


def test_numpy_float16(target: str) -> None:
    kernel = bb.compile(bb.examples.matmul_relu(), target=target, dtype="float16")
    A, BT = arrays((5, 7), (6, 7), dtype=np.float16)
    found = kernel(A, BT)["C"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.maximum(A.astype(float) @ BT.T, 0), rtol=1e-2, atol=1e-2)


def test_integers_and_booleans(target: str) -> None:
    x = bb.array("M N", dtype="int32")
    kernel = bb.compile(lambda x, m: bb.ops.where(m, x * 2, 0), x, bb.array("N", dtype="bool"))
    given = np.arange(12, dtype=np.int32).reshape(3, 4)
    mask = np.array([True, False, True, True])
    found = kernel(given, mask)[0]
    np.testing.assert_array_equal(found, np.where(mask, given * 2, 0))


def test_numbers_for_inputs_without_axes(target: str) -> None:
    kernel = bb.compile(lambda x, s: x * s, "M", bb.array(), target=target)
    (x,) = arrays((5,))
    np.testing.assert_allclose(kernel(x, 3)[0], x * 3, rtol=1e-6)
    np.testing.assert_allclose(kernel(x, np.float32(3))[0], x * 3, rtol=1e-6)


def test_outputs_in_another_order_of_axes(target: str) -> None:
    kernel = bb.compile(lambda x, w: (x @ w).T, "B M K", "K N", target=target)
    x, w = arrays((2, 3, 4), (4, 5))
    found = kernel(x, w)[0]
    np.testing.assert_allclose(found, (x @ w).T, rtol=1e-5, atol=1e-6)
    assert found.flags.c_contiguous


def test_an_output_twice_and_an_input_as_output(target: str) -> None:
    def function(x):
        y = x + 1
        return {"y": y, "turned": y.T, "again": y, "x": x}

    kernel = bb.compile(function, "M N", target=target)
    (x,) = arrays((3, 4))
    found = kernel(x)
    for name, wanted in {"y": x + 1, "turned": (x + 1).T, "again": x + 1, "x_out": x}.items():
        np.testing.assert_allclose(found[name], wanted)
    memory = [x, *found]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(memory) for b in memory[:i])


def test_results_are_fresh(target: str) -> None:
    kernel = bb.compile(bb.examples.matmul_relu(), target=target)
    A, BT = arrays((5, 7), (6, 7))
    first = kernel(A, BT)["C"]
    kept = first.copy()
    second = kernel(-A, BT)["C"]
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)


def test_several_kernels_share_what_lies_between(target: str) -> None:
    """Scratch is kept between calls, and made anew for longer arrays."""
    kernel = bb.compile(bb.examples.rmsnorm_swiglu(), snapshot=0, target=target)
    for rows in (3, 70, 5, 70):
        given = arrays((rows, 8), (9, 8), (9, 8), (6, 9))
        wanted = bb.evaluate(bb.examples.rmsnorm_swiglu(), [x.astype(float) for x in given])["O"]
        np.testing.assert_allclose(kernel(*given)["O"], wanted, rtol=1e-3, atol=1e-4)


def test_misc_operators(target: str) -> None:
    """One between kernels, in the order of axes that it asks for, and one whose length is new."""

    def function(x, w):
        return {
            "sorted": bb.ops.relu(bb.ops.sort((x * 2).T, axis=1).T @ w),
            "joined": bb.ops.misc("numpy", "concatenate", x, x, axes=["P", x.axes[1]]) + 1,
            "last": bb.ops.sort(x, axis=0),
        }

    kernel = bb.compile(function, "M K", "K N", target=target)
    for rows in (3, 70):
        x, w = arrays((rows, 4), (4, 5))
        found = kernel(x, w)
        wanted = np.maximum(np.sort(x * 2, axis=0) @ w, 0)
        np.testing.assert_allclose(found["sorted"], wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["joined"], np.concatenate([x, x]) + 1)
        np.testing.assert_array_equal(found["last"], np.sort(x, axis=0))
        tensors = [torch.from_numpy(a) for a in (x, w)]
        np.testing.assert_allclose(kernel(*tensors)["sorted"], wanted, rtol=1e-5, atol=1e-5)


def test_what_an_executor_gives_is_checked(target: str) -> None:
    kernel = bb.compile(lambda x: bb.ops.misc("numpy", "cumsum", x, dtype="int32") + 1, "M N")
    with pytest.raises(BadResult, match=r"cumsum: result 0: the array has the dtype float32"):
        kernel(*arrays((3, 4)))


# --------------------------------------------------------------------- choices


def test_sizes_that_are_fixed(target: str) -> None:
    kernel = bb.compile(bb.examples.attention(), sizes={"DD": 8, "L": 4}, target=target)
    Q, KT, VT = arrays((5, 8), (6, 8), (4, 6))
    wanted = bb.evaluate(bb.examples.attention(), [x.astype(float) for x in (Q, KT, VT)])["O"]
    np.testing.assert_allclose(kernel(Q, KT, VT)["O"], wanted, atol=1e-5)
    with pytest.raises(BadInput, match=r"input Q: axis D has 9 elements, and its extent is 8"):
        kernel(*arrays((5, 9), (6, 9), (4, 6)))
    assert "64" not in kernel.listing
    assert {d.name for d in kernel.tiles} == {"M", "N"}


def test_tiles_and_snapshots() -> None:
    program = bb.examples.attention()
    kernel = bb.compile(program, target="interpret", tiles={"M": 3, "N": 5}, snapshot=-1)
    assert {dim.name: tile for dim, tile in kernel.tiles.items() if dim.name in "MN"} == {
        "M": 3,
        "N": 5,
    }
    assert kernel.snapshot == len(bb.fuse(program).snapshots) - 1
    assert kernel.listing == bb.show(kernel.graph) == kernel.source
    fused = bb.compile(program, target="interpret", snapshot="most_fused")
    assert fused.snapshot == bb.fuse(program).most_fused
    assert kernel.nest is None
    assert kernel.target == "interpret"


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"target": "tpu"}, BadTarget, "target 'tpu': unknown; known are cpu, cuda, interpret"),
        ({"snapshot": 7}, WrongKind, "takes one of 0 to 1, or 'most_fused', not 7"),
        ({"snapshot": "best"}, WrongKind, "takes one of 0 to 1"),
        ({"tiles": {"Z": 3}}, BadTile, "no such dim"),
        ({"tiles": {"M": 0}}, BadTile, "no tile"),
        ({"sizes": {"ZZ": 3}}, BadExtent, "unknown; known are"),
        ({"sizes": {"MM": -3}}, BadExtent, "no length"),
        ({"unit": ["Z"]}, BlockbusterError, "there is no such dim"),
        ({"dtype": "float8"}, BlockbusterError, "float8"),
        ({"dtype": "float64"}, WrongKind, "declare float64 where the program is traced"),
        ({"x": "M N"}, WrongKind, "give specs for a function only"),
        ({"rules": "none"}, BlockbusterError, "unknown rule set"),
    ],
)
def test_bad_choices_get_a_sentence(options, error, sentence: str) -> None:
    with pytest.raises(error) as caught:
        bb.compile(bb.examples.attention(), **({"target": "interpret"} | options))
    assert sentence in str(caught.value)


def test_only_programs_are_compiled() -> None:
    with pytest.raises(WrongKind, match="a function, an array program or a block program, not int"):
        bb.compile(3)


# ---------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("given", "named", "sentence"),
    [
        (["A"], {}, "input BT: is missing"),
        (["A", "BT", "A"], {}, "input number 2: there is no such input"),
        ([], {"A": "A"}, "input BT: is missing; the inputs are A, BT"),
        ([], {"A": "A", "BT": "BT", "C": "A"}, "input C: there is no such input"),
        (["A"], {"A": "A", "BT": "BT"}, "input A: is given twice"),
        (["A", "A.T"], {}, "axis K has 5 elements, but axis K of input A has 7, and both are KK"),
        (["A", "flat"], {}, "has the shape (7,), and the program wants the axes (N, K)"),
    ],
)
def test_inputs_that_do_not_fit(target: str, given: list, named: dict, sentence: str) -> None:
    A, BT = arrays((5, 7), (6, 7))
    known = {"A": A, "BT": BT, "A.T": A.T, "flat": BT[0]}
    kernel = bb.compile(bb.examples.matmul_relu(), target=target)
    with pytest.raises(BadInput) as caught:
        kernel(*(known[g] for g in given), **{name: known[g] for name, g in named.items()})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("convert", "sentence"),
    [
        (lambda x: x.astype(np.float64), "has the dtype float64, and the kernel takes float32"),
        (lambda x: x.astype(">f4"), "has the dtype >f4"),
        (lambda x: x.astype(np.int32), "has the dtype int32"),
        (lambda x: x.astype(complex), "has the dtype complex128"),
        (lambda x: torch.from_numpy(x).double(), "has the dtype torch.float64"),
        (lambda x: torch.from_numpy(x).to("meta"), "is on meta"),
        (lambda x: torch.from_numpy(x).to_sparse(), "make it dense"),
        (lambda x: "text", "<U4"),
    ],
)
def test_arrays_of_the_wrong_kind(convert, sentence: str) -> None:
    A, BT = arrays((5, 7), (6, 7))
    kernel = bb.compile(bb.examples.matmul_relu())
    with pytest.raises(BadInput) as caught:
        kernel(convert(A), BT)
    assert sentence in str(caught.value)
    assert "input A" in str(caught.value)


def test_lists_of_numbers_are_arrays(target: str) -> None:
    kernel = bb.compile(lambda x: x + 1, "M N", target=target)
    np.testing.assert_array_equal(kernel([[1, 2], [3, 4]])[0], [[2, 3], [4, 5]])


def test_records_and_read_only_arrays() -> None:
    kernel = bb.compile(lambda x: x + 1, "M")
    records = np.zeros(5, [("a", np.float32), ("b", np.int8)])
    records["a"] = np.arange(5)
    np.testing.assert_array_equal(kernel(records["a"])[0], np.arange(5) + 1)
    fixed = np.arange(5, dtype=np.float32)
    fixed.flags.writeable = False
    np.testing.assert_array_equal(kernel(fixed)[0], np.arange(5) + 1)


def test_zero_copy() -> None:
    """Arguments are read in place: a change of an array shows in the next call."""
    kernel = bb.compile(lambda x: x + 1, "M")
    x = np.zeros(4, np.float32)
    tensor = torch.from_numpy(x)
    for number in (1.0, 2.0):
        x[:] = number
        assert (kernel(x)[0] == number + 1).all()
        assert (kernel(tensor)[0] == number + 1).all()


def test_dtypes_of_single_arrays_have_names() -> None:
    program = bb.trace(lambda X: {"Y": X + 1}, X="M")
    assert "bfloat16" in bb.compile(program, dtype={"X": "bfloat16"}).source
    with pytest.raises(bb.BlockbusterError, match="'bfloat17' is not one of"):
        bb.compile(program, dtype={"X": "bfloat17"})
