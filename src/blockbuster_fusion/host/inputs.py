"""The inputs of a program: given in order or by name."""

from collections.abc import Mapping, Sequence

from blockbuster_fusion.errors import BadInput


def in_order(names: Sequence[str], inputs: Mapping[str, object] | Sequence[object]) -> list[object]:
    """The inputs in the order of `names`, or BadInput."""
    known = ", ".join(names) or "none"
    if isinstance(inputs, Mapping):
        for name in inputs:
            if name not in names:
                raise BadInput(name=name, problem=f"there is no such input; the inputs are {known}")
        for name in names:
            if name not in inputs:
                raise BadInput(name=name, problem=f"is missing; the inputs are {known}")
        return [inputs[name] for name in names]
    if not isinstance(inputs, Sequence) or isinstance(inputs, str):
        problem = f"give arrays by name or in order, not a {type(inputs).__name__}"
        raise BadInput(name=names[0] if names else "none", problem=problem)
    if len(inputs) < len(names):
        problem = f"is missing: {len(inputs)} arrays for the inputs {known}"
        raise BadInput(name=names[len(inputs)], problem=problem)
    if len(inputs) > len(names):
        problem = f"there is no such input; the inputs are {known}"
        raise BadInput(name=f"number {len(names)}", problem=problem)
    return list(inputs)
