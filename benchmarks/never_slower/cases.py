"""All cases of a device, and those of them that a run is about."""

from collections.abc import Sequence

from never_slower import elements, networks, products, rows
from never_slower.case import Case
from never_slower.core import CORE

FAMILIES = (
    products.products,
    products.products_with_more,
    products.few_rows,
    rows.reductions,
    rows.norms,
    rows.softmaxes,
    rows.losses,
    elements.pointwise,
    elements.lookups,
    elements.scans_and_choices,
    networks.attentions,
    networks.mlps,
    networks.layers,
    networks.whole_models,
)


def all_cases(device: str) -> list[Case]:
    """The cases of a device, family by family."""
    return [case for family in FAMILIES for case in family(device)]


def chosen_cases(
    device: str, words: Sequence[str], shard: tuple[int, int], *, core: bool
) -> list[Case]:
    """The cases whose name or family has one of the words; of these, one shard."""
    names = set(CORE[device])
    found = [
        case
        for case in all_cases(device)
        if (not core or case.name in names)
        and (not words or any(word in f"{case.family}: {case.name}" for word in words))
    ]
    number, count = shard
    return found[number - 1 :: count]
