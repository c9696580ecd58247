"""Functions of a tape as Python text, which is fastest: its call, and the test of its inputs.

A call of a small model takes microseconds, of which loops over parts and lists of values would be
a large share. The text has a line for each thing that a call does, and no other.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler

from blockbuster_fusion.nest.shapes import contiguous
from blockbuster_fusion.runtime.tensors import LOW, address, checked_address
from blockbuster_fusion.runtime.triton.library_calls import tensor_of
from blockbuster_fusion.torch.plan.likeness import tests_of_tensors
from blockbuster_fusion.torch.plan.placement import has_driver
from blockbuster_fusion.torch.plan.sized import fixed_shape
from blockbuster_fusion.torch.plan.steps import Slot

if TYPE_CHECKING:
    from blockbuster_fusion.torch.plan.tape import Fresh, Part, TensorTape

ARENA = 0
"""The number of the base that is the arena."""


def fitting(given: Sequence[Any], changing: Sequence[int]) -> Callable[[Sequence[Any]], bool]:
    """A function that tells whether the inputs of a call are like given ones.

    Of those, the ones in `changing` may differ between calls.
    """
    names: dict[str, Any] = {}
    tensors = [at for at in changing if isinstance(given[at], torch.Tensor)]
    placed = [(f"given[{at}]", given[at]) for at in tensors]
    tests = tests_of_tensors("given", len(given), placed, names)
    for at in changing:
        if at not in tensors:
            names[f"type{at}"] = type(given[at])
            tests.append(f"type(given[{at}]) is type{at}")
        if isinstance(given[at], int):
            tests.append(f"given[{at}] == {given[at]}")
    lines = ["def fits(given):", f"    return {' and '.join(tests) or True}"]
    exec("\n".join(lines), names)
    made: Callable[[Sequence[Any]], bool] = names["fits"]
    return made


def calling(tape: "TensorTape") -> Callable[..., list[Any] | None]:
    """The function that runs a tape, of the inputs and of what evaluates the sizes of a call."""
    made = _Text(tape)
    exec("\n".join(["def run(given, length):", *made.lines()]), made.names)
    run: Callable[..., list[Any] | None] = made.names["run"]
    return run


class _Text:
    """The text of a tape's call, and the names in it."""

    def __init__(self, tape: "TensorTape") -> None:
        self.tape = tape
        self.names: dict[str, Any] = {
            "empty": _empty(tape.device),
            "profiler": profiler,
            "uint8": torch.uint8,
            "address": address,
            "checked": checked_address,
            "tensor_of": tensor_of,
            "addresses": tape.addresses,
            "copied": type(tape.addresses).from_buffer_copy,
        }
        steps = any(part.run is not None for part in tape.parts)
        sized = any(x.is_sized for part in tape.parts for x in part.fresh)
        numbers = any(part.tape and part.tape.numbers.count for part in tape.parts)
        self.has_list = bool(steps or sized or numbers or tape.lengths or tape.regions.bytes)
        """True if values are in a list; else they are variables."""

    def name(self, kind: str, x: Any) -> str:
        """A name for an object."""
        made = f"{kind}{len(self.names)}"
        self.names[made] = x
        return made

    def value(self, slot: int) -> str:
        return f"values[{slot}]" if self.has_list else f"v{slot}"

    def lines(self) -> Iterator[str]:
        """The lines of the function's body."""
        tape = self.tape
        if has_driver(tape.device):  # the driver launches in the current context
            self.names |= {"cuda": torch._C, "index": tape.device.index, "on": torch.cuda.device}
            yield "    if cuda._cuda_getDevice() != index:"
            yield "        with on(index): return run(given, length)"
        yield from self.begun()
        yield "    a = copied(addresses)"
        yield from self.room()
        for slot, base in tape.given:
            yield f"    p = {self.value(slot)}.data_ptr()"
            yield f"    a[{base}] = p if p >= {LOW} else checked({self.value(slot)}, p)"
        inner = "    "
        if tape.handles:
            self.names["release"] = tape.release
            yield "    try:"
            inner = "        "
        for part in tape.parts:
            yield from (inner + line for line in self.part(part))
        if tape.handles:
            yield "    except BaseException: release(a); raise"
        yield f"    return [{', '.join(map(self.output, tape.outputs))}]"

    def begun(self) -> Iterator[str]:
        """The values of the inputs, of what is kept, and of sizes."""
        tape = self.tape
        if not self.has_list:
            given = range(tape.inputs)
            yield f"    {''.join(f'v{slot}, ' for slot in given)} = given" if given else "    pass"
            kept = enumerate(tape.template[tape.inputs :], start=tape.inputs)
            self.names |= {f"v{slot}": x for slot, x in kept if x is not None}
            return
        self.names["rest"] = tape.template[tape.inputs :]
        yield "    values = [*given, *rest]"
        for size, slot in tape.lengths:
            yield f"    values[{slot}] = n = length({self.name('size', size)})"
            yield "    if not n: return None"
        for derive in tape.derived:
            yield f"    {self.name('derive', derive)}(values)"

    def room(self) -> Iterator[str]:
        """The memory that only kernels see."""
        tape = self.tape
        if not tape.regions.bytes:
            if tape.arena:
                yield f"    arena = empty(({tape.arena},), (1,), uint8)"
                yield f"    a[{ARENA}] = arena.data_ptr()"
            return
        self.names |= {"total": tape.regions.total, "place": tape.regions.place}
        yield f"    n = {tape.arena} + total(values)"
        yield f"    if n > {tape.most}: return None"
        yield "    arena = empty((n,), (1,), uint8)"
        yield f"    a[{ARENA}] = arena.data_ptr()"
        yield f"    place(a, a[{ARENA}] + {tape.arena}, values)"

    def part(self, part: "Part") -> Iterator[str]:
        for fresh in part.fresh:
            yield from self.fresh(fresh)
        values = "values" if self.has_list else "()"
        if part.run is not None:
            yield f"{self.name('step', part.run)}(values)"
            for slot, base in part.made:
                yield f"a[{base}] = address(values[{slot}])"
        elif part.tape is not None:
            profile = f"{self.name('part', part)}.profile(a, {values})"
            yield f"if profiler._is_profiler_enabled: {profile}"
            yield "else:"
            yield from (f"    {line}" for line in part.tape.lines(self.name, values))
        for slot, handle in part.taken:
            yield f"{self.value(slot)}, a[{handle}] = tensor_of(a[{handle}]), None"
        for slot in part.dead:
            yield f"{self.value(slot)} = None"

    def fresh(self, fresh: "Fresh") -> Iterator[str]:
        """The allocation of a tensor, and of the views of it that are read."""
        if fresh.is_sized:
            made = self.name("fresh", fresh)
            yield f"a[{fresh.base}] = {made}.made(values, empty).data_ptr()"
            return
        shape, dtype = fixed_shape(fresh.shape), self.name("dtype", fresh.dtype)
        strides, shown = contiguous(shape), dict(fresh.shown)
        for slot, view in fresh.shown if len(shown) == 1 else ():
            if view is not None and _is_whole(view, math.prod(shape)):
                shape, strides, shown = view[0], view[1], {slot: None}
        yield f"x = empty({shape}, {strides}, {dtype})"
        yield f"a[{fresh.base}] = x.data_ptr()"
        for slot, view in shown.items():
            yield f"{self.value(slot)} = x{'' if view is None else f'.as_strided{view}'}"

    def output(self, x: Any) -> str:
        return self.value(x.number) if isinstance(x, Slot) else self.name("constant", x)


def _is_whole(view: tuple[Any, ...], elements: int) -> bool:
    """True if a view of a dense array of some elements has all of them, each once."""
    shape, strides, offset = view
    in_memory = sorted(zip(strides, shape, strict=True), reverse=True)
    ordered = [n for _, n in in_memory]
    is_dense = contiguous(ordered) == tuple(stride for stride, _ in in_memory)
    return is_dense and not offset and math.prod(shape) == elements


def _empty(device: torch.device) -> Callable[..., torch.Tensor]:
    """The function of PyTorch's that allocates at least cost, of shape, strides and dtype."""
    name = f"_empty_strided_{device.type}"  # on the current device
    made: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, name)
    return made
