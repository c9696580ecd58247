"""A whole model in words: its time and the sources of it, PyTorch's time, and bytes."""

from collections.abc import Iterator

from blockbuster_fusion.plans.amounts import amount, counted, durations
from blockbuster_fusion.plans.plan import Plan, Step
from blockbuster_fusion.schedule.cost import ERRORS


def whole_words(plan: Plan) -> list[str]:
    """Sentences about the steps of a plan: the first is its headline."""
    return [_headline(plan), *_sentences(plan)]


def _headline(plan: Plan) -> str:
    """The time, PyTorch's own, and the bytes: in a line."""
    steps = plan.steps
    launches = sum(len(step.kernels.launches) for step in steps if step.kernels is not None)
    words = [f"{counted(len(steps), 'step')}, {counted(launches, 'kernel')}"]
    other = library_seconds(plan)
    if plan.seconds:
        own, *rest = durations(plan.seconds, *([] if other is None else [other]))
        words.append(f"{own} estimated" + (f" (PyTorch alone {rest[0]})" if rest else ""))
    least = least_bytes(plan)
    needed = f", of which {amount(least)} are needed" if least else ""
    words.append(f"{amount(moved_bytes(plan))} moved{needed}")
    return "; ".join(words)


def _sentences(plan: Plan) -> Iterator[str]:
    steps = plan.steps
    known = {basis: [x for x in steps if x.basis == basis] for basis in ("measured", "predicted")}
    sums = {basis: sum(map(_seconds, own)) for basis, own in known.items() if own}
    if sums:
        whole, *each = durations(plan.seconds, *sums.values())
        named = zip(sums, each, strict=True)
        parts = [f"{counted(len(known[x]), 'step')} {x} ({spent})" for x, spent in named]
        yield f"The time is estimated as a sum, {whole}: {' and '.join(parts)}."
    if known["predicted"] and plan.target in ERRORS:
        plain, products = ERRORS[plan.target]
        other = "" if plain == products else f", or {products:g} with products of matrices"
        yield f"Of 10 predictions, 9 are right within a factor of {plain:g}{other}."
    pytorch = library_seconds(plan)
    if pytorch is not None:
        (spent,) = durations(pytorch)
        yield f"PyTorch's operators alone take {spent}, as a sum of the times of each step's."
    untimed = sum(x.seconds is None and not _is_nothing(x) for x in steps)
    if untimed:
        yield f"The time of {counted(untimed, 'step')} is not known."
    read, written = sum(x.bytes_read for x in steps), sum(x.bytes_written for x in steps)
    flops = amount(sum(x.flops for x in steps), "flop")
    yield f"Steps read {amount(read)} and write {amount(written)}, with {flops}."
    least = least_bytes(plan)
    if least:
        alone = "Inputs, weights and results alone, each once, are"
        yield f"{alone} {amount(least)}: no plan moves less."


def _seconds(step: Step) -> float:
    return 0.0 if step.seconds is None else step.seconds.total()


def _is_nothing(step: Step) -> bool:
    """True for a join whose pieces are in place already."""
    return step.kind == "join" and not step.bytes_read


def library_seconds(plan: Plan) -> float | None:
    """The sum of the times of PyTorch's operators; None if that of a step is not known."""
    total = 0.0
    for step in plan.steps:
        other = step.runner_up
        if step.kind != "kernels":
            seconds = step.seconds
            if seconds is None and not _is_nothing(step):
                return None
        elif other is None or other.by != "library" or other.seconds is None:
            return None
        else:
            seconds = other.seconds
        total += 0.0 if seconds is None else seconds.total()
    return total


def moved_bytes(plan: Plan) -> int:
    """The bytes that all steps read and write."""
    return sum(step.bytes_read + step.bytes_written for step in plan.steps)


def least_bytes(plan: Plan) -> int:
    """The bytes of inputs, weights and results of each graph, each of them once."""
    total = 0
    for graph in plan.graphs:
        steps = graph.plans[0].steps
        written = {name: size for step in steps for name, size in step.writes.items()}
        read: dict[str, int] = {}
        for name, size in (item for step in steps for item in step.reads.items()):
            if name not in written:
                read[name] = max(size, read.get(name, 0))
        results = {x.array for x in graph.plans[0].stored if x.decided == "result"}
        total += sum(read.values()) + sum(written.get(name, 0) for name in results)
    return total
