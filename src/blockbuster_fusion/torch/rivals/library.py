"""The times of PyTorch's own operators, measured for the shapes of a captured graph."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from blockbuster_fusion.runtime.tuning_database import database
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.nodes import operand, short_name, tensor_of, tensors_of
from blockbuster_fusion.torch.capture.sizes import captured_length
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.machines import machine_for
from blockbuster_fusion.torch.rivals.attention import Attention
from blockbuster_fusion.torch.rivals.timing import measured
from blockbuster_fusion.torch.tuned import versions

COPIES = ("clone", "contiguous")
"""Views of a captured graph that are copies in eager mode."""
HOST = 0.4
"""The share of the host's measured time that eager mode takes: it calls operators more directly."""
_KNOWN: dict[tuple[Any, ...], Seconds] = {}
"""The times of this process, by operator, shapes, dtypes, device and threads."""


class LibraryTimes:
    """Measures operators of a graph, each with arrays of its own shapes."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.length = captured_length(analysis)

    def of(self, nodes: Sequence[Node], attention: Iterable[Attention] = ()) -> Seconds:
        """The time of some nodes, with PyTorch's attention where there is any."""
        total, within = Seconds(0.0), set[Node]()
        for found in attention:
            within.update(found.members)
            total += self.attention(found)
        left = [n for n in nodes if n not in within]
        for node in dict.fromkeys((*left, *self.copies(left))):
            total += self.operator(node)
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
        """The time of one operator."""
        return self._timed(node.target, node.args, node.kwargs, tensor_of(node).device)

    def attention(self, found: Attention) -> Seconds:
        """The time of PyTorch's attention."""
        function = torch.ops.aten.scaled_dot_product_attention.default
        query, key = self._array(found.query), self._array(found.key)
        mask = None if found.mask is None else self._array(found.mask)
        value = self._array(found.value)
        with _disable_current_modes():
            key = key.transpose(-1, -2) if found.is_key_turned else key
            if found.lacks_batch:
                query, key, value = query[None], key[None], value[None]
        arguments = (query, key, value, mask, 0.0, found.is_causal)
        options = {"scale": found.scale, "enable_gqa": found.is_grouped}
        return self._timed(function, arguments, options, query.device)

    def _timed(self, function: Any, arguments: Any, options: Any, device: torch.device) -> Seconds:
        given, named = self._real(arguments), {k: self._real(v) for k, v in options.items()}
        threads = torch.get_num_threads() if device.type == "cpu" else 0
        key = (str(function), _seen(given), _seen([*named.items()]), str(device), threads)
        if key not in _KNOWN:
            _KNOWN[key] = self._kept(key, lambda: function(*given, **named), device)
        return _KNOWN[key]

    def _kept(
        self, key: tuple[Any, ...], call: Callable[[], object], device: torch.device
    ) -> Seconds:
        """The time of a call that was measured before, or that is measured now and kept."""
        name = hashlib.sha256(repr(key[:3]).encode()).hexdigest()
        machine = machine_for(device.type).name
        place = (f"{key[0]} {name}", machine, max(key[-1], 1), versions())
        known = database().library(*place)
        if known is not None:
            return Seconds(known.seconds_device, known.seconds_host)
        with _disable_current_modes(), torch.no_grad():
            found = measured(call, device)
        made = Seconds(found.device, found.host * HOST)
        database().put_library(*place, made.device, made.host)
        return made

    def _real(self, given: Any) -> Any:
        """An argument with arrays in place of nodes, and numbers in place of sizes."""
        if isinstance(given, Node):
            return self._array(given) if tensors_of(given) else self._number(given.meta["val"])
        if isinstance(given, torch.Tensor):
            return given
        if isinstance(given, list | tuple):
            return type(given)(self._real(x) for x in given)
        return self._number(given)

    def _number(self, given: Any) -> Any:
        return self.length(as_size(given)) if isinstance(given, torch.SymInt) else given

    def _array(self, node: Node) -> torch.Tensor:
        """An array like the fake one of a node: zeros, or ones where they are numbers."""
        fake = tensor_of(node)
        with _disable_current_modes(), torch.no_grad():
            shape = [self._number(n) for n in fake.shape]
            strides = [self._number(n) for n in fake.stride()]
            made = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
            return made.fill_(1 if fake.dtype.is_floating_point or fake.dtype is torch.bool else 0)


def _seen(given: Any) -> Any:
    """What the time of a call depends on."""
    if isinstance(given, torch.Tensor):
        return (tuple(given.shape), given.stride(), given.dtype)
    if isinstance(given, list | tuple):
        return tuple(_seen(x) for x in given)
    return str(given)
