"""The numeric fuzzer: random programs of norms, softmaxes, exponentials, products and shifts.

Each program is judged by `bb.check` on some of its adversarial inputs. A program is a list of
statements: some can be left out to shrink it, and it can be saved as a Python file.

    PYTHONPATH=tests python -m fuzz.numeric --count 20000 --jobs 16
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion.tools.check.adversarial import Case, adversarial
from fuzz.harness import Failure, main

Axes = tuple[str, ...]
"""The axis at each position of a value; "" for a position of length 1."""

LENGTHS = (2, 3, 5, 7, 12, 17, 24)
TRIED = ("rows at 10 to 1e5", "huge", "nearly constant", "first block at 1e4", "saturated", "tiny")
"""Cases of an input that replaces a computed value when a program is shrunk."""
CONSTANTS = (0.5, -2.0, 10.0, 1e3, 1e-3)


@dataclass(frozen=True)
class Statement:
    """`name = text`, with operands by number in the text, and its axes and kind."""

    name: str
    text: str
    operands: tuple[str, ...]
    axes: Axes
    kind: str

    def __str__(self) -> str:
        return f"{self.name} = {self.text.format(*self.operands)}"


@dataclass(frozen=True)
class Program:
    """A program as text, with its sizes and the adversarial cases that it is judged on."""

    seed: int
    inputs: tuple[tuple[str, Axes], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    cases: tuple[tuple[str, ...], ...]
    """Names of adversarial cases; where there are two, each gives the input that it changes."""
    dtype: str = "float32"
    unit: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The function's text."""
        lines = [f"def program({', '.join(name for name, _ in self.inputs)}):"]
        lines += [f"    {statement}" for statement in self.statements]
        given = ", ".join(f'"{name}_out": {name}' for name in self.outputs)
        return "\n".join([*lines, f"    return {{{given}}}\n"])

    @cached_property
    def traced(self) -> bb.ArrayProgram:
        scope: dict[str, object] = {"o": bb.ops}
        exec(str(self), scope)
        specs = [" ".join(axes) if axes else () for _, axes in self.inputs]
        declared = "float64" if self.dtype == "float64" else "float32"
        return bb.trace(scope["program"], *specs, dtype=declared)  # type: ignore[arg-type]

    def pruned(self) -> "Program":
        """The program without statements that its outputs do not need."""
        needed = set(self.outputs)
        kept = []
        for statement in reversed(self.statements):
            if statement.name in needed:
                kept.append(statement)
                needed.update(statement.operands)
        inputs = tuple(given for given in self.inputs if given[0] in needed)
        axes = {axis for _, own in inputs for axis in own}
        sizes = tuple(pair for pair in self.sizes if pair[0] in axes)
        unit = tuple(axis for axis in self.unit if axis in axes)
        named = {"ordinary", *(name for name, _ in inputs)}
        cases = tuple(c for c in self.cases if all(n.partition(":")[0] in named for n in c))
        return replace(
            self,
            inputs=inputs,
            statements=tuple(reversed(kept)),
            sizes=sizes,
            unit=unit,
            cases=cases or (("ordinary",),),
        )

    def chosen_cases(self) -> list[Case]:
        """The inputs that the program is judged on."""
        known = {c.name: c for c in adversarial(self.traced, dict(self.sizes), self.seed)}
        made = []
        for names in self.cases:
            inputs = dict(known[names[0]].inputs)
            for name in names[1:]:
                changed = name.partition(":")[0]
                inputs[changed] = known[name].inputs[changed]
            made.append(Case(" and ".join(names), inputs))
        return made


@dataclass
class Writer:
    """Writes a program statement by statement; every choice comes from one seed."""

    seed: int
    random: Random = field(init=False)
    inputs: list[tuple[str, Axes]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    axes: dict[str, Axes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(f"numeric {self.seed}")

    # ---------------------------------------------------------------- parts

    def given(self, *axes: str) -> str:
        """A new input, or an old one with these axes."""
        same = [name for name, own in self.inputs if own == axes]
        if same and self.random.random() < 0.3:
            return self.random.choice(same)
        name = f"{'X' if len(axes) > 1 else 'w' if axes else 's'}{len(self.inputs)}"
        self.inputs.append((name, axes))
        self.axes[name] = axes
        return name

    def write(self, kind: str, text: str, *operands: str, axes: Axes | None = None) -> str:
        name = f"v{len(self.statements)}"
        made = self.axes[operands[0]] if axes is None else axes
        self.statements.append(Statement(name, text, operands, made, kind))
        self.axes[name] = made
        return name

    def along(self, x: str) -> int | None:
        """A position of a value that is no length-1 one, counted from the end."""
        own = self.axes[x]
        found = [at - len(own) for at, axis in enumerate(own) if axis and axis != "B"]
        if found and found[-1] == -1 and self.random.random() < 0.7:
            return -1
        return self.random.choice(found) if found else None

    def without(self, x: str, *positions: int) -> Axes:
        own = list(self.axes[x])
        for at in positions:
            own[at] = ""
        return tuple(own)

    def pick(self, *, wide: bool = True) -> str:
        """A value to go on with: mostly a late one; one with two axes, if there is any."""
        known = list(self.axes)
        good = [x for x in known if sum(map(bool, self.axes[x])) > 1] if wide else known
        made = [x for x in good if x.startswith("v")]
        return self.random.choice(made[-2:] if made and self.random.random() < 0.8 else good)

    def fellow(self, x: str) -> str:
        """Another value of the same axes, or a new input."""
        same = [y for y in self.axes if self.axes[y] == self.axes[x] and y != x]
        if same and self.random.random() < 0.5:
            return self.random.choice(same)
        if all(self.axes[x]):
            return self.given(*self.axes[x])
        return self.random.choice(same) if same else x

    def is_exponential(self, x: str) -> bool:
        """True if an exponential, not a normalised one, is on the way to a value."""
        made = {statement.name: statement for statement in self.statements}
        if x not in made or "norm" in made[x].kind or made[x].kind == "softmax":
            return False
        return made[x].kind == "exp" or any(map(self.is_exponential, made[x].operands))

    def vector(self, x: str, at: int) -> str:
        """A new input along one position, as text that broadcasts with the value."""
        axis = self.axes[x][at]
        return self.given(axis)

    # ---------------------------------------------------------------- statements

    def shift(self, x: str) -> str:
        """A shift of every shape."""
        sign = self.random.choice("+-")
        way = self.random.choice(["rows", "columns", "number", "constant", "array", "max", "mean"])
        at = self.along(x)
        if at is None or way == "constant":
            return self.write("shift by a constant", f"{{0}} {sign} {self.constant()}", x)
        if way == "number":
            return self.write("shift by a number", f"{{0}} {sign} {{1}}", x, self.given())
        if way in ("rows", "columns"):
            return self.broadcast("shift", sign, x, way)
        if way == "array":
            return self.write("residual", f"{{0}} {sign} {{1}}", x, self.fellow(x))
        text = f"{{0}} {sign} o.{way}({{0}}, {at}, keepdims=True)"
        return self.write(f"shift by the {way}", text, x)

    def scale(self, x: str) -> str:
        """A scale of every shape."""
        way = self.random.choice(["rows", "columns", "number", "constant", "array"])
        if way == "constant" or self.along(x) is None:
            return self.write("scale by a constant", f"{{0}} * {self.constant()}", x)
        if way == "number":
            return self.write("scale by a number", "{0} * {1}", x, self.given())
        if way == "array":
            return self.write("product of arrays", "{0} * {1}", x, self.fellow(x))
        return self.broadcast("scale", "*", x, way)

    def broadcast(self, what: str, sign: str, x: str, way: str) -> str:
        own = self.axes[x]
        if way == "columns" and own[-1]:
            return self.write(f"{what} by columns", f"{{0}} {sign} {{1}}", x, self.given(own[-1]))
        if len(own) > 1 and own[-2]:
            text = f"{{0}} {sign} {{1}}[:, None]"
            return self.write(f"{what} by rows", text, x, self.given(own[-2]))
        return self.write(f"{what} by a number", f"{{0}} {sign} {{1}}", x, self.given())

    def constant(self) -> float:
        return self.random.choice(CONSTANTS)

    def norm(self, x: str) -> str:
        """A norm of the table, with and without weights."""
        at = self.along(x)
        if at is None:
            return self.shift(x)
        kind = self.random.choice(["layernorm", "layernorm", "rmsnorm"])
        if self.random.random() < 0.6:
            return self.write(kind, f"o.{kind}({{0}}, axis={at})", x)
        weight = self.vector(x, at)
        if kind == "rmsnorm" or self.random.random() < 0.3:
            return self.write(kind, f"o.{kind}({{0}}, {{1}}, axis={at})", x, weight)
        bias = self.vector(x, at)
        return self.write(kind, f"o.{kind}({{0}}, {{1}}, {{2}}, axis={at})", x, weight, bias)

    def written_norm(self, x: str) -> str:
        """A norm written out, in two passes or in one, over one axis or several."""
        own = self.axes[x]
        places = [at - len(own) for at, axis in enumerate(own) if axis and axis != "B"]
        if not places:
            return self.shift(x)
        some = places if self.random.random() < 0.4 else [self.random.choice(places)]
        over = f"({', '.join(map(str, some))},)"
        few = self.without(x, *some)
        mean = self.write("mean", f"o.mean({{0}}, {over}, keepdims=True)", x, axes=few)
        centred = self.write("centre", "{0} - {1}", x, mean)
        if self.random.random() < 0.3:
            text = f"o.mean({{0}} * {{0}}, {over}, keepdims=True) - {{1}} ** 2"
            variance = self.write("variance in one pass", text, x, mean, axes=few)
        else:
            text = f"o.mean({{0}} ** 2, {over}, keepdims=True)"
            variance = self.write("variance", text, centred, axes=few)
        if self.random.random() < 0.15:
            return self.write("deviation", "o.sqrt({0} + 1e-5)", variance)
        return self.write("normalise", "{0} * ({1} + 1e-5) ** -0.5", centred, variance, axes=own)

    def softmax(self, x: str) -> str:
        at = self.along(x)
        if at is None:
            return self.gate(x)
        kind = self.random.choice(["softmax", "softmax", "log_softmax"])
        return self.write(kind, f"o.{kind}({{0}}, {at})", x)

    def written_softmax(self, x: str) -> str:
        """A softmax written out, safe or plain, by product or by quotient."""
        at = self.along(x)
        if at is None:
            return self.gate(x)
        few = self.without(x, at)
        if self.random.random() < 0.4:
            text = f"{{0}} - o.max({{0}}, {at}, keepdims=True)"
            x = self.write("shift by the max", text, x)
        e = self.write("exp", "o.exp({0})", x)
        total = self.write("sum", f"o.sum({{0}}, {at}, keepdims=True)", e, axes=few)
        text = self.random.choice(["{0} / {1}", "{0} * (1 / {1})"])
        return self.write("quotient", text, e, total)

    def products(self, x: str) -> str:
        """A product of two softmaxes, or of a softmax and an array, often summed."""
        at, y = self.along(x), self.fellow(x)
        if at is None:
            return self.gate(x)
        p = self.write("softmax", f"o.softmax({{0}}, {at})", x)
        if self.random.random() < 0.5:
            y = self.write("softmax", f"o.softmax({{0}}, {at})", y)
        made = self.write("product of arrays", "{0} * {1}", p, y)
        if self.random.random() < 0.5:
            return made
        few = self.without(x, at)
        return self.write("sum", f"o.sum({{0}}, {at}, keepdims=True)", made, axes=few)

    def logsumexp(self, x: str) -> str:
        at = self.along(x)
        if at is None:
            return self.gate(x)
        few = self.without(x, at)
        made = self.write(
            "logsumexp", f"o.log(o.sum(o.exp({{0}}), {at}, keepdims=True))", x, axes=few
        )
        return made if self.random.random() < 0.4 else self.write("shift", "{0} - {1}", x, made)

    def weighted(self, x: str) -> str:
        """Σ w·exp(x), over Σ exp(x) or bare under a logarithm."""
        at = self.along(x)
        if at is None:
            return self.gate(x)
        few = self.without(x, at)
        e = self.write("exp", "o.exp({0})", x)
        y = self.fellow(x)
        above = self.write("sum", f"o.sum({{0}} * {{1}}, {at}, keepdims=True)", e, y, axes=few)
        below = self.write("sum", f"o.sum({{0}}, {at}, keepdims=True)", e, axes=few)
        return self.write("quotient", "{0} / {1}", above, below)

    def balanced(self, x: str) -> str:
        """Exponentials with factors for rows and columns, made in turn (Sinkhorn's iteration)."""
        own = self.axes[x]
        if len(own) < 2 or not own[-1] or not own[-2]:
            return self.gate(x)
        if self.is_exponential(x):  # in exponents it exceeds all dtypes: nobody can judge that
            x = self.given(*own)
        inverse = self.random.choice(["1 / {}", "1 / {}", "{} ** -0.5"])
        kernel = self.write("exp", "o.exp({0})", x)
        factors: dict[int, str] = {}
        for turn in range(self.random.randint(2, 5)):
            at, other = (-1, -2) if turn % 2 else (-2, -1)
            given = [kernel] if other not in factors else [kernel, factors[other]]
            terms = " * ".join(f"{{{i}}}" for i in range(len(given)))
            text = inverse.format(f"o.sum({terms}, {at}, keepdims=True)")
            factors[at] = self.write("factor", text, *given, axes=self.without(x, at))
        scaled = self.write("scale", "{0} * {1}", factors[-1], kernel, axes=own)
        return self.write("scale", "{0} * {1}", scaled, factors[-2], axes=own)

    def gate(self, x: str) -> str:
        kinds = {
            "sigmoid": "o.sigmoid({0})",
            "swish": "o.swish({0})",
            "softplus": "o.softplus({0})",
            "softplus written out": "o.log(1 + o.exp({0}))",
            "log cosh": "o.log(o.exp({0}) + o.exp(-{0}))",
            "tanh": "o.tanh({0})",
            "relu": "o.relu({0})",
        }
        kind = self.random.choice(list(kinds))
        return self.write(kind, kinds[kind], x)

    def matmul(self, x: str) -> str:
        own = self.axes[x]
        if not own[-1]:
            return self.gate(x)
        new = self.random.choice([a for a in "KDEL" if a not in own])
        weight = self.given(own[-1], new)
        return self.write("matmul", "{0} @ {1}", x, weight, axes=(*own[:-1], new))

    def attention(self, x: str) -> str:
        own = self.axes[x]
        if not own[-1] or len(own) < 2 or not own[-2]:
            return self.gate(x)
        keys, width = self.random.sample([a for a in "KDEL" if a not in own], 2)
        k, v = self.given(keys, own[-1]), self.given(keys, width)
        scores = self.write("matmul", "{0} @ {1}.swapaxes(-1, -2)", x, k, axes=(*own[:-1], keys))
        if self.random.random() < 0.3:
            scores = self.shift(scores)
        p = self.write("softmax", "o.softmax({0}, -1)", scores)
        return self.write("matmul", "{0} @ {1}", p, v, axes=(*own[:-1], width))

    def reduction(self, x: str) -> str:
        at = self.along(x)
        if at is None:
            return self.gate(x)
        kind = self.random.choice(["sum", "mean", "max"])
        few = self.without(x, at)
        return self.write(kind, f"o.{kind}({{0}}, {at}, keepdims=True)", x, axes=few)

    def running(self, x: str) -> str:
        """A scan: running sums of a value, or of the shares that a softmax gives."""
        at = self.along(x)
        if at is None:
            return self.gate(x)
        kind = self.random.choice(["cumsum", "cumsum", "cummax", "logcumsumexp"])
        if kind == "cumsum" and self.random.random() < 0.3:
            x = self.write("softmax", f"o.softmax({{0}}, {at})", x)
        return self.write(kind, f"o.{kind}({{0}}, {at})", x)

    # ---------------------------------------------------------------- the whole

    def program(self) -> Program:
        rows = self.random.choice([("M", "N"), ("M", "N"), ("M", "N"), ("B", "M", "N")])
        self.given(*rows)
        makers: list[Callable[[str], str]] = [
            *[self.shift] * 4,
            *[self.scale] * 2,
            *[self.norm] * 4,
            *[self.written_norm] * 3,
            *[self.softmax] * 2,
            *[self.written_softmax] * 2,
            *[self.products] * 2,
            self.logsumexp,
            self.weighted,
            self.balanced,
            *[self.gate] * 2,
            *[self.matmul] * 3,
            self.attention,
            self.reduction,
            self.running,
        ]
        last = self.inputs[0][0]
        for _ in range(self.random.randint(1, 5)):
            last = self.random.choice(makers)(self.pick())
        outputs = [last]
        used = {x for statement in self.statements for x in statement.operands}
        unused = [s.name for s in self.statements if s.name not in used and s.name != last]
        outputs += [x for x in unused if self.random.random() < 0.5]
        inner = [s.name for s in self.statements if s.name not in outputs]
        if inner and self.random.random() < 0.15:
            outputs.append(self.random.choice(inner))
        letters = dict.fromkeys(axis for _, own in self.inputs for axis in own)
        sizes = tuple((a, 2 if a == "B" else self.random.choice(LENGTHS)) for a in letters)
        made = Program(
            self.seed, tuple(self.inputs), tuple(self.statements), tuple(outputs), sizes, ()
        ).pruned()
        dtype = self.random.choices(["float32", "bfloat16", "float64"], [17, 2, 1])[0]
        unit = tuple(a for a, _ in made.sizes if a != "B" and self.random.random() < 0.1)
        return replace(made, cases=self.cases(made), dtype=dtype, unit=unit)

    def cases(self, made: Program) -> tuple[tuple[str, ...], ...]:
        """Ordinary inputs, and a few of the adversarial ones, some of them two at a time."""
        names = [c.name for c in adversarial(made.traced, dict(made.sizes), self.seed)][1:]
        chosen: list[tuple[str, ...]] = [("ordinary",)]
        for _ in range(3 if names else 0):
            pair = self.random.sample(names, min(2, len(names)))
            owners = {name.partition(":")[0] for name in pair}
            alone = len(owners) < 2 or self.random.random() < 0.6
            chosen.append(tuple(pair[:1] if alone else pair))
        return tuple(dict.fromkeys(chosen))


class Numeric:
    """Random programs, judged by the careful program."""

    name = "numeric"

    def generate(self, seed: int) -> Program:
        return Writer(seed).program()

    def run(self, case: Program) -> Failure | None:
        unit = [a for a in case.unit if a in packed(case.traced)]
        report = bb.check(case.traced, cases=case.chosen_cases(), dtype=case.dtype, unit=unit)
        if report.ok:
            return None
        worst = max((r for r in report.rows if r.misjudged), key=lambda r: r.error / r.bar)
        kinds = " > ".join(statement.kind for statement in case.statements)
        places = " and ".join(name.partition(": ")[2] or name for name in worst.case.split(" and "))
        loss = "not finite" if np.isinf(worst.error) else "digits"
        which = "" if case.dtype == "float32" else f" {case.dtype}"
        return Failure("wrong", f"{loss}: {kinds} on {places}{which}", report.verdict)

    def shrink(self, case: Program) -> Iterator[Program]:
        for one in case.cases if len(case.cases) > 1 else ():
            yield replace(case, cases=(one,)).pruned()
        for names in case.cases:
            if len(names) > 1:
                yield from (replace(case, cases=((name,),)).pruned() for name in names)
        if len(case.outputs) > 1:
            yield from (replace(case, outputs=(name,)).pruned() for name in case.outputs)
        made = {s.name: s for s in case.statements}
        for name in case.outputs:
            for operand in made[name].operands:
                if operand in made:
                    yield replace(case, outputs=(operand,)).pruned()
        yield from self._with_fewer_statements(case)
        if case.unit:
            yield replace(case, unit=())
        if case.dtype != "float32":
            yield replace(case, dtype="float32")
        for at, (axis, length) in enumerate(case.sizes):
            if length > 3:
                halved = (axis, -(-length // 2))
                yield replace(case, sizes=(*case.sizes[:at], halved, *case.sizes[at + 1 :]))

    def _with_fewer_statements(self, case: Program) -> Iterator[Program]:
        axes = dict(case.inputs) | {s.name: s.axes for s in case.statements}
        for at, statement in reversed(list(enumerate(case.statements))):
            rest = (*case.statements[:at], *case.statements[at + 1 :])
            if all(statement.axes):
                name = f"X{statement.name}" if len(statement.axes) > 1 else f"w{statement.name}"
                cut = replace(
                    case,
                    statements=rest,
                    inputs=(*case.inputs, (name, statement.axes)),
                    cases=(*case.cases, *((f"{name}: {kind}",) for kind in TRIED)),
                )
                yield from self._exchanged(cut, statement.name, name)
        for at, statement in enumerate(case.statements):
            rest = (*case.statements[:at], *case.statements[at + 1 :])
            for operand in statement.operands:
                if axes[operand] == statement.axes:
                    yield from self._exchanged(
                        replace(case, statements=rest), statement.name, operand
                    )

    @staticmethod
    def _exchanged(case: Program, old: str, new: str) -> Iterator[Program]:
        """The program with one value for another, if it still computes something."""

        def chosen(name: str) -> str:
            return new if name == old else name

        statements = tuple(
            replace(s, operands=tuple(map(chosen, s.operands))) for s in case.statements
        )
        made = {s.name for s in statements}
        outputs = tuple(dict.fromkeys(map(chosen, case.outputs)))
        outputs = tuple(name for name in outputs if name in made)
        if outputs:
            yield replace(case, statements=statements, outputs=outputs).pruned()

    def save(self, case: Program) -> str:
        specs = ", ".join(repr(" ".join(axes) if axes else ()) for _, axes in case.inputs)
        return SAVED.format(
            program=case,
            specs=specs,
            sizes=dict(case.sizes),
            seed=case.seed,
            cases=case.cases,
            dtype=case.dtype,
            unit=case.unit,
        )


def packed(program: bb.ArrayProgram) -> set[str]:
    """The axes that have blocks."""
    return {d.name for d in bb.lower(program).dims if d.packed and not d.is_free}


SAVED = """import blockbuster_fusion as bb
from blockbuster_fusion.tools.check.adversarial import Case

o = bb.ops


{program}

traced = bb.trace(program, {specs})
known = {{case.name: case.inputs for case in bb.adversarial(traced, {sizes}, {seed})}}
cases = []
for names in {cases}:
    inputs = dict(known[names[0]])
    for name in names[1:]:
        changed = name.partition(":")[0]
        inputs[changed] = known[name][changed]
    cases.append(Case(" and ".join(names), inputs))
print(bb.check(traced, cases=cases, dtype="{dtype}", unit={unit}))
"""

if __name__ == "__main__":
    sys.exit(main(Numeric()))
