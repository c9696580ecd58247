"""Attention in a plan, in words: a softmax between two products of batches of matrices."""

from collections.abc import Iterator, Sequence

from blockbuster_fusion.explorer.steps import Data
from blockbuster_fusion.plans.amounts import amount, counted

SOFTMAX = ("softmax", "safe_softmax")
PRODUCTS = ("bmm", "baddbmm")
"""The products without weights: of queries and keys, and with values."""
OTHER_PRODUCTS = ("mm", "addmm", "linear", "convolution")


def attention_words(rows: Sequence[Data], arrays: Sequence[Data]) -> Iterator[Data]:
    """A sentence about each attention, with its rows: who runs it, and what it stores and why."""
    for at, row in enumerate(rows):
        names = _names(row)
        place = next((i for i, name in enumerate(names) if name in SOFTMAX), None)
        if place is None:
            continue
        before = _product(rows, arrays, at, names[:place], "to", "from")
        after = _product(rows, arrays, at, names[place:], "from", "to")
        if before is not None and after is not None:
            own = sorted({*before, at, *after})
            yield {"rows": own, "text": _sentence(rows, arrays, own)}


def _names(row: Data) -> list[str]:
    """The operators of a row, without overloads and underscores: `softmax`."""
    found = (row["operators"] or {}).values()
    return [operator.split(".")[1].strip("_") for operator in found if operator.count(".") > 1]


def _product(
    rows: Sequence[Data],
    arrays: Sequence[Data],
    at: int,
    names: Sequence[str],
    here: str,
    there: str,
) -> list[int] | None:
    """The rows from one to the nearest that has a product, by the arrays between them.

    None are needed if the row has a product among `names` itself.
    """
    if any(name in PRODUCTS for name in names):
        return []
    pending, seen = [(at, list[int]())], {at}
    while pending:
        last, between = pending.pop(0)
        for array in arrays:
            other = array[there]
            if array[here] != last or array["crosses"] or other is None or other in seen:
                continue
            seen.add(other)
            known = _names(rows[other])
            if any(name in PRODUCTS for name in known):
                return [*between, other]
            if not any(name in OTHER_PRODUCTS for name in known):
                pending.append((other, [*between, other]))
    return None


def _sentence(rows: Sequence[Data], arrays: Sequence[Data], own: Sequence[int]) -> str:
    kernels = sum(len(rows[at]["kernels"] or ()) for at in own)
    others = sum(rows[at]["kind"] in ("library", "misc") for at in own)
    known = [counted(kernels, "kernel")] if kernels else []
    known += [f"{counted(others, 'step')} of PyTorch's"] if others else []
    who = " and ".join(known)
    inside = [x for x in arrays if x["from"] in own and x["to"] in own and not x["crosses"]]
    if not inside:
        return f"{who}; scores are not stored"
    largest = max(inside, key=lambda x: x["bytes"])
    return f"{who}; {amount(largest['bytes'])} of scores are stored, because: {largest['reason']}"
