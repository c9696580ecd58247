"""Equal layers of a plan as one: regions in which the same runs, by a digest of their steps."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from blockbuster_fusion.plans.plan import Step
from blockbuster_fusion.plans.records import to_data

AROUND = "around the layers"
OTHERWISE = "the same steps with other sizes or configurations"
_LAYER = re.compile(r"(?P<list>.*?)\.?(?P<number>\d+)(?P<rest>\D*)")


@dataclass(frozen=True)
class Fold:
    """Regions whose steps are equal, one after the other."""

    regions: tuple[str, ...]
    runs: tuple[tuple[int, ...], ...]
    """The places of the steps of each region in the plan."""
    differs: str = ""
    """The difference from the most common layer of the same list, in words."""

    @property
    def title(self) -> str:
        """The names of the regions: `layers 0-4, 6-11`."""
        return titled(self.regions)


def folds(steps: Sequence[Step]) -> tuple[Fold, ...]:
    """The regions of a plan in the order of their first steps, equal ones of one list folded."""
    found: dict[object, Fold] = {}
    numbered = groupby(enumerate(steps), key=lambda x: x[1].region)
    for order, (region, own) in enumerate(numbered):
        run = [*own]
        alike = tuple(digest(step) for _, step in run)
        key: object = order if _list(region) is None else (_list(region), alike)
        before = found.get(key, Fold((), ()))
        places = tuple(place for place, _ in run)
        found[key] = Fold((*before.regions, region), (*before.runs, places))
    return tuple(_compared([*found.values()], steps))


def digest(step: Step) -> str:
    """A digest of that which runs: neither of names in the graph, nor of times."""
    what = (step.kind, [*step.operators.values()], step.recognised, step.reason)
    sizes = (step.bytes_read, step.bytes_written, step.flops, len(step.anew))
    kernels = step.kernels
    program = None
    if kernels is not None:
        program = (kernels.digest, to_data(kernels.config), to_data(kernels.others))
    text = json.dumps([what, sizes, program])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def titled(regions: Sequence[str]) -> str:
    """Some regions in words: the numbers of one list as ranges."""
    lists: dict[object, list[str]] = {}
    for name in dict.fromkeys(regions):
        lists.setdefault(_list(name) or name, []).append(name)
    return ", ".join(map(_of_list, lists.values()))


def _of_list(names: Sequence[str]) -> str:
    """Layers of one list in words, or a region by itself."""
    layers = [x for x in map(_LAYER.fullmatch, names) if x is not None]
    if len(names) == 1:
        return names[0] or AROUND
    ranges = _ranges(sorted(int(x["number"]) for x in layers))
    return f"{layers[0]['list']} {ranges}{layers[0]['rest']}".lstrip()


def _list(region: str) -> tuple[str, str] | None:
    """The list of layers that a region belongs to; None around the layers."""
    layer = _LAYER.fullmatch(region)
    return None if layer is None else (layer["list"], layer["rest"])


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in words: `0-4, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _compared(found: Sequence[Fold], steps: Sequence[Step]) -> Iterable[Fold]:
    """The folds, each with its difference from the largest one of its list."""
    usual: dict[object, Fold] = {}
    for fold in sorted(found, key=lambda x: len(x.runs)):
        usual[_list(fold.regions[0])] = fold
    for fold in found:
        common = usual[_list(fold.regions[0])]
        is_usual = fold is common or len(common.runs) == 1 or _list(fold.regions[0]) is None
        yield fold if is_usual else replace(fold, differs=_difference(fold, common, steps))


def _difference(fold: Fold, usual: Fold, steps: Sequence[Step]) -> str:
    """The steps that only one of two folds has."""
    own, other = (Counter(steps[at].name for at in x.runs[0]) for x in (fold, usual))
    more, less = (" and ".join((a - b).elements()) for a, b in ((own, other), (other, own)))
    if more and less:
        words = f"{more} in place of {less}"
    elif more:
        words = f"{more} as well"
    else:
        words = f"no {less}" if less else OTHERWISE
    return f"unlike {usual.title}: {words}"
