"""Example inputs of parts: arrays with the shapes and strides that a call gives them."""

from collections.abc import Mapping

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.array.records import FrameworkLayout
from blockbuster_fusion.runtime.tensors import STORED
from blockbuster_fusion.torch.capture.nodes import tensors_of
from blockbuster_fusion.torch.capture.results import strides_of
from blockbuster_fusion.torch.capture.symbolic import sizes_of
from blockbuster_fusion.torch.plan.steps import atoms
from blockbuster_fusion.torch.to_array_program import PartProgram


def example_inputs(
    part: PartProgram, nodes: Mapping[str, Node], device: torch.device, length: Length
) -> list[torch.Tensor]:
    """Arrays of zeros for the inputs of a part; places of rows are distinct.

    `nodes` are those of the graph by name. What a part reads in two ways, as an array and its
    transpose, is one array if both have the same shape.
    """
    known: dict[tuple[object, ...], torch.Tensor] = {}
    given: list[torch.Tensor] = []
    for layout in part.expressed.inputs:
        node, dtype = nodes.get(layout.source), STORED[part.storage[layout.name]]
        key = (layout.source, dtype, tuple(atoms(layout, length)))
        if key not in known:
            known[key] = _zeros(layout, node, dtype, device, length)
        given.append(known[key])
    for number in part.expressed.program.places:
        given[number] = counted_like(given[number])
    return given


def _zeros(
    layout: FrameworkLayout,
    node: Node | None,
    dtype: torch.dtype,
    device: torch.device,
    length: Length,
) -> torch.Tensor:
    """Zeros that lie as the result of a node does; in order, if that cannot be known."""
    shape = atoms(layout, length)
    strides = strides_of(tensors_of(node)[0]) if node is not None and tensors_of(node) else None
    if node is None or strides is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    lengths, steps = [*map(length, sizes_of(node))], [*map(length, strides)]
    room = 1 + sum((n - 1) * step for n, step in zip(lengths, steps, strict=True))
    memory = torch.zeros(max(room, 0), dtype=dtype, device=device)
    return memory.as_strided(lengths, steps).view(shape)


def counted_like(places: torch.Tensor) -> torch.Tensor:
    """0, 1, 2, … in an array like another."""
    return torch.arange(places.numel(), device=places.device).to(places.dtype).view_as(places)
