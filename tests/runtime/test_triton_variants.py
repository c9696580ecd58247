"""Forms of Triton kernels: calls with new sizes need none that is not compiled yet."""

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import blockbuster_fusion as bb
from blockbuster_fusion.compiler import Request, choose

if sys.platform != "linux":
    pytest.skip("Triton is for Linux alone", allow_module_level=True)

import torch

from blockbuster_fusion.runtime.triton.launch import FittingLaunch, Launcher, TritonKernels

LENGTHS = (1, 2, 16, 17, 64, 100, 1000, 1024, 4096, 5000, 70_000)

Form = tuple[Any, ...]


def form(function: Any, values: Sequence[Any], options: dict[str, int]) -> Form:
    """The properties of arguments for which Triton compiles a function anew."""
    key: list[object] = []
    for parameter, value in zip(function.params, values, strict=True):
        if parameter.is_constexpr:
            key.append(value)
        elif isinstance(value, int) and not parameter.do_not_specialize:
            key.append((value == 1, value % 16 == 0))
    return (id(function), *key, *options.items())


class Compiler:
    """Stands in for Triton's compiler and GPU: keeps what is compiled, and what is launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: set[Form] = set()
        self.launched: list[Form] = []
        kind = type(_kernels(1)[1].function)

        def warmup(function: Any, *values: Any, grid: object, **options: int) -> "Made":
            made = form(function, values, options)
            self.compiled.add(made)
            return Made(lambda *values: self.launched.append(made))

        monkeypatch.setattr(kind, "warmup", warmup)


class Made:
    """A compiled kernel that Triton launches, as a cluster of programs."""

    def __init__(self, launch: Callable[..., None]) -> None:
        self.launch, self.metadata = launch, SimpleNamespace(num_ctas=2, shared=0)

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.launch


def _kernels(width: int | str) -> tuple[TritonKernels, Launcher]:
    """A norm of rows with a product: rows of any number, and of a width that may be known."""
    function = lambda X, Y: bb.ops.rmsnorm(X) @ Y  # noqa: E731
    program = bb.trace(function, "M N", "N K", name="normed")
    sizes = {"K": 64, **({"N": width} if isinstance(width, int) else {})}
    choice = choose(Request(program, target="cuda", sizes=sizes))[0]
    nest, tiles = choice.scheduled()
    kernels = TritonKernels(nest, tiles)
    return kernels, kernels._launchers[id(nest.kernels[0])]


def _launch(launcher: Launcher, tiles: Any, rows: int, width: int) -> None:
    """Launches the kernel for contiguous arrays of some lengths."""
    sizes = {
        symbol.name: {"M": rows, "N": width}[symbol.name[0]] for symbol in launcher.launched.symbols
    }
    lengths = {"M": rows, "N": width, "K": 64}
    shapes = [[lengths[axis.dim.name] for axis in b.axes] for b in launcher.buffers]
    arrays = [torch.empty(shape, device="meta") for shape in shapes]
    FittingLaunch(launcher, sizes, tiles, {}, [x.stride() for x in arrays])(arrays)


@pytest.mark.parametrize("width", [128, "symbolic"])
def test_no_call_but_the_first_compiles(width: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    kernels, launcher = _kernels(width)
    widths = LENGTHS if width == "symbolic" else (width,)
    _launch(launcher, kernels.tiles, LENGTHS[3], widths[0])
    first = set(compiler.compiled)
    assert 2 <= len(first) <= 4
    for rows in LENGTHS:
        for columns in widths:
            _launch(launcher, kernels.tiles, rows, columns)
    assert compiler.compiled == first
    assert set(compiler.launched) <= first
    assert len(set(compiler.launched)) >= 2  # full blocks are not masked


def test_known_lengths_stay_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stride that follows from a known width is specialised in the general form, too."""
    Compiler(monkeypatch)
    kernels, launcher = _kernels(128)
    plan = launcher.plan({"MM": 17}, kernels.tiles, {})
    strides = [(128, 1) if len(b.axes) == 2 else (1,) for b in launcher.buffers]
    known, changing = launcher.numbers(plan, strides)
    assert changing == {launcher.names.sizes[s] for s in launcher.launched.symbols}
    function, numbers = launcher.variants.fitting(known, changing)
    assert function is not launcher.function
    assert not any(numbers[name] for name in launcher.variants.evens)
    assert launcher.variants.fitting(known, changing)[0] is function  # made once


def test_fixed_sizes_have_one_form(monkeypatch: pytest.MonkeyPatch) -> None:
    Compiler(monkeypatch)
    program = bb.trace(lambda X: X * 2.0, "M N", name="double")
    choice = choose(Request(program, target="cuda", sizes={"M": 17, "N": 33}))[0]
    nest, tiles = choice.scheduled()
    launcher = TritonKernels(nest, tiles)._launchers[id(nest.kernels[0])]
    assert not launcher.variants.are_compiled
    known, changing = launcher.numbers(launcher.plan({}, tiles, {}), [(33, 1), (33, 1)])
    assert launcher.variants.fitting(known, changing) == (launcher.function, known)
