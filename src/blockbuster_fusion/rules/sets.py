"""Rule sets: named, ordered lists of rules. The fusion driver reads them; nothing else does."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from blockbuster_fusion.errors import LacksBase, UnknownRules
from blockbuster_fusion.rules.cautions import CAUTIONS
from blockbuster_fusion.rules.drop_softmax_shift import DropSoftmaxShift
from blockbuster_fusion.rules.duplicate_scale import DuplicateScale
from blockbuster_fusion.rules.expand_square import ExpandSquare
from blockbuster_fusion.rules.extend_map import ExtendMap
from blockbuster_fusion.rules.extend_minimal import ExtendMinimal
from blockbuster_fusion.rules.fuse_consecutive_maps import FuseConsecutiveMaps
from blockbuster_fusion.rules.fuse_elementwise import FuseElementwise
from blockbuster_fusion.rules.fuse_map_reduce import FuseMapReduce
from blockbuster_fusion.rules.fuse_sibling_maps import FuseSiblingMaps
from blockbuster_fusion.rules.interchange import Interchange
from blockbuster_fusion.rules.peel_first import PeelFirst
from blockbuster_fusion.rules.recompute import Recompute
from blockbuster_fusion.rules.rederive import Rederive
from blockbuster_fusion.rules.rule import Guard, Rule
from blockbuster_fusion.rules.swap_scale_dot import SwapScaleDot
from blockbuster_fusion.rules.swap_scales import SwapScales
from blockbuster_fusion.rules.swap_shift_dot import SwapShiftDot


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of the driver: `local` until none matches, then one of `extending`, and again.

    The driver never applies the `optional` rules. The fusion by the rules of `base` alone is an
    alternative: the other rules usually do better, but not always. The set contains the local and
    extending rules of its base in the same order, so that the search of the base can continue from
    the first firing of another rule.
    """

    name: str
    local: tuple[Rule, ...]
    extending: tuple[Rule, ...]
    optional: tuple[Rule, ...] = ()
    base: "RuleSet | None" = None
    cautions: Mapping[str, tuple[Guard, ...]] = field(default_factory=dict)
    """Additional guards by the names of rules: without them digits would be lost."""

    def __post_init__(self) -> None:
        if self.base is not None:
            self._check_base("local", self.local, self.base.local)
            self._check_base("extending", self.extending, self.base.extending)

    def _check_base(self, part: str, own: tuple[Rule, ...], rules: tuple[Rule, ...]) -> None:
        assert self.base is not None
        rest = iter(own)
        for rule in rules:
            if rule not in rest:  # consumes the iterator, so that the order is checked
                raise LacksBase(name=self.name, part=part, missing=rule.name, base=self.base.name)

    def __iter__(self) -> Iterator[Rule]:
        return iter((*self.local, *self.extending, *self.optional))

    @property
    def without_safety(self) -> "RuleSet":
        """The set without the rules that need a later safety pass."""
        return self._only(lambda rule: not rule.needs_safety)

    @property
    def careful(self) -> "RuleSet":
        """The set without the rules that take shifts out of sums: these may lose digits."""
        return self._only(lambda rule: not rule.moves_shifts)

    def _only(self, wanted: Callable[[Rule], bool]) -> "RuleSet":
        return replace(
            self,
            local=tuple(filter(wanted, self.local)),
            extending=tuple(filter(wanted, self.extending)),
            base=self.base and self.base._only(wanted),
        )

    @property
    def beyond(self) -> frozenset[Rule]:
        """The rules that are not in the base, if there is one."""
        return frozenset() if self.base is None else frozenset(self).difference(self.base)

    def rule(self, name: str) -> Rule:
        """The rule of that name."""
        for rule in self:
            if rule.name == name:
                return rule
        known = ", ".join(rule.name for rule in self)
        raise UnknownRules(kind="rule", name=name, known=known)


PAPER = RuleSet(
    "paper",
    local=(
        DuplicateScale(),
        SwapScaleDot(),
        SwapShiftDot(),
        FuseElementwise(),
        FuseMapReduce(),
        FuseConsecutiveMaps(),
        FuseSiblingMaps(),
    ),
    extending=(ExtendMap(),),
    optional=(PeelFirst(),),
)

EXTENDED = RuleSet(
    "extended",
    local=(
        DropSoftmaxShift(),
        ExpandSquare(),
        SwapScales(),
        *PAPER.local[:-2],
        Interchange(),
        *PAPER.local[-2:],
    ),
    extending=(ExtendMinimal(), Recompute(), Rederive(), *PAPER.extending),
    optional=PAPER.optional,
    base=PAPER,
    cautions=CAUTIONS,
)
"""Rules beyond the paper, among and after the paper's own."""

RULE_SETS: dict[str, RuleSet] = {rules.name: rules for rules in (PAPER, EXTENDED)}


def rule_set(rules: str | RuleSet) -> RuleSet:
    """A rule set by name, or the set itself."""
    if isinstance(rules, RuleSet):
        return rules
    if rules not in RULE_SETS:
        raise UnknownRules(kind="rule set", name=rules, known=", ".join(RULE_SETS))
    return RULE_SETS[rules]
