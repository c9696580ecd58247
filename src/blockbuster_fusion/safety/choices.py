"""The decisions of the safety pass with their reasons, and the precision class of its result."""

from dataclasses import dataclass

from blockbuster_fusion.ir.graph import Graph, Path


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision of the pass, at a node of the program that it was given."""

    path: Path
    node: int
    kind: str
    """"exponent", "pivot" or "native"."""
    shared: str
    """The scope of the exponent or pivot: "element", "row" or "block"; empty for a native one."""
    axis: str
    reason: str

    def __str__(self) -> str:
        where = "/".join(f"%{i}" for i in (*self.path, self.node))
        what = f"{self.kind} per {self.shared} along {self.axis}" if self.shared else self.kind
        return f"{where}: {what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Loss:
    """A value of the program that was given whose sums lose digits, and why nothing is done."""

    path: Path
    node: int
    axis: str
    reason: str

    def __str__(self) -> str:
        where = "/".join(f"%{i}" for i in (*self.path, self.node))
        return f"{where}: loses digits along {self.axis}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision class of a program, by a static argument: careful, or what loses digits.

    A careful program is as exact as the unfused one up to a small factor. Digits are lost where
    sums that nearly cancel are subtracted, and no pivot takes away what they have in common.
    """

    losses: tuple[Loss, ...] = ()

    @property
    def careful(self) -> bool:
        return not self.losses

    def __str__(self) -> str:
        return "careful" if self.careful else "; ".join(map(str, self.losses))


@dataclass(frozen=True, slots=True)
class Safe:
    """A program made numerically safe, with what was decided on the way."""

    graph: Graph
    choices: tuple[Choice, ...]
    precision: Precision = Precision()
    source: Graph | None = None
    """The fused program before storage and safety, where it came out of a fusion."""
