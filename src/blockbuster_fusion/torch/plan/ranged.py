"""Plans of one graph for ranges of a size: each call is run by the plan of its range."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from blockbuster_fusion.runtime.ranges import Scale
from blockbuster_fusion.torch.capture.sizes import SymbolSource

Call = Callable[..., Any]


def ranged_call(scale: Scale, source: SymbolSource, calls: Sequence[Call]) -> Call:
    """A call that is one of several, by the value of a size; `calls` are by number of range.

    All calls are made before, so that none has to be compiled when its range is met first.
    """
    changes = [at for at, number in enumerate(scale.numbers[1:]) if number != scale.numbers[at]]
    starts = [scale.starts[at] for at in changes]
    ordered = [calls[scale.numbers[at]] for at in (*changes, -1)]
    slot, dim = source.slot, source.dim
    if dim is None:

        def by_number(*given: Any) -> Any:
            return ordered[bisect_right(starts, given[slot])](*given)

        return by_number

    def by_shape(*given: Any) -> Any:
        return ordered[bisect_right(starts, given[slot].shape[dim])](*given)

    return by_shape
