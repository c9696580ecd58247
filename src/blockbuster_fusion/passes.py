"""Named passes of the compiler, and observers that see the program after each of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")

Observer = Callable[[str, object], None]
"""Gets the name of each pass, and the program after it."""


@dataclass(frozen=True, slots=True)
class Pass(Generic[A, B]):
    """A step of the compiler: a function from a program to the next form of it."""

    name: str
    doc: str
    """One sentence on what it does."""
    run: Callable[[A], B]

    def observed(self, program: A, observe: Observer | None = None) -> B:
        """Runs the pass and tells the observer."""
        made = self.run(program)
        if observe is not None:
            observe(self.name, made)
        return made


def run_passes(passes: Iterable[Pass[A, A]], program: A, observe: Observer | None = None) -> A:
    """Runs passes in order."""
    for each in passes:
        program = each.observed(program, observe)
    return program
