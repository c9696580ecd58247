"""The judge of precision: every snapshot of a program against the careful unfused program."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.errors import WrongKind
from blockbuster_fusion.fusion.fuse import fuse
from blockbuster_fusion.host.numbers import NumericMode
from blockbuster_fusion.interp.interpreter import interpret
from blockbuster_fusion.ir.axis import Dim
from blockbuster_fusion.ir.graph import Graph, check_graph
from blockbuster_fusion.ir.tiling import Tiles
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.progress import doing
from blockbuster_fusion.rules.sets import RuleSet
from blockbuster_fusion.safety.choices import Safe
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import stored_as
from blockbuster_fusion.tools.check.adversarial import Case, adversarial
from blockbuster_fusion.tools.check.careful import (
    MORE_SAMPLES,
    NAN,
    SAMPLES,
    Reference,
    careful,
    eps_of,
    largest_of,
    reference,
    special,
)

Array = NDArray[Any]

BLOCKS = 3
"""The least number of blocks of an axis, so that values shared between blocks are tested."""


@dataclass(frozen=True, slots=True)
class CheckedOutput:
    """One snapshot on one set of inputs.

    Errors are in norm over an output, each element's relative to the size of its terms; of several
    outputs the one that is furthest from its bar counts.
    """

    case: str
    snapshot: int
    error: float
    careful: float
    """The error of the careful unfused program, in the same dtype."""
    bar: float
    """Twice the careful program's error, but no less than 4 eps."""
    output: str = ""
    claimed: bool | None = None
    """The precision class of the snapshot: careful or not; None where it has none."""

    @property
    def ok(self) -> bool:
        return self.error <= self.bar

    @property
    def misjudged(self) -> bool:
        """True if a snapshot is classed as careful but is not."""
        return not self.ok and self.claimed is not False

    def __str__(self) -> str:
        if self.ok:
            found = f"is as exact as a careful program on inputs {self.case!r}"
            return f"snapshot {self.snapshot + 1} {found}: {self._figures}"
        lost = "what is finite" if np.isinf(self.error) else f"{self._digits:.1f} digits"
        expected = ", as its class says" if self.claimed is False else ""
        place = f"of {self.output} on inputs {self.case!r}"
        return f"snapshot {self.snapshot + 1} loses {lost} {place}{expected}: {self._figures}"

    @property
    def _digits(self) -> float:
        return float(np.log10(self.error / max(self.careful, self.bar / 4)))

    @property
    def _figures(self) -> str:
        return f"error {self.error:.1e}, careful {self.careful:.1e}, bar {self.bar:.1e}"


@dataclass(frozen=True, slots=True)
class Report:
    """The errors of all snapshots on each set of inputs."""

    dtype: DType
    rows: tuple[CheckedOutput, ...]

    @property
    def ok(self) -> bool:
        """True if every snapshot is as exact as its class claims; careful if it has no class."""
        return not any(row.misjudged for row in self.rows)

    @property
    def failures(self) -> tuple[CheckedOutput, ...]:
        """The rows whose error exceeds the bar, whatever their class."""
        return tuple(row for row in self.rows if not row.ok)

    @property
    def worst(self) -> float:
        """The largest error of any snapshot."""
        return max((row.error for row in self.rows), default=0.0)

    @property
    def verdict(self) -> str:
        """Sentences that name the snapshots, inputs and errors of all failures."""
        cases, snapshots = {row.case for row in self.rows}, {row.snapshot for row in self.rows}
        if not self.failures:
            counts = f"{_count(len(snapshots), 'snapshot')} on {_count(len(cases), 'case')}"
            return f"ok: as exact as the careful program, {counts}"
        return "\n".join(f"{row}" for row in _worst_of_each(self.failures))

    def __str__(self) -> str:
        wide = max([20, *(2 + len(row.case) for row in self.rows)])
        heads = f"{'snapshot':>9}{'error':>11}{'careful':>11}{'bar':>11}"
        lines = [f"{'inputs':<{wide}}{heads}   ({self.dtype})"]
        for row in self.rows:
            numbers = f"{row.snapshot + 1:>9}{row.error:>11.1e}{row.careful:>11.1e}{row.bar:>11.1e}"
            mark = "" if row.ok else "   not ok"
            lines.append(f"{row.case:<{wide}}{numbers}{mark}")
        return "\n".join([*lines, self.verdict])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _worst_of_each(rows: Sequence[CheckedOutput]) -> list[CheckedOutput]:
    """For each snapshot, the row that is furthest beyond its bar."""
    found: dict[int, CheckedOutput] = {}
    for row in rows:
        known = found.get(row.snapshot)
        if known is None or row.error / row.bar > known.error / known.bar:
            found[row.snapshot] = row
    return [found[number] for number in sorted(found)]


def check(
    program: ArrayProgram | Graph,
    inputs: Mapping[str, object] | None = None,
    *,
    dtype: str | DType = DType.float32,
    rules: str | RuleSet = "extended",
    unit: Collection[Dim | str] = frozenset(),
    tiles: Tiles | None = None,
    safe: bool = True,
    cases: Iterable[Case] | None = None,
    snapshots: Sequence[Graph] | None = None,
) -> Report:
    """Judges every snapshot of a program, run with numbers stored as `dtype`.

    `snapshots` are other block programs to judge instead, with the same inputs and outputs. Without
    `inputs` or `cases`, adversarial inputs are made. The measure is the careful unfused
    program in the same dtype: two-pass variances, shifted exponentials, pairwise sums. Both are
    compared with the careful program in float64. A snapshot is ok where its error is at most twice
    the careful program's, in norm over the output, or 4 eps times the size of the terms.

    The size of an element's terms is how far it moves, in eps, when each result on the way moves by
    up to one eps of itself, and each sum by one eps of the sum of its terms' sizes. An error of inf
    stands for a number that is not finite where it should be, or the other way round.
    """
    stored = _float_dtype(dtype)
    graph = lower(program) if isinstance(program, ArrayProgram) else program
    check_graph("check", graph)
    cases = _cases(program, inputs, cases)
    judged_programs = (
        [(snapshot, None) for snapshot in snapshots]
        if snapshots is not None
        else _snapshots(graph, stored, rules, unit, safe)
    )
    rows: list[CheckedOutput] = []
    judge = Judge(graph, stored)
    with doing("checking", len(cases)) as task:
        for case in cases:
            judged = judge.on(case.inputs)
            for number, (snapshot, claimed) in enumerate(judged_programs):
                used = small_tiles(snapshot, judged.given) if tiles is None else tiles
                found = dict(interpret(snapshot, judged.given, used).items())
                name, error, own, bar = judged.judge(found)
                if bar < error < np.inf and judged.samples < MORE_SAMPLES:
                    judged = judge.on(case.inputs, MORE_SAMPLES)
                    name, error, own, bar = judged.judge(found)
                rows.append(CheckedOutput(case.name, number, error, own, bar, name, claimed))
            task.step()
    return Report(stored, tuple(rows))


def _cases(
    program: ArrayProgram | Graph,
    inputs: Mapping[str, object] | None,
    cases: Iterable[Case] | None,
) -> list[Case]:
    """The inputs that were given, or adversarial ones."""
    if inputs is not None:
        return [Case("given", {name: np.asarray(x) for name, x in inputs.items()})]
    if cases is not None:
        return list(cases)
    if isinstance(program, ArrayProgram):
        return list(adversarial(program))
    raise WrongKind(
        function="check",
        wanted="inputs for a block program",
        given="none",
        remedy="give arrays by name, or the array program that it was lowered from",
    )


def _snapshots(
    graph: Graph,
    dtype: DType,
    rules: str | RuleSet,
    unit: Collection[Dim | str],
    safe: bool,
) -> list[tuple[Graph, bool | None]]:
    """The snapshots of a program stored as a dtype, each with its precision class."""
    fused = [stored_as(raw, dtype) for raw in fuse(graph, rules, unit=unit, safe=safe).fused]
    made = [make_safe(raw) if safe else Safe(raw, ()) for raw in fused]
    return [(result.graph, _claimed(result)) for result in made]


def _claimed(result: object) -> bool | None:
    """The precision class that the safety pass gives a snapshot, if it gives any."""
    precision = getattr(result, "precision", None)
    return None if precision is None else bool(precision.careful)


def _float_dtype(dtype: str | DType) -> DType:
    known = {d.value: d for d in DType if d.is_float}
    name = dtype.value if isinstance(dtype, DType) else dtype
    if name not in known:
        remedy = f"known are {', '.join(known)}"
        raise WrongKind(function="check", wanted="a float dtype", given=name, remedy=remedy)
    return known[name]


def small_tiles(graph: Graph, inputs: Mapping[str, Array]) -> Tiles:
    """Tiles with which every loop has several blocks, the last of them short."""
    lengths: dict[object, int] = {}
    for i in graph.inputs:
        kind = graph[i].types[0]
        name = getattr(graph.op(i), "name", "")
        lengths.update(zip((a.extent for a in kind.axes), np.shape(inputs[name]), strict=True))
    tiles: dict[Dim | str, int] = {}
    for dim in graph.dims:
        if dim.packed and not dim.is_free and not dim.unit:
            extent = dim.axis.extent
            length = extent if isinstance(extent, int) else lengths.get(extent, 1)
            tiles[dim.label] = min(64, max(1, -(-length // BLOCKS)))
    return tiles


# ---------------------------------------------------------------- judging one result


class Judge:
    """The expected results of a program in one dtype."""

    def __init__(self, graph: Graph, dtype: DType) -> None:
        self.graph, self.dtype = graph, dtype
        self.unfused = stored_as(graph, dtype)
        self.numbers = NumericMode(exact=dtype is DType.float64)

    def on(self, inputs: Mapping[str, Any], samples: int = SAMPLES) -> "Judged":
        """The expected results for one set of inputs, which are rounded to the dtype first."""
        given = {
            name: self.numbers.rounded(x, self.dtype) if x.dtype.kind == "f" else x
            for name, x in ((name, np.asarray(x)) for name, x in inputs.items())
        }
        wide = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in given.items()}
        plain = dict(interpret(self.graph, wide).items())  # which says if inputs do not fit
        known = reference(self.unfused, given, self.dtype, samples=samples)
        own = careful(self.unfused, given, self.dtype)
        return Judged(self.dtype, given, own, known, plain, samples)


@dataclass(frozen=True, slots=True)
class Judged:
    """The expected results for one set of inputs.

    Infinities and NaN count if the unfused program, the careful program, and the careful program
    in float64 agree on them. Elsewhere there are several right answers.
    """

    dtype: DType
    given: dict[str, Array]
    careful: dict[str, Array]
    reference: Reference
    plain: dict[str, Array]
    samples: int
    """The number of random trials of the reference."""

    def judge(self, found: Mapping[str, Array]) -> tuple[str, float, float, float]:
        """The output that is furthest from its bar: its name, error, careful error and bar."""
        rows = [(name, *self._judge(name, np.asarray(x))) for name, x in found.items()]
        return max(rows, key=lambda row: row[1] / row[3], default=("", 0.0, 0.0, self.floor))

    @property
    def floor(self) -> float:
        return 4 * eps_of(self.dtype)

    def _judge(self, name: str, found: Array) -> tuple[float, float, float]:
        exact, own = self.reference.exact[name], np.asarray(self.careful[name])
        if exact.dtype.kind != "f":
            return 0.0, 0.0, self.floor
        with np.errstate(all="ignore"):
            eps, least = eps_of(self.dtype), _least(self.dtype)
            spread = self.reference.spread[name]
            sizes = np.maximum(np.maximum(spread / eps, np.abs(exact) / 4), least / eps)
            fits = np.isfinite(exact) & (np.abs(exact) <= largest_of(self.dtype))
            counts = fits & np.isfinite(own) & np.isfinite(sizes)
            sizes = np.where(counts, sizes, 1.0)
            error, careful_error = (
                _norm(np.where(counts, np.abs(x - exact) / sizes, 0.0), counts.sum())
                for x in (found.astype(exact.dtype), own.astype(exact.dtype))
            )
            if not np.isfinite(found[counts]).all() or self._unlike(name, found, exact, own).any():
                error = float("inf")
        return error, careful_error, max(2 * careful_error, self.floor)

    def _unlike(self, name: str, found: Array, exact: Array, own: Array) -> Array:
        """True for elements that differ from the infinity or NaN that all others agree on.

        An infinity may be found for NaN: which of them is left of inf - inf depends on the order.
        """
        kinds = [special(x) for x in (exact, own, self.plain[name])]
        agreed = (kinds[0] == kinds[1]) & (kinds[0] == kinds[2]) & (kinds[0] != 0)
        agreed = agreed & self.reference.certain[name]
        same = np.where(kinds[0] == NAN, ~np.isfinite(found), special(found) == kinds[0])
        return np.asarray(agreed & ~same)


def _norm(errors: Array, count: int) -> float:
    """The root mean square."""
    return float(np.sqrt(np.sum(np.square(errors)) / max(int(count), 1)))


def _least(dtype: DType) -> float:
    """The absolute error that counts as one eps: the smallest number of full precision.

    What is stored as float16 is computed as float32, so that there it is the smallest of all.
    """
    known = {DType.float64: 2.0**-1022, DType.float16: 2.0**-24}
    return known.get(dtype, 2.0**-126)


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
