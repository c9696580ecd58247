"""The predicted times of collectives, which are never measured: other ranks would have to join in.

A collective returns at once, and what follows runs beside the transfer. So its time is spent where
its result is waited for. It is the same whatever runs the operators around it.
"""

from torch.fx import Node

from blockbuster_fusion.array.axes import Length
from blockbuster_fusion.machine.link import LOOPBACK, Link
from blockbuster_fusion.schedule.cost import Seconds
from blockbuster_fusion.torch.capture.collectives import is_wait, started, transfer_of, waits_for
from blockbuster_fusion.torch.capture.nodes import tensor_of
from blockbuster_fusion.torch.machines import machine_for


def link_of(target: str) -> Link | None:
    """The link between ranks on a device; None if it is not known."""
    return LOOPBACK if target == "cpu" else machine_for(target).link


def transfer_seconds(collective: Node, length: Length) -> float | None:
    """The time from the start of a collective to its end; None if link or group are not known."""
    link, moved = link_of(tensor_of(collective).device.type), transfer_of(collective, length)
    if link is None or moved.ranks is None:
        return None
    return link.seconds(moved.operator, moved.bytes, moved.ranks)


def collective_time(node: Node, length: Length) -> Seconds:
    """The time of a collective within a call: all of it is spent in the first wait for it."""
    collective = started(node) if is_wait(node.target) else node
    is_first = waits_for(collective)[:1] == [node]
    return Seconds((transfer_seconds(collective, length) if is_first else None) or 0.0)
