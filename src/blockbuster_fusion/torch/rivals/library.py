"""The times of PyTorch's own operators, measured for the shapes of a captured graph."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.runtime.tuning_database import database
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.collectives import is_collective
from blockbuster_fusion.torch.capture.nodes import (
    operand,
    short_name,
    takes_positions,
    tensor_of,
    tensors_of,
)
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.capture.updates import IN_PLACE
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.plan.products import CALLED_FROM_C
from blockbuster_fusion.torch.rivals.collective_times import collective_time
from blockbuster_fusion.torch.rivals.composites import Composite
from blockbuster_fusion.torch.rivals.timing import Timing, randomised, timed
from blockbuster_fusion.torch.tuned import versions

Call = Callable[[], object]
COPIES = ("clone", "contiguous")
"""Views of a captured graph that are copies in eager mode."""
HOST = 1.5
"""The factor by which the host is slower in a model than where it repeats one operator."""
OWN = ("aten", "prims", "mkldnn")
"""The packages of operators whose times are kept: the code of others may change."""
OF_PROBABILITIES = ("binary_cross_entropy",)
"""Operators that a GPU refuses to run with numbers beyond 0 and 1: its error ends the process."""
METHOD = 3
"""The number of the way in which operators are measured; times that were kept count for theirs."""
MOST_COPIES = 64
"""The number of inputs that calls take in turns, so that each comes from memory."""
SMALL = 1 << 20
"""The bytes of inputs up to which it does not matter whether they come from memory."""
_KNOWN: dict[tuple[Any, ...], Seconds] = {}
"""The times of this process, by operator, shapes, dtypes, device and threads."""


class LibraryTimes:
    """Measures operators of a graph, each with arrays of its own shapes."""

    def __init__(self, analysis: Analysis, length: Length | None = None) -> None:
        """`length` gives the lengths of symbolic sizes: by default, those of the captured call."""
        self.analysis = analysis
        self.length = length or captured_length(analysis)
        self.known: dict[Node, Seconds] = {}
        """The times of operators that were asked for."""

    def of(self, nodes: Sequence[Node], composites: Iterable[Composite] = ()) -> Seconds:
        """The time of some nodes, with one operator for each of the composites among them."""
        total, within = Seconds(0.0), set[Node]()
        for found in composites:
            within.update(found.absorbed())
            total += self.composite(found)
        left = [n for n in nodes if n not in within]
        for node in dict.fromkeys((*left, *self.copies(left))):
            if node not in self.known:
                self.known[node] = self.operator(node)
            total += self.known[node]
        return total

    def copies(self, nodes: Iterable[Node]) -> list[Node]:
        """The copies among the views that some nodes read."""
        found: dict[Node, None] = {}
        for node in nodes:
            for source in node.all_input_nodes:
                base = self.analysis.base(source)
                while source is not base:
                    if short_name(source) in COPIES:
                        found[source] = None
                    source = operand(source)
        return [*found]

    def operator(self, node: Node) -> Seconds:
        """The time of one operator: measured, but for collectives."""

        if is_collective(node.target):
            return collective_time(node, self.length)
        function: Any = node.target
        if node in self.analysis.updates:
            function = IN_PLACE[function]
        device = tensor_of(node).device
        copies = self.copies_of_inputs(node.all_input_nodes, device)

        def call() -> Call:
            def once() -> Call:
                fill = 0 if takes_positions(node.target) else 1  # 0 is one wherever there is any
                is_probability = short_name(node) in OF_PROBABILITIES
                arrays = _Arrays(self, fill, are_probabilities=is_probability)
                given = self._real(node.args, arrays)
                named = {name: self._real(x, arrays) for name, x in node.kwargs.items()}
                return lambda: function(*given, **named)

            return _in_turns(once, copies)

        seen = self._described((node.args, tuple(node.kwargs.items())))
        seen = seen if copies == 1 else (*seen, copies)
        return in_a_plan(function, self._timed(str(function), seen, call, device), device)

    def composite(self, found: Composite) -> Seconds:
        """The time of PyTorch's one operator for a composite."""

        operator, device = found.operator, tensor_of(found.result).device
        operands = [n for n in found.operands if n is not None]
        copies = self.copies_of_inputs(operands, device)

        def call() -> Call:
            def once() -> Call:
                arrays = _Arrays(self, 1)
                given = found.prepared(*(n if n is None else arrays(n) for n in found.operands))
                return lambda: found.run(*given)

            return _in_turns(once, copies)

        seen = self._described((found.operands, found.form))
        seen = seen if copies == 1 else (*seen, copies)
        return in_a_plan(operator, self._timed(str(operator), seen, call, device), device)

    def copies_of_inputs(self, nodes: Iterable[Node], device: torch.device) -> int:
        """The number of copies of inputs that a GPU's cache does not hold together.

        A call that is repeated would find them there. Kernels are predicted, and measured, with
        inputs that come from memory: so both are weighed alike.
        """
        if device.type != "cuda":
            return 1
        tensors = [tensor_of(n) for n in nodes if tensors_of(n)]
        size = sum(map(self._span, tensors))
        room = 2 * machine_for(device.type).memories[-2].size
        return min(MOST_COPIES, 1 + int(room // size)) if SMALL < size < room else 1

    def _span(self, x: torch.Tensor) -> int:
        """The bytes from the first element of an array to its last, which are allocated."""
        shape, strides = (map(self._number, lengths) for lengths in (x.shape, x.stride()))
        ends = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
        return (1 + sum(ends)) * x.dtype.itemsize if min(ends, default=0) >= 0 else 0

    def _timed(
        self, name: str, seen: tuple[Any, ...], call: Callable[[], Call], device: torch.device
    ) -> Seconds:
        """The time of an operator with arrays that look so: known, or measured now and kept.

        `call` makes the arrays, and gives a function that calls the operator with them.
        """
        threads = torch.get_num_threads() if device.type == "cpu" else 1
        key = (name, seen, str(device), threads)
        if key not in _KNOWN:
            text = hashlib.sha256(repr(seen).encode()).hexdigest()
            software = (*versions(), ("method", str(METHOD)))
            place = (f"{name} {text}", machine_for(device.type).name, threads, software)
            is_kept = name.partition(".")[0] in OWN
            known = database().library(*place) if is_kept else None
            if known is None:
                timing = _apart(lambda: timed(call(), device), device)
                found = timing.seconds
                if is_kept and timing.is_sure:
                    database().put_library(*place, found.device, found.host * HOST)
                _KNOWN[key] = Seconds(found.device, found.host * HOST)
            else:
                _KNOWN[key] = Seconds(known.seconds_device, known.seconds_host)
        return _KNOWN[key]

    def _described(self, given: Any) -> Any:
        """The properties of arguments that the time of a call depends on."""
        if isinstance(given, Node) and tensors_of(given):
            fake = tensor_of(given)
            lengths = (tuple(map(self._number, x)) for x in (fake.shape, fake.stride()))
            return (*lengths, str(fake.dtype))
        if isinstance(given, list | tuple):
            return tuple(self._described(x) for x in given)
        return str(self._number(given.meta["val"] if isinstance(given, Node) else given))

    def _real(self, given: Any, arrays: "_Arrays") -> Any:
        """An argument with arrays in place of nodes, and numbers in place of sizes."""
        if isinstance(given, Node):
            return arrays(given) if tensors_of(given) else self._number(given.meta["val"])
        if isinstance(given, list | tuple):
            return type(given)(self._real(x, arrays) for x in given)
        return self._number(given)

    def _number(self, given: Any) -> Any:
        return self.length(as_size(given)) if isinstance(given, torch.SymInt) else given

    def array(self, node: Node, fill: int = 1, *, is_probability: bool = False) -> torch.Tensor:
        """An array like the fake one of a node: ones, or what integers are to be filled with.

        On a GPU it has random numbers: products of equal ones take less power, and so less time.
        Those of a probability are between 0 and 1.
        """
        fake = tensor_of(node)
        shape, strides = ([*map(self._number, x)] for x in (fake.shape, fake.stride()))
        made = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
        is_integer = not fake.dtype.is_floating_point and fake.dtype is not torch.bool
        made.fill_(fill if is_integer else 1)
        return randomised(made, is_probability=is_probability)


class _Arrays:
    """The arrays of one call of an operator."""

    def __init__(self, times: LibraryTimes, fill: int, *, are_probabilities: bool = False) -> None:
        self.times, self.fill, self.are_probabilities = times, fill, are_probabilities
        self.made: dict[Node, torch.Tensor] = {}

    def __call__(self, node: Node) -> torch.Tensor:
        if node not in self.made:
            is_probability = self.are_probabilities
            self.made[node] = self.times.array(node, self.fill, is_probability=is_probability)
        return self.made[node]


def _in_turns(once: Callable[[], Call], count: int) -> Call:
    """A call that takes other arrays each time, of that many."""
    calls = [once() for _ in range(count)]
    if count == 1:
        return calls[0]
    turn = cycle(calls)
    return lambda: next(turn)()


def in_a_plan(function: object, spent: Seconds, device: torch.device) -> Seconds:
    """The time of an operator within a plan: C calls products on a GPU, as it launches kernels."""
    if device.type != "cuda" or function not in CALLED_FROM_C:
        return spent
    return Seconds(spent.device, min(spent.host, machine_for(device.type).launch))


def _apart(measure: Callable[[], Timing], device: torch.device) -> Timing:
    """Measures in a thread of its own: where a model is captured, every call takes longer.

    Not so with several threads of a CPU: another thread would have others of OpenMP beside these.
    """

    def without_gradients() -> Timing:
        with torch.no_grad():
            return measure()

    if device.type == "cpu" and torch.get_num_threads() > 1:
        with _disable_current_modes():
            return without_gradients()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(without_gradients).result()
