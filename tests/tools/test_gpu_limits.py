"""The cases of benchmarks/gpu_limits.py, and its tables: all that needs no GPU."""

import dataclasses
import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_limits")


def test_cases_compute_what_their_names_say(limits: ModuleType) -> None:
    """Names are unique and end with sizes, which those of the inputs and the products fit."""
    names = [case.name for case in limits.CASES]
    assert len({*names}) == len(names)
    for case in limits.CASES:
        sizes = [int(x) for x in case.name.split()[-1].split("x")]
        given = [torch.empty(shape, device="meta") for shape in case.shapes]
        if case.classes:
            given[-1] = given[-1].long()
        result = case.function(*given)
        assert result.device.type == "meta"
        assert case.bytes >= 2 * sum(x.numel() for x in (*given, result))
        if case.plain is not None:
            assert case.limit == "plain product"
            assert case.flops == 2 * math.prod(sizes)
            assert case.plain(*given).shape == result.shape
        elif "product" in case.name or case.name.startswith("linear"):
            assert case.limit == "cuBLAS"
            assert case.flops == 2 * math.prod(sizes)
            assert [*result.shape] == [*sizes[:-2], sizes[-1]]
        elif case.flops:
            assert case.limit == "PyTorch"
            assert case.shapes[0][0] == sizes[0]
        else:
            assert math.prod(case.shapes[0]) == math.prod(sizes)
            assert (case.limit == "memory") == (case.bytes >= 64e6)


def test_inputs_rotate(limits: ModuleType) -> None:
    case = limits.GpuCase("cross entropy 8x5", torch.nn.functional.cross_entropy, ((8, 5), (8,)))
    case = limits.GpuCase(case.name, case.function, case.shapes, classes=5)
    (x, places), (other, _) = case.sets(2, "cpu")
    assert x.dtype is torch.bfloat16
    assert int(places.max()) < 5
    assert not torch.equal(x, other)


def result(**more: Any) -> dict[str, Any]:
    head = {"case": "sum of rows 2x3", "of": "memory", "goal": 0.9, "tuned": 0.0}
    ran = {"kernels": 1, "operators": 0, "configs": ["tiles"], "error": 1.0, "allowed": 0.5}
    return {**head, **ran, "is_wrong": False, **more}


def test_wrong_results_have_no_times(limits: ModuleType) -> None:
    assert "WRONG" in limits.told(result(is_wrong=True))
    assert "FAILED, no kernel" in limits.told({**result(), "failed": "no kernel"})
    cells = limits.table([result(is_wrong=True), result(failed="no kernel")]).splitlines()[2:]
    assert [row.split(" | ")[3] for row in cells] == ["wrong", "failed"]


def test_shares_are_of_the_limit(limits: ModuleType) -> None:
    case = limits.GpuCase("sum of rows 16384x8192", lambda x: x.sum(-1), ((16384, 8192),))
    spent = {"ours": 80.0, "eager": 160.0, "Inductor": 60.0}
    found = limits.rates(case, spent)
    assert found["share"] == pytest.approx(case.bytes / 4.35e12 / 80e-6)
    row = limits.table([result(**found, microseconds=spent)]).splitlines()[-1]
    assert row.endswith("| 0.77 | memory | 0.90 | 2.00 | 0.75 |")
    alone = dataclasses.replace(case, plain=lambda x: x.sum(-1))
    assert limits.rates(alone, spent | {"plain product": 72.0})["share"] == pytest.approx(0.9)
    small = limits.GpuCase("sum of rows 2x3", lambda x: x.sum(-1), ((2, 3),))
    assert limits.rates(small, spent)["share"] == pytest.approx(60 / 80)
