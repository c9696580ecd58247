"""Launches by the GPU's driver, with a driver that notes what it is asked for."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if sys.platform != "linux":
    pytest.skip("Triton is for Linux alone", allow_module_level=True)

from triton.runtime.errors import OutOfResources

from blockbuster_fusion.errors import LaunchFailed
from blockbuster_fusion.runtime.c.compiler import compile_c
from blockbuster_fusion.runtime.triton import driver
from blockbuster_fusion.runtime.triton.descriptors import Matrix
from blockbuster_fusion.runtime.triton.driver import Launches, cleared, driver_launch, single

DRIVER = """\
#include <stdint.h>
#include <string.h>
typedef unsigned u;
int64_t notes[64], noted;
int code;
/* A function stands for the number of its parameters. */
int cuLaunchKernel(void *f, u x, u y, u z, u a, u b, u c, u shared, void *stream, void **given,
                   void **more) {
    int64_t head[] = {(intptr_t)f, x, y, z, a, b, c, shared, (intptr_t)stream};
    memcpy(notes + noted, head, sizeof(head));
    noted += 9;
    for (int64_t i = 0; i < (intptr_t)f; i++) notes[noted++] = *(int64_t *)given[i];
    return code;
}
/* A launch with attributes is noted as an ordinary one, after the numbers of an attribute. */
struct attribute {
    int id;
    char more[4];
    union {
        char room[64];
        int number;
    } value;
};
struct config {
    u x, y, z, a, b, c, shared;
    void *stream;
    struct attribute *attributes;
    u count;
};
int cuLaunchKernelEx(const struct config *how, void *f, void **given, void **more) {
    notes[noted++] = -(int64_t)how->count;
    notes[noted++] = -how->attributes[0].id;
    notes[noted++] = -how->attributes[0].value.number;
    return cuLaunchKernel(f, how->x, how->y, how->z, how->a, how->b, how->c, how->shared,
                          how->stream, given, more);
}
/* A descriptor is a checksum of what is encoded. */
int cuTensorMapEncodeTiled(int64_t *made, int dtype, u rank, int64_t at, const uint64_t *lengths,
                           const uint64_t *steps, const u *block, const u *each, int interleaved,
                           int swizzle, int promotion, int beyond) {
    int64_t given[] = {dtype, rank, at, lengths[0], lengths[1], steps[0], block[0], block[1],
                       each[0], each[1], interleaved, swizzle, promotion, beyond};
    *made = 0;
    for (int i = 0; i < 14; i++) *made = (*made * 31 + given[i]) % 1000003;
    for (int i = 2; i < rank; i++)
        *made = (*made * 31 + lengths[i] + 7 * steps[i - 1] + 11 * block[i] + each[i]) % 1000003;
    return (intptr_t)made % 64 ? 1 : code;
}
static _Thread_local void *context;
int contexts;
int cuCtxGetCurrent(void **found) {
    *found = context;
    return 0;
}
int cuDeviceGet(int *device, int number) {
    *device = number + 100;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **found, int device) {
    *found = (void *)(intptr_t)device;
    contexts++;
    return device != 100;
}
int cuCtxSetCurrent(void *given) {
    context = given;
    return 0;
}
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *stream) {
    memset((void *)at, value, bytes);
    return code;
}
"""
STREAM = 77


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library that stands for the driver's."""
    file = tmp_path / "libdriver.so"
    file.write_bytes(compile_c(DRIVER).content)
    monkeypatch.setattr(driver, "LIBRARY", str(file))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    driver.load_library.cache_clear()
    yield ctypes.CDLL(str(file))
    driver.load_library.cache_clear()


def noted(library: Any) -> list[int]:
    count = ctypes.c_int64.in_dll(library, "noted").value
    return [*(ctypes.c_int64 * 64).in_dll(library, "notes")][:count]


def compiled(signature: dict[str, str], function: int, **about: Any) -> Any:
    usual = {"num_ctas": 1, "num_warps": 4, "shared": 512, "launch_pdl": 0}
    return SimpleNamespace(
        name="kernel",
        function=function,
        metadata=SimpleNamespace(**usual | about),
        src=SimpleNamespace(signature=signature),
    )


SIGNATURE = {"X": "*fp32", "M": "i32", "BLOCK": "constexpr", "Y": "*bf16", "S": "i64", "T": "*i1"}
TEMPLATE = [None, 100, 64, None, -3, None]
POINTERS = [(0, 1), (3, 0), (5, 2)]


def test_a_kernel_gets_its_numbers_and_addresses(notes: Any) -> None:
    """Constants are left out; arrays come in any order; two hidden parameters are 0."""
    launch = driver_launch(compiled(SIGNATURE, 7), (5, 6), TEMPLATE, POINTERS)
    assert launch is not None
    places = [(1, 16), (2, 0), (0, 32)]  # of Y, X and T
    Launches([(launch, places)], 0, ["kernel"])((ctypes.c_void_p * 3)(1600, 2400, 3200))
    head = [7, 5, 6, 1, 128, 1, 1, 512, STREAM]
    assert noted(notes) == [*head, 3200, 100, 2416, -3, 1632, 0, 0]


def checksum(numbers: list[int]) -> int:
    made = 0
    for number in numbers:
        made = (made * 31 + number) % 1000003
    return made


def test_a_matrix_is_given_as_a_descriptor(notes: Any) -> None:
    """The driver encodes it for the address of the call; its shape and strides come after it."""
    signature = {"N": "i32", "X": "tensordesc<bf16[128, 64]>", "BLOCK": "constexpr", "Y": "*bf16"}
    about = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [128, 32]}
    made = compiled(signature, 9, tensordesc_meta=[about])
    matrices = {1: Matrix((300, 200), (208, 1), (128, 64))}
    pointers, template = [(1, 0), (3, 1)], [7, None, 128, None]
    launch = driver_launch(made, (5,), template, pointers, matrices=matrices)
    assert launch is not None
    run = single(launch, 0, 2)
    run([1600, 3200])
    run([4800, 3200])
    for number, at in enumerate((1600, 4800)):
        encoded = checksum([9, 2, at, 200, 300, 416, 32, 128, 1, 1, 0, 3, 2, 0])
        found = noted(notes)[18 * number :][9:18]
        assert found == [7, encoded, 300, 200, 208, 1, 3200, 0, 0]
    without = compiled(signature, 9)  # for a GPU without descriptors
    assert driver_launch(without, (5,), template, pointers, matrices=matrices) is None


def test_two_matrices_are_given_as_one_descriptor(notes: Any) -> None:
    """It begins with the lower one, and the other parameter tells which that is."""
    signature = {"W": "tensordesc<bf16[2, 128, 64]>", "V": "i32", "N": "i32"}
    about = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [2, 128, 64]}
    made = compiled(signature, 11, tensordesc_meta=[about])
    size = 300 * 208 * 2
    matrix = Matrix((300, 200), (208, 1), (128, 64), other=1, bytes=size)
    plain = Matrix((300, 200), (208, 1), (128, 64))
    pointers, template = [(0, 0), (1, 1)], [None, None, 7]
    launch = driver_launch(made, (5,), template, pointers, matrices={0: matrix, 1: plain})
    assert launch is not None
    run = single(launch, 0, 2)
    for number, (first, second) in enumerate([(1600, 1600 + size), (1600 + 2 * size, 1600)]):
        run([first, second])
        encoded = checksum([9, 3, 1600, 200, 300, 416, 64, 128, 1, 1, 0, 3, 2, 0])
        encoded = checksum([encoded, 2 + 7 * abs(second - first) + 11 * 2 + 1])
        found = noted(notes)[20 * number :][9:20]
        assert found == [encoded, 2, 300, 200, 0, 208, 1, 2 + number, 7, 0, 0]
    for second in (1600, 1600 + size - 16, 1600 + (1 << 40)):  # the same, too near, too far
        before = noted(notes)
        (stopped,) = [run([1600, second])]
        assert stopped is not None
        assert noted(notes) == before


class Kernel:
    """A compiled kernel that is not loaded yet."""

    def __init__(self, **about: int) -> None:
        made = compiled({"X": "*fp32"}, 0, **about)
        self.name, self.kernel, self.function = made.name, b"binary", None
        self.metadata, self.src = made.metadata, made.src


def gpu(asked: list[tuple[Any, ...]], threads: int = 1024) -> Any:
    """Triton's driver, which notes what it loads."""

    def load(*given: Any) -> tuple[int, ...]:
        asked.append(given)
        return 5, 3, 40, 0, threads

    properties = {"max_shared_mem": 1000}
    utils = SimpleNamespace(get_device_properties=lambda device: properties, load_binary=load)
    return SimpleNamespace(utils=utils, get_current_device=lambda: 0)


def test_a_kernel_is_loaded_once_and_launched_without_triton(
    notes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(driver.driver, "_active", gpu(asked))
    kernel = Kernel()
    for _ in range(2):
        launch = driver_launch(kernel, (5,), [None], [(0, 1)])
        assert launch is not None
        single(launch, 0, 2)([1600, 3200])
    assert asked == [("kernel", b"binary", 512, 0)]
    assert kernel.function is None  # Triton itself can still load it
    assert noted(notes) == [3, 5, 1, 1, 128, 1, 1, 512, STREAM, 3200, 0, 0] * 2


@pytest.mark.parametrize(
    ("about", "words"), [({"shared": 1001}, "shared memory"), ({"num_warps": 32}, "threads")]
)
def test_a_kernel_that_takes_too_much_is_refused(
    about: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.driver, "_active", gpu([], threads=512))
    with pytest.raises(OutOfResources, match=words):
        driver_launch(Kernel(**about), (1,), [None], [(0, 0)])


def test_launches_run_in_order_and_some_alone(notes: Any) -> None:
    one, two = (driver_launch(compiled({"M": "i32"}, n), (n,), [n], []) for n in (1, 2))
    assert one is not None
    assert two is not None
    launches = Launches([(one, []), (two, []), (one, [])], 0, "aba")
    addresses = (ctypes.c_void_p * 1)()
    launches(addresses)
    launches(addresses, first=1, count=1)
    found = noted(notes)
    assert [found[at] for at in (0, 10, 21, 31)] == [1, 2, 1, 2]


EARLY = [-1, -6, -1]
"""One attribute, number 6, is 1: the driver's header has it for programmatic launches."""


def test_an_early_kernel_is_launched_so_right_after_a_kernel(notes: Any) -> None:
    """The first one starts late, as nothing is known before it; so does one after a clearing."""
    usual = driver_launch(compiled({}, 2), (3,), [], [])
    early = driver_launch(compiled({}, 2, launch_pdl=True), (4,), [], [])
    assert usual is not None
    assert early is not None
    assert (usual.is_early, early.is_early) == (False, True)
    memory = (ctypes.c_uint8 * 16)()
    places: list[tuple[int, int]] = []
    order = [early, early, usual, early, cleared("sums", 16), early]
    steps = [(x, [(0, 0)] if x.bytes else places) for x in order]
    run = Launches(steps, 0, "abcdef")
    addresses = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    run(addresses)
    one, other = ([2, n, 1, 1, 128, 1, 1, 512, STREAM, 0, 0] for n in (4, 3))
    assert noted(notes) == [*one, *EARLY, *one, *other, *EARLY, *one, *one]
    ctypes.c_int64.in_dll(notes, "noted").value = 0
    run(addresses, first=1, count=1)
    assert noted(notes) == one


def test_a_driver_without_attributes_launches_early_kernels_as_others(
    notes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "libolder.so"
    file.write_bytes(compile_c(DRIVER.replace("cuLaunchKernelEx", "unknown")).content)
    monkeypatch.setattr(driver, "LIBRARY", str(file))
    driver.load_library.cache_clear()
    early = driver_launch(compiled({}, 2, launch_pdl=True), (4,), [], [])
    assert early is not None
    Launches([(early, []), (early, [])], 0, "ab")((ctypes.c_void_p * 1)())
    assert noted(ctypes.CDLL(str(file))) == [2, 4, 1, 1, 128, 1, 1, 512, STREAM, 0, 0] * 2


def test_each_thread_has_a_context_once(notes: Any) -> None:
    """A thread that has not used the GPU has none, and the driver would refuse to launch."""
    launch = driver_launch(compiled({"M": "i32"}, 1), (1,), [1], [])
    assert launch is not None
    launches = Launches([(launch, [])], 0, ["kernel"])

    def run() -> None:
        for _ in range(2):
            launches((ctypes.c_void_p * 1)())

    for _ in range(2):
        thread = Thread(target=run)
        thread.start()
        thread.join()
    assert ctypes.c_int.in_dll(notes, "contexts").value == 2


def test_memory_is_cleared(notes: Any) -> None:
    memory = (ctypes.c_uint8 * 64)(*[255] * 64)
    launch = cleared("sums", 20)
    Launches([(launch, [(0, 8)])], 0, ["sums"])((ctypes.c_void_p * 1)(ctypes.addressof(memory)))
    assert [*memory] == [255] * 8 + [0] * 20 + [255] * 36


def test_an_error_of_the_driver_names_the_kernel(notes: Any) -> None:
    ctypes.c_int.in_dll(notes, "code").value = 719
    launch = driver_launch(compiled({}, 0), (1,), [], [])
    assert launch is not None
    with pytest.raises(LaunchFailed, match=r"kernel.*error 719"):
        Launches([(launch, [])], 0, ["kernel"])((ctypes.c_void_p * 1)())


@pytest.mark.parametrize(
    "made",
    [
        compiled(SIGNATURE, 7, num_ctas=2),
        compiled(SIGNATURE, 7, global_scratch_size=64),
        compiled({**SIGNATURE, "S": "fp32"}, 7),
        compiled({**SIGNATURE, "S": "nvTmaDesc"}, 7),
    ],
)
def test_what_takes_more_is_left_to_triton(made: Any) -> None:
    assert driver_launch(made, (1,), TEMPLATE, POINTERS) is None
