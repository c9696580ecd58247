"""Products of matrices that C calls, with a driver of a GPU that launches nothing."""

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
from blockbuster_fusion.runtime.triton.library_calls import Operand, library_call

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
