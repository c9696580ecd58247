"""Arrays that the kernels of one step store for one another, with the rules that were refused."""

import math
from collections.abc import Iterator

from blockbuster_fusion.fusion.why_not import Reason, why_not
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.listing import labels
from blockbuster_fusion.ir.tiling import Extents
from blockbuster_fusion.plans.plan import StoredArray
from blockbuster_fusion.rules.sets import RuleSet, rule_set


def stored_within(
    graph: Graph, extents: Extents, step: str, region: str = "", rules: str | RuleSet = "extended"
) -> Iterator[StoredArray]:
    """The arrays between the loops of a fused program, each with the guard that keeps it."""
    chosen = rule_set(rules)
    tried = (*chosen.local, *chosen.extending)
    for reason in why_not(graph, tried, lambda unit: False, labels(graph)):
        kind = reason.edge.type
        size = math.prod(map(extents.of, kind.axes)) * kind.dtype.bytes
        name = reason.title.partition(",")[0]
        yield StoredArray(
            f"{step}.{name}", size, step, step, "guard", _sentence(reason), region=region
        )


def _sentence(reason: Reason) -> str:
    """The cause, and the guards that refused the rules which would remove the array."""
    words = [*reason.causes, *([reason.barrier] if reason.barrier else [])]
    words += [f"refused: {refusal}" for refusal in reason.refusals]
    return "; ".join(words) or "no rule matches there"
