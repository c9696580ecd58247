"""The counters that benchmarks/gpu_traffic.py reads, and its comparison: all that needs no GPU."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TABLE = """\
==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","norm","Command line profiler metrics","dram__bytes_read.sum","byte","1,024"
"0","7","norm","Command line profiler metrics","dram__bytes_write.sum","byte","512"
"1","7","norm","Command line profiler metrics","dram__bytes_read.sum","byte","2048"
"1","7","norm","Command line profiler metrics","dram__bytes_write.sum","byte","0"
"""


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_traffic")


def test_counters_by_launch(traffic: ModuleType) -> None:
    read, written = traffic.METRICS
    expected = [{read: 1024.0, written: 512.0}, {read: 2048.0, written: 0.0}]
    assert traffic.by_launch(TABLE) == expected
    events = [{"ts": 2, "args": expected[1]}, {"ts": 1, "args": expected[0]}, {"name": "other"}]
    assert traffic.in_trace({"traceEvents": events}) == expected


def test_first_launches_do_not_count(traffic: ModuleType) -> None:
    read, written = traffic.METRICS
    cold = [{read: 1e9, written: 0.0}] * traffic.FIRST
    warm = [{read: 8e6, written: 3e6}] * (traffic.LAUNCHES - traffic.FIRST)
    row = {"name": "norm", "predicted": 10_000_000, "touched": 9_000_000, "moved": 12_000_000}
    row |= {"launches": 1}
    (line,) = traffic.compared([row], [*cold, *warm])
    assert "+10.0%, within 15%" in line
    (line,) = traffic.compared([row], warm)
    assert "not comparable" in line


def test_cases_are_larger_than_a_cache(traffic: ModuleType) -> None:
    """All sets of inputs and results together are several times 60 MB."""
    for case in traffic.CASES:
        given = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in case.shapes]
        size = sum(x.nbytes for x in (*given, case.function(*given)))
        assert traffic.SETS * size > 250e6
