"""The groupings of benchmarks/traffic_groups.py, by hand, and the table of traffic.py."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS, WIDTH = 48, 32
ARRAY, WEIGHT, COLUMN = ROWS * WIDTH * 4, WIDTH * WIDTH * 4, ROWS * 4


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("traffic_groups")


def greedy(groups: ModuleType, model: Callable[..., Any], **inputs: Tensor) -> list[list[str]]:
    """The names of the operators that greedy fusion puts together."""
    (graph,) = groups.captured(model, inputs, writes_out=False)
    analysis = graph.analysis()
    found = groups.greedy_groups(analysis, groups.all_operators(analysis))
    return [[node.name for node in group] for group in found]


def sizes(groups: ModuleType, model: Callable[..., Any], **inputs: Tensor) -> dict[str, int]:
    found: dict[str, int] = groups.counted_model(model, inputs, ("kernels",)).bytes
    return found


def arrays(*names: str) -> dict[str, Tensor]:
    return {name: torch.randn(ROWS, WIDTH) for name in names}


def test_chains_of_pointwise_operators_are_one_group(groups: ModuleType) -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x * 2 + y).relu()

    assert len(greedy(groups, model, **arrays("x", "y"))) == 1
    found = sizes(groups, model, **arrays("x", "y"))
    assert found["unfused"] == (2 + 3 + 2 + 2) * ARRAY
    assert found["greedy"] == found["kernels"] == found["bound"] == 3 * ARRAY


def test_a_reduction_ends_its_group(groups: ModuleType) -> None:
    """The squares go with the mean that alone reads them; what follows reads the array again."""

    def model(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    assert greedy(groups, model, **arrays("x")) == [["pow_1", "mean"], ["add", "rsqrt", "mul"]]
    found = sizes(groups, model, **arrays("x"))
    assert found["unfused"] == 2 * ARRAY + (ARRAY + COLUMN) + 4 * COLUMN + (2 * ARRAY + COLUMN)
    assert found["greedy"] == (ARRAY + COLUMN) + (COLUMN + 2 * ARRAY)
    assert found["kernels"] == found["bound"] == 2 * ARRAY


def test_products_stand_alone(groups: ModuleType) -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(torch.relu(x) @ w)

    given = arrays("x") | {"w": torch.randn(WIDTH, WIDTH)}
    assert greedy(groups, model, **given) == [["relu"], ["mm"], ["relu_1"]]
    found = sizes(groups, model, **given)
    assert found["greedy"] == found["unfused"] == 6 * ARRAY + WEIGHT
    assert found["kernels"] == found["bound"] == 2 * ARRAY + WEIGHT


def test_an_array_with_two_readers_is_stored(groups: ModuleType) -> None:
    """The reader with no other operand joins nevertheless, and does not read it again."""

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.tanh(x)
        return a * 2, a + torch.sin(y)

    found = greedy(groups, model, **arrays("x", "y"))
    assert found == [["tanh", "mul"], ["sin", "add"]]


def test_groups_do_not_wait_for_each_other(groups: ModuleType) -> None:
    """The sum would join the group of `exp`, which a product reads that the sum waits for."""

    def model(x: Tensor, w: Tensor) -> Tensor:
        a = torch.tanh(x)
        return torch.exp(a) + a @ w

    given = arrays("x") | {"w": torch.randn(WIDTH, WIDTH)}
    found = greedy(groups, model, **given)
    assert found == [["tanh", "exp"], ["mm"], ["add"]]


def test_positions_are_computed_by_their_readers(groups: ModuleType) -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(WIDTH)
        return x * at, x.sum(0) + at

    found = sizes(groups, model, **arrays("x"))
    assert found["greedy"] == 2 * ARRAY + (ARRAY + WIDTH * 4) + 2 * WIDTH * 4


def test_attention_that_is_called_is_one_operator(groups: ModuleType) -> None:
    """Both groupings see the operator; our plan sees what it stands for, and stores no scores."""

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    given = {name: torch.randn(2, 4, 24, 16) for name in ("q", "k", "v")}
    found = sizes(groups, model, **given)
    array = 2 * 4 * 24 * 16 * 4
    assert found["unfused"] == found["greedy"] == found["bound"] == 4 * array
    assert found["kernels"] == 4 * array


def test_the_table_shows_mebibytes_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    traffic = importlib.import_module("traffic")
    one = {"unfused": 8 << 20, "greedy": 4 << 20, "kernels": 2 << 20, "bound": 1 << 20}
    other = {"unfused": 2 << 20, "greedy": 1 << 20, "bound": 1 << 19}
    rows = [{"name": "one", "bytes": one}, {"name": "other", "bytes": other}]
    lines = traffic.table({"rows": rows}).splitlines()
    assert lines[2] == "| one | 8.00 | 4.00 | 2.00 | – | 1.00 | 4.00 | 2.00 | 2.00 |"
    assert lines[3] == "| other | 2.00 | 1.00 | – | – | 0.50 | – | – | – |"
    assert lines[4] == "| geometric mean | | | | | | 4.00 | 2.00 | 2.00 |"
