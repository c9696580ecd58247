"""Operators of PyTorch that C calls, with a driver of a GPU that launches nothing."""

import ctypes
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if sys.platform != "linux":
    pytest.skip("Triton is for Linux alone", allow_module_level=True)

from blockbuster_fusion.errors import LaunchFailed
from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.triton import driver
from blockbuster_fusion.runtime.triton.driver import Launches, Stopped
from blockbuster_fusion.runtime.triton.library_call_source import DIFFERS, REFUSED
from blockbuster_fusion.runtime.triton.library_calls import (
    At,
    Operand,
    Release,
    Result,
    array_at,
    handle_of,
    library_call,
    named_call,
    tensor_of,
)

aten = torch.ops.aten
CPU = torch.device("cpu")
NAMES = ("LaunchKernel", "CtxGetCurrent", "DeviceGet", "DevicePrimaryCtxRetain", "CtxSetCurrent")
DRIVER = "\n".join(f"int cu{name}() {{ return 0; }}" for name in (*NAMES, "MemsetD8Async"))


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    file = tmp_path / "libdriver.so"
    file.write_bytes(compile_c(DRIVER).content)
    monkeypatch.setattr(driver, "LIBRARY", str(file))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    driver.load_library.cache_clear()
    yield
    driver.load_library.cache_clear()


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def prepared(operator: object, *tensors: Tensor) -> Launches:
    operands = tuple(Operand(tuple(x.shape), tuple(x.stride()), x.dtype) for x in tensors)
    call = library_call(operator, operands, CPU)
    assert call is not None
    return Launches([(call, [(at, 0) for at, _ in enumerate(tensors)])], 0, ["product"])


def named(operator: object, arguments: tuple[object, ...], *tensors: Tensor) -> Launches:
    operands = tuple(Operand(tuple(x.shape), tuple(x.stride()), x.dtype) for x in tensors)
    call = named_call(operator, arguments, operands, CPU)  # type: ignore[arg-type]
    assert call is not None
    return Launches([(call, [(at, 0) for at, _ in enumerate(tensors)])], 0, ["operator"])


def addresses(*tensors: Tensor) -> object:
    return (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        (aten.mm.default, ((3, 5), (5, 7))),
        (aten.bmm.default, ((2, 3, 5), (2, 5, 7))),
        (aten.addmm.default, ((7,), (3, 5), (5, 7))),
        (aten.baddbmm.default, ((2, 3, 7), (2, 3, 5), (2, 5, 7))),
    ],
)
def test_a_product_is_that_of_pytorch(
    operator: object, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> None:
    given = [numbers(*shape).to(dtype) for shape in shapes]
    given[-1] = given[-1].mT.contiguous().mT
    wanted = operator(*given)  # type: ignore[operator]
    found = torch.full_like(wanted, torch.nan)
    launches = prepared(operator, found, *given)
    launches(addresses(found, *given))
    assert torch.equal(found, wanted)
    again = [x.clone(memory_format=torch.preserve_format).mul_(2) for x in given]
    launches(addresses(found, *again))  # at other addresses
    torch.testing.assert_close(found, operator(*again))  # type: ignore[operator]


def test_threads_have_handles_of_their_own() -> None:
    w = numbers(8, 8)
    launches = prepared(aten.mm.default, torch.empty(4, 8), numbers(4, 8), w)

    def run(seed: int) -> bool:
        x, found = numbers(4, 8) * seed, torch.empty(4, 8)
        for _ in range(50):
            found.zero_()
            launches(addresses(found, x, w))
            if not torch.equal(found, x @ w):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


def test_an_error_names_the_operator() -> None:
    x = numbers(3, 5)
    launches = prepared(aten.mm.default, torch.empty(3, 5), x, x)
    with pytest.raises(LaunchFailed, match=r"product: PyTorch refuses its operands"):
        launches(addresses(torch.empty(3, 5), x, x))


def test_other_operators_are_left_to_pytorch() -> None:
    assert library_call(aten.add.Tensor, (), CPU) is None


# ---------------------------------------------------------------- operators by name


PLACES, COLUMNS = torch.tensor([3, 0]), torch.tensor([[1], [2]])


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("where", [(None, PLACES), (PLACES,), (PLACES, COLUMNS)])
def test_places_of_an_array_are_written(where: tuple[Tensor | None, ...], is_added: bool) -> None:
    x = numbers(8, 5).t()
    wanted = x.clone(memory_format=torch.preserve_format)
    rows = numbers(*wanted[tuple(slice(None) if i is None else i for i in where)].shape)
    aten.index_put_.default(wanted, where, rows, is_added)
    indices = [i for i in where if i is not None]
    numbered = iter(range(2, 4))
    given = [None if i is None else At(next(numbered)) for i in where]
    arguments = (At(0), given, At(1), *([True] if is_added else []))
    tensors = (x, rows, *indices)
    launches = named(aten.index_put_.default, arguments, *tensors)
    launches(addresses(*tensors))
    assert torch.equal(x, wanted)


def test_arrays_are_joined_and_copied() -> None:
    x, y = numbers(3, 5), numbers(2, 5)
    joined = torch.empty(5, 5)
    launches = named(aten.cat.out, ([At(0), At(1)], 0, At(2)), x, y, joined)
    launches(addresses(x, y, joined))
    assert torch.equal(joined, torch.cat((x, y)))
    part = joined[1:4].t()
    launches = named(aten.copy_.default, (At(0), At(1)), part, x[:1].t().double())
    source = x[:1].t().double()
    launches(addresses(part, source))
    assert torch.equal(joined[1:4], x[:1].expand(3, 5))


def test_handles_outlive_inference_mode() -> None:
    """A tensor that was made in inference mode must not be written to outside of it."""
    x, y = numbers(3, 5), numbers(3, 5)
    launches = named(aten.copy_.default, (At(0), At(1)), x, y)
    for is_inference in (True, False, True):
        x.zero_()
        with torch.inference_mode(is_inference):
            launches(addresses(x, y))
        assert torch.equal(x, y)


def test_arguments_that_c_does_not_know() -> None:
    operand = Operand((3, 5), (5, 1), torch.float32)
    assert named_call(aten.add_.Tensor, (At(0), At(0), 1), (operand,), CPU) is None
    assert named_call(aten.copy_.default, (At(0), At(0)), (operand,) * 9, CPU) is None


# ---------------------------------------------------------------- results that PyTorch allocates


def allocating(
    operator: Any, arguments: tuple[object, ...], wanted: Mapping[int, Tensor], *tensors: Tensor
) -> Launches:
    """The call of an operator whose results of some numbers are kept, like the wanted ones.

    The addresses of a call are those of the operands, of these results, and then their handles.
    """
    operands = tuple(Operand(tuple(x.shape), tuple(x.stride()), x.dtype) for x in tensors)
    count, kept = len(tensors), len(wanted)
    results = tuple(
        Result(n, tuple(x.shape), tuple(x.stride()), x.dtype, n, count + at, count + kept + at)
        for at, (n, x) in enumerate(wanted.items())
    )
    call = named_call(operator, arguments, operands, CPU, results)
    assert call is not None
    return Launches([(call, [(at, 0) for at in range(count)])], 0, ["operator"])


def results(launches: Launches, kept: int, *tensors: Tensor) -> list[Tensor]:
    """The results of a call that are kept."""
    rooms = (ctypes.c_void_p * (len(tensors) + 2 * kept))(*(x.data_ptr() for x in tensors))
    assert launches(rooms) is None
    found = [tensor_of(rooms[len(tensors) + kept + at]) for at in range(kept)]
    assert [x.data_ptr() for x in found] == [rooms[len(tensors) + at] for at in range(kept)]
    assert all(x._use_count() == 1 for x in found)  # type: ignore[attr-defined]
    return found


X = numbers(2, 3, 6, 4)
IMAGE, ROWS = numbers(1, 2, 7, 6), numbers(6, 8)
attention = aten.scaled_dot_product_attention.default


@pytest.mark.parametrize(
    ("operator", "arguments", "tensors"),
    [
        (attention, (At(0), At(1), At(2)), (X, X * 2, X + 1)),
        (attention, (At(0), At(1), At(2), None, 0.0, True), (X, X * 2, X + 1)),
        (attention, (At(0), At(1), At(2), At(3), 0.0, False, 0.25), (X, X, X, numbers(6, 6))),
        (attention, (At(0), At(1), At(1), None, 0.0, False, None, True), (X, numbers(2, 1, 6, 4))),
        (aten.native_layer_norm.default, (At(0), [4], At(1), None, 1e-5), (X, numbers(4))),
        (aten.topk.default, (At(0), 2, -1, False), (X.transpose(1, 3),)),
        (aten.gelu.default, (At(0), "tanh"), (X,)),
        (aten.sum.dim_IntList, (At(0), [1, -1], True, torch.float64), (X,)),
        (aten.argmax.default, (At(0), None, False), (X,)),
        (
            aten.convolution.default,
            (At(0), At(1), At(2), [1, 2], [1, 1], [1, 1], False, [0, 0], 1),
            (IMAGE, numbers(3, 2, 3, 3), numbers(3)),
        ),
        (aten.max_pool2d_with_indices.default, (At(0), [2, 2], [1, 1]), (IMAGE,)),
        (aten.index.Tensor, (At(0), [None, At(1)]), (ROWS, PLACES)),
        (aten.bucketize.Tensor, (At(0), At(1)), (X, numbers(9).sort().values)),
    ],
)
def test_results_are_those_of_pytorch(
    operator: Any, arguments: tuple[object, ...], tensors: tuple[Tensor, ...]
) -> None:
    def eager(*given: Tensor) -> dict[int, Tensor]:
        def filled(x: object) -> object:
            if isinstance(x, At):
                return given[x.number]
            return [*map(filled, x)] if isinstance(x, list) else x

        schema = operator._schema.arguments
        pairs = [*zip(schema, map(filled, arguments), strict=False)]
        named = {a.name: x for a, x in pairs if a.kwarg_only}
        made = operator(*(x for a, x in pairs if not a.kwarg_only), **named)
        return dict(enumerate(made if isinstance(made, tuple) else (made,)))

    wanted = eager(*tensors)
    launches = allocating(operator, arguments, wanted, *tensors)
    for x, y in zip(results(launches, len(wanted), *tensors), wanted.values(), strict=True):
        assert torch.equal(x, y)
        assert x.stride() == y.stride()
    again = [x.clone(memory_format=torch.preserve_format) for x in tensors]  # at other addresses
    last = max(wanted)
    launches = allocating(operator, arguments, {last: wanted[last]}, *tensors)  # drops the others
    (found,) = results(launches, 1, *again)
    assert torch.equal(found, wanted[last])


def test_a_result_that_lies_otherwise_stops_the_launches() -> None:
    x, wanted = numbers(3, 5), torch.empty(5, 3).t()
    launches = allocating(aten.flip.default, (At(0), [0]), {0: wanted}, x)
    rooms = (ctypes.c_void_p * 3)(x.data_ptr())
    assert launches(rooms) == Stopped(0, DIFFERS)
    assert torch.equal(tensor_of(rooms[2]), x.flip(0))
    other = allocating(aten.flip.default, (At(0), [0]), {0: numbers(3, 5).double()}, x)
    assert other(rooms) == Stopped(0, DIFFERS)
    assert torch.equal(tensor_of(rooms[2]), x.flip(0))


def test_results_are_released() -> None:
    x = numbers(3, 5)
    rooms = (ctypes.c_void_p * 2)(handle_of(x), None)
    assert x._use_count() == 2  # type: ignore[attr-defined]
    launches = Launches([(Release((0, 1)), [])], 0, ["release"])
    for _ in range(2):
        assert launches(rooms) is None
        assert not rooms[0]
        assert x._use_count() == 1  # type: ignore[attr-defined]


def test_results_that_c_does_not_know() -> None:
    operand = Operand((3, 5), (5, 1), torch.float32)
    assert named_call(aten.add.Tensor, (At(0), At(0), 2), (operand,), CPU) is None
    assert named_call(aten.split_copy.Tensor, (At(0), 2), (operand,), CPU) is None


def test_an_operator_that_fails_is_repeated_in_python() -> None:
    table, rows = numbers(5, 4), torch.tensor([[7, 0, 0, 1]])
    arguments = (At(0), 0, At(1))
    wanted = {0: torch.empty(1, 4)}
    launches = allocating(aten.gather.default, arguments, wanted, table, rows)
    rooms = (ctypes.c_void_p * 4)(table.data_ptr(), rows.data_ptr())
    assert launches(rooms) == Stopped(0, REFUSED)
    assert not rooms[3]
    operands = [Operand(tuple(x.shape), tuple(x.stride()), x.dtype) for x in (table, rows)]
    call = named_call(aten.gather.default, arguments, tuple(operands), CPU)
    assert call is not None
    assert call.again is not None
    shared = [array_at(x.data_ptr(), y, CPU) for x, y in zip((table, rows), operands, strict=True)]
    with pytest.raises(RuntimeError, match="out of bounds"):
        call.again(shared)
    rows[0, 0] = 2
    assert torch.equal(call.again(shared), table.gather(0, rows))
