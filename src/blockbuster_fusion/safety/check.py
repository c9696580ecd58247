"""The error report: how exact the snapshots of a program are, beside the unfused program."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.fusion.fuse import fuse
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.interp.tiling import Tiles
from blockbuster_fusion.interp.values import Numbers
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph, check_graph
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.rules.sets import RuleSet
from blockbuster_fusion.safety.adversarial import Case, adversarial
from blockbuster_fusion.safety.safe import make_safe
from blockbuster_fusion.safety.storage import stored_as

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One snapshot on one set of inputs; of relative errors, row by row, the largest counts."""

    case: str
    snapshot: int
    error: float
    unfused: float
    """The error of the unfused program, as it is written, in the same dtype."""


@dataclass(frozen=True, slots=True)
class Report:
    """How far the snapshots are from float64, on each set of inputs."""

    dtype: DType
    rows: tuple[Row, ...]

    @property
    def worst(self) -> float:
        """The largest error of any snapshot."""
        return max((row.error for row in self.rows), default=0.0)

    def __str__(self) -> str:
        lines = [f"{'inputs':<20}{'snapshot':>9}{'error':>11}{'unfused':>11}   ({self.dtype})"]
        for row in self.rows:
            numbers = f"{row.snapshot + 1:>9}{row.error:>11.1e}{row.unfused:>11.1e}"
            lines.append(f"{row.case:<20}{numbers}")
        return "\n".join(lines)


def check(
    program: ArrayProgram | Graph,
    inputs: Mapping[str, object] | None = None,
    *,
    dtype: str | DType = DType.float32,
    rules: str | RuleSet = "extended",
    unit: Collection[Dim | str] = frozenset(),
    tiles: Tiles | None = None,
    safe: bool = True,
) -> Report:
    """Every snapshot of a program, run with numbers stored as `dtype`, against float64.

    Without `inputs`, adversarial ones are made. What is computed is float32, or wider. The
    reference is the unfused program in float64; where that overflows even there, the same program
    made safe. An error of inf stands for NaN or inf where the reference has none.
    """
    stored = _float_dtype(dtype)
    graph = lower(program) if isinstance(program, ArrayProgram) else program
    check_graph("check", graph)
    cases: Iterable[Case]
    if inputs is not None:
        cases = [Case("given", {name: np.asarray(x) for name, x in inputs.items()})]
    elif isinstance(program, ArrayProgram):
        cases = adversarial(program)
    else:
        raise WrongKind(
            function="check",
            wanted="inputs for a block program",
            given="none",
            remedy="give arrays by name, or the array program that it was lowered from",
        )
    fused = fuse(graph, rules, unit=unit, safe=safe).fused
    finish = (lambda g: make_safe(g).graph) if safe else (lambda g: g)
    snapshots = [finish(stored_as(raw, stored)) for raw in fused]
    unfused, reference = stored_as(graph, stored), make_safe(graph).graph
    numbers = Numbers(exact=stored is DType.float64)
    rows: list[Row] = []
    for case in cases:
        given = {name: _rounded(x, stored, numbers) for name, x in case.inputs.items()}
        exact = {
            name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in given.items()
        }
        careful = dict(interpret(reference, exact, tiles).items())
        expected = {
            name: np.where(np.isfinite(x), x, careful[name])
            for name, x in interpret(graph, exact, tiles).items()
        }
        plain = relative_error(dict(interpret(unfused, given, tiles).items()), expected)
        for number, snapshot in enumerate(snapshots):
            found = dict(interpret(snapshot, given, tiles).items())
            rows.append(Row(case.name, number, relative_error(found, expected), plain))
    return Report(stored, tuple(rows))


def _float_dtype(dtype: str | DType) -> DType:
    known = {d.value: d for d in DType if d.is_float}
    name = dtype.value if isinstance(dtype, DType) else dtype
    if name not in known:
        remedy = f"known are {', '.join(known)}"
        raise WrongKind(function="check", wanted="a float dtype", given=name, remedy=remedy)
    return known[name]


def _rounded(x: Array, dtype: DType, numbers: Numbers) -> Array:
    return numbers.rounded(x, dtype) if x.dtype.kind == "f" else x


def relative_error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest error of any element, relative to the largest number of its row."""
    worst = 0.0
    for name, wanted in expected.items():
        counts = np.isfinite(wanted)
        made = np.asarray(found[name], np.float64)
        if not np.isfinite(made[counts]).all():
            return float("inf")
        with np.errstate(invalid="ignore"):
            errors = np.where(counts, np.abs(made - wanted), 0.0)
        sizes = np.where(counts, np.abs(wanted), 0.0)
        scale = sizes.max(axis=-1, keepdims=True, initial=0.0) if wanted.ndim else sizes
        tiny = np.finfo(np.float64).tiny
        worst = max(worst, float((errors / np.maximum(scale, tiny)).max(initial=0.0)))
    return worst
