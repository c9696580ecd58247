"""What the safety pass decided, and why: data beside the program that it made."""

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
    """Who shares the exponent or pivot: "element", "row", "block"; nothing for a native one."""
    axis: str
    reason: str

    def __str__(self) -> str:
        where = "/".join(f"%{i}" for i in (*self.path, self.node))
        what = f"{self.kind} per {self.shared} along {self.axis}" if self.shared else self.kind
        return f"{where}: {what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Safe:
    """A program made numerically safe, with what was decided on the way."""

    graph: Graph
    choices: tuple[Choice, ...]
