"""What is found out of one model: fusion, errors, recompilations, memory and choices."""

import time
from collections.abc import Callable, Iterable

from coverage.compiled import compile_for
from coverage.library_choices import library_choices
from coverage.memory import peak_memory

LENGTHS = (24, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 200)
PARTS = ("explain", "compile", "library", "lengths", "blockbuster", "eager", "inductor")
"""What is found out of a model; the last three are the memory that a call takes."""
QUICK = frozenset({"explain", "compile", "library"})
"""Parts that need no process of their own."""

Row = dict[str, object]


def measure(
    name: str,
    dtype_name: str,
    attention: str,
    parts: Iterable[str],
    told: Callable[[Row], None] = lambda row: None,
) -> Row:
    """Some parts of a model's row; what fails is told under `failed`, and the rest is kept."""
    row: Row = {"name": name, "dtype": dtype_name, "attention": attention, "failed": {}}
    runs = {
        "explain": explained,
        "compile": exactness,
        "library": library_choices,
        "lengths": recompilations,
    }
    for part in parts:
        start = time.perf_counter()
        try:
            if part in runs:
                row |= runs[part](name, dtype_name, attention)
            else:
                row[f"{part}_bytes"] = peak_memory(name, dtype_name, attention, part)
        except Exception as error:
            sentence = next(iter(str(error).strip().splitlines()), "")
            row["failed"][part] = f"{type(error).__name__}: {sentence}"[:300]
        row.setdefault("seconds", {})[part] = round(time.perf_counter() - start, 2)
        told(row)  # in case the next part ends the process
    return row


def explained(name: str, dtype_name: str, attention: str) -> Row:
    """What `bb.explain` counts."""
    import torch

    import blockbuster_fusion as bb
    from helpers.zoo import ZOO

    dtype = getattr(torch, dtype_name)
    with torch.no_grad():
        model = ZOO[name].build(dtype, attention)
        found = bb.explain(model, **ZOO[name].inputs(dtype=dtype))
    return {
        "regions": len(found.regions),
        "kernels": len(found.kernels),
        "flash": sum(kernel.is_flash for kernel in found.kernels),
        "attentions": ZOO[name].attentions,
        "misc": [str(operator) for operator in found.misc],
        "fallbacks": [str(fallback) for fallback in found.fallbacks],
        "elided_casts": len(found.elided_casts),
        "coverage": found.coverage,
        "edges_before": found.edges_before,
        "edges_after": found.edges_after,
    }


def exactness(name: str, dtype_name: str, attention: str) -> Row:
    """The worst output's error against a float64 run, and eager's."""
    import torch

    from helpers.zoo import ZOO
    from helpers.zoo_reference import eager_errors, reference, relative_errors, tolerances

    dtype = getattr(torch, dtype_name)
    inputs = ZOO[name].inputs(dtype=dtype)
    compiled = compile_for("blockbuster", name, dtype_name, attention, dynamic=False)
    with torch.no_grad():
        outputs = ZOO[name].output(compiled(**inputs))
    exact = reference(ZOO[name], dtype, attention, inputs)
    eager = eager_errors(ZOO[name], dtype, attention, inputs, exact)
    errors = relative_errors(outputs, exact)
    allowed = tolerances(dtype, eager)
    share, error, of_eager = max(
        (x / y, x, e) for x, y, e in zip(errors, allowed, eager, strict=True)
    )
    return {"error": error, "eager_error": of_eager, "share_of_allowed": share}


def recompilations(name: str, dtype_name: str, attention: str) -> Row:
    """How many graphs calls of many lengths take beyond the first."""
    import torch
    from torch._dynamo.utils import counters

    from helpers.zoo import ZOO

    if not ZOO[name].has_length:
        return {}
    compiled = compile_for("blockbuster", name, dtype_name, attention, dynamic=True)
    counters.clear()
    with torch.no_grad():
        for length in LENGTHS:
            compiled(**ZOO[name].inputs(length, dtype=getattr(torch, dtype_name)))
    return {"recompilations": counters["stats"]["unique_graphs"] - 1}
