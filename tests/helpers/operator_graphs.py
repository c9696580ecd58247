"""Operator graphs for tests of selection: by hand, random ones, and layers of models."""

import random
from collections.abc import Sequence
from dataclasses import replace

from blockbuster_fusion.select.operators import Kind, Operator, Read

ROWS, WIDTH = 64, 256
"""The shape of the arrays of layers."""


class Drawn:
    """Operators that are added one after the other."""

    def __init__(self, region: str = "") -> None:
        self.operators: list[Operator] = []
        self.region = region
        self.number: dict[str, int] = {}

    def add(
        self,
        kind: Kind,
        name: str,
        *reads: str,
        size: int = ROWS * WIDTH * 4,
        seen: dict[str, int] | None = None,
        form: str = "",
        **more: object,
    ) -> str:
        """Adds an operator that reads some arrays, and gives its name; inputs are what is unknown.

        `seen` has the bytes that it reads of an array, if these are not the array's own.
        """
        own = tuple(Read(a, (seen or {}).get(a, self.bytes_of(a, size))) for a in reads)
        operands = tuple(self.number[a] for a in reads if a in self.number)
        text = form or f"{kind.value} {size}"
        made = Operator(name, kind, operands, own, size, form=text, region=self.region)
        self.number[name] = len(self.operators)
        self.operators.append(replace(made, **more))  # type: ignore[arg-type]
        return name

    def bytes_of(self, array: str, usual: int) -> int:
        return self.operators[self.number[array]].bytes if array in self.number else usual

    def pointwise(self, name: str, *reads: str, **more: object) -> str:
        return self.add(Kind.POINTWISE, name, *reads, **more)  # type: ignore[arg-type]

    def reduction(self, name: str, *reads: str, size: int = ROWS * 4, **more: object) -> str:
        return self.add(Kind.REDUCTION, name, *reads, size=size, **more)  # type: ignore[arg-type]

    def misc(self, name: str, *reads: str, **more: object) -> str:
        return self.add(Kind.MISC, name, *reads, **more)  # type: ignore[arg-type]

    def product(
        self, name: str, *reads: str, rows: int = ROWS, width: int = WIDTH, **more: object
    ) -> str:
        """A product of the first array with others, which are weights if they are inputs."""
        made = {
            "size": rows * width * 4,
            "flops": 2.0 * rows * width * WIDTH,
            "rows": rows,
            "width": width,
            "has_weight": any(a not in self.number for a in reads[1:]),
            "factors": frozenset(reads),
        }
        return self.add(Kind.CONTRACTION, name, *reads, **(made | more))  # type: ignore[arg-type]

    def norm(self, name: str, x: str) -> str:
        """RMSNorm written out: five operators."""
        square = self.pointwise(f"{name}.square", x)
        mean = self.reduction(f"{name}.mean", square)
        root = self.pointwise(f"{name}.root", mean, size=ROWS * 4)
        scaled = self.pointwise(f"{name}.scaled", x, root)
        return self.pointwise(f"{name}.weighted", scaled, f"{name}.weight", seen={})


def layer(drawn: Drawn, name: str, x: str, width: int = WIDTH) -> str:
    """A layer of a transformer: attention without positions, and a gated layer."""
    drawn.region = name
    h = drawn.norm(f"{name}.n1", x)
    q, k, v = (drawn.product(f"{name}.{p}", h, f"{name}.w{p}") for p in "qkv")
    scores = drawn.product(f"{name}.scores", q, k, width=ROWS)
    weights = softmax(drawn, f"{name}.softmax", scores)
    mixed = drawn.product(f"{name}.mixed", weights, v)
    out = drawn.product(f"{name}.o", mixed, f"{name}.wo")
    x = drawn.pointwise(f"{name}.sum1", x, out)
    h = drawn.norm(f"{name}.n2", x)
    gate = drawn.product(f"{name}.gate", h, f"{name}.wgate", width=2 * width)
    up = drawn.product(f"{name}.up", h, f"{name}.wup", width=2 * width)
    wide = 2 * ROWS * width * 4
    silu = drawn.pointwise(f"{name}.silu", gate, size=wide)
    gated = drawn.pointwise(f"{name}.gated", silu, up, size=wide)
    down = drawn.product(f"{name}.down", gated, f"{name}.wdown")
    return drawn.pointwise(f"{name}.sum2", x, down)


def softmax(drawn: Drawn, name: str, x: str) -> str:
    size = ROWS * ROWS * 4
    top = drawn.reduction(f"{name}.top", x)
    power = drawn.pointwise(f"{name}.power", x, top, size=size)
    total = drawn.reduction(f"{name}.total", power)
    return drawn.pointwise(f"{name}.divided", power, total, size=size)


def llama(layers: int) -> Drawn:
    """A Llama: words, layers, and a norm with a head."""
    drawn = Drawn()
    x = drawn.misc("words", "ids")
    for number in range(layers):
        x = layer(drawn, f"layers.{number}", x)
    drawn.region = ""
    drawn.product("head", drawn.norm("norm", x), "whead", is_output=True)
    return drawn


KINDS = (Kind.POINTWISE,) * 5 + (Kind.REDUCTION,) * 2 + (Kind.CONTRACTION,) * 2 + (Kind.MISC,)


def random_operators(rng: random.Random, most: int = 24) -> list[Operator]:
    """Operators of all kinds, some stored and some results, of a few sizes."""
    drawn, count = Drawn(), rng.randint(1, most)
    near = rng.choice([2, 4, count])
    for i in range(count):
        known = [f"op{v}" for v in range(max(0, i - near), i)]
        reads = rng.sample(known, min(len(known), rng.choice([1, 1, 2, 2, 3])))
        reads += ["x"] if not reads or rng.random() < 0.1 else []
        flags = {"is_output": rng.random() < 0.08, "is_stored": rng.random() < 0.08}
        size = rng.choice([64, 1 << 10, 1 << 14, 1 << 14])
        kind = rng.choice(KINDS)
        if kind is Kind.CONTRACTION:
            drawn.product(f"op{i}", *reads, "w", width=rng.choice([16, 256]), **flags)
        else:
            drawn.add(kind, f"op{i}", *reads, size=size, **flags)  # type: ignore[arg-type]
    return drawn.operators


def random_composites(rng: random.Random, count: int) -> list[frozenset[int]]:
    """A few sets of operators that follow one another."""
    found = []
    for _ in range(rng.randint(0, 2)):
        first = rng.randrange(count)
        found.append(frozenset(range(first, min(count, first + rng.randint(1, 6)))))
    return found


def names_of(operators: Sequence[Operator], own: Sequence[int]) -> set[str]:
    return {operators[i].name for i in own}
