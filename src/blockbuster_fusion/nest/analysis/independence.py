"""Independent steps of a nest: neither writes a buffer that the other reads or writes."""

from blockbuster_fusion.nest.nest import Buffer, Call, Clear, NestStep, Store, accesses


def meet(first: NestStep, second: NestStep) -> bool:
    """True if one step writes a buffer that the other reads or writes."""
    (one, made), (other, also) = touched(first), touched(second)
    return not made.isdisjoint(other | also) or not also.isdisjoint(one)


def touched(step: NestStep) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that a step reads, and those that it writes."""
    match step:
        case Clear():
            return set(), {step.buffer}
        case Call():
            return {view.buffer for view in step.operands}, {view.buffer for view in step.results}
    sides: tuple[set[Buffer], set[Buffer]] = (set(), set())
    for s in step.statements:
        sides[isinstance(s, Store)].update(access.buffer for access in accesses(s))
    return sides
