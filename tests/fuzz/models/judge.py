"""The judge of a random model: its compiled form against eager and a run in float64.

The error of a result against float64, in norm, may be twice eager's. Eager may be exact by luck;
then the bound is four times the cost of rounding. That cost is the largest error of float64 runs
in which the operands of each operator are disturbed by an eps of their dtype.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockbuster_fusion.select import operators
from blockbuster_fusion.torch.backend import backend
from blockbuster_fusion.torch.compiled_graph import CompiledGraph
from blockbuster_fusion.torch.table.row import TABLE
from fuzz.models.program import NAMES, Kind, Line, Program, Role, execute

SAMPLES = 4
"""Disturbed runs that a result is compared with."""
CALLS = 2
"""Calls with inputs of one form: on a new tape, and again."""
OTHER = "aot_eager_decomp_partition"
"""PyTorch's own backend with the same decompositions: its errors are not ours."""


@dataclass(frozen=True)
class Complaint:
    """A difference between a compiled model and eager."""

    kind: str
    """One of: raises, fallback, structure, dtype, shape, strides, aliasing, class, value, whole."""
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Outcome:
    """The results of a call, and the tensors that the model was given, as the call left them."""

    results: list[Tensor]
    given: dict[str, Tensor]

    def all(self) -> list[tuple[str, Tensor]]:
        numbered = [(f"result {i}", x) for i, x in enumerate(self.results)]
        return [*numbered, *self.given.items()]


def module(program: Program) -> torch.nn.Module:
    """The program as a module of PyTorch."""
    names: dict[str, Any] = dict(NAMES)
    exec(compile(program.source, "<model>", "exec"), names)
    made: torch.nn.Module = names["Model"]().eval()
    return made


def called(program: Program, model: Callable[..., Any], held: torch.nn.Module, n: int) -> Outcome:
    """A call of a model, after its own tensors are reset to their first values."""
    given = {g.name: g.make(n) for g in program.inputs}
    with torch.no_grad():
        for g in program.given:
            if g.role is not Role.INPUT:
                getattr(held, g.name).copy_(g.make(n))
        made = model(*given.values())
    for g in program.given:
        if g.role is not Role.INPUT:
            given[g.name] = getattr(held, g.name)
    return Outcome([*made], given)


def judged(
    program: Program, *, strict: bool = False, dynamic: bool | None = None
) -> list[Complaint]:
    """The faults of the compiled form of a program."""
    graphs: list[CompiledGraph] = []
    options = {"strict": strict, "threads": 1}
    ours = partial(backend, options=options, watcher=graphs.append)
    found = compared(program, ours, dynamic)
    if strict and any("Unexpressed: " in c.text for c in found):  # a row refuses the call
        return judged(program, dynamic=dynamic)
    found += [Complaint("fallback", text) for g in graphs for text in faults(g)]
    if not found:
        return []
    theirs = {c.kind for c in compared(program, OTHER, dynamic)}
    return [c for c in found if c.kind not in theirs]


def faults(planned: CompiledGraph) -> Iterator[str]:
    """The parts that run eagerly because something failed, not because a row refused them."""
    yield from planned.halved
    for left in planned.unfused:
        word = left.reason.partition(":")[0]
        if left.is_fallback and word.isidentifier() and word not in REFUSALS:
            yield f"{left.operator}: {left.reason}"


REFUSALS = ("NotExpressible", "Unexpressed")


def compared(program: Program, backend: Any, dynamic: bool | None) -> list[Complaint]:
    """The faults of a program that a backend has compiled."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model, eager = module(program), module(program)
            compiled = torch.compile(model, backend=backend, dynamic=dynamic)
            for n in program.calls:
                wanted = called(program, eager, eager, n)
                for _ in range(CALLS):
                    found = called(program, compiled, model, n)
                    complaints = [*differences(program, n, found, wanted)]
                    if complaints:
                        return complaints
        except Exception as error:
            return [Complaint("raises", f"{type(error).__name__}: {error}")]
        finally:
            torch._dynamo.reset()
    return []


# ---------------------------------------------------------------- form


def differences(program: Program, n: int, found: Outcome, wanted: Outcome) -> Iterator[Complaint]:
    """The differences between a call and eager's."""
    if len(found.results) != len(wanted.results):
        yield Complaint("structure", f"{len(found.results)} results, eager {len(wanted.results)}")
        return
    for (name, x), (_, y) in zip(found.all(), wanted.all(), strict=True):
        for kind in ("dtype", "shape"):
            if getattr(x, kind) != getattr(y, kind):
                yield Complaint(kind, f"{name}: {getattr(x, kind)}, eager {getattr(y, kind)}")
                return
        if _strides(x) != _strides(y):
            yield Complaint("strides", f"{name}: {x.stride()}, eager {y.stride()}, {[*x.shape]}")
    ours, theirs = _shared(found), _shared(wanted)
    for pair in sorted(ours.keys() | theirs.keys()):
        if ours.get(pair) != theirs.get(pair):
            text = (
                f"{pair[0]} and {pair[1]}: {_told(ours.get(pair))}, eager {_told(theirs.get(pair))}"
            )
            yield Complaint("aliasing", text)
            break
    yield from wrong_values(program, n, found, wanted)


def _strides(x: Tensor) -> list[int]:
    """The strides that matter."""
    if not x.numel():
        return []
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def _shared(outcome: Outcome) -> dict[tuple[str, str], int]:
    """The pairs of tensors that lie in one memory, and how far apart they begin."""
    made: dict[tuple[str, str], int] = {}
    known = [(name, x) for name, x in outcome.all() if x.numel()]
    for i, (one, x) in enumerate(known):
        for other, y in known[:i]:
            if x.untyped_storage()._cdata == y.untyped_storage()._cdata:
                made[other, one] = x.data_ptr() - y.data_ptr()
    return made


def _told(distance: int | None) -> str:
    return "apart" if distance is None else f"in one memory, {distance} bytes from each other"


# ---------------------------------------------------------------- values


def wrong_values(program: Program, n: int, found: Outcome, wanted: Outcome) -> Iterator[Complaint]:
    """The results, and the tensors written to, that are further from float64 than they may be."""
    exact: list[Tensor] | None = None
    disturbed: list[list[Tensor]] | None = None
    for i, ((name, x), (_, y)) in enumerate(zip(found.all(), wanted.all(), strict=True)):
        if _same(x, y):
            continue
        if exact is None:
            exact = in_float64(program, n, found)
        if _is_close(x, y, exact[i]):
            continue
        if disturbed is None:
            disturbed = [in_float64(program, n, found, seed) for seed in range(1, SAMPLES + 1)]
        samples = [sample[i] for sample in disturbed]
        if x.is_floating_point() and overflows(program, n):  # a careful program need not
            y, exact[i] = (torch.where(t.isfinite(), t, x.to(t.dtype)) for t in (y, exact[i]))
        if x.is_floating_point() and has_infinite_rows(program, n):
            y = torch.where(x.isnan() & (y == 0), x, y)
        if x.is_floating_point() and cancels(program, n):  # a factor moves past a sum
            y = torch.where(y.isnan() & x.isinf(), x, y)
        complaint = misfit(name, x, y, exact[i], samples)
        if complaint is not None:
            yield complaint


def _same(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())


def _is_close(x: Tensor, y: Tensor, exact: Tensor) -> bool:
    """True if a result is as good as eager's, or as its own dtype allows."""
    if not x.is_floating_point():
        return False
    x, y, eps = x.double(), y.double(), torch.finfo(x.dtype).eps
    if not torch.equal(_classes(x), _classes(y)):
        return False
    fine = x.isfinite() & exact.isfinite()
    own, eager = (x - exact)[fine].norm(), (y - exact)[fine].norm()
    return bool(own <= 2 * eager or own <= 4 * eps * exact[fine].norm())


def _classes(x: Tensor) -> Tensor:
    """Of each number: 0 finite, 1 NaN, 2 and 3 the infinities."""
    return x.isnan() + 2 * x.isposinf() + 3 * x.isneginf()


def _is_near_pole(exact: Tensor, samples: Sequence[Tensor]) -> Tensor:
    """The places at which the inverse is 0 as far as rounding allows, with the bar of values."""
    inverse = 1 / exact
    spread = torch.stack([(1 / s - inverse).abs() for s in samples]).amax(0)
    return inverse.isfinite() & (inverse.abs() <= 4 * spread)


def misfit(
    name: str, x: Tensor, y: Tensor, exact: Tensor, samples: Sequence[Tensor]
) -> Complaint | None:
    """The complaint about a result, beside eager's, an exact one, and disturbed ones."""
    if not x.is_floating_point():
        all_ = torch.stack([t.double() for t in (y, exact, *samples)])
        outside = (x.double() < all_.amin(0)) | (x.double() > all_.amax(0))
        if not outside.any():
            return None
        at = outside.nonzero()[0].tolist()
        return Complaint("whole", f"{name} at {at}: {x[tuple(at)]}, eager {y[tuple(at)]}")
    narrow = [t.to(x.dtype) for t in (y, exact, *samples)]
    allowed = torch.stack([_classes(t) for t in narrow])
    wrong = (allowed != _classes(x)).all(0)
    wrong &= ~(x.isinf() & _is_near_pole(exact, samples))
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        return Complaint("class", f"{name} at {at}: {x[tuple(at)]}, eager {y[tuple(at)]}")
    fine = x.isfinite() & exact.isfinite() & torch.stack([t.isfinite() for t in narrow]).all(0)
    errors = [float((t.double() - exact)[fine].norm()) for t in (x, y, *samples)]
    own, eager, rest = errors[0], errors[1], max(errors[2:])
    eps = torch.finfo(x.dtype).eps
    if own <= max(2 * eager, 4 * rest, 4 * eps * float(exact[fine].norm())):
        return None
    size = float(exact[fine].norm())
    return Complaint(
        "value", f"{name}: error {own:.3g}, eager {eager:.3g}, disturbed {rest:.3g}, of {size:.3g}"
    )


OVERFLOWING = ("aten.exp", "aten.exp2", "aten.expm1", "aten.sinh", "aten.cosh", "normalised")
"""Rows of which numerical safety keeps the logarithm, where eager has infinity."""


def overflows(program: Program, n: int) -> bool:
    """True if an exponential of finite numbers overflows in eager mode."""
    values: dict[str, Any] = {g.name: g.make(n) for g in program.given}
    with torch.no_grad():
        for line in program.lines:
            given = [values[name] for name in line.reads]
            execute(line, values)
            if line.row not in OVERFLOWING or not all(x.isfinite().all() for x in given):
                continue
            if not all(values[name].isfinite().all() for name in line.makes):
                return True
    return False


def has_infinite_rows(program: Program, n: int) -> bool:
    """True if a row with an infinity is normalised.

    There e^x / Σe^x is NaN, as softmax(x) is; eager mode gives 0 for finite elements.
    """
    values: dict[str, Any] = {g.name: g.make(n) for g in program.given}
    with torch.no_grad():
        for line in program.lines:
            given = [values[name] for name in line.reads]
            execute(line, values)
            if line.row == "normalised" and any(x.isinf().any() for x in given):
                return True
    return False


def cancels(program: Program, n: int) -> bool:
    """True if a sum of infinities is NaN in eager mode. If they come from a common factor,
    as in a division by 0, fusion multiplies the sum by the factor and gives an infinity."""
    values: dict[str, Any] = {g.name: g.make(n) for g in program.given}
    with torch.no_grad():
        for line in program.lines:
            given = [values[name] for name in line.reads]
            execute(line, values)
            row = TABLE.get(line.row)
            is_sum = line.row == "einsum" if row is None else row.kind in SUMS
            if is_sum and any(x.isinf().any() for x in given):
                made = [values[name] for name in line.makes]
                if any(x.isnan().any() for x in made) and not any(x.isnan().any() for x in given):
                    return True
    return False


SUMS = (operators.Kind.REDUCTION, operators.Kind.CONTRACTION)

SHIFTED = ("aten._log_softmax", "aten._logsumexp", "aten.logcumsumexp", "loss")
"""Rows whose result is a difference of terms that may be much larger than it is."""


def _term(line: Line, values: Mapping[str, Any]) -> float | Tensor:
    """The size of the largest term that a line takes a difference of."""
    given = [values[k] for k in line.reads if values[k].is_floating_point()]
    if line.row == "aten.tanhshrink":
        return given[0].abs()  # type: ignore[no-any-return]
    if line.row not in SHIFTED:
        return 0.0
    fine = [x[x.isfinite()].abs() for x in given]
    return max([1.0, *(float(x.max()) for x in fine if x.numel())])  # exp(0) is a term


def _sums_of_sizes(line: Line, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The sum of the sizes of the terms, for a line that takes a sum or a mean."""
    row = TABLE.get(line.row)
    if row is None or row.kind is not operators.Kind.REDUCTION:
        return {}
    sized = {
        k: x.abs() if k in line.reads and x.is_floating_point() else x for k, x in values.items()
    }
    execute(line, sized, torch.float64)
    made = {name: sized[name] for name in line.makes if sized[name].is_floating_point()}
    return {name: torch.where(x.isfinite(), x.abs(), 0.0) for name, x in made.items()}


def in_float64(program: Program, n: int, like: Outcome, seed: int = 0) -> list[Tensor]:
    """The results and the given tensors of a run in float64; with a seed, of a disturbed one."""
    values: dict[str, Any] = {g.name: g.make(n, torch.float64) for g in program.given}
    plain: dict[str, Any] = {g.name: g.make(n) for g in program.given}
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for line in program.lines:
            execute(line, plain)
            if not seed or line.kind is not Kind.COMPUTE:
                execute(line, values, torch.float64)
                continue
            named = [*line.reads, *line.makes]
            floats = [plain[k].dtype for k in named if plain[k].is_floating_point()]
            eps = max((torch.finfo(dtype).eps for dtype in floats), default=0.0)
            own = dict(values)
            for name in line.reads:
                x = values[name]
                if x.is_floating_point():
                    factors = torch.rand(x.shape, generator=noise, dtype=torch.float64) * 2 - 1
                    own[name] = x * (1 + eps * factors)
            sizes = _sums_of_sizes(line, own)
            execute(line, own, torch.float64)
            for name in line.makes:
                values[name] = own[name]
                if own[name].is_floating_point():
                    factors = torch.rand(own[name].shape, generator=noise, dtype=torch.float64)
                    size = _term(line, own) + sizes.get(name, 0.0)
                    values[name] = own[name] + eps * size * (factors * 2 - 1)
    wanted = [*program.results, *like.given]
    return [values[name] for name in wanted]
