"""Random programs of exponentials, sums and norms, and inputs that are hard on them."""

import numpy as np

from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.axis import Axis
from blockbuster_fusion.ir.combiner import ADD, MAX
from blockbuster_fusion.ir.expr import arg, call
from blockbuster_fusion.tools.check.adversarial import (
    denormal,
    huge,
    huge_beside_tiny,
    nearly_constant,
    offset_rows,
    saturated,
    zero,
)
from helpers.programs import BATCH, RandomProgram

EXP, LOG = call("exp", arg(0)), call("log", arg(0))
SIGMOID = 1 / (1 + call("exp", -arg(0)))
SWISH = arg(0) / (1 + call("exp", -arg(0)))


class HardProgram(RandomProgram):
    """Grows by softmaxes and norms in all spellings, with nothing that keeps numbers small.

    Operators do not read an exponential before it is divided by a sum: it may be finite in float64
    and infinite in float32.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tame: set[int] = set()

    def pick(self) -> int:
        made = sorted(self.tame)
        if made and self.random.random() < 0.75:
            return self.random.choice(made[-3:])
        return self.random.choice([v for v in self.values if v < 0 or v in self.tame])

    def grow(self) -> None:
        x = self.pick()
        axis = self.axis_of(x)
        if axis is None:
            gates = [SIGMOID, SWISH, arg(0) * 0.5]
            self.tame.add(self.elementwise(self.random.choice(gates), x))
            return
        choices = [
            self.plain_softmax,
            self.written_out,
            self.logsumexp,
            self.log_softmax,
            self.masked,
            self.weighted_sum,
            self.gate,
            self.any_norm,
            self.any_norm,
            self.variance,
            self.matmul,
            self.shared_exponential,
        ]
        self.tame.add(self.random.choice(choices)(x, axis))

    def plain_softmax(self, x: int, axis: Axis) -> int:
        made = self.apply("softmax", x, axis=axis)
        return self.matmul(made, axis) if self.random.random() < 0.6 else made

    def log_softmax(self, x: int, axis: Axis) -> int:
        return self.apply("log_softmax", x, axis=axis)

    def written_out(self, x: int, axis: Axis) -> int:
        """A softmax without, or with, the maximum subtracted, by product or by quotient."""
        if self.random.random() < 0.5:
            top = self.apply("reduce", x, axis=axis, combiner=MAX)
            x = self.elementwise(arg(0) - arg(1), x, top)
        e = self.elementwise(EXP, x)
        total = self.apply("reduce", e, axis=axis, combiner=ADD)
        if self.random.random() < 0.5:
            made = self.elementwise(arg(0) / arg(1), e, total)
        else:
            made = self.elementwise(arg(0) * arg(1), e, self.elementwise(1 / arg(0), total))
        return self.matmul(made, axis) if self.random.random() < 0.5 else made

    def logsumexp(self, x: int, axis: Axis) -> int:
        total = self.apply("reduce", self.elementwise(EXP, x), axis=axis, combiner=ADD)
        return self.elementwise(LOG, total)

    def masked(self, x: int, axis: Axis) -> int:
        """A softmax of which something is hidden, never all."""
        rows = [a for a in self.values[x].axes if a is not axis and a.name not in BATCH]
        if not rows:
            return self.plain_softmax(x, axis)
        first, second = (self.apply("index", axis=a) for a in (self.random.choice(rows), axis))
        hidden = self.random.choice([-1e30, float("-inf")])
        visible = call("where", arg(2) <= arg(1), arg(0), hidden)
        return self.plain_softmax(self.elementwise(visible, x, first, second), axis)

    def weighted_sum(self, x: int, axis: Axis) -> int:
        """Σ w·exp(x) / Σ exp(x)."""
        e = self.elementwise(EXP, x)
        w = self.input([axis])
        if w == x:
            return self.plain_softmax(x, axis)
        weighted = self.elementwise(arg(0) * arg(1), e, w)
        above, below = (self.apply("reduce", y, axis=axis, combiner=ADD) for y in (weighted, e))
        return self.elementwise(arg(0) / arg(1), above, below)

    def shared_exponential(self, x: int, axis: Axis) -> int:
        """One exponential in two quotients, along the same axis or along different ones."""
        e = self.elementwise(EXP, x)
        other = self.axis_of(x)
        assert other is not None
        made = []
        for along in (axis, other):
            total = self.apply("reduce", e, axis=along, combiner=ADD)
            made.append(self.elementwise(arg(0) / arg(1), e, total))
        return made[0] if axis is other else self.elementwise(arg(0) + arg(1), *made)

    def gate(self, x: int, axis: Axis) -> int:
        gated = self.elementwise(self.random.choice([SIGMOID, SWISH]), x)
        return self.matmul(gated, axis) if self.random.random() < 0.5 else gated

    def any_norm(self, x: int, axis: Axis) -> int:
        normed = self.norm(x, axis)
        return self.matmul(normed, axis) if self.random.random() < 0.6 else normed

    def variance(self, x: int, axis: Axis) -> int:
        """A LayerNorm in two passes, written out."""
        total = self.apply("reduce", x, axis=axis, combiner=ADD)
        mean = self.apply("mean", x, axes=(axis,))
        centred = self.elementwise(arg(0) - arg(1), x, mean)
        spread = self.apply("mean", self.elementwise(arg(0) ** 2, centred), axes=(axis,))
        self.used.add(total)
        made = self.elementwise(arg(0) * (arg(1) + 1e-3) ** -0.5, centred, spread)
        return self.matmul(made, axis) if self.random.random() < 0.5 else made

    def finish(self) -> int:
        x = self.pick()
        axis = self.axis_of(x)
        return self.chain(x, None) if axis is None else self.plain_softmax(x, axis)


def hard_program(seed: int) -> tuple[ArrayProgram, set[int]]:
    """The program of a seed, and its operators whose results are no mere exponentials."""
    program = HardProgram(seed)
    return program.build(), {v for v in program.tame if v >= 0}


def hard_inputs(program: ArrayProgram, seed: int) -> dict[str, np.ndarray]:
    """Inputs of random kinds: some ordinary, some huge, some nearly constant."""
    rng = np.random.default_rng(seed)
    kinds = [huge, huge_beside_tiny, offset_rows, nearly_constant, denormal, saturated, zero]
    kinds.append(lambda x, rng: x * np.float32(150))
    sizes: dict[object, int] = {}
    made: dict[str, np.ndarray] = {}
    for given in program.inputs:
        for axis in given.type.axes:
            usual = axis.extent if isinstance(axis.extent, int) else int(rng.integers(2, 6))
            sizes.setdefault(axis.extent, usual)
        x = rng.standard_normal([sizes[a.extent] for a in given.type.axes]).astype(np.float32)
        if x.ndim > 1 and rng.random() < 0.5:
            x = kinds[rng.integers(len(kinds))](x, rng)
        made[given.name] = x
    return made
