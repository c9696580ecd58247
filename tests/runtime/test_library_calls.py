"""Operators of PyTorch that C calls, with a driver of a GPU that launches nothing."""

import ctypes
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

if sys.platform != "linux":
    pytest.skip("Triton is for Linux alone", allow_module_level=True)

from blockbuster_fusion.errors import LaunchFailed
from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.triton import driver
from blockbuster_fusion.runtime.triton.driver import Launches
from blockbuster_fusion.runtime.triton.library_calls import (
    At,
    Operand,
    library_call,
    named_call,
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
