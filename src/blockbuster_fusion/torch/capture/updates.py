"""Updates of inputs: operators that copy an array with a part replaced, and are copied back to it.

If nothing else reads the input, the update is done on it in the first place: so a static cache of
keys and values is written at the new positions alone.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from blockbuster_fusion.array.axes import ONE, Size
from blockbuster_fusion.select.operators import Kind
from blockbuster_fusion.torch.capture.nodes import operand, tensor_of
from blockbuster_fusion.torch.capture.operators import counts_positions, indices_of, refusal
from blockbuster_fusion.torch.capture.symbolic import as_size
from blockbuster_fusion.torch.table import row_for


def _replace_slice(x: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
    torch.ops.aten.slice.Tensor(x, *where).copy_(source)
    return x


IN_PLACE: dict[Any, Any] = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.slice_scatter.default: _replace_slice,
}
"""Operators that copy an array with a part replaced, and functions that replace it in place."""


def updates_in_place(nodes: Iterable[Node]) -> dict[Node, Node]:
    """The updates of inputs that can be done in place, with their copies back to the inputs."""
    found: dict[Node, Node] = {}
    for copy in nodes:
        if copy.target is not torch.ops.aten.copy_.default:
            continue
        target, update = copy.args[:2]
        if not isinstance(update, Node) or not isinstance(target, Node):
            continue
        is_update = update.target in IN_PLACE and update.args[0] is target
        if is_update and not is_shown(update) and set(target.users) == {copy, update}:
            found[update] = copy
    return found


def is_shown(node: Node) -> bool:
    """True if a node, or a view of it, is a result of the graph."""
    stack, seen = [node], set[Node]()
    while stack:
        for user in stack.pop().users:
            if user.op == "output":
                return True
            row = row_for(user.target)
            is_view = user.target is operator.getitem or (row is not None and row.kind is Kind.VIEW)
            if is_view and user not in seen:
                seen.add(user)
                stack.append(user)
    return False


@dataclass(frozen=True)
class Scatter:
    """Rows that an update writes at places along one axis of an input."""

    axis: int
    index: Node
    along: tuple[int, ...]
    """For each position of the index, the position of the rows that it runs along."""
    order: tuple[int | None, ...]
    """For each position of the input, that of the rows there; None if the rows have none.

    Rows may lack positions of length 1 in front, which count here."""

    @property
    def rank(self) -> int:
        """The number of positions of the rows."""
        return sum(position is not None for position in self.order)


def scatter_of(update: Node) -> Scatter | None:
    """The rows that an update writes; None if it adds to rows, broadcasts them or has a mask.

    Indices beside that of the places count the positions of their axes: each sequence of a batch
    has places of its own.
    """
    if update.target is not torch.ops.aten.index_put.default or refusal(update) is not None:
        return None
    adds = update.args[3] if len(update.args) > 3 else update.kwargs.get("accumulate", False)
    base, rows, given = operand(update), operand(update, 2), indices_of(update)
    if adds or base.op != "placeholder" or tensor_of(base).dtype is not tensor_of(rows).dtype:
        return None
    shape = _sizes(base)
    walked = {a: i for a, i in given.items() if len(given) > 1 and _counts(i, shape[a])}
    data = [a for a in given if a not in walked]
    if len(data) != 1 or shape[data[0]] == ONE:
        return None
    axis, index = data[0], given[data[0]]
    if tensor_of(index).dtype not in (torch.int64, torch.int32):
        return None
    # the positions of all indices together, each along an axis of the input
    rank = max(len(_sizes(i)) for i in given.values())
    home = {rank - len(_sizes(i)) + _wide(i): a for a, i in walked.items()}
    free = [d for d in range(rank) if d not in home]
    if len(home) < len(walked) or len(free) > 1:
        return None
    home |= dict.fromkeys(free, axis)
    order = _order(len(shape), given, home)
    along = tuple(home[d] for d in range(rank - len(_sizes(index)), rank))
    found = Scatter(axis, index, along, order)
    return found if _fits(found, shape, _sizes(rows)) else None


def _order(rank: int, given: Mapping[int, Node], home: Mapping[int, int]) -> tuple[int | None, ...]:
    """The position of the rows at each axis of the input.

    The positions of indices stand together: where these are if they are neighbours, or in front.
    """
    first = min(given) if max(given) - min(given) < len(given) else 0
    placed: dict[int, int | None] = {a: first + d for d, a in home.items()}
    count = rank - len(given) + len(home)
    others = iter([p for p in range(count) if not first <= p < first + len(home)])
    return tuple(placed.get(a) if a in given else next(others) for a in range(rank))


def _fits(scatter: Scatter, shape: Sequence[Size], rows: Sequence[Size]) -> bool:
    """True if rows and places are of the shapes of their place: nothing is broadcast."""
    if len(rows) > scatter.rank:
        return False
    rows = [*[ONE] * (scatter.rank - len(rows)), *rows]
    found = [ONE if p is None else rows[p] for p in scatter.order]
    wanted = {a: n for a, n in enumerate(shape) if a != scatter.axis}
    wide = {a: n for n, a in zip(_sizes(scatter.index), scatter.along, strict=True) if n != ONE}
    wanted |= {scatter.axis: ONE, **wide}
    return all(found[a] == n for a, n in wanted.items())


def _sizes(node: Node) -> list[Size]:
    return [as_size(s) for s in tensor_of(node).shape]


def _counts(index: Node, length: Size) -> bool:
    """True if an index is 0, 1, 2, … along the whole of an axis."""
    return counts_positions(index) and as_size(tensor_of(index).numel()) == length


def _wide(index: Node) -> int:
    """The position of a counted index that is longer than 1; the last one if none is."""
    sizes = _sizes(index)
    return next((i for i, s in enumerate(sizes) if s != ONE), len(sizes) - 1)
