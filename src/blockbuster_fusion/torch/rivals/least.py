"""The least time that kernels could take: for their arrays, their products and one launch."""

from collections.abc import Sequence

from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.machine.machine import Machine
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.analysis import Analysis
from blockbuster_fusion.torch.capture.describe import flops_of
from blockbuster_fusion.torch.capture.nodes import LOOKUPS, operand, short_name, tensor_of
from blockbuster_fusion.torch.capture.touched import bytes_of, touched


def least(
    analysis: Analysis, nodes: Sequence[Node], machine: Machine, length: Length
) -> tuple[bool, Seconds]:
    """The least time of the kernels of some nodes, and whether they have a product."""
    products = [n for n in nodes if analysis.kind(n) is Kind.CONTRACTION]
    size = boundary_bytes(analysis, nodes, length)
    computing = sum(
        flops_of(n, length) / machine.rate(str(tensor_of(n).dtype).split(".")[1], matrix=True)
        for n in products
    )
    device = max(size / machine.memory_for(size).total, computing)
    if machine.target == "cuda":
        return bool(products), Seconds(device, machine.launch)
    return bool(products), Seconds(device + machine.launch, 0.0)


def boundary_bytes(analysis: Analysis, nodes: Sequence[Node], length: Length) -> int:
    """The bytes that nodes read of others, each array once, and those that they store for others.

    A single kernel of all these nodes touches them (nest/analysis/traffic.py), and no less.
    """
    inside = set(nodes)
    shown: dict[Node, list[Node]] = {}
    looked_up: dict[Node, int] = {}
    for node in nodes:
        for source in node.all_input_nodes:
            base = analysis.base(source)
            if analysis.owner(base) in inside:
                continue
            if analysis.is_scattered(node) and source is operand(node):
                continue  # it is written into, and not read
            if short_name(node) in LOOKUPS:
                seen = min(bytes_of(source, length), bytes_of(base, length), bytes_of(node, length))
                looked_up[base] = max(looked_up.get(base, 0), seen)
            else:
                shown.setdefault(base, []).append(source)
    read = {base: touched(base, views, length) for base, views in shown.items()}
    read |= {base: max(read.get(base, 0), seen) for base, seen in looked_up.items()}
    written = [x for n in nodes for x in analysis.stored_results(n, inside)]
    written = [operand(n, 2) if analysis.is_scattered(n) else n for n in written]
    return sum(read.values()) + sum(bytes_of(n, length) for n in written)
