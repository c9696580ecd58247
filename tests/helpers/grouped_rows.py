"""Rows whose maxima and sums are gathered for groups of places, run and compiled for GPUs."""

import re
from collections.abc import Iterator

import numpy as np

from blockbuster_fusion.choice import Choice
from blockbuster_fusion.compiler import Request, choose
from blockbuster_fusion.nest.nest import Fold, Nest
from blockbuster_fusion.schedule.schedule import Schedule
from helpers.exponential_programs import FORMS as EXPONENTIALS
from helpers.exponential_programs import KINDS, Form, ops

SIZES = {"M": 7, "N": 4108}
"""The blocks do not divide the rows, nor do groups of 8 neighbours. Those of 4 do."""
FORMS = EXPONENTIALS | {
    "weighted": Form(
        lambda L, F: (ops.exp(L) * F).sum(-1) / ops.exp(L).sum(-1),
        EXPONENTIALS["factor"].careful,
        {"L": "M N", "F": "M N"},
        sized=True,
    )
}
GROUPED: dict[str, tuple[str, dict[str, int], Schedule | None]] = {
    "logsumexp": ("logsumexp", {"M": 2, "N": 512}, None),
    "log softmax": ("log_softmax", {"M": 1, "N": 1024}, None),
    "softmax": ("softmax", {"M": 4, "N": 256}, None),
    "two sums": ("weighted", {"M": 2, "N": 512}, None),
    "blocks of half a group": ("logsumexp", {"M": 8, "N": 2}, None),
    "split logsumexp": ("logsumexp", {"M": 2, "N": 512}, Schedule(split={"N": 3})),
}
"""The names of programs, with tiles and a schedule."""


def chosen(name: str, dtype: str) -> Choice:
    """The last snapshot of a program, with rows in blocks."""
    form, tiles, schedule = GROUPED[name]
    request = Request(
        FORMS[form].traced(),
        target="cuda",
        dtype=dtype,
        sizes=SIZES,
        tiles=tiles,
        unit=(),
        schedule=schedule,
        snapshot=-1,
        capability=90,
    )
    return choose(request)[0]


def has_groups(nest: Nest) -> bool:
    statements = (s for kernel in nest.kernels for s in kernel.statements)
    return any(isinstance(s, Fold) and s.groups is not None for s in statements)


def grouped_errors() -> Iterator[dict[str, object]]:
    """The error of each program for ordinary and infinite inputs, and the one of PyTorch."""
    import torch

    from helpers import triton_runner

    for name, (form_name, _, _) in GROUPED.items():
        form, choice = FORMS[form_name], chosen(name, "float32")
        nest, tiles = choice.scheduled()
        for kind in ("ordinary", "infinite"):
            rng = np.random.default_rng(0)
            inputs = {x: np.float32(rng.normal(size=[*SIZES.values()])) for x in form.specs}
            KINDS[kind](inputs[next(iter(inputs))], 0)
            exact = form.reference(inputs, torch.float64)
            usual = form.reference(inputs, torch.float32)
            (made,) = triton_runner.run(nest, inputs, tiles).values()
            tests = (np.isnan, np.isposinf, np.isneginf)
            finite = np.isfinite(exact)
            error, own = (np.linalg.norm(x[finite] - exact[finite]) for x in (made, usual))
            least = max(form.floor(inputs, 2.0**-23), 2.0**-22 * np.linalg.norm(exact[finite]))
            yield {
                "case": name,
                "groups": has_groups(nest),
                "same": all(np.array_equal(test(made), test(exact)) for test in tests),
                "error": float(error),
                "allowed": float(2 * own + least),
            }


def grouped_resources() -> Iterator[dict[str, object]]:
    """The registers that each kernel spills, and if threads wait for each other in a loop."""
    from blockbuster_fusion.printers.triton.kernel import print_triton
    from blockbuster_fusion.runtime.triton.resources import compile_for

    for name in GROUPED:
        nest, tiles = chosen(name, "float32").scheduled()
        made = compile_for(nest, print_triton(nest), 90, sizes={}, tiles=tiles)
        yield {
            "case": name,
            "spilled": sum(one.stack for one in made.values()),
            "meets": [waits_in_loops(one.assembly) for one in made.values()],
        }


def waits_in_loops(assembly: str) -> bool:
    """True if a loop of PTX has a barrier: between a label and a jump back to it."""
    lines = assembly.splitlines()
    labels = {m[1]: at for at, x in enumerate(lines) if (m := re.match(r"(\$L\w+):", x))}
    for at, line in enumerate(lines):
        jump = re.search(r"\bbra\S*\s+(\$L\w+)", line)
        start = labels.get(jump[1], at) if jump else at
        if any("bar.sync" in x or "barrier" in x for x in lines[start:at]):
            return True
    return False
