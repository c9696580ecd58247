"""Arrays that the kernels of one program store for one another, with the reason for each."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.fusion.why_not import Reason, why_not
from blockbuster_fusion.ir.buffered import Edge, buffered
from blockbuster_fusion.ir.listing import labels
from blockbuster_fusion.ir.tiling import Extents
from blockbuster_fusion.plans.plan import StoredArray, rounded
from blockbuster_fusion.plans.predicted import Predicted
from blockbuster_fusion.rules.sets import RuleSet, rule_set

SAFE = "the form that is numerically safe needs it"


def stored_within(
    own: Predicted, others: Sequence[Predicted], step: str, rules: str | RuleSet = "extended"
) -> Iterator[StoredArray]:
    """The arrays between the loops of a program.

    If another snapshot stores fewer arrays, its time is the reason; else guards of rules are.
    """
    fewer = [x for x in others if x.stored < own.stored and x.seconds is not None]
    best = min(fewer, key=lambda x: x.seconds.total() if x.seconds else math.inf, default=None)
    for array in guarded(own.choice, own.extents, step, rules):
        yield array if best is None else _by_cost(array, own, best)


def guarded(
    choice: Choice, extents: Extents, step: str, rules: str | RuleSet = "extended"
) -> Iterator[StoredArray]:
    """The arrays between the loops of a program, each with the guards that keep it."""
    graph = choice.graph
    chosen, names = rule_set(rules), labels(graph)
    tried = (*chosen.local, *chosen.extending)
    raw = why_not(choice.fused or graph, tried, lambda unit: False, names)
    known = {_place(reason.edge): reason for reason in raw}
    for own in why_not(graph, (), lambda unit: False, names) if buffered(graph) else ():
        reason = known.get(_place(own.edge))
        kind = own.edge.type
        size = math.prod(map(extents.of, kind.axes)) * kind.dtype.bytes
        name = f"{step}.{own.title.partition(',')[0]}"
        sentence = SAFE if reason is None else _sentence(reason)
        yield StoredArray(name, size, step, step, "guard", sentence)


def _place(edge: Edge) -> tuple[object, ...]:
    return (edge.path, edge.value, edge.consumer)


def _by_cost(array: StoredArray, own: Predicted, other: Predicted) -> StoredArray:
    """An array that another snapshot does not store."""
    assert other.seconds is not None
    now = own.seconds
    is_slower = now is None or other.seconds.total() >= now.total()
    why = "is predicted to be slower" if is_slower else "was slower when measured"
    left = f"{other.stored} of these" if other.stored else "none of these"
    return replace(
        array,
        decided="cost",
        reason=f"snapshot {other.choice.snapshot + 1} stores {left}, and {why}",
        seconds=rounded(other.seconds),
        basis="predicted",
        instead=rounded(now),
    )


def _sentence(reason: Reason) -> str:
    """The cause, and the guards that refused the rules which would remove the array."""
    words = [*reason.causes, *([reason.barrier] if reason.barrier else [])]
    words += [f"refused: {refusal}" for refusal in reason.refusals]
    return "; ".join(words) or "no rule matches there"
