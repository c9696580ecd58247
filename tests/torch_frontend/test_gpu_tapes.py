"""Tapes of a GPU whose sizes change, on a stand-in that runs kernels in Triton's interpreter."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "helpers" / "gpu_tape_cases.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux alone")

PLAIN = (
    *("softmax", "product", "scored", "broadcast", "turned", "caches", "mutated", "inference"),
    "projections",
)
FIXED = ("projections", "scored", "broadcast", "turned", "caches", "mutated")
"""Cases whose sizes are the same in all calls."""
LIBRARY = (
    *("library_steps", "library_steps_of_any_size"),
    *("operators_by_name", "operators_by_name_of_any_size"),
    *("allocated", "windows", "attention_by_pytorch", "other_strides", "failing", "conjugated"),
    "gathered",
)
"""Models of which PyTorch runs the products, or other operators."""
ODD_OR_MANY = ("cut", "strides", "aligned", "odd_addresses", "fixed_odd_addresses", "threads")
"""Cases with arrays at odd addresses, with many strides, or with several threads."""


def outputs() -> dict[str, Any]:
    """The launches of all cases, which check their own results; in one process."""
    done = _run()
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@functools.cache
def _run() -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    cases = (*PLAIN, *ODD_OR_MANY, *LIBRARY, *(f"fixed_{name}" for name in FIXED))
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *cases]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("case", [*PLAIN, *ODD_OR_MANY, *LIBRARY])
def test_one_tape_serves_all_sizes(case: str) -> None:
    found = outputs()[case]
    assert set(found["tapes"]) == {"TensorTape"}, found["reasons"]
    assert found["problems"] == []
    assert found["driver"] + found["met"] > 0


@pytest.mark.parametrize("case", PLAIN)
def test_few_launches_are_by_triton(case: str) -> None:
    """A kernel has a form for full blocks and one for others; all other launches are C's."""
    found = outputs()[case]
    assert found["met"] <= found["driver"] / 2


@pytest.mark.parametrize("case", ["projections", "fixed_projections"])
def test_projections_of_one_array_are_one_launch(case: str) -> None:
    assert set(outputs()[case]["together"]) == {3}


def test_full_blocks_have_a_form_that_is_met_once() -> None:
    found = outputs()["aligned"]
    assert 2 <= found["met"] <= found["driver"] / 3


@pytest.mark.parametrize("case", FIXED)
def test_kernels_of_fixed_sizes_have_one_form(case: str) -> None:
    """Only the first of five calls is launched by Triton."""
    found = outputs()[f"fixed_{case}"]
    assert set(found["tapes"]) == {"TensorTape"}, found["reasons"]
    assert found["problems"] == []
    assert found["driver"] == 4 * found["met"] > 0


@pytest.mark.parametrize("case", FIXED)
def test_kernels_of_a_tape_are_compiled_at_the_same_time(case: str) -> None:
    """They were compiled one after the other, where strides were not those of a trial."""
    found = outputs()[f"fixed_{case}"]
    assert sum(map(len, found["ahead"])) == found["met"]


def test_odd_addresses_have_forms_of_their_own() -> None:
    """Blocks are full or not, and the input is at an odd address or not."""
    found = outputs()["odd_addresses"]
    assert 2 <= found["met"] <= found["driver"] / 2
    found = outputs()["fixed_odd_addresses"]
    assert found["driver"] == 3 * found["met"] > 0  # two of eight calls are launched by Triton


def test_c_reads_no_conjugated_inputs() -> None:
    """An operator that C called took the numbers in memory for those of the input."""
    found = outputs()["conjugated"]
    assert found["problems"] == []
    assert found["driver"] > 0
