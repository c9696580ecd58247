"""Forms of values: significand and exponent of each value in the rewritten program."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from blockbuster_fusion.ir.ops import Value
from blockbuster_fusion.safety.pairs.terms import Form

Powers = tuple[tuple[Value, float], ...]
"""An exponent: values, each with its factor."""


@dataclass(frozen=True, slots=True)
class PairForm:
    """A value of the old program as values of the new one; see `Term` for the forms."""

    form: Form
    value: Value | None
    exponent: Powers = ()
    raw: bool = False
    addends: "tuple[PairForm, ...]" = ()
    number: float | None = None
    """A plain value that is a number."""

    def but(self, value: Value | None, exponent: "Powers") -> "PairForm":
        """The same value with another significand and exponent."""
        return PairForm(Form.scaled if exponent else Form.plain, value, exponent)

    @property
    def parts(self) -> tuple[Value, ...]:
        """The values that the form consists of."""
        own = () if self.value is None else (self.value,)
        inner = (part for addend in self.addends for part in addend.parts)
        return tuple(dict.fromkeys((*own, *(atom for atom, _ in self.exponent), *inner)))

    def renamed(self, names: Mapping[Value, Value]) -> "PairForm":
        """The same form over other values."""
        value = None if self.value is None else names[self.value]
        exponent = merged((names[atom], factor) for atom, factor in self.exponent)
        addends = tuple(addend.renamed(names) for addend in self.addends)
        return replace(self, value=value, exponent=exponent, addends=addends)


def plain(value: Value) -> PairForm:
    return PairForm(Form.plain, value)


def merged(exponent: Iterable[tuple[Value, float]]) -> tuple[tuple[Value, float], ...]:
    """An exponent with each atom once, without atoms that cancel."""
    made: dict[Value, float] = {}
    for atom, factor in exponent:
        made[atom] = made.get(atom, 0.0) + factor
    return tuple((atom, factor) for atom, factor in made.items() if factor != 0)
