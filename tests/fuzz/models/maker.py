"""A random model in the making: each line is run eagerly as it is added, for every length."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fuzz.models.program import Given, Kind, Line, Program, Role, execute
from fuzz.models.values import LAYOUTS

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32)
SIZES = (0, 1, 1, 2, 3, 4, 5, 8, 17)
NUMBERS = (0, 1, -1, 2, 3, 0.5, -0.5, 1.5, -2.0, 0.0, 1e-3, 100.0, 4)
MOST_ELEMENTS = 4096
LENGTHS = (7, 3, 12)
"""Lengths that a model is called with where one varies; the lines are written for the first."""


class NoOperand(Exception):
    """There is no value that an operator could take."""


FAILURES = (
    *(RuntimeError, IndexError, TypeError, ValueError, NameError, ZeroDivisionError),
    *(AttributeError, NotImplementedError, NoOperand),
)
"""The ways in which PyTorch refuses a line."""


class Maker:
    """A model in the making."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        r = self.random
        self.given: list[Given] = []
        self.lines: list[Line] = []
        self.lengths = LENGTHS if r.random() < 0.2 else ()
        self.states: list[dict[str, Any]] = [{} for _ in self.lengths or (0,)]
        """The values of each name, for each length."""
        self.unread: dict[str, None] = {}
        self.count = 0
        self.odd = r.random() < 0.1
        self.floats = r.choice(FLOATS) if r.random() < 0.5 else torch.float32
        self.mixes = r.random() < 0.3
        """True if its floats are of several dtypes."""

    # ---------------------------------------------------------------- given tensors

    def add_given(
        self,
        shape: Sequence[int | str],
        dtype: torch.dtype,
        *,
        role: Role | None = None,
        most: int = 4,
        plain: bool = False,
        odd: bool = True,
    ) -> str:
        """The name of a new input, parameter or buffer; without `odd`, of finite numbers."""
        r, name = self.random, f"g{len(self.given)}"
        role = role or r.choices([*Role], (0.7, 0.2, 0.1))[0]
        if "n" in shape or not self.given:
            role = Role.INPUT
        layout = "plain" if role is not Role.INPUT or plain else _layout(r, shape)
        large = r.random() < 0.05 and not plain
        offset, scale = (r.choice((30.0, 1000.0, -5.0)), 1.0) if large else (0.0, 1.0)
        made = Given(
            name,
            role,
            r.randrange(1000),
            tuple(shape),
            dtype,
            layout,
            odd=odd and self.odd and r.random() < 0.5,
            most=most,
            scale=r.choice((scale, scale, scale, 10.0, 1e-3)),
            offset=offset,
        )
        self.given.append(made)
        for n, state in zip(self.lengths or (0,), self.states, strict=True):
            state[name] = made.make(n)
        self.unread[name] = None
        return name

    def shape(self, rank: int | None = None) -> tuple[int | str, ...]:
        """A random shape."""
        r = self.random
        rank = r.choices(range(5), (1, 3, 5, 4, 2))[0] if rank is None else rank
        sizes: list[int | str] = [r.choice(SIZES) for _ in range(rank)]
        if self.lengths and sizes and r.random() < 0.7:
            sizes[r.randrange(rank)] = "n"
        count = 1
        for at, size in enumerate(sizes):
            number = LENGTHS[-1] if isinstance(size, str) else size
            if count * number > MOST_ELEMENTS // 4:
                sizes[at] = 1
            else:
                count *= number
        return tuple(sizes)

    def dtype(self) -> torch.dtype:
        r = self.random
        if self.mixes and r.random() < 0.4:
            return r.choice((*FLOATS, *WHOLE, torch.bool))
        return self.floats

    # ---------------------------------------------------------------- operands

    @property
    def now(self) -> dict[str, Any]:
        """The values for the first length."""
        return self.states[0]

    def find(self, *wanted: Callable[[Tensor], bool]) -> str | None:
        """The name of a value that has all properties; those that nobody has read come first."""
        names = [
            name
            for name, x in self.now.items()
            if isinstance(x, Tensor) and all(is_so(x) for is_so in wanted)
        ]
        if not names:
            return None
        weights = [4 if name in self.unread else 1 for name in names]
        return self.random.choices(names, weights)[0]

    def pick(self, *wanted: Callable[[Tensor], bool]) -> str:
        """As `find`, or NoOperand."""
        found = self.find(*wanted)
        if found is None:
            raise NoOperand
        return found

    def floating(self, *wanted: Callable[[Tensor], bool]) -> str:
        """A value of floats."""
        return self.pick(Tensor.is_floating_point, *wanted)

    def sizes(self, name: str) -> list[int | str]:
        """The sizes of a value as a shape: numbers, and "n" where that is the length."""
        made: list[int | str] = []
        for at, size in enumerate(self.now[name].shape):
            found = [state[name].shape[at] for state in self.states]
            if all(f == size for f in found):
                made.append(int(size))
            elif found == [*self.lengths]:
                made.append("n")
            else:
                raise NoOperand
        return made

    def extent(self, name: str, at: int) -> str:
        """The text of a size of a value."""
        size = self.now[name].shape[at]
        same = all(state[name].shape[at] == size for state in self.states)
        return str(int(size)) if same else f"{name}.shape[{at}]"

    def beside(self, name: str, dtype: torch.dtype | None = None) -> str:
        """A value that goes with another in one operator: of the same or a narrower shape."""
        r, x = self.random, self.now[name]

        def fits(y: Tensor) -> bool:
            try:
                torch.broadcast_shapes(x.shape, y.shape)
            except RuntimeError:
                return False
            return dtype is None or y.dtype is dtype

        found = self.find(fits) if r.random() < 0.7 else None
        if found is not None and self.agree(name, found):
            return found
        sizes = self.sizes(name)[r.randrange(x.dim() + 1) :]
        sizes = [1 if r.random() < 0.25 else s for s in sizes]
        return self.add_given(sizes, dtype or (x.dtype if r.random() < 0.8 else self.dtype()))

    def agree(self, one: str, other: str) -> bool:
        """True if two values are broadcast together, for every length."""
        for state in self.states:
            try:
                torch.broadcast_shapes(state[one].shape, state[other].shape)
            except RuntimeError:
                return False
        return True

    def dim(self, name: str) -> int:
        """A dimension of a value, counted from either end."""
        rank = self.now[name].dim()
        if not rank:
            raise NoOperand
        return self.random.randrange(-rank, rank)

    def dims(self, name: str) -> list[int]:
        rank = self.now[name].dim()
        if not rank:
            raise NoOperand
        return sorted(self.random.sample(range(rank), self.random.randint(1, rank)))

    def number(self) -> int | float:
        return self.random.choice(NUMBERS)

    # ---------------------------------------------------------------- lines

    def add(self, text: str, row: str, kind: Kind | None = None, several: int = 0) -> None:
        """A line that makes a new value of an expression, or several; NoOperand where it fails.

        With Kind.WRITE the text is a statement as it is.
        """
        if kind is Kind.WRITE:
            makes: tuple[str, ...] = ()
        else:
            makes = tuple(f"v{self.count + i}" for i in range(several or 1))
            text = f"{', '.join(makes)}{',' if several == 1 else ''} = {text}"
        line = Line(text, makes, kind or Kind.COMPUTE, row)
        if not self.try_line(line):
            raise NoOperand
        self.lines.append(line)
        self.count += len(makes)
        for name in line.reads:
            self.unread.pop(name, None)
        self.unread |= dict.fromkeys(makes)

    def try_line(self, line: Line) -> bool:
        """True if PyTorch runs a line for every length; if not, nothing has changed."""
        before = [dict(state) for state in self.states]
        saved = None
        if line.kind is Kind.WRITE:
            saved = [{k: _saved(x) for k, x in state.items()} for state in self.states]
        try:
            for state in self.states:
                execute(line, state)
                for name in line.makes:
                    if not _is_usable(state[name]):
                        raise NoOperand
        except FAILURES:
            self.states = before
            for state, kept in zip(self.states, saved or [], strict=False):
                for name, x in kept.items():
                    _restore(state[name], x)
            return False
        return True

    def program(self) -> Program:
        """The program so far, with some of its values as results."""
        r = self.random
        tensors = [name for name, x in self.now.items() if isinstance(x, Tensor)]
        computed = [name for name in tensors if name.startswith("v")]
        last = [name for name in self.unread if name in computed] or computed or tensors
        results = last[-4:] if r.random() < 0.7 else [last[-1]]
        if r.random() < 0.3:
            results.append(r.choice(computed or tensors))
        if r.random() < 0.08:
            results.append(r.choice(tensors))
        made = Program(tuple(self.given), tuple(self.lines), tuple(results), self.lengths)
        return made.needed()


def runs(program: Program) -> bool:
    """True if PyTorch runs a program for all of its lengths."""
    for n in program.calls:
        values: dict[str, Any] = {g.name: g.make(n) for g in program.given}
        try:
            for line in program.lines:
                execute(line, values)
        except FAILURES:
            return False
        if not all(isinstance(values.get(name), Tensor) for name in program.results):
            return False
    return True


def _layout(r: random.Random, shape: Sequence[int | str]) -> str:
    return r.choice(LAYOUTS) if shape and r.random() < 0.35 else "plain"


def _is_usable(x: object) -> bool:
    return isinstance(x, Tensor) and x.numel() <= MOST_ELEMENTS and not x.is_complex()


def _saved(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def _restore(x: Any, saved: Any) -> None:
    if isinstance(x, Tensor) and 0 not in x.stride():
        x.copy_(saved)
