"""Facts about a model that no step of its plan has: sentences, and lists under titles."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from blockbuster_fusion.plans.amounts import amount, counted
from blockbuster_fusion.plans.folds import titled
from blockbuster_fusion.report.report import Note
from blockbuster_fusion.torch.groups import LibraryChoice

if TYPE_CHECKING:
    from blockbuster_fusion.torch.explain.explanation import Explanation

MOST_CASTS = 20
MOST_CONSTANTS = 20
GRADIENTS = (
    "called where gradients are enabled, it needs them and runs eagerly, without kernels; "
    "under torch.no_grad():"
)
NOTHING = "torch.compile has captured nothing of it: TORCH_LOGS=graph_breaks says why"
COLLECTIVES = "collectives, for which the model is not timed as a whole"
FLASH = "kernels in the form of Flash Attention"


def summary(e: "Explanation") -> Iterator[str]:
    """Sentences about the whole model."""
    if e.needs_gradients:
        yield GRADIENTS
    distinct = len({k.name for k in e.kernels})
    kinds = "" if distinct == len(e.kernels) else f" ({distinct} distinct)"
    yield (
        f"{counted(len(e.graphs), 'graph')}, {counted(len(e.regions), 'region')}, "
        f"{counted(len(e.kernels), 'kernel')}{kinds}; "
        f"{e.coverage:.1%} of the operators in kernels; "
        f"{e.edges_before} intermediates in memory before, {e.edges_after} after"
    )
    if not e.graphs:
        yield NOTHING


def notes(e: "Explanation") -> Iterator[Note]:
    """Lists of that which is left to tell; those that are empty are left out."""
    frozen = f"constants, computed once: {len(e.frozen)}, {amount(e.frozen_bytes)}"
    casts = f"conversions left out: {len(e.elided_casts)}"
    flash = dict.fromkeys(k.name for k in e.kernels if k.is_flash)
    titled: tuple[tuple[str, Sequence[object]], ...] = (
        (FLASH, [*flash]),
        ("kernels by ranges of sizes", e.ranges),
        ("run by PyTorch because it is faster", [*_choices(e.library)]),
        (COLLECTIVES, e.collectives),
        ("fallbacks", e.fallbacks),
        ("parts that were halved", e.halved),
        ("not to be replayed as a CUDA graph", e.unreplayed),
        (frozen, _first(e.frozen, MOST_CONSTANTS)),
        (casts, _first(e.elided_casts, MOST_CASTS)),
    )
    for title, found in titled:
        if found:
            yield Note(title, tuple(map(str, found)))


def _choices(found: Sequence[LibraryChoice]) -> Iterator[LibraryChoice]:
    """The choices of parts, equal ones of several layers as one."""
    alike: dict[LibraryChoice, list[str]] = {}
    for choice in found:
        anywhere = replace(choice, region="layers" if choice.region else "", nodes=())
        alike.setdefault(anywhere, []).append(choice.region)
    for choice, regions in alike.items():
        yield replace(choice, region=titled(regions) if choice.region else "")


def _first(found: Sequence[object], most: int) -> list[object]:
    """The first ones of some, and the number of the others."""
    rest = [f"and {len(found) - most} more"] if len(found) > most else []
    return [*found[:most], *rest]
