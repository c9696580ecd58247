"""Random NumPy functions of arrays with equally long axes: only values show swapped axes."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockbuster_fusion as bb

Check = Callable[..., bb.ArrayProgram]

LENGTH = 3


class RandomFunction:
    """A function of arrays that does the same every time it is called; it uses only NumPy."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        choose = random.Random(f"arguments {seed}")
        self.ranks = [choose.randint(0, 3) for _ in range(choose.randint(1, 3))]
        self.units = [[choose.random() < 0.2 for _ in range(rank)] for rank in self.ranks]

    def specs(self) -> list[Any]:
        """Plain extents, names, or both."""
        choose = random.Random(f"specs {self.seed}")
        named = choose.choice([0.0, 0.5, 1.0])
        made = []
        for units in self.units:
            free = choose.sample("PQRS", len(units))
            extents = [1 if unit else LENGTH for unit in units]
            made.append(
                tuple(
                    f"{name}{extent}:{extent}" if choose.random() < named else extent
                    for name, extent in zip(free, extents, strict=True)
                )
            )
        return made

    def __call__(self, *arrays: Any) -> Any:
        choose = random.Random(f"steps {self.seed}")
        values = list(arrays)
        for _ in range(choose.randint(2, 6)):
            made = self.step(choose, values)
            if made is not None and made.ndim <= 4:
                values.append(np.tanh(made))
        kept = [v for v in values[len(arrays) :] if choose.random() < 0.5]
        return (*kept, values[-1] * 2.0)

    def step(self, choose: random.Random, values: list[Any]) -> Any:
        x, y, z = (choose.choice(values) for _ in range(3))
        match choose.randint(0, 9):
            case 0 | 1:
                return x + y
            case 2:
                return np.where(x > 0, y, z)
            case 3:
                return np.transpose(x, choose.sample(range(x.ndim), x.ndim))
            case 4 if x.ndim:
                return x.sum(choose.randrange(x.ndim), keepdims=choose.random() < 0.5)
            case 5 if x.ndim < 3:
                return np.expand_dims(x, choose.randint(-1, x.ndim)) * y
            case 6 | 7 if x.ndim and y.ndim and x.shape[-1] == y.shape[max(y.ndim - 2, 0)]:
                return x @ y
            case 8:
                return x - np.transpose(y)
            case 9 if x.ndim:
                return x / (1 + (x * x).sum(-1, keepdims=True))
        return None


@pytest.mark.parametrize("seed", range(250))
def test_random_functions(check: Check, seed: int) -> None:
    function = RandomFunction(seed)
    check(function, *function.specs())
