"""An explanation as text: equal layers once, each kernel with its bytes, lines and time."""

from collections.abc import Iterator, Sequence, Sized
from itertools import groupby
from operator import add
from statistics import median

from blockbuster_fusion.torch.explain.amounts import amount
from blockbuster_fusion.torch.explain.explanation import Explanation, KernelReport, Region

MOST_LINES = 4
MOST_CASTS = 20
MOST_CONSTANTS = 20
COLLECTIVES = "collectives, for which the model is not timed as a whole"


def text(e: Explanation) -> Iterator[str]:
    """The lines of the text."""
    distinct = len({k.name for k in e.kernels})
    kinds = "" if distinct == len(e.kernels) else f" ({distinct} distinct)"
    if e.needs_gradients:
        yield (
            "called where gradients are enabled, it needs them and runs eagerly, without kernels; "
            "under torch.no_grad():"
        )
    yield (
        f"{_count(e.graphs, 'graph')}, {_count(e.regions, 'region')}, "
        f"{_count(e.kernels, 'kernel')}{kinds}; "
        f"{e.coverage:.1%} of the operators in kernels; "
        f"{e.edges_before} intermediates in memory before, {e.edges_after} after"
    )
    if not e.graphs:
        yield "torch.compile has captured nothing of it: TORCH_LOGS=graph_breaks says why"
    for reason in e.graph_breaks:
        yield f"graph break: {reason}"
    for lines, alike in groupby(e.regions, key=_region):
        regions = [*alike]
        names = [region.name or "around the layers" for region in regions]
        several = f" to {names[-1]}, {len(names)} alike" if len(names) > 1 else ""
        yield f"{names[0]}{several}:"
        yield from map(add, lines, _times(regions))
    yield from _lists(e)


def _lists(e: Explanation) -> Iterator[str]:
    """The lines of all that is not in kernels, and of conversions, under titles."""
    titled: tuple[tuple[str, Sequence[object]], ...] = (
        ("kernels by ranges of sizes", e.ranges),
        ("run by PyTorch because it is faster", e.library),
        ("run by PyTorch", e.misc),
        (COLLECTIVES, e.collectives),
        ("fallbacks", e.fallbacks),
        ("parts that were halved", e.halved),
        ("not to be replayed as a CUDA graph", e.unreplayed),
    )
    for title, found in titled:
        if found:
            yield f"{title}:"
            yield from (f"  {x}" for x in found)
    if e.frozen:
        yield f"constants, computed once: {len(e.frozen)}, {amount(e.frozen_bytes)}"
        yield from _first(e.frozen, MOST_CONSTANTS)
    if e.elided_casts:
        yield f"conversions left out: {len(e.elided_casts)}"
        yield from _first(e.elided_casts, MOST_CASTS)


def _first(found: Sequence[object], most: int) -> Iterator[str]:
    """A line for each of the first ones, and the number of the others."""
    yield from (f"  {x}" for x in found[:most])
    if len(found) > most:
        yield f"  and {len(found) - most} more"


def _region(region: Region) -> tuple[str, ...]:
    """The lines of the kernels of a region, which are equal in equal layers."""
    return tuple(map(_kernel, region.kernels))


def _times(regions: Sequence[Region]) -> Iterator[str]:
    """The measured time of each kernel, the median of equal regions; a part's with its first."""
    before: object = None
    for kernels in zip(*(region.kernels for region in regions), strict=True):
        seconds = [k.seconds for k in kernels if k.seconds is not None]
        is_first, before = kernels[0].fused is not before, kernels[0].fused
        if not seconds or not is_first:
            yield ""
        else:
            yield f"; {median(seconds) * 1e6:.4g} µs measured"


def _kernel(kernel: KernelReport) -> str:
    note = " (flash form)" if kernel.is_flash else ""
    words = [
        ", ".join(map(_short, kernel.operators)),
        f"reads {amount(kernel.bytes_read)}, writes {amount(kernel.bytes_written)}",
    ]
    if kernel.lines:
        rest = len(kernel.lines) - MOST_LINES
        words.append(", ".join(kernel.lines[:MOST_LINES]) + (f" and {rest} more" * (rest > 0)))
    return f"  {kernel.name}{note}: {'; '.join(words)}"


def _count(found: Sized, what: str) -> str:
    return f"{len(found)} {what}{'' if len(found) == 1 else 's'}"


def _short(operator: str) -> str:
    return operator.split(".")[1].strip("_") if "." in operator else operator
