"""The decisions of the safety pass with their reasons, and the precision class of its result."""

from dataclasses import dataclass

from blockbuster_fusion.ir.graph import Graph, Path


@dataclass(frozen=True, slots=True)
class SafetyChoice:
    """One decision of the pass, at a node of the given program."""

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
    """A value of the given program whose sums lose digits, with the reason."""

    path: Path
    node: int
    axis: str
    reason: str

    def __str__(self) -> str:
        where = "/".join(f"%{i}" for i in (*self.path, self.node))
        return f"{where}: loses digits along {self.axis}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision class of a program, by static analysis: careful, or the losses.

    A careful program is as exact as the unfused one up to a small factor. Digits are lost if
    sums that nearly cancel are subtracted and no pivot removes their common part.
    """

    losses: tuple[Loss, ...] = ()

    @property
    def careful(self) -> bool:
        return not self.losses

    def __str__(self) -> str:
        return "careful" if self.careful else "; ".join(map(str, self.losses))


@dataclass(frozen=True, slots=True)
class Safe:
    """A program made numerically safe, with the decisions of the pass."""

    graph: Graph
    choices: tuple[SafetyChoice, ...]
    precision: Precision = Precision()
    source: Graph | None = None
    """The fused program before storage and safety, where it came out of a fusion."""
